// Finds the complete recording of a stream, whatever its extension: the requester's idea of the type decides nothing.

internal import EventLoops
internal import Glibc

/// The complete recordings of a directory. Any thread.
///
/// Most have one of a few extensions, and the file system is asked for these: it always knows what is there. The others
/// are listed once, at the start, in slices; from then on each is added when it gets its name.
final class CompleteRecordings: Sendable {
  enum Finding: Equatable {
    case found(StreamName)
    case none
    /// The list of the others is not made yet, so nobody can tell.
    case unknown

    static func == (a: Finding, b: Finding) -> Bool {
      switch (a, b) {
      case (.found(let a), .found(let b)): a.final == b.final
      case (.none, .none), (.unknown, .unknown): true
      default: false
      }
    }
  }

  /// For how long the start of a server waits for the list; it is continued in the background then.
  static let patience = Duration.milliseconds(100)
  /// How many names are read in one slice.
  private static let slice = 1_000

  private struct List {
    /// By the file's name without extension.
    var extensions: [String: String] = [:]
    var isComplete = false
  }

  private let directory: Int32
  private let uncommon = Lock(List())

  /// - Parameter directory: of the recordings; stays open for longer than this.
  init(in directory: Int32) { self.directory = directory }

  /// The complete recording of that stream.
  func find(_ name: StreamName) -> Finding {
    // The requester's extension is one more to ask for: a recording that somebody restored is found by it, too.
    for candidate in [name.finalExtension] + StreamName.commonExtensions {
      let candidate = name.withExtension(candidate)
      if isThere(candidate.final) { return .found(candidate) }
    }
    let (listed, isComplete) = uncommon.withLock { ($0.extensions[name.fileBase], $0.isComplete) }
    if let listed {
      let candidate = name.withExtension(listed)
      if isThere(candidate.final) { return .found(candidate) }
    }
    return isComplete ? .none : .unknown
  }

  private func isThere(_ file: String) -> Bool { faccessat(directory, file, F_OK, AT_SYMLINK_NOFOLLOW) == 0 }

  /// A recording has got its name.
  func add(_ name: StreamName) {
    guard !StreamName.commonExtensions.contains(name.finalExtension) else { return }
    uncommon.withLock { $0.extensions[name.fileBase] = name.finalExtension }
  }

  // MARK: The list

  /// Lists the directory: what takes longer than the patience of a start is done by the worker.
  ///
  /// - Parameter growing: told of each file of a growing stream, and the stream's name.
  func scan(on worker: BackgroundWorker, growing: @escaping @Sendable (_ file: String, _ stream: String) -> Void) {
    guard let names = DirectoryNames(of: directory) else {
      // What cannot be listed holds nothing that could be found. Opening a file there says what is wrong.
      return uncommon.withLock { $0.isComplete = true }
    }
    let end = MonotonicInstant.now + Self.patience
    while MonotonicInstant.now < end {
      if scanSlice(names, growing) { return }
    }
    scanOn(names, worker, growing)
  }

  private func scanOn(
    _ names: DirectoryNames, _ worker: BackgroundWorker, _ growing: @escaping @Sendable (String, String) -> Void
  ) {
    worker.executeSlice { [self] in
      if !scanSlice(names, growing) { scanOn(names, worker, growing) }
    }
  }

  /// Whether that was the last slice.
  private func scanSlice(_ names: DirectoryNames, _ growing: (String, String) -> Void) -> Bool {
    let slice = names.next(Self.slice)
    var found: [(base: String, finalExtension: String)] = []
    for name in slice {
      guard let (base, finalExtension) = StreamName.parts(ofFile: name[...]) else { continue }
      let text = String(finalExtension)
      if text == ".part" { growing(name, String(base)) }
      if text == ".part" || text == ".gaps" || StreamName.commonExtensions.contains(text) { continue }
      found.append((String(base), text))
    }
    uncommon.withLock { list in
      for (base, finalExtension) in found { list.extensions[base] = finalExtension }
      if slice.isEmpty { list.isComplete = true }
    }
    return slice.isEmpty
  }
}
