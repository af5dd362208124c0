// A server's directory, when it has ended.

internal import Glibc
internal import NetworkTesting

/// The streams of a directory, by the names that they began with.
final class StoredFiles {
  private let path: String
  private var names: [String: [String]] = [:]

  init(_ path: String) throws {
    self.path = path
    // No name of a sequence's stream has a dot in front of its extension.
    for name in try fileNames(in: path) {
      names[String(name.prefix { $0 != "." }), default: []].append(name)
    }
  }

  func files(of base: String) -> [String] { names[base] ?? [] }

  func contents(_ name: String) throws(Violation) -> [UInt8] {
    do {
      return try fileContents("\(path)/\(name)")
    } catch {
      throw Violation(kind: "a file cannot be read", detail: "\(error)")
    }
  }

  func size(_ name: String) -> Int {
    var status = stat()
    return stat("\(path)/\(name)", &status) == 0 ? Int(status.st_size) : 0
  }

  /// What the record of a stream's gaps says is missing.
  func gaps(of base: String) throws(Violation) -> [Range<UInt64>] {
    var result: [Range<UInt64>] = []
    for name in files(of: base) where name.hasSuffix(".gaps") {
      let text = String(decoding: try contents(name), as: UTF8.self)
      for line in text.split(separator: "\n") {
        guard let offset = Self.number("offset", line), let length = Self.number("length", line) else { continue }
        result.append(offset..<(offset + length))
      }
    }
    return result
  }

  private static func number(_ key: String, _ line: Substring) -> UInt64? {
    let parts = line.split(separator: "\"\(key)\":", maxSplits: 1, omittingEmptySubsequences: false)
    return parts.count == 2 ? UInt64(parts[1].prefix { $0.isNumber }) : nil
  }
}
