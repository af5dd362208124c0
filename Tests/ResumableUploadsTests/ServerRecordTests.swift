// Tests the record that survives the server, as text and back.

import HTTPMessages
import PropertyTesting
import Testing

@testable import ResumableUploads

@Suite("The record of an upload")
struct ServerRecordTests {
  private func record(_ random: inout SplitMix64) -> UploadRecord {
    func text(_ random: inout SplitMix64) -> String {
      let alphabet = Array("aZ09 -_.,:;=\"%\\\u{e9}\u{1F600}\t\u{7f}?")
      let count = Int.random(in: 0...12, using: &random)
      return String((0..<count).map { _ in alphabet[Int.random(in: 0..<alphabet.count, using: &random)] })
    }
    func fields(_ random: inout SplitMix64) -> HeaderFields {
      HeaderFields(
        received: (0..<Int.random(in: 0...4, using: &random)).map { _ in
          (name: "x-\(Int.random(in: 0..<9, using: &random))", value: text(&random))
        })
    }
    func bytes(_ random: inout SplitMix64) -> [UInt8] {
      (0..<Int.random(in: 0...40, using: &random)).map { _ in UInt8.random(in: 0...255, using: &random) }
    }
    var limits = UploadLimits()
    limits.maximumAge = UInt64.random(in: 0...1000, using: &random)
    if random.chance(50) { limits.maximumSize = 12 }
    var record = UploadRecord(
      method: text(&random), target: text(&random), fields: fields(&random), created: 1_700_000_000,
      credential: random.chance(50) ? bytes(&random) : nil, client: text(&random), limits: limits)
    if random.chance(50) { record.length = UInt64.random(in: 0...999_999_999_999_999, using: &random) }
    record.hasBegun = random.chance(50)
    record.ownsFile = random.chance(50)
    record.isLive = random.chance(50)
    if random.chance(50) { record.token = text(&random) }
    if random.chance(50) { record.unsyncedBoot = text(&random) }
    record.promised = UInt64.random(in: 0...999_999_999_999_999, using: &random)
    if random.chance(30) { record.deactivation = Deactivation.allCases.randomElement(using: &random) }
    if random.chance(30) {
      record.response = .init(
        status: Int.random(in: 200...599, using: &random), fields: fields(&random), body: bytes(&random))
    }
    return record
  }

  @Test("a record is read as it was written, for any fields of a peer", arguments: Seed.several(1))
  func roundTrip(_ seed: Seed) throws {
    var random = seed.generator
    for _ in 0..<1_000 {
      let record = record(&random)
      #expect(UploadRecord(parsing: try #require(record.text)) == record)
    }
  }

  @Test("a record with a value that no structured field can have has no text, and not one without that value")
  func outOfRange() {
    let changes: [(inout UploadRecord) -> Void] = [
      { $0.created = .max }, { $0.length = .max }, { $0.promised = .max }, { $0.ownOffset = .max },
      { $0.response = .init(status: .max, fields: [:], body: []) },
    ]
    var random = SplitMix64(state: 1)
    for (number, change) in changes.enumerated() {
      var record = record(&random)
      #expect(record.text != nil)
      change(&record)
      #expect(record.text == nil, "change \(number)")
    }
  }

  @Test("a truncated or changed record is invalid, and never a trap", arguments: Seed.several(1))
  func damaged(_ seed: Seed) throws {
    var random = seed.generator
    for _ in 0..<50 {
      let record = record(&random)
      let text = Array(try #require(record.text).utf8)
      for end in 0..<text.count {
        #expect(UploadRecord(parsing: String(decoding: text[..<end], as: UTF8.self)) == nil)
      }
      var changed = text
      changed[Int.random(in: 0..<changed.count, using: &random)] = UInt8.random(in: 0...255, using: &random)
      // The changed text is another record or none. If it can be read, writing the result returns the same text.
      let changedText = String(decoding: changed, as: UTF8.self)
      if let read = UploadRecord(parsing: changedText) { #expect(read.text == changedText) }
    }
  }

  @Test("a record whose response has a status of more than three digits is invalid")
  func statuses() throws {
    var random = SplitMix64(state: 2)
    for (status, isRead) in [(100, true), (999, true), (1000, false), (10_000, false)] {
      var record = record(&random)
      record.response = .init(status: status, fields: ["X-A": "b"], body: [1])
      let text = try #require(record.text)
      #expect((UploadRecord(parsing: text) == record) == isRead, "\(status)")
    }
  }

  @Test("a record with a credential, as earlier versions wrote it, is read, and must be written again")
  func holdsSecrets() throws {
    for isInResponse in [false, true] {
      let fields: HeaderFields = ["x-floor": "xyzzy", "x-room": "kitchen"]
      var record = UploadRecord(
        method: "POST", target: "/kitchen", fields: isInResponse ? [:] : fields, created: 1_700_000_000,
        credential: nil, client: "somebody", limits: UploadLimits())
      if isInResponse { record.response = .init(status: 200, fields: fields, body: []) }
      let text = try #require(record.text)
      let plain = try #require(UploadRecord(parsing: text))
      #expect(!plain.holdsSecrets)
      let secret = try #require(UploadRecord(parsing: text.replacing("x-floor", with: "authorization")))
      #expect(secret.holdsSecrets)
      let rewritten = try #require(secret.text)
      #expect(!rewritten.contains("xyzzy") && rewritten.contains("kitchen"))
      let again = try #require(UploadRecord(parsing: rewritten))
      #expect(!again.holdsSecrets)
    }
  }
}
