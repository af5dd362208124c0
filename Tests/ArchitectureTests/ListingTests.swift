// Code in README and docs, compared with the programs in `samples/` that CI builds and runs.

import Glibc
import NetworkTesting
import Testing

@Suite("Listings")
struct ListingTests {
  @Test("every Swift listing of README and docs is part of a sample, line by line")
  func listings() throws {
    let samples = try Repository.files(below: "samples").filter { $0.hasSuffix(".swift") && !$0.contains("/.build/") }
      .map { String(decoding: try fileContents($0), as: UTF8.self) }
    let pages = try ["\(Repository.root)/README.md"] + Repository.files(below: "docs").filter { $0.hasSuffix(".md") }
    var count = 0
    for page in pages {
      for listing in try Self.listings(of: page) {
        count += 1
        #expect(
          samples.contains { $0.contains(listing) },
          "\(page) has a listing that no sample has. Change one of them: \(listing)")
      }
    }
    // Eight in the articles, and one in README.
    #expect(count >= 9)
  }

  /// The text between "```swift" and "```".
  private static func listings(of page: String) throws -> [String] {
    let text = String(decoding: try fileContents(page), as: UTF8.self)
    return text.split(separator: "```swift\n", omittingEmptySubsequences: false).dropFirst().map { part in
      String(part[..<(part.firstRange(of: "```")?.lowerBound ?? part.endIndex)])
    }
  }
}
