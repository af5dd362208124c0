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
    var handovers = 0
    var stalls = 0
    func became(due message: StreamSchedule.Message, at due: Int64, now: Int64) { self.due.append((message, due, now)) }
    func handedOver(before offset: UInt64, now: Int64) {
      handedOver = offset
      handovers += 1
    }
    func stalled(for time: Int64) { stalls += 1 }
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

  /// A source of a profile, with its loop.
  private func source(
    _ profile: LoadProfile, start: Int64 = 0, end: Int64, clock: RunClock = RunClock(origin: .now)
  ) throws -> (PacedSource, Notes, EventLoop) {
    let source = PacedSource(
      profile, StreamSchedule(profile, seed: 1, stream: 3), bytes: try BodyBytes(.zeros, seed: 0), stream: 3,
      start: start, end: end, clock: clock)
    let notes = Notes()
    source.observer = notes
    return (source, notes, try EventLoop())
  }

  private static let millisecond: Int64 = 1_000_000

  @Test("at full speed, a message is due as soon as the one before was taken, and none after the end")
  func unpaced() throws {
    var profile = LoadProfile.bulk
    profile.size = .unpaced(100)
    let (source, notes, loop) = try source(profile, end: Self.second)
    source.waitsForServer = true
    var arrivals = 0
    source.start(on: loop) { arrivals += 1 }
    #expect(notes.due.count == 1 && source.head == 100 && notes.due[0].at == notes.due[0].now)
    source.taken(before: 60)
    #expect(notes.due.count == 1 && notes.handedOver == 60)
    source.taken(before: 60)
    source.taken(before: 30)
    #expect(notes.handedOver == 60 && notes.handovers == 1)
    for number in 1...5 {
      source.taken(before: UInt64(100 * number))
      #expect(notes.due.count == number + 1 && source.head == UInt64(100 * (number + 1)))
    }
    source.quiet()
    source.taken(before: 600)
    #expect(notes.due.count == 6 && source.head == 600 && source.isQuiet && !source.isFinished && arrivals == 0)
    source.stop()
    #expect(source.isFinished && arrivals == 1)
    source.stop()
    #expect(arrivals == 1)
  }

  @Test("a stream ends at the end of its own length, and not at the end of the run", arguments: [true, false])
  func ownEnd(isPaced: Bool) throws {
    for (length, endsItself) in [(150, true), (200, false), (300, false)] as [(Int64, Bool)] {
      var profile = LoadProfile.mic
      profile.chunk = 100 * Self.millisecond
      if !isPaced { profile.size = .unpaced(100) }
      profile.streamLength = .fixed(length * Self.millisecond)
      let (source, notes, loop) = try source(profile, end: 200 * Self.millisecond)
      var arrivals = 0
      source.start(on: loop) { arrivals += 1 }
      loop.schedule(after: .milliseconds(300)) { loop.stop() }
      loop.run()
      // A loop that is late notices the end of the stream with its last message.
      let isLate = notes.due.last.map { $0.now >= 200 * Self.millisecond } ?? true
      #expect(source.isFinished == endsItself || isPaced && isLate, "\(length)")
      #expect(!source.isQuiet)
      if isPaced {
        #expect(notes.due.map(\.at) == [0, 100 * Self.millisecond])
        #expect(notes.due.allSatisfy { $0.now >= $0.at } && arrivals >= 1)
      } else {
        #expect(arrivals == (endsItself ? 1 : 0))
        // Nothing follows what was due.
        source.taken(before: 100)
        #expect(notes.due.count == (endsItself ? 1 : 2))
      }
      source.stop()
    }
  }

  @Test("a slow line takes bytes at its rate from the start of its stream, and all of them when the stream is over")
  func slowLine() throws {
    var profile = LoadProfile.mic
    (profile.size, profile.chunk) = (.bytes(500...500), 10 * Self.millisecond)
    (profile.faults.slowFraction, profile.faults.slowRate) = (1, 2000)
    let clock = RunClock(origin: .now)
    let (source, notes, loop) = try source(profile, end: 100 * Self.millisecond, clock: clock)
    source.waitsForServer = true
    var heads: [(head: UInt64, before: Int64, after: Int64)] = []
    source.start(on: loop) {
      let before = clock.now
      let head = source.head
      heads.append((head, before, clock.now))
      source.taken(before: head)
    }
    // The end of the run does not end the line.
    var countAtEnd = Int.max
    loop.schedule(after: .milliseconds(450)) {
      countAtEnd = heads.count
      source.quiet()
    }
    loop.schedule(after: .milliseconds(700)) { loop.stop() }
    loop.run()
    // Messages are due for 0.1 s, and the line takes some bytes each tenth of a second after that.
    #expect(notes.due.count == 10 && heads.count > countAtEnd && !source.isFinished)
    for (head, before, after) in heads {
      #expect(Int64(head) >= before * 2000 / Self.second - 1 && Int64(head) <= after * 2000 / Self.second + 1)
    }
    let last = heads.last.map(\.head) ?? 0
    #expect(last >= 400 && notes.handedOver == last && notes.stalls == 0)
    source.stop()
    #expect(source.isFinished && source.head == 5000)
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
