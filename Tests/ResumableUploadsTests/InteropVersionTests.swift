// Tests the table of the drafts: the contents of each row, the way in which a client steps down, and the future RFC,
// which has no number.

import HTTPMessages
import PropertyTesting
import Testing

@testable import ResumableUploads

@Suite("Interop versions") struct InteropVersionTests {
  struct Row: Sendable, CustomTestStringConvertible {
    var number: Int?
    var completeness: String
    var complete: String
    var tellsProgress: Bool
    var namesMediaType: Bool
    var hasLimits: Bool
    var lifetime: String?
    var testDescription: String { number.map { "version \($0)" } ?? "the RFC" }
  }

  /// The rules of the drafts, written down independently of the code.
  static let rows = [
    Row(
      number: 3, completeness: "Upload-Incomplete", complete: "?0", tellsProgress: false, namesMediaType: false,
      hasLimits: false, lifetime: nil),
    Row(
      number: 4, completeness: "Upload-Complete", complete: "?1", tellsProgress: false, namesMediaType: false,
      hasLimits: false, lifetime: nil),
    Row(
      number: 5, completeness: "Upload-Complete", complete: "?1", tellsProgress: true, namesMediaType: false,
      hasLimits: false, lifetime: nil),
    Row(
      number: 6, completeness: "Upload-Complete", complete: "?1", tellsProgress: true, namesMediaType: true,
      hasLimits: true, lifetime: "expires"),
    Row(
      number: 7, completeness: "Upload-Complete", complete: "?1", tellsProgress: true, namesMediaType: true,
      hasLimits: true, lifetime: "max-age"),
    Row(
      number: 8, completeness: "Upload-Complete", complete: "?1", tellsProgress: true, namesMediaType: true,
      hasLimits: true, lifetime: "max-age"),
    Row(
      number: nil, completeness: "Upload-Complete", complete: "?1", tellsProgress: true, namesMediaType: true,
      hasLimits: true, lifetime: "max-age"),
  ]

  @Test("each row of the table agrees with its draft", arguments: rows)
  func row(row: Row) throws {
    let version = try row.number.map { try #require(InteropVersion(number: Int64($0))) } ?? .none
    #expect(version.number == row.number)
    #expect(version.tellsProgress == row.tellsProgress)
    #expect(version.namesMediaType == row.namesMediaType)
    #expect(version.hasLimits == row.hasLimits)
    if let lifetime = row.lifetime { #expect(version.lifetimeKey == lifetime) }

    var fields = HeaderFields()
    version.setCompleteness(true, &fields)
    version.setCompleteness(false, &fields)
    version.setVersion(&fields)
    let incomplete = row.complete == "?1" ? "?0" : "?1"
    var expected: HeaderFields = [row.completeness: row.complete, row.completeness: incomplete]
    if let number = row.number { expected.append("Upload-Draft-Interop-Version", "\(number)") }
    #expect(fields == expected)
  }

  @Test(
    "in a message of unknown version, either field states completeness, and one that denies it decides",
    arguments: [
      ([:], nil), (["Upload-Complete": "?1"], true), (["Upload-Complete": "?0"], false),
      (["Upload-Incomplete": "?0"], true), (["Upload-Incomplete": "?1"], false), (["Upload-Complete": "1"], nil),
      (["Upload-Complete": "?1", "Upload-Incomplete": "?0"], true),
      (["Upload-Complete": "?1", "Upload-Incomplete": "?1"], false),
      (["Upload-Complete": "?0", "Upload-Incomplete": "?0"], false),
    ] as [(HeaderFields, Bool?)])
  func completenessOfAny(_ fields: HeaderFields, _ expected: Bool?) {
    #expect(InteropVersion.completeness(fields) == expected)
  }

  @Test("the table has exactly these versions, each with its own number")
  func table() {
    #expect(InteropVersion.drafts.map(\.number) == [8, 7, 6, 5, 4, 3])
    #expect(InteropVersion.newest.number == 8)
    for version in InteropVersion.drafts { #expect(InteropVersion(number: Int64(version.number ?? -1)) == version) }
    for number: Int64 in [-8, 0, 1, 2, 9, 10, 88, .max, .min] { #expect(InteropVersion(number: number) == nil) }
  }

  @Test("a client steps down from the newest to the oldest, each version once")
  func steppingDown() {
    var steps: [Int?] = []
    var version: InteropVersion? = .newest
    while let current = version, steps.count < 20 {
      steps.append(current.number)
      version = current.older
    }
    #expect(steps == [8, 7, 6, 5, 4, 3])
    // The RFC is not a draft. No lower version exists that a server of the RFC would speak.
    #expect(InteropVersion.none.older == nil)
  }

  @Test("the RFC differs from the newest draft only in the missing field")
  func rfc() {
    let (rfc, newest) = (InteropVersion.none, InteropVersion.newest)
    #expect(rfc != newest)
    #expect(rfc.completenessFieldName == newest.completenessFieldName && rfc.lifetimeKey == newest.lifetimeKey)
    #expect(rfc.tellsProgress && rfc.namesMediaType && rfc.hasLimits)
    var fields = HeaderFields()
    rfc.setVersion(&fields)
    #expect(fields.all.isEmpty)
  }

  @Test(
    "Upload-Draft-Interop-Version is an Integer of the table; any other value is unknown, and not absent (appendix)")
  func named() {
    func named(_ lines: String...) -> InteropVersion.Named {
      InteropVersion.Named(HeaderFields(received: lines.map { (name: InteropVersion.fieldName, value: $0) }))
    }
    #expect(named() == .absent)
    for version in InteropVersion.drafts {
      let number = "\(version.number ?? -1)"
      for text in [number, " \(number) ", "\(number);a=1", "0\(number)"] { #expect(named(text) == .known(version)) }
      #expect(named(number, number) == .unknown)
      var fields: HeaderFields = ["A": "b"]
      version.setVersion(&fields)
      #expect(InteropVersion.Named(fields) == .known(version))
    }
    for text in FieldTables.otherTypes + FieldTables.noItems + FieldTables.negative + ["2", "9", "80", "8.0"] {
      #expect(named(text) == .unknown, "\(text)")
    }
  }
}
