// Random structured fields: written values are read again unchanged, and every readable text has one canonical form.

import PropertyTesting
import Testing

@testable import HTTPMessages

@Suite("Random structured fields") struct StructuredFieldPropertyTests {
  @Test("a written value is read again unchanged", arguments: Seed.several(4))
  func roundTrip(seed: Seed) throws {
    var fields = RandomFields(random: seed.generator)
    for step in 0..<5000 {
      let item = fields.item()
      let text = try #require(item.serialized, "step \(step): \(item)")
      #expect(Item(parsing: text) == item, "step \(step): \(text)")
      // A text is 7-bit (RFC 9651, section 4.1), so no intermediary changes it.
      #expect(text.utf8.allSatisfy { (0x20...0x7e).contains($0) }, "step \(step): \(text)")
      let dictionary = fields.dictionary()
      let line = try #require(dictionary.serialized, "step \(step): \(dictionary)")
      #expect(StructuredDictionary(parsing: line) == dictionary, "step \(step): \(line)")
    }
  }

  @Test("any octets are refused, or have one canonical form", arguments: Seed.several(4))
  func anyOctets(seed: Seed) throws {
    var fields = RandomFields(random: seed.generator)
    var read = 0
    var refused = 0
    for step in 0..<10_000 {
      let octets: [UInt8]
      switch step % 3 {
      case 0: octets = fields.garbage()
      case 1: octets = fields.mutated(fields.item().serialized ?? "")
      default: octets = fields.mutated(fields.dictionary().serialized ?? "")
      }
      let text = String(decoding: octets, as: UTF8.self)
      if let difference = canonicalDifference(text) { Issue.record("step \(step), \(octets): \(difference) (\(seed))") }
      let isField = Item(parsing: text) != nil || StructuredDictionary(parsing: text) != nil
      if isField { read += 1 } else { refused += 1 }
    }
    // The test is meaningful only with a mixture of both.
    #expect(read > 500 && refused > 500)
  }
}

/// nil if `text` is neither an item nor a dictionary, or if its canonical form reads the same and is stable.
func canonicalDifference(_ text: String) -> String? {
  if let item = Item(parsing: text) {
    guard let canonical = item.serialized else { return "read but cannot be written: \(item)" }
    guard let again = Item(parsing: canonical), again == item else { return "\(canonical) is not read as \(item)" }
    guard again.serialized == canonical else { return "\(canonical) is written as something else" }
  }
  if let dictionary = StructuredDictionary(parsing: text) {
    guard let canonical = dictionary.serialized else { return "read but cannot be written: \(dictionary)" }
    guard let again = StructuredDictionary(parsing: canonical), again == dictionary else {
      return "\(canonical) is not read as \(dictionary)"
    }
    guard again.serialized == canonical else { return "\(canonical) is written as something else" }
    guard Set(dictionary.members.map(\.key)).count == dictionary.members.count else { return "a key is there twice" }
  }
  return nil
}
