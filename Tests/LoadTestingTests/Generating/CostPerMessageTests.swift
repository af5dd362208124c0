// The cost of a message must not depend on the number of streams. Times would show it only on an idle machine, but
// these counts are the same on any machine.

import CallCounter
import EventLoops
import Glibc
import LiveStreaming
import LoadReports
import NetworkTesting
import PropertyTesting
import Testing
import UploadClient

@testable import LoadTesting

@Suite("The cost of a message")
struct CostPerMessageTests {
  /// In a separate process, because other tests' loops have threads of the same name.
  @Test(
    "a message of one of 400 streams on a loop takes no more allocations and clock readings than one of 20",
    .enabled(if: call_counter_works(), "nothing is counted under a sanitizer"))
  func constant() async throws {
    let result = try await #require(processExitsWith: .success, observing: [\.standardOutputContent]) {
      try raiseDescriptorLimit()
      for cost in [try Cost(streams: 20), try Cost(streams: 400)] { print(cost.allocations, cost.clockReads) }
      fflush(nil)
    }
    let lines = String(decoding: result.standardOutputContent, as: UTF8.self).split(separator: "\n")
    let counts = lines.map { $0.split(separator: " ").compactMap { Double($0) } }.filter { $0.count == 2 }
    try #require(counts.count == 2, "\(lines)")
    // Messages that share a turn of a late loop cost less each, in both cases. Iterating over all streams for each of
    // them would multiply the cost.
    for (few, many) in zip(counts[0], counts[1]) { #expect(few > 0 && many < 3 * few, "\(counts)") }
  }
}

/// The work of a load test's loop for one message, from before its due time to its acknowledgement.
private struct Cost {
  let allocations: Double
  let clockReads: Double

  private struct Sample {
    let messages: UInt64
    let isComplete: Bool
    let allocations = call_counter_allocations()
    let clockReads = call_counter_clock_reads()
  }

  /// Runs this many streams with a message per second each, over a few seconds in which none begins or ends.
  init(streams: Int) throws {
    let server = try StreamServer()
    var configuration = LoadConfiguration(request: UploadRequest(url: server.url))
    configuration.resumable = .always
    configuration.streams = streams
    configuration.ramp = .seconds(1)
    configuration.duration = .seconds(60)
    configuration.profile.chunk = 1_000_000_000
    configuration.profile.size = .bytes(500...500)
    let plan = LoadRunPlan(
      configuration, bytes: try BodyBytes(.pattern, seed: 0), localAddresses: [], clock: RunClock(origin: .now)
    ) { _ in }
    let samples = try EventLog<Sample>()
    let isIdle = try EventCounter()
    let loop = try LoadLoop(
      plan,
      report: { second in
        // On the loop's thread, so that the counts and the messages belong together.
        let totals = second.totals
        samples.append(
          Sample(messages: totals.messages.acknowledged, isComplete: totals.connects == UInt64(streams)))
      }, idle: { isIdle.signal() })
    call_counter_arm("sluice-network")
    loop.eventLoop.execute { loop.begin(Array(0..<streams)) }
    // By messages and not by seconds, several of which may pass at once on a busy machine. Each stream has its
    // connection when it begins.
    let count = UInt64(streams)
    let window = try samples.wait("three messages of each stream", within: .seconds(50)) {
      samples -> (Sample, Sample)? in
      guard let first = samples.first(where: { $0.isComplete && $0.messages >= 2 * count }) else { return nil }
      return samples.first { $0.messages >= first.messages + 3 * count }.map { (first, $0) }
    }
    call_counter_disarm()
    loop.eventLoop.execute { loop.stop(isDue: true) }
    guard waitUntilReadable(isIdle.descriptor) else { throw TestFailure("the loop does not come to its end") }
    loop.session.close()
    let (first, last) = window
    let messages = Double(last.messages - first.messages)
    allocations = Double(last.allocations - first.allocations) / messages
    clockReads = Double(last.clockReads - first.clockReads) / messages
  }
}
