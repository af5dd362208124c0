// At any time, the live streams are those that the stages require.

import LoadReports
import PropertyTesting
import Testing

@testable import LoadTesting

@Suite("The stages of a run")
struct StagePlanTests {
  @Test("at any time, the number of live streams follows the line between two stages", arguments: Seed.several(50))
  func levels(_ seed: Seed) {
    var random = seed.generator
    let stages = (0..<Int.random(in: 1...6, using: &random)).map { _ in
      LoadStage(
        duration: Int64.random(in: 1...1_000_000, using: &random), streams: Int.random(in: 0...40, using: &random))
    }
    let plan = StagePlan(stages)
    let lives = (0..<plan.peak).map { plan.lives(of: $0) }
    #expect(plan.lives(of: plan.peak).isEmpty)
    for own in lives {
      #expect(zip(own, own.dropFirst()).allSatisfy { $0.upperBound <= $1.lowerBound } && own.allSatisfy { !$0.isEmpty })
    }
    for _ in 0..<50 {
      let time = Int64.random(in: 0..<plan.duration, using: &random)
      var (start, level): (Int64, Int) = (0, 0)
      var expected = 0.0
      for stage in stages {
        if time < start + stage.duration {
          let share = Double(time - start) / Double(stage.duration)
          expected = Double(level) + share * Double(stage.streams - level)
          break
        }
        (start, level) = (start + stage.duration, stage.streams)
      }
      let live = lives.count { $0.contains { $0.contains(time) } }
      #expect(abs(Double(live) - expected) <= 1.01, "\(stages) at \(time): \(live), not \(expected)")
    }
  }

  @Test("the lives of a stream begin and end exactly where the line crosses its number")
  func crossings() {
    func lives(_ stream: Int, _ stages: [(Int64, Int)]) -> [Range<Int64>] {
      StagePlan(stages.map { LoadStage(duration: $0.0, streams: $0.1) }).lives(of: stream)
    }
    let hill: [(Int64, Int)] = [(1000, 10), (1000, 10), (1000, 0)]
    #expect(lives(0, hill) == [0..<3000] && lives(5, hill) == [500..<2500] && lives(9, hill) == [900..<2100])
    #expect(lives(10, hill).isEmpty)
    #expect(lives(4, [(1000, 10), (1000, 0), (1000, 10)]) == [400..<1600, 2400..<3000])
    // The line stays at the number of the stream, and goes on from there.
    #expect(lives(5, [(1000, 5), (1000, 5), (1000, 5), (1000, 10)]) == [3000..<4000])
    #expect(lives(5, [(1000, 10), (1000, 5), (1000, 5)]) == [500..<2000])
    // A life without time is none.
    #expect(lives(5, [(1000, 5), (0, 6), (0, 0)]).isEmpty && lives(7, [(1000, 5), (0, 10)]).isEmpty)
    #expect(StagePlan([]).duration == 0 && StagePlan([]).peak == 0 && StagePlan([]).lives(of: 0).isEmpty)
    let plan = StagePlan(hill.map { LoadStage(duration: $0.0, streams: $0.1) })
    #expect(plan.duration == 3000 && plan.peak == 10)
  }

  @Test("a stream whose next turn comes at the end of its life begins at once")
  func lastTurn() {
    let stages = StagePlan([.init(duration: 1000, streams: 1)])
    let plan = RampPlan(streams: 1, ramp: 0, chunk: 1000, stages: stages)
    #expect(plan.life(of: 0, from: 0) == 0..<1000 && plan.life(of: 0, from: 1) == 1..<1000)
    #expect(plan.life(of: 0, from: 1000) == nil)
    // A period of a nanosecond has no other turns, and a shorter one is not possible.
    #expect((0..<9).allSatisfy { RampPlan.startOffset(of: $0, chunk: 1) == 0 })
    #expect(RampPlan(streams: 1, ramp: 0, chunk: 1).chunk == 1 && RampPlan(streams: 1, ramp: 0, chunk: 0).chunk == 1)
    let ramp = RampPlan(streams: 10, ramp: 1_000_000, chunk: 1000)
    #expect(ramp.hasLife(of: 9, at: ramp.start(of: 9) - 1000) && !ramp.hasLife(of: 9, at: ramp.start(of: 9) - 1001))
  }

  @Test("no stage is too long for the arithmetic")
  func longest() {
    let plan = StagePlan([.init(duration: .max, streams: 3), .init(duration: .max, streams: 0)])
    #expect(plan.duration == .max && plan.lives(of: 2).allSatisfy { !$0.isEmpty })
    #expect(RampPlan(streams: 3, ramp: 0, chunk: 1000, stages: plan).life(of: 0, from: 0) != nil)
  }

  @Test("a stream is required at any time of its lives, and not between them or after them")
  func required() {
    let stages = StagePlan([
      .init(duration: 1_000_000, streams: 10), .init(duration: 1_000_000, streams: 0),
      .init(duration: 1_000_000, streams: 10),
    ])
    let plan = RampPlan(streams: 10, ramp: 0, chunk: 1000, stages: stages)
    // The lives of the first stream have no time between them.
    for stream in 1..<10 {
      for life in stages.lives(of: stream) {
        for time in [life.lowerBound, life.lowerBound + 1, life.upperBound - 1] {
          #expect(plan.hasLife(of: stream, at: time), "\(stream) at \(time)")
        }
        for time in [life.upperBound, life.lowerBound - 2000] {
          #expect(!plan.hasLife(of: stream, at: time), "\(stream) at \(time)")
        }
      }
    }
    let ramp = RampPlan(streams: 10, ramp: 1_000_000, chunk: 1000)
    #expect(ramp.hasLife(of: 9, at: ramp.start(of: 9)) && ramp.hasLife(of: 9, at: 5_000_000))
  }

  @Test("a stream begins at its turn, within its life, and again in its next life")
  func turns() throws {
    let stages = StagePlan([
      .init(duration: 1_000_000, streams: 10), .init(duration: 1_000_000, streams: 0),
      .init(duration: 1_000_000, streams: 10),
    ])
    let plan = RampPlan(streams: 10, ramp: 0, chunk: 1000, stages: stages)
    for stream in 0..<10 {
      let lives = stages.lives(of: stream)
      #expect(lives.count == 2)
      let first = try #require(plan.life(of: stream, from: 0))
      #expect(lives[0].contains(first.lowerBound) && first.upperBound == lives[0].upperBound)
      #expect(first.lowerBound - lives[0].lowerBound < 1000)
      #expect(first.lowerBound % 1000 == RampPlan.startOffset(of: stream, chunk: 1000))
      let next = try #require(plan.life(of: stream, from: first.upperBound))
      #expect(lives[1].contains(next.lowerBound))
      #expect(plan.life(of: stream, from: next.upperBound) == nil)
    }
  }
}
