// How long a message waits for space. Each wait counts once, and only if the message waited for space.

import EventLoops
import LiveStreaming
import Testing

@testable import LoadTesting

@Suite("The stalls of a paced source")
struct StallFigureTests {
  private final class Notes: PacedSourceObserver {
    var stalls: [Int64] = []
    func became(due message: StreamSchedule.Message, at due: Int64, now: Int64) {}
    func handedOver(before offset: UInt64, now: Int64) {}
    func stalled(for time: Int64) { stalls.append(time) }
  }

  /// When the due bytes are read.
  enum Reader: CaseIterable { case atOnce, late, lateInPieces, atTheEndOfTheConnection, afterAConnection, never }

  @Test("a stall lasts from the due time of a message until all due bytes are accepted", arguments: Reader.allCases)
  func stalls(reader: Reader) throws {
    var profile = LoadProfile.mic
    profile.size = .bytes(1...500)
    profile.chunk = 20_000_000
    // Usually started while nothing is due yet. Its loop then makes no turn until the run is over.
    let clock = RunClock(origin: .now + .milliseconds(20))
    let source = PacedSource(
      profile, StreamSchedule(profile, seed: 1, stream: 3), bytes: try BodyBytes(.zeros, seed: 0), stream: 3, start: 0,
      end: 100_000_000, clock: clock)
    let notes = Notes()
    source.observer = notes
    source.waitsForServer = reader != .afterAConnection
    let loop = try EventLoop()
    var offset: UInt64 = 0
    func take(_ count: UInt64) {
      let maximum = Int(min(count, source.head - offset))
      offset += UInt64(source.read(at: offset, maximum: maximum) { $0.byteCount })
    }
    func takeAll() { while offset < source.head { take(1_000_000) } }
    let started = clock.now
    source.start(on: loop) { if reader == .atOnce { takeAll() } }
    // On a busy machine, this thread may have waited for a processor until a message was due. It waits for space since
    // the start then, and otherwise since the end of the run.
    let wasDue = source.head > 0
    while clock.now < 110_000_000 {}
    let before = wasDue ? started : clock.now
    source.quiet()
    #expect(source.head > 0)
    let began = clock.now
    while clock.now < began + 20_000_000 {}
    switch reader {
    case .atOnce, .late: takeAll()
    case .lateInPieces:
      while offset + 100 < source.head { take(100) }
      #expect(notes.stalls.isEmpty)
      takeAll()
    case .atTheEndOfTheConnection:
      source.waitsForServer = false
      takeAll()
    case .afterAConnection:
      source.waitsForServer = true
      takeAll()
    case .never:
      #expect(notes.stalls.isEmpty)
      // The end of the stream.
      source.waitsForServer = false
    }
    let longest = clock.now - before
    switch reader {
    case .late, .lateInPieces, .atTheEndOfTheConnection, .never:
      #expect(notes.stalls.count == 1 && notes.stalls.allSatisfy { $0 >= 20_000_000 && $0 <= longest })
    case .atOnce, .afterAConnection: #expect(notes.stalls.isEmpty)
    }
    source.stop()
  }
}
