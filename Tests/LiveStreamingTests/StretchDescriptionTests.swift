// The texts that a spool keeps with the bytes of a stretch, for another process.

import HTTPMessages
import PropertyTesting
import ResumableUploads
import Testing

@testable import LiveStreaming

@Suite("The description of a stream in a spool")
struct StretchDescriptionTests {
  @Test(
    "another process reads the written description, with any members", arguments: Seed.several(100))
  func written(seed: Seed) throws {
    var random = seed.generator
    var stretch = StretchDescription(url: "http://host/\(random.next())", streamID: "cam-\(random.next())")
    if random.chance(50) { stretch.contentType = "audio/wav" }
    if random.chance(50) {
      stretch.header = (0..<random.size(upTo: 80)).map { _ in UInt8(truncatingIfNeeded: random.next()) }
    }
    stretch.frameLength = [1, 2, 1 << 19, 1 << 20, .random(in: 1...1 << 20, using: &random)].randomElement(
      using: &random)!
    if random.chance(50) { stretch.bytesPerSecond = [1, 192_000].randomElement(using: &random)! }
    #expect(StretchDescription(try #require(stretch.text)) == stretch, "\(seed)")

    var resumption = StretchResumption()
    if random.chance(50) {
      resumption.upload = ResumeData(
        upload: "http://host/.uploads/1", target: "http://host/x", base: UInt64(random.size(upTo: 1000)), length: nil,
        streamID: "cam", version: [.none, .newest, InteropVersion.drafts.last!].randomElement(using: &random)!)
    }
    // Structured fields can contain integers of 15 digits.
    if random.chance(50) { resumption.acknowledged = [0, 1, 999_999_999_999_999].randomElement(using: &random)! }
    if random.chance(50) { resumption.description = "type=live, rate=\(random.next())" }
    resumption.isCutOff = random.chance(50)
    #expect(StretchResumption(resumption.text) == resumption, "\(seed)")
  }

  @Test(
    "an invalid text is not read",
    arguments: [
      "", "url=\"http://host/x\", stream-id=\"cam\"", "format=2, url=\"http://host/x\", stream-id=\"cam\"",
      "format=1, stream-id=\"cam\"", "format=1, url=\"http://host/x\"", "format=1, url=cam, stream-id=\"cam\"",
      "format=1, url=\"http://host/x\", stream-id=\"cam\", frame-length=0",
      "format=1, url=\"http://host/x\", stream-id=\"cam\", frame-length=-1",
      "format=1, url=\"http://host/x\", stream-id=\"cam\", frame-length=1048577",
    ])
  func notRead(_ text: String) { #expect(StretchDescription(text) == nil) }

  @Test("an invalid rate is not read, and the rest is")
  func noRate() throws {
    for rate in ["0", "-1"] {
      let text = "format=1, url=\"http://host/x\", stream-id=\"cam\", bytes-per-second=\(rate)"
      #expect(StretchDescription(text) == StretchDescription(url: "http://host/x", streamID: "cam"))
    }
    for format in ["", "format=2, "] {
      #expect(StretchResumption("\(format)acknowledged=5, description=\"x\"") == StretchResumption())
    }
    #expect(StretchResumption("format=1, acknowledged=-5") == StretchResumption())
  }

  @Test("the text contains no user and no password")
  func credentials() {
    #expect(StretchDescription(url: "http://user:secret@host/x", streamID: "cam").url == "http://host/x")
  }

  @Test("the data for resumption takes at most 8 KiB: it omits the description if necessary, and then everything")
  func longest() throws {
    var resumption = StretchResumption()
    resumption.acknowledged = 5
    let short = resumption.text
    resumption.description = ""
    let empty = resumption.text.utf8.count
    resumption.description = String(repeating: "d", count: (8 << 10) - empty)
    #expect(resumption.text.utf8.count == 8 << 10 && StretchResumption(resumption.text) == resumption)
    resumption.description?.append("d")
    #expect(resumption.text == short)
    resumption.upload = ResumeData(
      upload: "http://host/" + String(repeating: "u", count: 8 << 10), target: "http://host/x", base: 0, length: nil,
      streamID: nil, version: .newest)
    #expect(resumption.text == "")
  }
}
