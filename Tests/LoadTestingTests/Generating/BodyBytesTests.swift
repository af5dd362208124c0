import Glibc
import NetworkTesting
import Testing

@testable import LoadTesting

@Suite("The bytes of a load test")
struct BodyBytesTests {
  private func bytes(_ body: BodyBytes, stream: Int, _ range: Range<UInt64>) -> [UInt8] {
    var all: [UInt8] = []
    while all.count < range.count {
      _ = body.read(stream: stream, at: range.lowerBound + UInt64(all.count), maximum: range.count - all.count) {
        span in
        span.withUnsafeBytes { all += $0 }
        return span.byteCount
      }
    }
    return all
  }

  @Test("any byte can be computed from its offset, in pieces of any size", arguments: [0, 1, 77])
  func again(stream: Int) throws {
    for kind in [LoadProfile.Body.pattern, .random, .zeros] {
      let body = try BodyBytes(kind, seed: 5)
      let whole = bytes(body, stream: stream, 0..<200_000)
      for start in stride(from: UInt64(0), to: 190_000, by: 8191) {
        #expect(bytes(body, stream: stream, start..<start + 9999) == Array(whole[Int(start)..<Int(start) + 9999]))
      }
    }
  }

  @Test("the pattern consists of the powers of three modulo a prime, from another one on for each stream")
  func powers() throws {
    let body = try BodyBytes(.pattern, seed: 0)
    var (expected, power): ([UInt8], UInt64) = ([], 1)
    for _ in 0..<65_537 {
      expected.append(UInt8(truncatingIfNeeded: power ^ power >> 8))
      power = power * 3 % 65_537
    }
    // The powers repeat after 65,536 steps, and the pattern after one more, which is the next power.
    #expect(body.bytes(stream: 0, at: 0, count: 65_537) == expected)
    #expect((0..<5).map { BodyBytes.patternByte($0) } == [1, 3, 9, 27, 81])
    for (stream, offset) in [(0, 65_530), (1, 0), (3, 100_000), (9, 7)] {
      let first = (offset + 7919 * stream) % 65_537
      let bytes = body.bytes(stream: stream, at: UInt64(offset), count: 150_000)
      #expect(bytes == (0..<150_000).map { expected[(first + $0) % 65_537] })
    }
    // All that follows in the block.
    let count = body.read(stream: 0, at: 65_536, maximum: 1 << 20) { $0.byteCount }
    #expect(count == 65_537 + BodyBytes.window - 65_536)
  }

  @Test("random bytes are the numbers of the seed, and repeat after a mebibyte")
  func numbers() throws {
    let body = try BodyBytes(.random, seed: 1_234_567)
    var random = SeededGenerator(seed: 1_234_567)
    let words = (0..<1000).map { _ in random.next() }
    let expected = words.flatMap { word in (0..<8).map { UInt8(truncatingIfNeeded: word >> (8 * $0)) } }
    #expect(body.bytes(stream: 0, at: 0, count: 8000) == expected)
    #expect(body.bytes(stream: 0, at: 1 << 20, count: 8000) == expected)
    let across = body.bytes(stream: 0, at: 1 << 20 - 100, count: 200)
    #expect(Array(across.suffix(100)) == Array(expected.prefix(100)))
    #expect(body.bytes(stream: 0, at: 3 << 20 + 600_000, count: 9) == body.bytes(stream: 0, at: 600_000, count: 9))
    #expect(body.bytes(stream: 2, at: 5, count: 100) == body.bytes(stream: 0, at: 2 * 7919 + 5, count: 100))
  }

  @Test("a file's bytes are those of each stream, and a file that cannot be used is refused with the reason")
  func files() throws {
    let directory = try TemporaryDirectory()
    let content = (0..<1000).map { UInt8(truncatingIfNeeded: $0 &* 7) }
    let path = try directory.write("body", content)
    let body = try BodyBytes(.file(path), seed: 0)
    for stream in [0, 1, 5] {
      #expect(body.bytes(stream: stream, at: 0, count: 2500) == content + content + content.prefix(500))
    }
    let isOpen = try descriptors().contains { $0 == path }
    #expect(!isOpen)
    func reason(_ path: String) -> String? {
      do throws(LoadError) { _ = try BodyBytes(.file(path), seed: 0) } catch {
        if case .unreadableBody(path, let reason) = error { return reason }
      }
      return nil
    }
    #expect(reason(directory.path + "/none") == "No such file or directory")
    let empty = try directory.write("empty", "")
    #expect(reason(empty) == "it is empty, or not a regular file")
    #expect(reason(directory.path) != nil)
    mkfifo(directory.path + "/fifo", 0o600)
    #expect(reason(directory.path + "/fifo") == "it is empty, or not a regular file")
    let long = try directory.write("long", "")
    // A hole, which takes no space.
    #expect(truncate(long, BodyBytes.fileLimit + 1) == 0)
    #expect(reason(long) == "it is longer than 1024 MiB: the whole file is kept in memory")
  }

  /// The files that this process has open.
  private func descriptors() throws -> [String] {
    (0..<1024).compactMap { number in
      var target = [CChar](repeating: 0, count: 4096)
      guard readlink("/proc/self/fd/\(number)", &target, 4095) > 0 else { return nil }
      return String(decoding: target.prefix { $0 != 0 }.map(UInt8.init(bitPattern:)), as: UTF8.self)
    }
  }

  @Test("the pattern reveals a lost, repeated or swapped byte, because seven in a row occur once per period")
  func pattern() throws {
    let body = try BodyBytes(.pattern, seed: 0)
    let whole = bytes(body, stream: 0, 0..<65_543)
    var seen = Set<UInt64>()
    for index in 0..<65_537 {
      seen.insert(whole[index..<index + 7].reduce(0) { $0 << 8 | UInt64($1) })
    }
    #expect(seen.count == 65_537)
  }

  @Test("random bytes depend on the seed, and no two streams begin alike")
  func random() throws {
    let (body, same, other) = (
      try BodyBytes(.random, seed: 5), try BodyBytes(.random, seed: 5), try BodyBytes(.random, seed: 6)
    )
    #expect(bytes(body, stream: 0, 0..<4096) == bytes(same, stream: 0, 0..<4096))
    #expect(bytes(body, stream: 0, 0..<4096) != bytes(other, stream: 0, 0..<4096))
    #expect(bytes(body, stream: 0, 0..<4096) != bytes(body, stream: 1, 0..<4096))
  }
}
