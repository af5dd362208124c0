// A server's directory after its end.

internal import Glibc
internal import NetworkTesting

/// A file with a part of a stream, or all of it.
struct StoredRecording {
  var name: String
  /// The stream offset of its first byte.
  var start: UInt64
  var content: [UInt8]
  /// The missing ranges in its record, in stream offsets.
  var gaps: [Range<UInt64>]
  /// How many bytes are marked as synced, if it grows; nil if it has no mark.
  var marked: Int?

  var end: UInt64 { start + UInt64(content.count) }
  /// The end of the bytes that count after a power failure.
  var syncedEnd: UInt64 { start + UInt64(min(marked ?? content.count, content.count)) }
  var isComplete: Bool { !name.hasSuffix(".part") }
}

/// The streams of a directory, by the beginnings of their file names.
final class StoredFiles {
  private let path: String
  private var names: [String: [String]] = [:]

  init(_ path: String) throws {
    self.path = path
    // No name of a sequence's stream has a dot before its extension, or a tilde before its part number.
    for name in try fileNames(in: path) {
      names[String(name.prefix { $0 != "." && $0 != "~" }), default: []].append(name)
    }
  }

  /// All files that belong to a stream.
  func files(of base: String) -> [String] { names[base] ?? [] }

  func recordings(of base: String) throws(Violation) -> [StoredRecording] {
    var result: [StoredRecording] = []
    for name in files(of: base) where !name.hasSuffix(".gaps") {
      var recording = StoredRecording(name: name, start: 0, content: try contents(name), gaps: [])
      if !recording.isComplete, let mark = PowerCut.mark(of: "\(path)/\(name)") {
        recording.marked = mark.size
        // The server removes the bytes after that before it adds others or completes the recording.
        if mark.isFromBefore { recording.content.removeSubrange(min(mark.size, recording.content.count)...) }
      }
      let record = String(name.prefix { $0 != "." }) + ".gaps"
      if files(of: base).contains(record) {
        for line in String(decoding: try contents(record), as: UTF8.self).split(separator: "\n") {
          guard let offset = Self.number("offset", line), let length = Self.number("length", line) else { continue }
          recording.gaps.append(offset..<(offset + length))
          // Where a recording other than the stream's first begins.
          if line.split(separator: "\"next-part\"", omittingEmptySubsequences: false).count > 1 {
            recording.start = offset
          }
        }
      }
      result.append(recording)
    }
    return result
  }

  private func contents(_ name: String) throws(Violation) -> [UInt8] {
    do {
      return try fileContents("\(path)/\(name)")
    } catch {
      throw Violation(kind: "a file cannot be read", detail: "\(error)")
    }
  }

  private static func number(_ key: String, _ line: Substring) -> UInt64? {
    let parts = line.split(separator: "\"\(key)\":", maxSplits: 1, omittingEmptySubsequences: false)
    return parts.count == 2 ? UInt64(parts[1].prefix { $0.isNumber }) : nil
  }
}
