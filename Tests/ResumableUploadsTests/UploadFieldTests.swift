// Tests Upload-Offset, Upload-Length and Upload-Complete: an invalid value counts as a missing field.

import HTTPMessages
import PropertyTesting
import Testing

@testable import ResumableUploads

@Suite("Upload-Offset, Upload-Length, Upload-Complete") struct UploadFieldTests {
  @Test("Upload-Offset is a non-negative Integer, and any other value is ignored (section Offset)")
  func offset() { check("Upload-Offset", UploadFields.offset) }

  @Test("Upload-Length is a non-negative Integer, and any other value is ignored (section Length)")
  func length() { check("Upload-Length", UploadFields.length) }

  private func check(_ name: String, _ read: (HeaderFields) -> UInt64?) {
    for (text, value) in FieldTables.counts { #expect(read([name: text]) == value, "\(text)") }
    for text in FieldTables.otherTypes + FieldTables.noItems + FieldTables.negative {
      #expect(read([name: text]) == nil, "\(text)")
    }
    #expect(read([:]) == nil)
    #expect(read(["X-\(name)": "5", "Upload-Offse": "5", "Upload-Lengt": "5"]) == nil)
    // Names are compared without regard to case, but must otherwise match exactly.
    #expect(read([name.uppercased(): "5"]) == 5 && read([name.lowercased(): "5"]) == 5)
    #expect(read([name.replacing("o", with: "ο"): "5"]) == nil, "a Greek omicron")
    // Two lines form a list (RFC 9110, section 5.2), and a list is not an item, even if its values are equal.
    #expect(read([name: "5", "Other": "x", name.lowercased(): "5"]) == nil)
    #expect(read([name: "5", name: ""]) == nil)
  }

  @Test(
    "Upload-Complete is a Boolean, and any other value is ignored (section Completeness)",
    arguments: [InteropVersion.none] + InteropVersion.drafts)
  func completeness(version: InteropVersion) {
    let (name, other) =
      version.invertsCompleteness
      ? ("Upload-Incomplete", "Upload-Complete") : ("Upload-Complete", "Upload-Incomplete")
    #expect(version.completenessFieldName == name)
    func read(_ text: String) -> Bool? {
      version.completeness([name: text]).map { $0 != version.invertsCompleteness }
    }
    for text in ["?1", " ?1 ", "?1;a=1"] { #expect(read(text) == true, "\(text)") }
    for text in ["?0", " ?0 ", "?0;a;b"] { #expect(read(text) == false, "\(text)") }
    for text in [
      "1", "0", "true", "false", "?2", "?", "?1 ?1", "?1, ?1", "?01", "\"?1\"", "? 1", "?T", "", "a=?1", "(?1)",
    ] {
      #expect(read(text) == nil, "\(text)")
    }
    #expect(version.completeness([:]) == nil)
    #expect(version.completeness([other: "?1"]) == nil, "the field of another version")
    #expect(version.completeness([name: "?1", name: "?1"]) == nil)

    for isComplete in [true, false] {
      var fields = HeaderFields()
      version.setCompleteness(isComplete, &fields)
      #expect(fields.all.map(\.name) == [name.lowercased()])
      #expect(version.completeness(fields) == isComplete)
    }
  }

  @Test("an offset beyond the range of a structured field is not written")
  func largestValue() {
    #expect(UploadFields.value(0) == "0")
    #expect(UploadFields.value(999_999_999_999_999) == "999999999999999")
    #expect(UploadFields.value(1_000_000_000_000_000) == nil)
    #expect(UploadFields.value(.max) == nil)
  }

  @Test("any octets in any field are refused or read, and each value stays in its range", arguments: Seed.several(3))
  func anyOctets(seed: Seed) {
    var fields = RandomFields(random: seed.generator)
    var read = 0
    for _ in 0..<10_000 {
      let octets =
        fields.random.chance(50) ? fields.garbage() : fields.mutated("\(fields.random.next() % 2_000_000_000)")
      let text = String(decoding: octets, as: UTF8.self)
      let lines: HeaderFields = [
        "Upload-Offset": text, "Upload-Length": text, "Upload-Limit": text, "Upload-Complete": text,
        "Upload-Draft-Interop-Version": text, "Repr-Digest": text,
      ]
      let offset = UploadFields.offset(lines)
      #expect(offset == UploadFields.length(lines), "\(octets) (\(seed))")
      if let offset {
        read += 1
        #expect(UploadFields.value(offset).map { UploadFields.offset(["Upload-Offset": $0]) } == offset)
      }
      // The same text never has two types at once.
      if InteropVersion.newest.completeness(lines) != nil { #expect(offset == nil, "\(octets) (\(seed))") }
      for version in InteropVersion.drafts {
        if let limits = UploadLimits(lines, version: version) {
          #expect(UploadLimits(["Upload-Limit": limits.value(version: version)], version: version) != nil)
        }
      }
      if let digests = DigestField(parsing: text) { #expect(DigestField(parsing: digests.value) == digests) }
      if case .known(let version) = InteropVersion.Named(lines) { #expect(version.number.map(UInt64.init) == offset) }
    }
    #expect(read > 500)
  }
}
