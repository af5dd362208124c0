// Human-readable names, which show the stream and the time, beside the names that assign files to streams.

internal import EventLoops
internal import Glibc
internal import Recordings
internal import StreamServing

/// How the links to recordings are called that carry the time of the recording.
///
/// A recording's own name never changes, because uploads find it by that. A link in a directory beside it shows when it
/// began.
public struct RecordingNames: Equatable, Sendable {
  /// `kitchen/2026-11-21T22-00-00Z.wav`
  public static let standardPattern = "{name}/%Y-%m-%dT%H-%M-%SZ"
  /// The characters that a pattern may have after a percent sign: the conversions of strftime(3) that any file name can
  /// contain.
  private static let conversions: Set<Character> = ["Y", "y", "m", "d", "j", "H", "M", "S", "%"]
  private static let placeholders = ["{name}", "{stream}", "{part}"]
  /// The maximum length in bytes. Longer names are cut.
  private static let longestComponent = 200

  /// The path of a link, with placeholders; see ``init(pattern:includesWhole:)``.
  public let pattern: String
  /// Whether all live recordings get such a link, and not only those of streams that are split.
  public var includesWhole = false

  /// Creates the pattern of the names of links.
  ///
  /// - Parameters:
  ///   - pattern: a path of at least one directory and a name without extension. `{name}` is the last component of the
  ///     URL, `{stream}` the `Stream-ID`, `{part}` the number of the recording in its stream; `%Y`, `%m`, `%d`, `%H`,
  ///     `%M`, `%S`, `%j` and `%y` are of its start in UTC.
  ///   - includesWhole: whether all live recordings get such a link, and not only those of streams that are split.
  /// - Returns: nil if it is not such a path.
  public init?(pattern: String, includesWhole: Bool = false) {
    let components = pattern.split(separator: "/", omittingEmptySubsequences: false)
    guard components.count > 1, components.count < 10, pattern.utf8.count <= 1000,
      pattern.utf8.allSatisfy({ $0 > 0x20 && $0 < 0x7F }),
      components.allSatisfy({ !$0.isEmpty && $0.first != "." && $0.first != "-" }), Self.isValid(pattern)
    else { return nil }
    (self.pattern, self.includesWhole) = (pattern, includesWhole)
  }

  private static func isValid(_ pattern: String) -> Bool {
    var rest = pattern[...]
    while let next = rest.popFirst() {
      switch next {
      case "%":
        guard let conversion = rest.popFirst(), conversions.contains(conversion) else { return false }
      case "{":
        guard let placeholder = placeholders.first(where: { ("{" + rest).hasPrefix($0) }) else { return false }
        rest = rest.dropFirst(placeholder.count - 1)
      case "}", "\\": return false
      default: break
      }
    }
    return true
  }

  /// The path of the link to a recording, relative to the directory of the recordings; nil if its start is unknown.
  func path(_ sidecar: RecordingSidecar, name: StreamName) -> String? {
    guard let began = sidecar.started.flatMap({ WallClock(iso8601: $0) }),
      let dot = sidecar.file.lastIndex(of: ".")
    else { return nil }
    let stream = sidecar.stream ?? ""
    let title = name.base.hasSuffix("-" + stream) ? String(name.base.dropLast(stream.utf8.count + 1)) : name.base
    var components = pattern.split(separator: "/").map { component in
      let text = began.formatted(String(component))
        .replacing("{name}", with: title).replacing("{stream}", with: stream.isEmpty ? name.base : stream)
        .replacing("{part}", with: String(sidecar.part))
      // All files of the store have an extension, so a directory without a dot cannot have the name of one.
      return Self.safe(text.replacing(".", with: "_"))
    }
    components[components.count - 1] += sidecar.file[dot...]
    return components.joined(separator: "/")
  }

  /// The component is neither hidden nor mistaken for an option.
  private static func safe(_ component: String) -> String {
    let text = String(component.prefix(longestComponent))
    return text.isEmpty || text.first == "-" || text.first == "." ? "_" + text : text
  }
}

extension FileStore {
  /// The maximum number of recordings of one name that begin within the same second.
  private static let mostNamesakes = 100

  /// Links a complete recording under a name that contains its time, and returns the link's path; nil if it gets none.
  func link(_ sidecar: RecordingSidecar, _ name: StreamName) -> String? {
    guard let names, sidecar.isLive, names.includesWhole || sidecar.state == .split || sidecar.part > 1,
      let path = names.path(sidecar, name: name), let dot = path.lastIndex(of: ".")
    else { return nil }
    let target = Self.target(of: path, sidecar.file)
    return withParent(of: path, creating: true) { parent in
      for number in 1...Self.mostNamesakes {
        let candidate = number == 1 ? path : "\(path[..<dot])~\(number)\(path[dot...])"
        let name = Self.lastComponent(candidate)
        if symlinkat(target, parent, name) == 0 { return candidate }
        // Reading what has the name may set another error.
        let reason = errno
        if Self.linkTarget(name, in: parent) == target { return candidate }
        guard reason == EEXIST else { return nil }
      }
      return nil
    }
  }

  /// Removes the link to a removed recording, and the directories that become empty.
  func unlink(_ sidecar: RecordingSidecar) {
    guard let path = sidecar.link else { return }
    let isGone = withParent(of: path, creating: false) { parent -> Bool? in
      let name = Self.lastComponent(path)
      return Self.linkTarget(name, in: parent) == Self.target(of: path, sidecar.file) && unlinkat(parent, name, 0) == 0
    }
    guard isGone == true else { return }
    var parent = path[...]
    while let slash = parent.lastIndex(of: "/") {
      parent = parent[..<slash]
      // Only an empty directory can be removed.
      if unlinkat(directory, String(parent), AT_REMOVEDIR) != 0 { return }
    }
  }

  /// Calls `body` with the directory that contains `path`, which is created if necessary. Each component is opened by
  /// itself: a link from an operator leads to a place where the store must not write. nil if there is no such
  /// directory.
  private func withParent<Value>(of path: String, creating: Bool, _ body: (Int32) -> Value?) -> Value? {
    var parent = fcntl(directory, F_DUPFD_CLOEXEC, 0)
    defer { if parent >= 0 { close(parent) } }
    for component in path.split(separator: "/").dropLast() where parent >= 0 {
      if creating { mkdirat(parent, String(component), 0o755) }
      let next = openat(parent, String(component), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
      close(parent)
      parent = next
    }
    return parent >= 0 ? body(parent) : nil
  }

  private static func lastComponent(_ path: String) -> String { String(path.split(separator: "/").last ?? "") }

  /// The content of a link at that path.
  private static func target(of path: String, _ file: String) -> String {
    String(repeating: "../", count: path.count { $0 == "/" }) + file
  }

  private static func linkTarget(_ name: String, in parent: Int32) -> String? {
    var buffer = [CChar](repeating: 0, count: 4096)
    let count = readlinkat(parent, name, &buffer, buffer.count)
    return count < 0 ? nil : String(decoding: buffer[..<count].map { UInt8(bitPattern: $0) }, as: UTF8.self)
  }
}
