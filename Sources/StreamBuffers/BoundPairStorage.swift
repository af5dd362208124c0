// The shared state of the two ends of a bound pair: the state machine under a lock, and the buffer.

internal import EventLoops

/// Passes events to the state machine and copies bytes under a lock, and calls the handlers after it.
final class BoundPairStorage: Sendable {
  /// Unchecked only because of the pointer to the ring, which only this state uses, always under the lock.
  private struct State: ~Copyable, @unchecked Sendable {
    var machine: BoundPairStateMachine
    /// The position of the oldest buffered byte in the ring.
    var readPosition = 0
    let bytes: UnsafeMutableRawBufferPointer
    /// The destination of the next byte for a reader within its read.
    var readersRoom = UnsafeMutableRawBufferPointer(start: nil, count: 0)
    var outputHandler: (@Sendable (BoundPair.OutputEvent) -> Void)?
    var inputHandler: (@Sendable (BoundPair.InputEvent) -> Void)?

    deinit { bytes.deallocate() }

    /// The ring from `position` on, in at most two pieces with `count` bytes in total.
    func pieces(from position: Int, count: Int) -> (UnsafeMutableRawBufferPointer, UnsafeMutableRawBufferPointer) {
      let start = position % bytes.count
      let first = min(count, bytes.count - start)
      return (
        UnsafeMutableRawBufferPointer(rebasing: bytes[start..<start + first]),
        UnsafeMutableRawBufferPointer(rebasing: bytes[..<(count - first)])
      )
    }
  }

  /// What to do once the lock is free.
  private struct Delivery {
    var signals = BoundPairStateMachine.Signals.none
    var output: (@Sendable (BoundPair.OutputEvent) -> Void)?
    var input: (@Sendable (BoundPair.InputEvent) -> Void)?

    func perform() {
      if let event = signals.output { output?(event) }
      if let event = signals.input { input?(event) }
    }
  }

  private let state: Lock<State>

  init(capacity: Int) {
    nonisolated(unsafe) let bytes = UnsafeMutableRawBufferPointer.allocate(byteCount: capacity, alignment: 16)
    state = Lock(State(machine: BoundPairStateMachine(capacity: capacity), bytes: bytes))
  }

  /// Any event that moves no bytes.
  func apply(_ event: (inout BoundPairStateMachine) -> BoundPairStateMachine.Signals) {
    perform { event(&$0.machine) }
  }

  func openOutput(_ handler: @escaping @Sendable (BoundPair.OutputEvent) -> Void) {
    perform { state in
      if state.machine.output == .notOpen { state.outputHandler = handler }
      return state.machine.openOutput()
    }
  }

  func openInput(_ handler: @escaping @Sendable (BoundPair.InputEvent) -> Void) {
    perform { state in
      if state.machine.input == .notOpen { state.inputHandler = handler }
      return state.machine.openInput()
    }
  }

  private func perform(_ event: (inout State) -> BoundPairStateMachine.Signals) {
    let delivery = state.withLock { state in
      let signals = event(&state)
      let delivery = Delivery(signals: signals, output: state.outputHandler, input: state.inputHandler)
      // An end that is over gets no more events. Its handler may own the end itself, so it must not be retained here.
      // The delivery retains it until the lock is free, because its release may end the other end too.
      if state.machine.output == .closed { state.outputHandler = nil }
      if state.machine.input == .closed { state.inputHandler = nil }
      return delivery
    }
    delivery.perform()
  }

  func write(_ source: borrowing RawSpan) -> BoundPair.WriteResult {
    var delivery = Delivery()
    let result = source.withUnsafeBytes { source in
      state.withLock { state -> BoundPair.WriteResult in
        let end = state.readPosition + state.machine.bufferedByteCount
        switch state.machine.write(source.count) {
        case .refuse(let reason):
          return .refused(reason)
        case .accept(let count, let signals):
          let (first, second) = state.pieces(from: end, count: count)
          first.copyMemory(from: UnsafeRawBufferPointer(rebasing: source[..<first.count]))
          second.copyMemory(from: UnsafeRawBufferPointer(rebasing: source[first.count..<count]))
          delivery = Delivery(signals: signals, output: state.outputHandler, input: state.inputHandler)
          return .accepted(count)
        case .handOver(let count, let signals):
          state.readersRoom.copyMemory(from: UnsafeRawBufferPointer(rebasing: source[..<count]))
          state.readersRoom = UnsafeMutableRawBufferPointer(rebasing: state.readersRoom[count...])
          delivery = Delivery(signals: signals, output: state.outputHandler, input: state.inputHandler)
          return .accepted(count)
        }
      }
    }
    delivery.perform()
    return result
  }

  func read(into target: inout MutableRawSpan) -> BoundPair.ReadResult {
    target.withUnsafeMutableBytes { target in
      var delivery = Delivery()
      var offersRoom = false
      let result = state.withLock { state -> BoundPair.ReadResult in
        switch state.machine.read(target.count) {
        case .take(let count, let signals):
          let (first, second) = state.pieces(from: state.readPosition, count: count)
          target.copyMemory(from: UnsafeRawBufferPointer(first))
          UnsafeMutableRawBufferPointer(rebasing: target[first.count...])
            .copyMemory(from: UnsafeRawBufferPointer(second))
          state.readPosition = (state.readPosition + count) % state.bytes.count
          // As a rule there are no signals, so no handler is retained for them.
          if signals == .none { return .bytes(count) }
          delivery = Delivery(signals: signals, output: state.outputHandler, input: state.inputHandler)
          offersRoom = state.machine.offerRoom(target.count - count)
          if offersRoom { state.readersRoom = UnsafeMutableRawBufferPointer(rebasing: target[count...]) }
          return .bytes(count)
        case .empty: return .empty
        case .end: return .end
        case .fail(let error): return .failed(error)
        case .refuse(let reason): return .refused(reason)
        }
      }
      delivery.perform()
      guard offersRoom, case .bytes(let count) = result else { return result }
      let more = state.withLock { state in
        state.readersRoom = UnsafeMutableRawBufferPointer(start: nil, count: 0)
        return state.machine.withdrawRoom()
      }
      return .bytes(count + more)
    }
  }
}
