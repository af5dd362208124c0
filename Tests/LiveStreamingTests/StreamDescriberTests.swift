import EventLoops
import HTTPMessages
import PropertyTesting
import ResumableUploads
import Testing

@testable import LiveStreaming

@Suite("The sender's description of its clock")
struct StreamDescriberTests {
  @Test("a clock change is a step at the newest byte; a slewed clock or a late reading is not")
  func steps() throws {
    var describer = StreamDescriber(SourceDescription(device: "d"), now: ClockReading(wall: 1000, sinceBoot: 50))
    func description(_ offset: UInt64, _ wall: Int64, _ sinceBoot: Int64) throws -> StreamDescription {
      let value = describer.value(at: offset, now: ClockReading(wall: wall, sinceBoot: sinceBoot))
      return try #require(value.flatMap { StreamDescription(parsing: $0) })
    }
    #expect(try description(7, 11_000, 10_050).clockSteps == [])
    #expect(try description(8, 21_099, 20_050).clockSteps == [])
    #expect(try description(9, 31_198, 30_050).clockSteps == [])
    let ahead = try description(10, 3_641_198, 40_050)
    #expect(ahead.clockSteps == [.init(offset: 10, milliseconds: 3_600_000)] && ahead.started == 1000)
    let back = try description(11, 1000, 50_050)
    #expect(back.clockSteps.last == .init(offset: 11, milliseconds: -3_650_198))
    // Impossible clock values do not end the process.
    for wall in [Int64.min, .max, 0] { _ = describer.value(at: .max, now: ClockReading(wall: wall, sinceBoot: .min)) }
  }

  @Test(
    "each time of day since the stream began is reported, and the next two, after any change of the clock",
    arguments: Seed.several(3))
  func splitTimes(_ seed: Seed) throws {
    var random = seed.generator
    let day: Int64 = 86_400_000
    for _ in 0..<200 {
      var source = SourceDescription()
      source.splitTimeOfDay = .seconds(Int64.random(in: 0..<1440, using: &random) * 60)
      let started = Int64.random(in: 0...1_800_000_000_000, using: &random)
      var describer = StreamDescriber(source, now: ClockReading(wall: started, sinceBoot: 0))
      var now = started
      for _ in 0..<6 {
        now +=
          random.chance(20)
          ? Int64.random(in: -3 * day...400 * day, using: &random) : Int64.random(in: 0...day, using: &random)
        now = max(0, now)
        let value = describer.value(at: 0, now: ClockReading(wall: now, sinceBoot: now - started))
        let times = try #require(StreamDescription(parsing: value ?? "")).splitTimes
        let first = max(started, now - 4 * day)
        var expected: [Int64] = []
        while expected.filter({ $0 > now }).count < 2, expected.count < 16 {
          expected.append(try #require(LocalTime.next(source.splitTimeOfDay ?? .zero, after: expected.last ?? first)))
        }
        #expect(times == expected, "\(seed) \(started) \(now)")
        if started <= now { #expect(times.filter { $0 > now }.count == 2, "\(seed)") }
      }
    }
  }

  @Test("a step of a tenth of a second is reported, and no more of them than a server reads")
  func everyStep() throws {
    var describer = StreamDescriber(SourceDescription(), now: ClockReading(wall: 1000, sinceBoot: 0))
    for number in 1...70 as ClosedRange<Int64> {
      let now = ClockReading(wall: 1000 + 100 * number, sinceBoot: 0)
      let valueValue = describer.value(at: UInt64(number), now: now)
      let value = try #require(valueValue)
      let steps = try #require(StreamDescription(parsing: value)).clockSteps
      let expected = (1...min(number, 64)).map {
        StreamDescription.ClockStep(offset: UInt64($0), milliseconds: 100)
      }
      #expect(steps == expected)
    }
  }

  @Test("the description has every known member, in the units of the field")
  func members() throws {
    var source = SourceDescription(device: "hw:1", format: "S16_LE", rate: 48_000, channels: 2)
    source.software = "x/1"
    source.splitDuration = .milliseconds(90_001)
    source.splitSize = UInt64.max
    var describer = StreamDescriber(source, now: ClockReading(wall: 1000, sinceBoot: 50))
    let valueValue = describer.value(at: 0, now: ClockReading(wall: 1000, sinceBoot: 50))
    let value = try #require(valueValue)
    var expected = StreamDescription()
    (expected.started, expected.device, expected.format) = (1000, "hw:1", "S16_LE")
    (expected.rate, expected.channels, expected.software) = (48_000, 2, "x/1")
    // The field cannot state the size.
    expected.splitDuration = 90_001
    #expect(StreamDescription(parsing: value) == expected)
    source.splitSize = 1 << 30
    describer = StreamDescriber(source, now: ClockReading(wall: 1000, sinceBoot: 50))
    expected.splitSize = 1 << 30
    let secondValue = describer.value(at: 0, now: ClockReading(wall: 1000, sinceBoot: 50))
    let second = try #require(secondValue)
    #expect(StreamDescription(parsing: second) == expected)
  }

  @Test("a time of day that is now has been reached, and two follow it")
  func splitNow() throws {
    var source = SourceDescription()
    source.splitTimeOfDay = .seconds(3600)
    let now = try #require(LocalTime.next(.seconds(3600), after: 1_800_000_000_000))
    var describer = StreamDescriber(source, now: ClockReading(wall: now - 1, sinceBoot: 0))
    let valueValue = describer.value(at: 0, now: ClockReading(wall: now, sinceBoot: 1))
    let value = try #require(valueValue)
    let times = try #require(StreamDescription(parsing: value)).splitTimes
    let next = try #require(LocalTime.next(.seconds(3600), after: now))
    let last = try #require(LocalTime.next(.seconds(3600), after: next))
    #expect(times == [now, next, last])
  }
}
