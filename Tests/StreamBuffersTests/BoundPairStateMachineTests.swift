// The rules of a bound pair against a model that only counts, in random orders of all possible events.

import PropertyTesting
import Testing

@testable import StreamBuffers

@Suite("BoundPair obeys its rules in any order of events")
struct BoundPairStateMachineTests {
  @Test("random events give the same result as the model", arguments: Seed.several(4), [1, 2, 7, 4096])
  func randomEvents(seed: Seed, capacity: Int) {
    var random = seed.generator
    for life in 0..<400 {
      var machine = BoundPairStateMachine(capacity: capacity)
      var model = BoundPairModel(capacity: capacity)
      // Few ending events, so that most events are writes and reads.
      for step in 0..<60 {
        let event = Event.random(capacity: capacity, using: &random)
        if let difference = model.difference(after: event, in: &machine) {
          Issue.record("life \(life), step \(step), \(event): \(difference) (\(seed))")
          return
        }
      }
    }
  }

  enum Event {
    case openOutput, openInput, closeOutput, closeInput, failOutput, failInput
    case write(Int)
    case read(Int)
    case offerRoom(Int)
    case withdrawRoom

    static func random(capacity: Int, using random: inout SplitMix64) -> Event {
      switch Int.random(in: 0..<100, using: &random) {
      case 0..<8: .openOutput
      case 8..<16: .openInput
      case 16: .closeOutput
      case 17: .closeInput
      case 18: .failOutput
      case 19: .failInput
      case 20..<26: .offerRoom(Int.random(in: 0...2 * capacity, using: &random))
      case 26..<30: .withdrawRoom
      case 30..<65: .write(Int.random(in: 0...2 * capacity, using: &random))
      default: .read(Int.random(in: 0...2 * capacity, using: &random))
      }
    }
  }
}

/// The knowledge of an observer of both ends: who is open, how much is buffered, and which signals each end received.
struct BoundPairModel {
  private enum End: Equatable { case notOpen, open, over }

  private static let broken = BoundPair.StreamError("broken off")
  private static let failed = BoundPair.StreamError("upload failed")

  private let capacity: Int
  private var output = End.notOpen
  private var input = End.notOpen
  private var underWay = 0
  /// Whether the output end has an unused signal for space.
  private var mayWrite = false
  private var outputBroke = false
  private var inputFailed = false
  /// The space that a reader offers, and the bytes written there; nil without such a reader.
  private var offered: (room: Int, given: Int)?

  init(capacity: Int) { self.capacity = capacity }

  mutating func difference(
    after event: BoundPairStateMachineTests.Event, in machine: inout BoundPairStateMachine
  ) -> String? {
    switch event {
    case .openOutput: return compare(machine.openOutput(), openOutput())
    case .openInput: return compare(machine.openInput(), openInput())
    case .closeOutput: return compare(machine.closeOutput(), endOutput(broken: false))
    case .failOutput: return compare(machine.failOutput(Self.broken), endOutput(broken: true))
    case .closeInput: return compare(machine.closeInput(), endInput(failed: false))
    case .failInput: return compare(machine.failInput(Self.failed), endInput(failed: true))
    case .write(let count): return compare(machine.write(count), write(count)) ?? check(machine)
    case .read(let count): return compare(machine.read(count), read(count)) ?? check(machine)
    case .offerRoom(let count): return compare(machine.offerRoom(count), offerRoom(count))
    case .withdrawRoom:
      defer { offered = nil }
      return compare(machine.withdrawRoom(), offered?.given ?? 0)
    }
  }

  private func compare<Answer: Equatable>(_ answer: Answer, _ expected: Answer) -> String? {
    answer == expected ? nil : "\(answer), not \(expected)"
  }

  /// No end waits forever: an output end without permission has a full buffer to wait for.
  private func check(_ machine: BoundPairStateMachine) -> String? {
    if machine.bufferedByteCount != underWay { return "\(machine.bufferedByteCount) bytes, not \(underWay)" }
    return output == .open && !mayWrite && underWay < capacity ? "space that was not signalled" : nil
  }

  private mutating func openOutput() -> BoundPairStateMachine.Signals {
    guard output == .notOpen else { return .none }
    if input == .over {
      output = .over
      return .init(output: inputFailed ? .errorOccurred(Self.failed) : .endEncountered)
    }
    output = .open
    mayWrite = true
    return .init(output: .spaceAvailable)
  }

  private mutating func openInput() -> BoundPairStateMachine.Signals {
    guard input == .notOpen else { return .none }
    input = .open
    if outputBroke { return .init(input: .errorOccurred(Self.broken)) }
    if underWay > 0 { return .init(input: .bytesAvailable) }
    return .init(input: output == .over ? .endEncountered : nil)
  }

  private mutating func endOutput(broken: Bool) -> BoundPairStateMachine.Signals {
    // Aborting a stream that nobody reads any more causes no signal. Closing it only makes it closed.
    guard output != .over, !(broken && input == .over) else { return .none }
    output = .over
    outputBroke = broken
    guard input == .open else { return .none }
    if broken { return .init(input: .errorOccurred(Self.broken)) }
    return .init(input: underWay == 0 && (offered?.given ?? 0) == 0 ? .endEncountered : nil)
  }

  private mutating func endInput(failed: Bool) -> BoundPairStateMachine.Signals {
    guard input != .over else { return .none }
    input = .over
    inputFailed = failed
    underWay = 0
    guard output == .open else { return .none }
    output = .over
    return .init(output: failed ? .errorOccurred(Self.failed) : .endEncountered)
  }

  private mutating func write(_ count: Int) -> BoundPairStateMachine.WriteAction {
    if output == .notOpen { return .refuse(.notOpen) }
    if output == .over { return .refuse(.closed) }
    if !mayWrite { return .refuse(.noSpaceSignalled) }
    if let room = offered?.room, min(count, room) > 0, underWay == 0 {
      offered?.room -= min(count, room)
      offered?.given += min(count, room)
      return .handOver(min(count, room), .init(output: .spaceAvailable))
    }
    let taken = min(count, capacity - underWay)
    if taken == 0 { return .accept(0, .none) }
    let wasEmpty = underWay == 0
    underWay += taken
    mayWrite = underWay < capacity
    return .accept(
      taken,
      .init(output: mayWrite ? .spaceAvailable : nil, input: wasEmpty && input == .open ? .bytesAvailable : nil))
  }

  private mutating func read(_ count: Int) -> BoundPairStateMachine.ReadAction {
    if input == .notOpen { return .refuse(.notOpen) }
    if input == .over { return .refuse(.closed) }
    offered?.room = 0
    if outputBroke { return .fail(Self.broken) }
    // "Empty" promises that bytesAvailable follows, so it is returned only if nothing is buffered.
    if underWay == 0 { return output == .over ? .end : .empty }
    let taken = min(count, underWay)
    underWay -= taken
    let freed = taken > 0 && output == .open && !mayWrite
    if freed { mayWrite = true }
    return .take(taken, .init(output: freed ? .spaceAvailable : nil))
  }

  /// Only a reader that has left nothing behind, and does not wait for anyone else, can offer space.
  private mutating func offerRoom(_ count: Int) -> Bool {
    guard count > 0, offered == nil, underWay == 0, input == .open, output == .open else { return false }
    offered = (count, 0)
    return true
  }
}
