import PropertyTesting
import Testing

@testable import ResumableUploads

@Suite("Structured fields") struct StructuredFieldTests {
  @Test("a Boolean is ?0 or ?1 and nothing else")
  func booleans() {
    #expect(Item(parsing: "?1")?.value == .boolean(true))
    #expect(Item(parsing: " ?0 ")?.value == .boolean(false))
    for text in ["?2", "1", "true", "?", "?1 ?1", "?1, ?1", ""] { #expect(Item(parsing: text) == nil) }
  }
}
