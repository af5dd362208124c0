import EventLoops
import LiveStreaming
import PropertyTesting
import Testing

@testable import LoadTesting

@Suite("A paced source")
struct PacedSourceTests {
  /// The events of a source.
  private final class Notes: PacedSourceObserver {
    var due: [(message: StreamSchedule.Message, at: Int64, now: Int64)] = []
    var handedOver: UInt64 = 0
    func became(due message: StreamSchedule.Message, at due: Int64, now: Int64) { self.due.append((message, due, now)) }
    func handedOver(before offset: UInt64, now: Int64) { handedOver = offset }
    func stalled(for time: Int64) {}
  }

  private static let second: Int64 = 1_000_000_000

  private func profile(jitter: Bool) -> LoadProfile {
    var profile = LoadProfile.mic
    profile.size = .bytes(1...500)
    profile.chunk = 20_000_000
    if jitter { profile.jitter = 15_000_000 }
    return profile
  }

  /// The times and sizes in a stream's schedule before the run's end.
  private func planned(_ profile: LoadProfile, seed: UInt64, start: Int64, end: Int64) -> [StreamSchedule.Message] {
    var schedule = StreamSchedule(profile, seed: seed, stream: 3)
    var messages: [StreamSchedule.Message] = []
    while let message = schedule.next(), start + message.due < end { messages.append(message) }
    return messages
  }

  @Test(
    "a loop that is five seconds late omits no message, and each keeps its due time",
    arguments: Seed.several(5), [false, true])
  func lateLoop(_ seed: Seed, jitter: Bool) throws {
    let profile = profile(jitter: jitter)
    // The run is already over when the loop handles its first message.
    let clock = RunClock(origin: .now + .seconds(-5))
    let (start, end) = (Self.second / 2, 4 * Self.second)
    let planned = planned(profile, seed: seed.value, start: start, end: end)
    let source = PacedSource(
      profile, StreamSchedule(profile, seed: seed.value, stream: 3), bytes: try BodyBytes(.zeros, seed: 0), stream: 3,
      start: start, end: end, clock: clock)
    let notes = Notes()
    source.observer = notes
    var arrivals = 0
    let loop = try EventLoop()
    source.start(on: loop) { arrivals += 1 }
    #expect(notes.due.map(\.message) == planned)
    #expect(notes.due.map(\.at) == planned.map { start + $0.due })
    #expect(notes.due.allSatisfy { $0.now - $0.at >= Self.second }, "it is at least a second late, and reports this")
    #expect(source.head == planned.reduce(0) { $0 + UInt64($1.byteCount) })
    #expect(arrivals == 1 && !source.isFinished, "the run's end is not the stream's: what is due is acknowledged first")
    source.quiet()
    #expect(notes.due.count == planned.count && source.isQuiet)
    source.stop()
    #expect(source.isFinished)
  }

  @Test("at a late end of the run, the messages before it are due, and none after", arguments: Seed.several(5))
  func lateEnd(_ seed: Seed) throws {
    let profile = profile(jitter: false)
    // Started while nothing is due yet. Its loop then makes no turn until the run is over.
    let clock = RunClock(origin: .now + .milliseconds(50))
    let end = 300 * Int64(1_000_000)
    let planned = planned(profile, seed: seed.value, start: 0, end: end)
    let source = PacedSource(
      profile, StreamSchedule(profile, seed: seed.value, stream: 3), bytes: try BodyBytes(.zeros, seed: 0), stream: 3,
      start: 0, end: end, clock: clock)
    let notes = Notes()
    source.observer = notes
    var arrivals = 0
    let loop = try EventLoop()
    source.start(on: loop) { arrivals += 1 }
    let early = notes.due.count
    // The fault itself: the loop is blocked until after the run's end.
    while clock.now <= end + 50_000_000 {}
    source.quiet()
    #expect(notes.due.map(\.message) == planned)
    #expect(notes.due.map(\.at) == planned.map(\.due))
    #expect(early == planned.count || arrivals >= 1, "what became due is offered")
    source.stop()
  }

  @Test("bytes are passed on in order and reported once, even if they are read again")
  func handover() throws {
    let profile = profile(jitter: false)
    let clock = RunClock(origin: .now + .seconds(-5))
    let bytes = try BodyBytes(.pattern, seed: 0)
    let source = PacedSource(
      profile, StreamSchedule(profile, seed: 1, stream: 3), bytes: bytes, stream: 3, start: 0, end: Self.second,
      clock: clock)
    let notes = Notes()
    source.observer = notes
    source.start(on: try EventLoop()) {}
    #expect(source.head > 100)
    #expect(source.read(at: 0, maximum: 100) { $0.byteCount } == 100)
    #expect(notes.handedOver == 100)
    #expect(source.read(at: 50, maximum: 10) { $0.byteCount } == 10)
    #expect(notes.handedOver == 100)
    source.stop()
  }
}
