// Tests the state machine of a request that stores a stream, against a simple model and without files.

import PropertyTesting
import Testing

@testable import StreamServing
@testable import StreamStore

@Suite("The state of a request that stores a stream")
struct StreamRequestStateTests {
  typealias Recording = StreamRequestState.Recording

  /// A stream in memory. nil stands for a byte of a hole.
  private struct Stream {
    var bytes: [UInt8?] = []
    var isComplete = false
    /// How many more bytes the quota allows.
    var room = Int.max
    /// How many of the next bytes the disk accepts.
    var diskRoom = Int.max

    var recording: Recording { Recording(length: UInt64(bytes.count), isComplete: isComplete) }

    /// Whether repeated bytes equal the stored ones. A hole contains zeros.
    func matches(_ sent: ArraySlice<UInt8>, at offset: Int) -> Bool {
      zip(sent, bytes[offset...]).allSatisfy { $0 == $1 ?? 0 }
    }

    /// Writes like a store: a hole exists only once a byte follows it.
    mutating func write(_ sent: ArraySlice<UInt8>, at offset: Int) -> Int {
      let count = min(sent.count, diskRoom)
      guard count > 0 || offset <= bytes.count else { return 0 }
      bytes += [UInt8?](repeating: nil, count: max(0, offset - bytes.count)) + sent.prefix(count).map { $0 }
      return count
    }
  }

  /// The result for some bytes.
  private enum Outcome: Equatable {
    case kept(StreamRequestState.Limit?)
    /// Nothing was stored, not even the hole before the bytes.
    case nothing(StreamRequestState.Limit?)
    case conflict(StreamConflict)
  }

  /// What the machine has reported so far.
  private struct Reports: Equatable {
    var beginnings = 0
    var overtakings = 0
  }

  /// Performs what the machine asks for.
  private func keep(
    _ sent: [UInt8], by state: inout StreamRequestState, in stream: inout Stream, sizeRoom: Int?,
    _ reports: inout Reports
  ) -> Outcome {
    var step = state.received(sent.count, stream.recording, sizeRoom: sizeRoom.map(UInt64.init))
    var steps = 0
    while true {
      steps += 1
      #expect(steps < 5, "the machine goes round in circles")
      switch step {
      case .compare(let count, let offset):
        step = state.compared(stream.matches(sent[..<count], at: Int(offset)), stream.recording)
      case .reserve(let count): step = state.reserved(UInt64(min(stream.room, Int(count))), stream.recording)
      case .write(let count, let skipped, let offset):
        let former = stream.recording
        let stored = state.wrote(stream.write(sent[skipped..<count], at: Int(offset)), former)
        if stored.reportsBeginning { reports.beginnings += 1 }
        if stored.overtakes { reports.overtakings += 1 }
        return stored.isNothing ? .nothing(stored.limit) : .kept(stored.limit)
      case .done(let limit): return .kept(limit)
      case .settle(let limit): return .nothing(limit)
      case .conflict(let conflict): return .conflict(conflict)
      }
    }
  }

  private static func content(_ offset: Int) -> UInt8 { UInt8(truncatingIfNeeded: offset * 37 + offset / 251) | 1 }

