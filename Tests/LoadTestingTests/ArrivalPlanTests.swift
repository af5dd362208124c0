import LoadReports
import PropertyTesting
import Testing

@testable import LoadTesting

@Suite("The arrivals of a run")
struct ArrivalPlanTests {
  @Test("arrivals of a constant rate are evenly spaced, each in the middle of its share, and end with the run")
  func constant() {
    let plan = ArrivalPlan(rate: 20, duration: 5_000_000_000)
    #expect((0..<4).map { plan.time(of: $0) } == [25_000_000, 75_000_000, 125_000_000, 175_000_000])
    #expect(plan.time(of: 99) == 4_975_000_000 && plan.time(of: 100) == nil && plan.count == 100)
    #expect(ArrivalPlan(rate: 0, duration: 5_000_000_000).time(of: 0) == nil)
  }

  @Test("a run without time has no arrivals, and a rate that falls to zero spaces the last ones more and more")
  func edges() throws {
    #expect(ArrivalPlan(rate: 5, duration: 0).count == 0 && ArrivalPlan(rate: 5, duration: 0).time(of: 0) == nil)
    let falling = ArrivalPlan(rate: 1, stages: [.init(duration: 2_000_000_000, streams: 0)], duration: 0)
    // Half of the area below the line is reached after 2 - √2 seconds.
    let first = try #require(falling.time(of: 0))
    #expect(abs(first - 585_786_438) <= 1 && falling.count == 1)
    #expect(falling.time(of: 1) == nil)
    // Half of a request is due with the run's end.
    let half = ArrivalPlan(rate: 0.5, duration: 1_000_000_000)
    #expect(half.count == 0.5 && half.time(of: 0) == 1_000_000_000 && half.time(of: 1) == nil)
    let ramp = ArrivalPlan(rate: 2, ramp: 2_000_000_000, duration: 2_000_000_000)
    // √1 and √3 seconds.
    let times = [try #require(ramp.time(of: 0)), try #require(ramp.time(of: 1))]
    #expect(abs(times[0] - 1_000_000_000) <= 1 && abs(times[1] - 1_732_050_808) <= 1 && ramp.count == 2)
  }

  @Test("a message of an arrival has at least one byte")
  func least() {
    let plan = ArrivalPlan(rate: 1000, duration: 1_000_000_000)
    var profile = LoadProfile.mic
    for size in [LoadProfile.MessageSize.bytes(1...1), .rate(1), .unpaced(1)] {
      profile.size = size
      var schedule = StreamSchedule(profile, seed: 1, stream: 0, arrivals: (plan, 1))
      for _ in 0..<3 {
        let message = schedule.next()
        #expect(message?.byteCount == 1)
      }
    }
  }

  @Test(
    "rates rise and fall linearly: at any time, the number of arrivals equals the area below the line",
    arguments: Seed.several(20))
  func area(_ seed: Seed) {
    var random = seed.generator
    let rate = Double(Int.random(in: 0...50, using: &random))
    let stages = (0..<Int.random(in: 1...6, using: &random)).map { _ in
      LoadStage(
        duration: Int64.random(in: 1...3_000_000_000, using: &random), streams: Int.random(in: 0...60, using: &random))
    }
    let plan = ArrivalPlan(rate: rate, stages: stages, duration: 0)
    let length = stages.reduce(0) { $0 + $1.duration }
    // The area up to a time, as a sum over the stages.
    func area(_ time: Int64) -> Double {
      var (level, start, sum) = (rate, Int64(0), 0.0)
      for stage in stages where start < time {
        let part = min(stage.duration, time - start)
        let end = level + (Double(stage.streams) - level) * Double(part) / Double(stage.duration)
        sum += (level + end) / 2 * Double(part) / 1e9
        (level, start) = (Double(stage.streams), start + stage.duration)
      }
      return sum
    }
    var (number, last) = (UInt64(0), Int64(0))
    while let time = plan.time(of: number) {
      #expect(time >= last && time <= length)
      #expect(abs(area(time) - (Double(number) + 0.5)) < 1e-3, "\(number) at \(time)")
      (number, last) = (number + 1, time)
    }
    #expect(number == UInt64(plan.count.rounded()) || abs(plan.count - Double(number) - 0.5) < 1e-6)
    #expect(abs(plan.count - area(length)) < 1e-6)
  }

  @Test(
    "the streams of a run share its arrivals, for any number, and the profile determines the size of a message",
    arguments: [1, 2, 7])
  func shared(_ streams: Int) {
    let plan = ArrivalPlan(rate: 30, ramp: 1_000_000_000, duration: 3_000_000_000)
    var profile = LoadProfile.mic
    for size in [LoadProfile.MessageSize.rate(50_000), .bytes(5000...5000), .unpaced(5000)] {
      profile.size = size
      var dues: [Int64] = []
      for stream in 0..<streams {
        var schedule = StreamSchedule(profile, seed: 1, stream: stream, arrivals: (plan, streams))
        #expect(schedule.isPaced)
        while let message = schedule.next() {
          #expect(message.byteCount == 5000)
          dues.append(message.due)
        }
      }
      #expect(dues.sorted() == (0..<75).compactMap { plan.time(of: $0) } && dues.count == 75)
    }
  }
}
