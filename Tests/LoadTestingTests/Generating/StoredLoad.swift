// What a server has stored of a load test's stream, compared with the bytes that the stream was made of.

import Glibc
import NetworkTesting

@testable import LoadTesting

/// The file of one stream, and the server's record of its holes.
struct StoredLoad {
  let name: String
  /// The stream's number in its run, and which one in its place it was: its name ends with them.
  let index: Int
  let generation: Int
  let bytes: [UInt8]
  let holes: [Range<Int>]

  var missing: Int { holes.reduce(0) { $0 + $1.count } }

  /// Reads `stream-load-TOKEN-INDEX[-GENERATION].bin`, and the record beside it if there is one.
  init(_ directory: TemporaryDirectory, _ name: String) throws {
    self.name = name
    bytes = try directory.contents(name)
    let stem = name.prefix { $0 != "." }
    let numbers = stem.split(separator: "-").dropFirst(3).compactMap { Int($0) }
    guard let index = numbers.first else { throw TestFailure("\(name) is no stream of a load test") }
    (self.index, generation) = (index, numbers.count > 1 ? numbers[1] : 0)
    let record = directory.names.contains("\(stem).gaps") ? try directory.contents("\(stem).gaps") : []
    holes = try String(decoding: record, as: UTF8.self).split(separator: "\n").map { line in
      let numbers = line.split { !$0.isNumber }.compactMap { Int($0) }
      guard numbers.count == 2 else { throw TestFailure("a gap record that cannot be read: \(line)") }
      return numbers[0]..<numbers[0] + numbers[1]
    }
  }

  /// All finished streams in it.
  static func all(in directory: TemporaryDirectory) throws -> [StoredLoad] {
    try directory.names.filter { $0.hasSuffix(".bin") }.map { try StoredLoad(directory, $0) }
  }

  /// The first byte outside of the holes that is not the stream's; nil if all are.
  func firstDifference(from body: BodyBytes) -> Int? {
    var at = 0
    while at < bytes.count {
      if let hole = holes.first(where: { $0.contains(at) }) {
        at = hole.upperBound
        continue
      }
      let end = holes.map(\.lowerBound).filter { $0 > at }.min() ?? bytes.count
      var difference: Int?
      let count = body.read(stream: index, at: UInt64(at), maximum: min(end, bytes.count) - at) { span in
        span.withUnsafeBytes { piece in
          // Neither is empty. One after another they would take a debug build seconds.
          let isSame = bytes.withUnsafeBytes { memcmp($0.baseAddress! + at, piece.baseAddress!, piece.count) == 0 }
          if !isSame { difference = piece.indices.first { piece[$0] != bytes[at + $0] } }
        }
        return span.byteCount
      }
      if let difference { return at + difference }
      at += count
    }
    return nil
  }
}
