// A stream of any length that follows from a seed and never repeats.

internal import Glibc
internal import NetworkTesting
internal import PropertyTesting

/// An ``OffsetPattern`` in which every block begins with its own number. Bytes that are stored twice, omitted or
/// misplaced by any distance are detected, and their origin is known.
package struct StampedPattern: Sendable {
  /// In bytes.
  package static let blockSize = 4096
  private let pattern: OffsetPattern

  package init(seed: UInt64) { pattern = OffsetPattern(seed: seed) }

  /// One block of the stream.
  package func fill(_ target: UnsafeMutableRawBufferPointer, block: UInt64) {
    precondition(target.count == Self.blockSize)
    pattern.fill(target, at: block * UInt64(Self.blockSize))
    target.storeBytes(of: block, as: UInt64.self)
  }

  /// The first `count` bytes.
  package func bytes(_ count: Int) -> [UInt8] {
    var bytes = [UInt8](repeating: 0, count: (count / Self.blockSize + 1) * Self.blockSize)
    bytes.withUnsafeMutableBytes { all in
      for block in 0..<all.count / Self.blockSize {
        let place = UnsafeMutableRawBufferPointer(rebasing: all[block * Self.blockSize..<(block + 1) * Self.blockSize])
        fill(place, block: UInt64(block))
      }
    }
    return Array(bytes.prefix(count))
  }

  /// The SHA-256 of the first `count` bytes, in hexadecimal, computed by the program that other checks use too.
  package func digest(count: UInt64) throws -> String {
    let program = try TestProcess("sha256sum", [], input: .pipe)
    var block = [UInt8](repeating: 0, count: Self.blockSize)
    var many: [UInt8] = []
    for index in 0..<count / UInt64(Self.blockSize) + 1 {
      block.withUnsafeMutableBytes { fill($0, block: index) }
      many += block.prefix(Int(min(UInt64(Self.blockSize), count - index * UInt64(Self.blockSize))))
      if many.count >= 1 << 20 {
        program.send(many)
        many.removeAll(keepingCapacity: true)
      }
    }
    program.send(many)
    program.endInput()
    return try Self.digest(said: program)
  }

  /// The SHA-256 of a file, in hexadecimal.
  package static func digest(file: String) throws -> String { try digest(said: TestProcess("sha256sum", [file])) }

  private static func digest(said program: TestProcess) throws -> String {
    guard try program.wait() == 0, let digest = program.output.first?.split(separator: " ").first else {
      throw TestFailure("sha256sum: \(program.errors.joined(separator: " "))")
    }
    return String(digest)
  }

  /// The first offset at which a file differs from the first `count` bytes of the stream, in words; nil if it does not.
  package func firstDifference(file path: String, count: UInt64) throws -> String? {
    let descriptor = open(path, O_RDONLY | O_CLOEXEC)
    guard descriptor >= 0 else { throw TestFailure("\(path): \(String(cString: strerror(errno)))") }
    defer { close(descriptor) }
    var expected = [UInt8](repeating: 0, count: Self.blockSize)
    var found = expected
    var block: UInt64 = 0
    while true {
      let start = block * UInt64(Self.blockSize)
      let length = pread(descriptor, &found, Self.blockSize, off_t(start))
      let wanted = Int(min(UInt64(Self.blockSize), count - min(count, start)))
      expected.withUnsafeMutableBytes { fill($0, block: block) }
      let common = max(0, min(length, wanted))
      // A closure for each byte takes seconds for several megabytes without optimization.
      if memcmp(expected, found, common) != 0, let index = (0..<common).first(where: { expected[$0] != found[$0] }) {
        let around = found[index..<min(length, index + 32)].map { String($0, radix: 16) }.joined(separator: " ")
        return "at \(start + UInt64(index)): found \(around)"
      }
      if length != wanted { return "it is \(start + UInt64(max(0, length))) bytes or more, \(count) were sent" }
      if length < Self.blockSize { return nil }
      block += 1
    }
  }
}
