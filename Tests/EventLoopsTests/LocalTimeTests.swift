// Times of day in a zone with daylight saving time.

import EventLoops
import Glibc
import PropertyTesting
import Testing

@Suite("Times of day")
struct LocalTimeTests {
  @Test(
    "the next moment with a time of day is later, and no moment in between has it",
    arguments: ["UTC0", "CET-1CEST,M3.5.0,M10.5.0/3", "<+1245>-12:45<+1345>,M9.5.0/2:45,M4.1.0/3:45"])
  func next(_ zone: String) async {
    await #expect(processExitsWith: .success) { [zone] in
      setenv("TZ", zone, 1)
      tzset()
      var random = SplitMix64(state: 4711)
      for _ in 0..<3000 {
        let minutes = Int64.random(in: 0..<1440, using: &random)
        // Around the days of clock changes, and at any other time.
        let day: Int64 = [1_774_742_400, 1_792_886_400, 1_790_000_000].randomElement(using: &random)!  // not empty
        let after =
          random.chance(70)
          ? (day + Int64.random(in: -90_000...90_000, using: &random)) * 1000
            + Int64.random(in: 0...999, using: &random)
          : Int64.random(in: 0...250_000_000_000_000, using: &random)
        guard let next = LocalTime.next(.seconds(minutes * 60), after: after) else { fatalError("\(after)") }
        func shown(_ time: Int64) -> Int64 {
          var seconds = time_t(time)
          var local = tm()
          localtime_r(&seconds, &local)
          return Int64(local.tm_hour) * 60 + Int64(local.tm_min)
        }
        guard next > after, next % 60_000 == 0, next - after <= 49 * 3_600_000 else { fatalError("\(after): \(next)") }
        // A forward change may skip up to an hour.
        let difference = (shown(next / 1000) - minutes + 1440) % 1440
        guard difference == 0 || difference == 60 else { fatalError("\(after) \(minutes): \(next)") }
        // The first minute after `after` that shows it. There are two after a backward change.
        var minute = after / 60_000 * 60 + 60
        var showing: [Int64] = []
        while minute < next / 1000 {
          if shown(minute) == minutes { showing.append(minute) }
          minute += 60
        }
        guard showing.count <= 1, showing.allSatisfy({ next / 1000 - $0 <= 3600 || $0 - after / 1000 <= 3600 }) else {
          fatalError("\(after) \(minutes): \(next) but \(showing)")
        }
      }
    }
  }

  @Test("beyond the representable years, there is none")
  func ends() {
    for time in [Int64.min, -1, 253_402_300_800_000, .max] { #expect(LocalTime.next(.zero, after: time) == nil) }
  }

  @Test("a valid time is parsed, and any other text is not")
  func parsing() {
    var random = Seed.several(1)[0].generator
    for _ in 0..<1000 {
      let clock = WallClock(
        seconds: Int64.random(in: 0...253_402_300_799, using: &random),
        milliseconds: Int.random(in: 0...999, using: &random))
      #expect(WallClock(iso8601: clock.iso8601) == clock)
    }
    #expect(WallClock(iso8601: "2026-11-22T00:00:00Z") == WallClock(seconds: 1_795_305_600))
    for text in [
      "", "2026", "2026-13-01T00:00:00Z", "2026-00-01T00:00:00Z", "2026-11-22T24:00:00Z", "x026-11-22T00:00:00Z",
      "1969-11-22T00:00:00Z", "2026-11-00T00:00:00Z", "2026-12-32T00:00:00Z", "2026-11-22T00:60:00Z",
      "2026-11-22T00:00:61Z",
      "2026-11-22T00:00:00.-1Z", "2026-11-22T00:00:00.xZ", "2026-11-22-00:00:00-1",
    ] {
      #expect(WallClock(iso8601: text) == nil, "\(text)")
    }
  }
}
