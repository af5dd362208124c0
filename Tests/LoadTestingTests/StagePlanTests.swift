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
