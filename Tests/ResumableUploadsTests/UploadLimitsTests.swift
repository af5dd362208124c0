// Tests Upload-Limit: a known key of an unexpected type invalidates the whole field, but an unknown key does not.

import HTTPMessages
import PropertyTesting
import Testing

@testable import ResumableUploads

@Suite("Upload-Limit") struct UploadLimitsTests {
  private static let keys: [(key: String, path: any KeyPath<UploadLimits, UInt64?> & Sendable)] = [
    ("max-size", \.maximumSize), ("min-size", \.minimumSize), ("max-append-size", \.maximumAppendSize),
    ("min-append-size", \.minimumAppendSize), ("max-age", \.maximumAge),
  ]

  private static func read(_ lines: String..., version: InteropVersion = .newest) -> UploadLimits? {
    UploadLimits(HeaderFields(received: lines.map { (name: "Upload-Limit", value: $0) }), version: version)
  }

  @Test("each of the five keys is read into its own limit (section Limits)")
  func keys() throws {
    for (key, path) in Self.keys {
      for (text, value) in FieldTables.counts {
        let limits = try #require(Self.read("\(key)=\(text.drop { $0 == " " })"), "\(key)=\(text)")
        #expect(limits[keyPath: path] == value, "\(key)=\(text)")
        #expect(Self.keys.filter { limits[keyPath: $0.path] != nil }.map(\.key) == [key])
      }
    }
    let all = try #require(Self.read("max-size=1, min-size=2, max-append-size=3, min-append-size=4, max-age=5"))
    #expect(Self.keys.map { all[keyPath: $0.path] } == [1, 2, 3, 4, 5])
  }

  @Test("a known key with a value of unexpected type makes the entire field invalid (section Limits)")
  func wrongType() {
    for (key, _) in Self.keys {
      for value in FieldTables.otherTypes + FieldTables.negative where value != "a=5" {
        #expect(Self.read("\(key)=\(value)") == nil, "\(key)=\(value)")
        #expect(Self.read("min-size=1, \(key)=\(value)") == nil, "\(key)=\(value) behind a good one")
        #expect(Self.read("\(key)=\(value), x=1") == nil, "\(key)=\(value) before an unknown one")
      }
      // A key alone is the Boolean true (RFC 9651, section 3.2).
      #expect(Self.read(key) == nil && Self.read("\(key);a=1") == nil)
    }
  }

  @Test("a member with an unknown key and any value is ignored (section Limits)")
  func unknownKey() {
    for value in FieldTables.otherTypes + FieldTables.negative where value != "a=5" {
      #expect(Self.read("x-limit=\(value), max-size=7")?.maximumSize == 7, "\(value)")
      #expect(Self.read("max-size=7, max-sizes=\(value)")?.maximumSize == 7, "\(value)")
    }
    #expect(Self.read("x, max-size=7")?.maximumSize == 7)
    #expect(Self.read("x=1") == UploadLimits())
  }

  @Test("a field that is not a Dictionary is ignored entirely (section Limits)")
  func noDictionary() {
    for text in [
      "5", "max-size=", "max-size=5,", ",max-size=5", "max-size=5,,min-size=0", "max-size = 5", "Max-Size=5",
      "max-size=5 6",
      "max-size=1000000000000000", "max-size=5;", "\"max-size=5\"", "max-size=5; ,", "max size=5", "max-size:5",
    ] { #expect(Self.read(text) == nil, "\(text)") }
    #expect(UploadLimits([:]) == nil, "without the field there are no limits, which is not the same as no field")
    #expect(Self.read("") == UploadLimits(), "an empty dictionary, though nobody should send it")
  }

  @Test("lines are joined, and of equal keys the last counts (RFC 9651, section 4.2)")
  func severalLines() {
    #expect(Self.read("max-size=5", "min-size=1")?.minimumSize == 1)
    #expect(Self.read("max-size=5, max-size=6")?.maximumSize == 6)
    #expect(Self.read("max-size=5", "max-size=6")?.maximumSize == 6)
    #expect(Self.read("max-size=x, max-size=6")?.maximumSize == 6, "only what counts in the end is judged")
    #expect(Self.read("max-size=5", "max-size=x") == nil)
    #expect(Self.read("max-size=5", "") == nil)
  }

  @Test("the lifetime is max-age from version 7 on, and expires in version 6")
  func lifetime() throws {
    for version in [InteropVersion.none] + InteropVersion.drafts where version.hasLimits {
      let (key, other) = version.number == 6 ? ("expires", "max-age") : ("max-age", "expires")
      #expect(Self.read("\(key)=60", version: version)?.maximumAge == 60)
      #expect(Self.read("\(other)=60", version: version)?.maximumAge == nil, "unknown there, so ignored")
      #expect(Self.read("\(other)=x, \(key)=60", version: version)?.maximumAge == 60)
      #expect(Self.read("\(key)=x", version: version) == nil)
      var limits = UploadLimits()
      limits.maximumAge = 60
      #expect(limits.value(version: version) == "\(key)=60")
    }
  }

  @Test("no limit at all is written as min-size=0 (section Limits)")
  func empty() {
    #expect(UploadLimits().value() == "min-size=0")
    #expect(UploadLimits().value(version: .none) == "min-size=0")
  }

  @Test("a written value is read as the same, in every version that has limits", arguments: Seed.several(2))
  func roundTrip(seed: Seed) throws {
    var random = seed.generator
    for _ in 0..<2000 {
      let limits = Self.limits(&random)
      for version in [InteropVersion.none] + InteropVersion.drafts where version.hasLimits {
        let text = limits.value(version: version)
        var expected = limits
        if limits == UploadLimits() { expected.minimumSize = 0 }
        #expect(Self.read(text, version: version) == expected, "\(text) (\(seed))")
      }
    }
  }

  @Test("a limit beyond the range of a field is written as the maximum")
  func largestLimit() {
    var limits = UploadLimits()
    limits.maximumSize = .max
    #expect(limits.value() == "max-size=999999999999999")
  }

  @Test("a later message changes only the limits that it contains")
  func updated() throws {
    let old = try #require(Self.read("max-size=100, max-age=60"))
    let newer = try #require(Self.read("max-age=30, min-size=1"))
    #expect(old.updated(by: newer) == Self.read("max-size=100, max-age=30, min-size=1"))
    #expect(old.updated(by: UploadLimits()) == old)
    #expect(UploadLimits().updated(by: old) == old)
  }

  private static func limits(_ random: inout SplitMix64) -> UploadLimits {
    var limits = UploadLimits()
    for path in [
      \UploadLimits.maximumSize, \.minimumSize, \.maximumAppendSize, \.minimumAppendSize, \.maximumAge,
    ] where random.chance(60) {
      let bound: UInt64 = 999_999_999_999_999 >> UInt64.random(in: 0...49, using: &random)
      limits[keyPath: path] = UInt64.random(in: 0...bound, using: &random)
    }
    return limits
  }
}
