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