  @Test("for any order and pieces, the machine keeps the same bytes as the model", arguments: Seed.several(2))
  func againstModel(_ seed: Seed) {
    var generator = seed.generator
    var seen: Set<String> = []
    for round in 0..<3_000 {
      var stream = Stream()
      let length = Int.random(in: 0...12, using: &generator)
      stream.bytes = (0..<length).map { Self.content($0) }
      if length > 3, Bool.random(using: &generator) { stream.bytes[1] = nil }
      stream.isComplete = Int.random(in: 0..<4, using: &generator) == 0
      if Bool.random(using: &generator) { stream.room = Int.random(in: 0...12, using: &generator) }
      let before = stream
      let offset = Int.random(in: 0...16, using: &generator)
      var state = StreamRequestState()
      var reports = Reports()
      state.begins(at: UInt64(offset))
      let isHeld = Int.random(in: 0..<4, using: &generator) == 0
      if isHeld { state.holds() }
      let beginning = state.opened(stream.recording, seriesStart: 0, maximumHole: 3)
      switch beginning {
      case .conflict(let conflict):
        let isRight = offset > length && (conflict == .beyondEnd ? stream.isComplete : offset > length + 3)
        #expect(isRight, "seed \(seed), round \(round)")
        seen.insert("\(conflict)")
        continue
      case .accept: #expect(offset <= length && state.reportsBeginning)
      case .acceptBehindHole(let hole): #expect(Int(hole) == offset - length && !state.reportsBeginning)
      }
      var kept = 0
      pieces: for _ in 0..<Int.random(in: 0..<4, using: &generator) {
        let count = Int.random(in: 1...6, using: &generator)
        var sent = (0..<count).map { Self.content(offset + kept + $0) }
        if Int.random(in: 0..<6, using: &generator) == 0 { sent[count - 1] ^= 2 }
        let sizeRoom = Bool.random(using: &generator) ? nil : Int.random(in: 0...8, using: &generator)
        stream.diskRoom =
          Int.random(in: 0..<3, using: &generator) == 0 ? Int.random(in: 0...6, using: &generator) : .max
        // The model works differently from the machine: it processes one byte after another.
        var model = stream
        var expected = Outcome.kept(nil)
        var taken = 0
        let allowed = min(count, sizeRoom ?? count)
        if allowed < count { expected = .kept(.size) }
        let overlap = max(0, min(allowed, model.bytes.count - offset - kept))
        if overlap > 0, !model.matches(sent[..<overlap], at: offset + kept) {
          expected = .conflict(.differentBytes)
        } else if allowed > overlap, model.isComplete {
          (expected, taken) = (.conflict(.surplusBytes), overlap)
        } else {
          taken = overlap
          let hole = max(0, offset + kept - model.bytes.count)
          let storable = max(0, min(allowed - overlap, max(0, min(model.room, hole + allowed - overlap) - hole)))
          if storable < allowed - overlap { expected = .kept(.quota) }
          let written = min(storable, model.diskRoom)
          if allowed > overlap, hole > 0, written == 0 {
            if case .kept(let limit) = expected { expected = .nothing(limit) }
          } else {
            taken += written
            if allowed > overlap {
              model.bytes += [UInt8?](repeating: nil, count: hole)
              model.bytes += sent[overlap..<(overlap + written)].map { $0 }
            }
          }
        }
        let outcome = keep(sent, by: &state, in: &stream, sizeRoom: sizeRoom, &reports)
        #expect(outcome == expected, "seed \(seed), round \(round)")
        #expect(stream.bytes == model.bytes, "seed \(seed), round \(round)")
        kept += taken
        #expect(state.keptCount == UInt64(kept), "seed \(seed), round \(round)")
        #expect(state.isInside == (offset + kept < stream.bytes.count), "seed \(seed), round \(round)")
        seen.insert("\(outcome)")
        if case .conflict = outcome { break pieces }
        if outcome != .kept(nil) { break pieces }
      }
      #expect(state.storedCount == UInt64(max(0, stream.bytes.count - max(length, offset))))
      let hasHole = stream.bytes.count > before.bytes.count && offset > length
      #expect(reports.beginnings == (hasHole ? 1 : 0), "seed \(seed), round \(round)")
      #expect(reports.overtakings == (hasHole && !isHeld ? 1 : 0), "seed \(seed), round \(round)")
      // Withheld offsets are announced once, at the end.
      #expect(state.leaves() == (hasHole && isHeld) && !state.leaves(), "seed \(seed), round \(round)")
    }
    #expect(seen.count >= 9, "the cases were not all met: \(seen)")
  }

  private func streaming(at offset: UInt64, _ recording: Recording, isHeld: Bool = false) -> StreamRequestState {
    var state = StreamRequestState()
    state.begins(at: offset)
    if isHeld { state.holds() }
    _ = state.opened(recording, seriesStart: 0, maximumHole: 100)
    return state
  }

  @Test("a request that begins before the first resumable recording contradicts it")
  func beforeRecording() {
    var state = StreamRequestState()
    state.begins(at: 9)
    let recording = Recording(length: 20, isComplete: false)
    #expect(state.opened(recording, seriesStart: 10, maximumHole: 0) == .conflict(.beforeRecording))
    #expect(state.phase == .new)
    state.begins(at: 10)
    #expect(state.opened(recording, seriesStart: 10, maximumHole: 0) == .accept)
  }

