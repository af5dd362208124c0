// The part of a collector's checkpoint that shows which unfinished recordings will be continued.

internal import HTTPMessages

/// The streams that the next collector of a directory continues. `CollectorCheckpoint` writes the whole checkpoint.
package struct CollectedStreams: Equatable, Sendable {
  /// The checkpoint's name in the directory of the recordings.
  package static let fileName = ".collected"

  /// The `Stream-ID`s of open uploads.
  package private(set) var ids: Set<String> = []
  /// The names, without part and extension, of the recordings whose messages wait.
  package private(set) var bases: Set<String> = []

  /// Nil if the text is not a whole checkpoint.
  package init?(parsing text: String) {
    let lines = text.split(separator: "\n").map { StructuredDictionary(parsing: String($0)) }
    guard let head = lines.first, head?["collect"] != nil, let last = lines.last,
      Self.value("end", last) == .integer(Int64(lines.count - 1))
    else { return nil }
    for line in lines {
      guard let line else { return nil }
      if Self.value("upload", line) != nil, Self.value("phase", line) == .token("open"),
        case .string(let id)? = Self.value("stream", line)
      {
        ids.insert(id)
      } else if case .string(let base)? = Self.value("omitted", line) {
        bases.insert(base)
      }
    }
  }

  private static func value(_ key: String, _ line: StructuredDictionary?) -> BareItem? {
    if case .item(let item)? = line?[key] { item.value } else { nil }
  }
}
