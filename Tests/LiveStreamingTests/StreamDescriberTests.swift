import ResumableUploads
import Testing

@testable import LiveStreaming

@Suite("What a sender says of its clock")
struct StreamDescriberTests {
  @Test("a clock that is set is a step at the newest byte; one that is slewed or read late is none")
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
    // Numbers that no clock has end nothing.
    for wall in [Int64.min, .max, 0] { _ = describer.value(at: .max, now: ClockReading(wall: wall, sinceBoot: .min)) }
  }
}
