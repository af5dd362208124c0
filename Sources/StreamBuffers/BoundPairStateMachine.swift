// The rules of a bound pair: the permitted calls of the two ends and the signals to each. No memory, no lock, no
// thread.

/// The rules of a bound pair. Every method takes an event and returns the actions that follow.
struct BoundPairStateMachine {
  enum OutputState: Equatable {
    case notOpen
    /// Open, and the owner received the signal for space. It may write once.
    case mayWrite
    /// Open, and written since the signal. The next write must wait for the next signal.
    case mustWait
    case closed
  }

  enum InputState: Equatable {
    case notOpen
    case open
    case closed
  }

  /// Why the bytes will not all arrive.
  enum Failure: Equatable {
    case output(BoundPair.StreamError)
    case input(BoundPair.StreamError)
  }

  let capacity: Int
  private(set) var bufferedByteCount = 0
  private(set) var output = OutputState.notOpen
  private(set) var input = InputState.notOpen
  private(set) var failure: Failure?
  /// How many bytes of space a reader, within its read, still offers to the writer; nil while there is none.
  private var readersRoom: Int?
  /// How many bytes were written into that space.
  private var handedOverByteCount = 0

  init(capacity: Int) { self.capacity = capacity }

  /// The signals for each end, in this order.
  struct Signals: Equatable {
    var output: BoundPair.OutputEvent?
    var input: BoundPair.InputEvent?
    static let none = Signals()
  }

  // MARK: The output end

  /// Opens the output end. It may write at once if there is space, which there always is unless it was opened late.
  mutating func openOutput() -> Signals {
    guard output == .notOpen else { return .none }
    if let missed = outputMissed {
      output = .closed
      return Signals(output: missed)
    }
    output = .mayWrite
    return Signals(output: .spaceAvailable)
  }

  enum WriteAction: Equatable {
    /// Copy this number of bytes in, then signal.
    case accept(Int, Signals)
    /// Copy this number of bytes into the reader's space, then signal.
    case handOver(Int, Signals)
    case refuse(BoundPair.Refusal)
  }

  mutating func write(_ count: Int) -> WriteAction {
    switch output {
    case .notOpen: return .refuse(.notOpen)
    case .closed: return .refuse(.closed)
    case .mustWait: return .refuse(.noSpaceSignalled)
    case .mayWrite: break
    }
    if let room = readersRoom, room > 0, count > 0, bufferedByteCount == 0 {
      let accepted = min(count, room)
      readersRoom = room - accepted
      handedOverByteCount += accepted
      // The buffer has space, too: the permission is used up and granted again at once.
      return .handOver(accepted, Signals(output: .spaceAvailable))
    }
    let accepted = min(count, capacity - bufferedByteCount)
    guard accepted > 0 else { return .accept(0, .none) }
    let wasEmpty = bufferedByteCount == 0
    bufferedByteCount += accepted
    var signals = Signals()
    // A reader that found the pair empty waits for this. One that left bytes behind knows that they are there.
    if wasEmpty, input == .open { signals.input = .bytesAvailable }
    if bufferedByteCount < capacity {
      // Space is left: the permission is used up and granted again at once.
      signals.output = .spaceAvailable
    } else {
      output = .mustWait
    }
    return .accept(accepted, signals)
  }

  /// Ends the stream. Buffered bytes can still be read, and then the input end sees the end.
  mutating func closeOutput() -> Signals {
    guard output != .closed else { return .none }
    output = .closed
    let isRead = bufferedByteCount == 0 && handedOverByteCount == 0
    return Signals(input: isRead && input == .open ? .endEncountered : nil)
  }

  /// Aborts the stream. The input end fails, because the buffered bytes are incomplete.
  mutating func failOutput(_ error: BoundPair.StreamError) -> Signals {
    guard output != .closed, input != .closed else { return .none }
    output = .closed
    failure = .output(error)
    return Signals(input: input == .open ? .errorOccurred(error) : nil)
  }

  // MARK: The input end

  mutating func openInput() -> Signals {
    guard input == .notOpen else { return .none }
    input = .open
    if case .output(let error) = failure { return Signals(input: .errorOccurred(error)) }
    if bufferedByteCount > 0 { return Signals(input: .bytesAvailable) }
    return Signals(input: output == .closed ? .endEncountered : nil)
  }

  enum ReadAction: Equatable {
    /// Copy this number of bytes out, then signal.
    case take(Int, Signals)
    case empty
    case end
    case fail(BoundPair.StreamError)
    case refuse(BoundPair.Refusal)
  }

  mutating func read(_ count: Int) -> ReadAction {
    switch input {
    case .notOpen: return .refuse(.notOpen)
    case .closed: return .refuse(.closed)
    case .open: break
    }
    // A read within another one gets the bytes after those of the first.
    if readersRoom != nil { readersRoom = 0 }
    if case .output(let error) = failure { return .fail(error) }
    // Not for a target without space: "empty" promises a signal, which does not follow while bytes are there.
    if bufferedByteCount == 0 { return output == .closed ? .end : .empty }
    let taken = min(count, bufferedByteCount)
    bufferedByteCount -= taken
    guard taken > 0, output == .mustWait else { return .take(taken, .none) }
    output = .mayWrite
    return .take(taken, Signals(output: .spaceAvailable))
  }

  /// A reader that has emptied the buffer offers its remaining space while the writer receives its signal. Bytes
  /// written there need not be copied twice. Returns false if there is nothing to withdraw later.
  mutating func offerRoom(_ count: Int) -> Bool {
    guard count > 0, readersRoom == nil, bufferedByteCount == 0, input == .open, output == .mayWrite else {
      return false
    }
    readersRoom = count
    return true
  }

  /// The read is over. Returns how many bytes were written into its space.
  mutating func withdrawRoom() -> Int {
    defer { (readersRoom, handedOverByteCount) = (nil, 0) }
    return handedOverByteCount
  }

  /// The reader needs no more. The output end sees the end, and buffered bytes are discarded.
  mutating func closeInput() -> Signals {
    guard input != .closed else { return .none }
    input = .closed
    bufferedByteCount = 0
    return close(outputWith: .endEncountered)
  }

  /// The reader failed: the output end fails with it.
  mutating func failInput(_ error: BoundPair.StreamError) -> Signals {
    guard input != .closed else { return .none }
    input = .closed
    bufferedByteCount = 0
    failure = .input(error)
    return close(outputWith: .errorOccurred(error))
  }

  /// The event that an output end has missed by opening late.
  private var outputMissed: BoundPair.OutputEvent? {
    if case .input(let error) = failure { return .errorOccurred(error) }
    return input == .closed ? .endEncountered : nil
  }

  private mutating func close(outputWith event: BoundPair.OutputEvent) -> Signals {
    // An end that is not open yet gets its event when it opens.
    guard output == .mayWrite || output == .mustWait else { return .none }
    output = .closed
    return Signals(output: event)
  }
}
