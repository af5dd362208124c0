// Compares a server's stored bytes of a load test with the definition of its streams.

internal import EventLoops
internal import Glibc

/// The file of one stream, and the server's record of its holes.
public struct StoredLoad: Sendable {
  public let name: String
  /// The stream's number in its run, and its generation in its place. Its name ends with them.
  public let index: Int
  public let generation: Int
  public let bytes: [UInt8]
  public let holes: [Range<Int>]

  public var missing: Int { holes.reduce(0) { $0 + $1.count } }
  /// Whether the stream has ended. The name of an incomplete one ends with `.part`.
  public var isFinished: Bool { name.hasSuffix(".bin") }

  /// Reads `stream-load-TOKEN-INDEX[-GENERATION].bin` or `.part`, and the record beside it if there is one.
  private init(_ directory: String, _ name: String) throws {
    self.name = name
    let stem = name.prefix { $0 != "." }
    // The server may be renaming it at this moment.
    bytes = try (try? fileContents("\(directory)/\(name)")) ?? fileContents("\(directory)/\(stem).bin")
    let numbers = stem.split(separator: "-").dropFirst(3).compactMap { Int($0) }
    guard let index = numbers.first else { throw TestFailure("\(name) is not a stream of a load test") }
    (self.index, generation) = (index, numbers.count > 1 ? numbers[1] : 0)
    holes = try storedHoles(in: directory, ofStream: stem)
  }

  /// All streams in a directory, finished or not.
  public static func all(in directory: String) throws -> [StoredLoad] {
    let names = try fileNames(in: directory).filter { $0.hasSuffix(".bin") || $0.hasSuffix(".part") }
    let all = try names.map { try StoredLoad(directory, $0) }
    guard Set(names.map { $0.prefix { $0 != "." } }).count == all.count else {
      throw TestFailure("a stream is there twice: \(names)")
    }
    return all
  }

  // MARK: Content

  /// The first byte outside the holes that differs from the verifying pattern; nil if all are correct.
  ///
  /// The pattern is computed here from its definition, powers of 3 modulo the prime 65,537, and not with the code that
  /// sends it.
  public func firstDifference() -> Int? {
    firstDifference { offset, maximum in
      let start = (offset + 7919 * index) % Self.pattern.count
      return Self.pattern[start..<min(start + maximum, Self.pattern.count)]
    }
  }

  /// The first byte outside of the holes that is another than in `expected`: given an offset and a number of bytes, as
  /// many of those from there on as it likes, at least one.
  public func firstDifference(from expected: (_ offset: Int, _ maximum: Int) -> ArraySlice<UInt8>) -> Int? {
    var at = 0
    while at < bytes.count {
      if let hole = holes.first(where: { $0.contains(at) }) {
        at = hole.upperBound
        continue
      }
      let end = min(bytes.count, holes.map(\.lowerBound).filter { $0 > at }.min() ?? bytes.count)
      let piece = expected(at, end - at)
      // First as a whole, because comparing bytes takes a debug build seconds. Neither is empty.
      let isSame = bytes.withUnsafeBytes { own in
        piece.withUnsafeBytes { memcmp(own.baseAddress! + at, $0.baseAddress!, $0.count) == 0 }
      }
      if !isSame { return zip(piece, at...).first { $0.0 != bytes[$0.1] }?.1 }
      at += piece.count
    }
    return nil
  }

  private static let pattern: [UInt8] = {
    var power: UInt32 = 1
    return (0..<65_537).map { _ in
      defer { power = power * 3 % 65_537 }
      return UInt8(truncatingIfNeeded: power ^ power >> 8)
    }
  }()
}

/// The missing ranges of a stream in the server's own record, in stream offsets.
package func storedHoles(in directory: String, ofStream stem: some StringProtocol) throws -> [Range<Int>] {
  guard try fileNames(in: directory).contains("\(stem).gaps") else { return [] }
  let record = String(decoding: try fileContents("\(directory)/\(stem).gaps"), as: UTF8.self)
  return try record.split(separator: "\n").map { line in
    // {"offset":5,"length":3,"cause":"not-received"}
    let numbers = line.split { !$0.isNumber }.compactMap { Int($0) }
    guard line.hasPrefix("{\"offset\":"), numbers.count == 2 else {
      throw TestFailure("a gap record that cannot be read: \(line)")
    }
    return numbers[0]..<numbers[0] + numbers[1]
  }
}
