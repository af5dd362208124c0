import NetworkTesting
import PropertyTesting
import Testing

@testable import Digests

@Suite("Digests")
struct DigestTests {
  struct Vector: Sendable, CustomTestStringConvertible {
    var algorithm: DigestAlgorithm
    var message: String
    var repeated = 1
    var hexadecimal: String
    var content: [UInt8] { (0..<repeated).flatMap { _ in message.utf8 } }
    var testDescription: String { "\(algorithm.name) of \(message.prefix(8))… × \(repeated)" }
  }

  /// The examples that NIST publishes with FIPS 180: one block, two blocks, a million bytes, and no byte.
  static let vectors = [
    Vector(
      algorithm: .sha256, message: "",
      hexadecimal: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
    Vector(
      algorithm: .sha256, message: "abc",
      hexadecimal: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
    Vector(
      algorithm: .sha256, message: "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
      hexadecimal: "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"),
    Vector(
      algorithm: .sha256, message: "a", repeated: 1_000_000,
      hexadecimal: "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
    Vector(
      algorithm: .sha512, message: "",
      hexadecimal: "cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce"
        + "47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e"),
    Vector(
      algorithm: .sha512, message: "abc",
      hexadecimal: "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a"
        + "2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f"),
    Vector(
      algorithm: .sha512, message: "a", repeated: 1_000_000,
      hexadecimal: "e718483d0ce769644e2e42c7bc15b4638e1f98b13b2044285632a803afa973eb"
        + "de0ff244877ea60a4cb0432ce577c31beb009c5c2c49aa2e4eadb217ad8cc09b"),
  ]

  @Test("bytes in an array and in a span are the same bytes", arguments: DigestAlgorithm.allCases)
  func array(_ algorithm: DigestAlgorithm) throws {
    var fromArray = RunningDigest(algorithm)
    var fromSpan = RunningDigest(algorithm)
    for piece in [[1, 2, 3], [], [4]] as [[UInt8]] {
      fromArray.update(piece)
      fromSpan.update(piece.span.bytes)
    }
    let counts = [fromArray.byteCount, fromSpan.byteCount]
    #expect(counts == [4, 4])
    let digests = (fromArray.value().bytes, fromSpan.value().bytes)
    #expect(digests.0 == digests.1)
  }

  @Test("the examples of FIPS 180", arguments: vectors)
  func standard(_ vector: Vector) throws {
    let digest = digest(vector.algorithm, vector.content)
    #expect(digest.hexadecimal == vector.hexadecimal)
    #expect(digest.bytes.count == vector.algorithm.byteCount)
    #expect(digest.description == "\(vector.algorithm.name) \(vector.hexadecimal)")
  }

  @Test("the examples of RFC 9530, appendix B.1 and D, in the form of a field")
  func fields() throws {
    func base64(_ algorithm: DigestAlgorithm, _ text: String) -> String {
      digest(algorithm, Array(text.utf8)).base64
    }
    // The representation of section B, with its line end.
    let hello = "{\"hello\": \"world\"}\n"
    #expect(base64(.sha256, hello) == "RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=")
    #expect(
      base64(.sha512, hello)
        == "YMAam51Jz/jOATT6/zvHrLVgOYTGFy1d6GJiOHTohq4yP+pgk4vf2aCsyRZOtw8MjkM7iw7yZ/WkppmM44T3qg==")
    // The empty one, of section B.2's answer to HEAD.
    #expect(base64(.sha256, "") == "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=")
  }

  private func digest(_ algorithm: DigestAlgorithm, _ bytes: [UInt8]) -> Digest {
    Digest(algorithm, of: bytes.span.bytes)
  }

  private func equal(_ first: [UInt8], _ second: [UInt8]) -> Bool {
    constantTimeEqual(first.span.bytes, second.span.bytes)
  }

  @Test("only the names of the registry are valid")
  func names() {
    for algorithm in DigestAlgorithm.allCases { #expect(DigestAlgorithm(name: algorithm.name) == algorithm) }
    #expect(DigestAlgorithm.allCases.map(\.name) == ["sha-256", "sha-512"])
    for name in ["", "SHA-256", "sha256", "md5", "sha"] { #expect(DigestAlgorithm(name: name) == nil) }
  }

  @Test(
    "in any division of a stream, its digest is that of the whole, and each prefix has its own",
    arguments: Seed.several(10))
  func pieces(_ seed: Seed) throws {
    var random = seed.generator
    let content = (0..<random.size(upTo: 200_000)).map { _ in UInt8(truncatingIfNeeded: random.next()) }
    for algorithm in DigestAlgorithm.allCases {
      var running = RunningDigest(algorithm)
      var done = 0
      while done < content.count {
        // Occasionally nothing at all.
        let count = random.chance(10) ? 0 : min(random.size(upTo: 50_000), content.count - done)
        running.update(content.span.bytes.extracting(done..<done + count))
        done += count
        guard random.chance(30) else { continue }
        // Reading the value does not end the digest.
        let soFar = running.value()
        #expect(soFar.isEqual(to: digest(algorithm, Array(content[..<done]))))
      }
      #expect(running.byteCount == UInt64(content.count))
      #expect(running.value().isEqual(to: digest(algorithm, content)))
    }
  }

  @Test("a copy is independent")
  func fork() throws {
    func feed(_ digest: inout RunningDigest, _ bytes: [UInt8]) { digest.update(bytes.span.bytes) }
    var first = RunningDigest(.sha256)
    feed(&first, [1, 2, 3])
    var second = first.fork()
    feed(&first, [4])
    feed(&second, [5])
    #expect(first.value().isEqual(to: digest(.sha256, [1, 2, 3, 4])))
    #expect(second.value().isEqual(to: digest(.sha256, [1, 2, 3, 5])))
    #expect(first.byteCount == 4 && second.byteCount == 4)
  }

  @Test("sha256sum and sha512sum agree for 20 MB", arguments: Seed.several(1))
  func otherProgram(_ seed: Seed) throws {
    var random = seed.generator
    let pattern = OffsetPattern(seed: seed.value)
    let directory = try TemporaryDirectory()
    var sha256 = RunningDigest(.sha256)
    var sha512 = RunningDigest(.sha512)
    var content: [UInt8] = []
    while content.count < 20 << 20 {
      let start = content.count
      content += (0..<random.size(upTo: OffsetPattern.longestRun)).map { pattern[UInt64(start + $0)] }
      sha256.update(content.span.bytes.extracting(start..<content.count))
      sha512.update(content.span.bytes.extracting(start..<content.count))
    }
    let path = try directory.write("content", content)
    for (program, expected) in [("sha256sum", sha256.value()), ("sha512sum", sha512.value())] {
      let process = try TestProcess(program, [path])
      #expect(try process.wait() == 0)
      #expect(process.output == ["\(expected.hexadecimal)  \(path)"])
    }
  }

  @Test("two digests are equal if all bytes and the algorithm are equal", arguments: Seed.several(5))
  func equality(_ seed: Seed) throws {
    var random = seed.generator
    let one = digest(.sha256, [1])
    #expect(one.isEqual(to: try #require(Digest(.sha256, bytes: one.bytes))))
    for _ in 0..<100 {
      var bytes = one.bytes
      bytes[Int.random(in: 0..<32, using: &random)] ^= 1 << UInt8.random(in: 0..<8, using: &random)
      #expect(!one.isEqual(to: try #require(Digest(.sha256, bytes: bytes))))
    }
    for count in [0, 31, 33, 64] { #expect(Digest(.sha256, bytes: [UInt8](repeating: 0, count: count)) == nil) }
    #expect(!one.isEqual(to: digest(.sha512, [1])))
    #expect(equal([], []))
    #expect(!equal([1], []) && equal([1, 2], [1, 2]) && !equal([1, 2], [1, 3]))
  }
}
