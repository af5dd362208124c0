// Each figure separately, compared with its definition as a difference, a sum or a time.

import EventLoops
import Glibc
import LiveStreaming
import LoadReports
import PropertyTesting
import Testing
import UploadClient

@testable import LoadTesting

@Suite("Individual figures of a run")
struct FigureDetailTests {
  @Test(
    "delays count from the due time of a message, and the rhythm from one acknowledgement to the next",
    arguments: Seed.several(3))
  func delays(seed: Seed) {
    var random = seed.generator
    var figures = LoopFigures()
    var stream = figures.streamStarted(index: 0, now: 0)
    var slow = figures.streamStarted(index: 1, isSlow: true, now: 0)
    var (accepted, rhythm, outages): ([Int64], [Int64], [Int64]) = ([], [], [])
    var (now, last, since): (Int64, Int64?, Int64?) = (1_000_000_000, nil, nil)
    for _ in 0..<300 {
      now += Int64.random(in: 1...1_000_000, using: &random)
      let dueAt = now - Int64.random(in: 0...500_000_000, using: &random)
      switch Int.random(in: 0..<6, using: &random) {
      case 0:
        figures.accepted(bytes: 10, dueAt: dueAt, now: now, &stream)
        accepted.append(now - dueAt)
      case 1: figures.accepted(bytes: 10, dueAt: dueAt, now: now, &slow)
      case 2:
        figures.interrupted(&stream, cause: "reset", now: now)
        since = since ?? now
      default:
        figures.acknowledgement(&stream, now: now)
        // The time after an interruption does not show how often the server acknowledges.
        if let last, since == nil { rhythm.append(now - last) }
        last = now
        figures.acknowledged(bytes: 10, dueAt: dueAt, now: now, &stream)
        if let begun = since { outages.append(now - begun) }
        since = nil
      }
    }
    let histograms = figures.histograms
    for (histogram, values) in [
      (histograms[.accepted], accepted), (histograms[.rhythm], rhythm), (histograms[.outage], outages),
    ] {
      #expect(histogram.count == UInt64(values.count))
      #expect(histogram.min == values.min() && histogram.max == values.max())
    }
    #expect(figures.totals.bytes.accepted == stream.accepted + slow.accepted)
  }

  @Test("the number of ports is the kernel's")
  func ports() throws {
    let file = try #require(fopen("/proc/sys/net/ipv4/ip_local_port_range", "r"))
    defer { fclose(file) }
    var line = [UInt8](repeating: 0, count: 64)
    let count = fread(&line, 1, 64, file)
    let numbers = String(decoding: line[..<count], as: UTF8.self).split { !$0.isNumber }.compactMap { Int($0) }
    #expect(ProcessLimits.portCount == (numbers[0]...numbers[1]).count)
  }

  @Test("a stream resumes at any point of its life when its next turn comes", arguments: Seed.several(3))
  func turns(seed: Seed) throws {
    var random = seed.generator
    let stages = StagePlan([
      .init(duration: 1_000_000, streams: 10), .init(duration: 1_000_000, streams: 0),
      .init(duration: 1_000_000, streams: 10),
    ])
    for chunk in [1_000, 777] as [Int64] {
      let plan = RampPlan(streams: 10, ramp: 0, chunk: chunk, stages: stages)
      for stream in 0..<10 {
        let offset = RampPlan.startOffset(of: stream, chunk: chunk)
        for life in stages.lives(of: stream) {
          for _ in 0..<20 {
            let time = Int64.random(in: life.lowerBound..<life.upperBound, using: &random)
            let found = try #require(plan.life(of: stream, from: time))
            let turn = (time..<time + chunk).first { $0 % chunk == offset }
            let expected = try #require(turn) < life.upperBound ? turn : time
            #expect(found.lowerBound == expected && found.upperBound == life.upperBound)
          }
        }
      }
    }
  }

  @Test("a stream of a load test takes little memory for unsent messages and for the server's responses meanwhile")
  func memory() throws {
    let configuration = LoadConfiguration(request: UploadRequest(url: "http://127.0.0.1:9/"))
    let plan = LoadRunPlan(
      configuration, bytes: try BodyBytes(.pattern, seed: 0), localAddresses: [], clock: RunClock(origin: .now)
    ) { _ in }
    let stream = plan.streamConfiguration(LoadPlace(index: 0))
    let usual = LiveStreamConfiguration(request: configuration.request)
    #expect(stream.rollOver.responseHeadSize * 10 <= usual.rollOver.responseHeadSize)
    #expect(stream.pairSize <= 64 << 10 && stream.request.receiveBufferSize == 1024 && stream.keepsOrigin)
  }
}
