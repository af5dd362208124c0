// Tests, without a disk, which streams the uploads may belong to whose records cannot be read.

import PropertyTesting
import Testing

@testable import ResumableServing

@Suite("Uploads that cannot be read now")
struct PostponedUploadsTests {
  /// Tokens of three streams, and names that are not valid tokens. The key of a stream is the prefix of its tokens.
  private static let uploads: [(token: String, key: UInt16?)] = [
    ("0000-one", 0), ("0000-two", 0), ("0000-three", 0), ("00ab-one", 0xAB), ("00ab-two", 0xAB), ("ffff", 0xFFFF),
    ("wxyz-one", nil), ("abc", nil), ("", nil),
  ]
  /// The keys of these streams and of another, and nil for a stream that any of the uploads may belong to.
  private static let keys: [UInt16?] = [0, 0xAB, 0xFFFF, 1, nil]

  @Test("a stream waits for exactly those that may belong to it, in any order", arguments: Seed.several(5))
  func model(_ seed: Seed) {
    var random = seed.generator
    var postponed = PostponedUploads()
    var present: Set<String> = []
    for _ in 0..<300 {
      let (token, _) = Self.uploads[Int.random(in: 0..<Self.uploads.count, using: &random)]
      if random.chance(50) {
        let (isNew, expected) = (postponed.insert(token), present.insert(token).inserted)
        #expect(isNew == expected)
      } else {
        let (wasPresent, expected) = (postponed.remove(token), present.remove(token) != nil)
        #expect(wasPresent == expected)
      }
      #expect(postponed.tokens == present && postponed.isEmpty == present.isEmpty)
      for (token, _) in Self.uploads { #expect(postponed.contains(token) == present.contains(token)) }
      for key in Self.keys {
        let expected = Self.uploads.contains { upload in
          present.contains(upload.token) && (key == nil || upload.key == nil || upload.key == key)
        }
        #expect(postponed.mayGoInto(key) == expected, "\(present), \(String(describing: key))")
      }
    }
  }
}
