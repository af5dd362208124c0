// `Stream-Description`: written values are read again, and invalid ones are skipped.

import HTTPMessages
import PropertyTesting
import Testing

@Suite("Descriptions of streams")
struct StreamDescriptionTests {
  @Test("a written description is read again unchanged")
  func roundTrip() {
    var generator = SystemRandomNumberGenerator()
    for _ in 0..<2000 {
      func maybe<Value>(_ value: @autoclosure () -> Value) -> Value? { Bool.random() ? value() : nil }
      let texts = ["hw:1,0", "Mikrofon é", "a\"b\\c", "🎙", String(repeating: "x", count: 256)]
      var description = StreamDescription()
      description.started = maybe(.random(in: 0...253_402_300_799_999, using: &generator))
      description.device = maybe(texts.randomElement(using: &generator)!)
      description.format = maybe(texts.randomElement(using: &generator)!)
      description.software = maybe(texts.randomElement(using: &generator)!)
      description.rate = maybe(.random(in: 1...100_000_000, using: &generator))
      description.channels = maybe(.random(in: 1...10_000, using: &generator))
      description.clockSteps = (0..<Int.random(in: 0...StreamDescription.maximumStepCount, using: &generator)).map {
        _ in
        .init(
          offset: .random(in: 0...999_999_999_999_999, using: &generator),
          milliseconds: .random(in: -999_999_999_999_999...999_999_999_999_999, using: &generator))
      }
      let value = description.value
      #expect(value == nil || StreamDescription(parsing: value!) == description)
      #expect((value == nil) == (description == StreamDescription()))
    }
  }

  @Test(
    "an invalid member is missing, and the others are read",
    arguments: [
      "started=-1", "started=253402300800000", "started=\"now\"", "device=5", "device=\"\"", "device=%\"%07\"",
      "rate=0",
      "channels=10001", "clock-steps=5", "clock-steps=(1 2)", "clock-steps=(-1;by=5)", "unknown=?1",
      "software=\"\(String(repeating: "x", count: 257))\"",
    ])
  func missing(_ member: String) {
    var expected = StreamDescription()
    expected.format = "S16_LE"
    #expect(StreamDescription(parsing: "\(member), format=\"S16_LE\"") == expected)
  }

  @Test("a field that is not a dictionary, or is too long, is not read")
  func refused() {
    #expect(StreamDescription(parsing: "\u{7}") == nil)
    #expect(StreamDescription(parsing: "a=(") == nil)
    #expect(StreamDescription(parsing: "a=1" + String(repeating: " ", count: 8192)) == nil)
    #expect(
      StreamDescription(parsing: "clock-steps=(\((0..<99).map { "\($0);by=1" }.joined(separator: " ")))")?.clockSteps
        .count == 64)
  }

  @Test("values that the field cannot contain are omitted")
  func unwritable() {
    var description = StreamDescription()
    description.started = .max
    description.device = String(repeating: "x", count: 300)
    description.clockSteps = [.init(offset: .max, milliseconds: 0), .init(offset: 0, milliseconds: .min)]
    #expect(description.value == nil)
  }
}