  @Test("a resumed request continues after its stored bytes, and only in the same stream")
  func reopened() {
    let growing = Recording(length: 30, isComplete: false)
    for (offset, count, kept, isInside) in [
      (10, 5, 5, true), (10, 20, 20, false), (10, 99, 20, false), (40, 7, 0, false),
    ]
      as [(UInt64, UInt64, UInt64, Bool)]
    {
      var state = StreamRequestState()
      state.begins(at: offset)
      #expect(state.reopened(growing, at: count, firstOffset: 10) == true)
      #expect(state.keptCount == kept && state.isInside == isInside)
    }
    var state = StreamRequestState()
    state.begins(at: 9)
    #expect(state.reopened(growing, at: 1, firstOffset: 10) == false, "a hole is behind its beginning")
    state.begins(at: 31)
    #expect(state.reopened(Recording(length: 30, isComplete: true), at: 1, firstOffset: 0) == false)
    #expect(state.reopened(growing, at: 1, firstOffset: 0) == true)
    #expect(
      state.phase
        == .streaming(StreamPlacement.begin(offset: 31, length: 31, isComplete: false, maximumHole: 0).placement))
  }

  @Test("the end of a body completes the stream, repeats its response, or creates the hole before the end")
  func ends() {
    let growing = Recording(length: 8, isComplete: false)
    var state = streaming(at: 8, growing)
    #expect(state.ended(growing, mayBeFilled: true) == .finish)
    #expect(state.phase == .done)
    #expect(state.ended(growing, mayBeFilled: false) == .ignore)

    let complete = Recording(length: 8, isComplete: true)
    state = streaming(at: 8, complete)
    #expect(state.ended(complete, mayBeFilled: false) == .acknowledge)

    state = streaming(at: 12, growing)
    #expect(state.ended(growing, mayBeFilled: true) == .conflict(.mayStillCome))
    #expect(state.phase != .done)
    #expect(state.ended(growing, mayBeFilled: false) == .makeHole(4))
    state.madeHole()
    #expect(state.ended(Recording(length: 12, isComplete: false), mayBeFilled: true) == .finish)
    #expect(state.leaves() == true, "the uploads in front of the hole are over")
    #expect(state.leaves() == false)
  }

  @Test("dropping restores the state before the request, and removes a hole with the bytes after it")
  func dropped() {
    // The request begins after a hole of four bytes.
    let growing = Recording(length: 8, isComplete: false)
    var state = streaming(at: 12, growing, isHeld: true)
    #expect(state.received(3, growing, sizeRoom: nil) == .reserve(7))
    #expect(state.reserved(7, growing) == .write(count: 3, skipped: 0, offset: 12))
    #expect(!state.wrote(3, growing).overtakes, "the digest is not checked yet")
    #expect(state.length(droppingTo: 2) == 14)
    #expect(state.countBefore == 0 && state.length(droppingTo: 0) == 8)
    state.dropped(to: 0)
    #expect(state.keptCount == 0 && !state.leaves(), "the hole is not there any more")
    // The next byte creates it again.
    #expect(state.received(1, growing, sizeRoom: nil) == .reserve(5))
    _ = state.reserved(5, growing)
    _ = state.wrote(1, growing)
    #expect(state.releases() == true, "the digest is right: the hole stays")
    #expect(state.releases() == false)

    // Compared bytes are never removed.
    state = streaming(at: 4, growing)
    #expect(state.received(6, growing, sizeRoom: nil) == .compare(count: 4, offset: 4))
    #expect(state.compared(true, growing) == .reserve(2))
    _ = state.reserved(2, growing)
    _ = state.wrote(2, growing)
    #expect(state.countBefore == 4 && state.length(droppingTo: 1) == 8 && state.length(droppingTo: 5) == 9)
    state.dropped(to: 5)
    #expect(state.keptCount == 5)
    #expect(state.received(1, Recording(length: 9, isComplete: false), sizeRoom: nil) == .reserve(1))
  }

  @Test("a request that does not work on a stream stores nothing")
  func notAtWork() {
    let growing = Recording(length: 8, isComplete: false)
    var state = StreamRequestState()
    #expect(state.received(3, growing, sizeRoom: nil) == .done(nil))
    state.waits()
    #expect(state.phase == .waiting)
    #expect(state.ended(growing, mayBeFilled: false) == .ignore)
    state.holds()
    #expect(state.releases() == false)
    state = streaming(at: 8, growing)
    state.ends()
    #expect(state.received(3, growing, sizeRoom: nil) == .done(nil))
    #expect(state.wrote(3, growing).isNothing && state.storedCount == 0)
  }
}

extension StreamPlacement.Beginning {
  fileprivate var placement: StreamPlacement {
    switch self {
    case .at(let placement), .afterHole(let placement, _): placement
    case .beyondEnd, .holeTooLarge: preconditionFailure("there is no place")
    }
  }
}
