// Writes one output without making its callers wait.
//
// A terminal after Ctrl-S, a hanging ssh connection and an unread pipe accept no bytes, perhaps forever. The network
// loop and the signal handling must not wait for them. So lines go into a queue, and a thread writes them.

internal import EventLoops
internal import Glibc

/// The queue of one descriptor, and the thread that empties it.
final class OutputWriter: Sendable {
  /// The events with which the thread and its callers wake each other.
  private final class WakeUps: Sendable {
    let news: EventCounter
    /// Signalled when everything is written.
    let idle: EventCounter
    init() throws(SystemError) {
      news = try EventCounter()
      idle = try EventCounter()
    }
  }

  private struct State {
    var queue: OutputQueue
    /// Nil as long as the callers write themselves and wait.
    var wakeUps: WakeUps?
    var hasThread = false
    /// Whether the thread is writing the lines that it took.
    var isWriting = false
    /// Whether nothing can be written any more, because the reader has disappeared.
    var isBroken = false
    /// The error (errno) because of which a file lacks lines. With a queue, only until the file reports them.
    var failure: Int32?
    /// The number of written pieces. It distinguishes a slow reader from a stopped one.
    var pieces: UInt64 = 0
  }

  private let descriptor: Int32
  private let onFailure: @Sendable (Int32) -> Void
  private let state: Lock<State>

  /// - Parameters:
  ///   - limit: the number of bytes of lines that may wait. Beyond that, the oldest are dropped.
  ///   - notice: makes the line that replaces a number of dropped lines.
  ///   - onFailure: called with the error (errno) of the first write that a full disk or a limit refuses, and again
  ///     only after everything could be written.
  init(
    descriptor: Int32, limit: Int = 256 << 10, notice: @escaping @Sendable (UInt64) -> String,
    onFailure: @escaping @Sendable (Int32) -> Void = { _ in }
  ) {
    (self.descriptor, self.onFailure) = (descriptor, onFailure)
    state = Lock(State(queue: OutputQueue(limit: limit, notice: notice)))
  }

  /// From now on, no caller waits for this output. Before, each line is written at once, as in a short-lived program.
  func begin() throws(SystemError) {
    let wakeUps = try WakeUps()
    state.withLock { state in
      if state.wakeUps == nil { state.wakeUps = wakeUps }
    }
  }

  /// The number of lines dropped so far.
  var droppedCount: UInt64 { state.withLock { $0.queue.droppedEver } }

  /// The error (errno) because of which a file lacks lines, and does not report it. A reader that disappeared is not an
  /// error.
  var failure: Int32? { state.withLock { $0.failure } }

  /// Changes the queue. Any thread.
  func update(_ change: (inout OutputQueue) -> Void) {
    let batch = state.withLock { state -> OutputQueue.Batch? in
      change(&state.queue)
      guard !state.isBroken, let wakeUps = state.wakeUps else {
        let batch = state.queue.take()
        guard state.isBroken else { return batch }
        if let batch { state.queue.failed(batch, after: 0) }
        return nil
      }
      if !state.hasThread, !state.queue.isEmpty { state.hasThread = startThread(wakeUps) }
      wakeUps.news.signal()
      return nil
    }
    if let batch { write(batch) }
  }

  /// Waits until everything is written, as long as a reader makes progress. It waits at most `patience` without
  /// progress, and ten times that in total. Returns false if something is left.
  func flush(patience: Duration) -> Bool {
    guard let wakeUps = state.withLock({ $0.wakeUps }) else { return true }
    // There may be space again since the last line.
    update { $0.reportLosses() }
    for _ in 0..<10 {
      // Drained first, because a signal of an earlier idle state must not end the wait below.
      wakeUps.idle.drain()
      let (isDone, before) = state.withLock {
        ($0.isBroken || !$0.isWriting && $0.queue.isEmpty, $0.pieces)
      }
      if isDone { return true }
      if writeWithoutThread(patience) { continue }
      let isIdle = waitUntilReady(
        wakeUps.idle.descriptor, for: POLLIN, timeout: Int32(clamping: patience.nanoseconds / 1_000_000))
      if !isIdle, state.withLock({ $0.pieces }) == before { return false }
    }
    return false
  }

  /// Writes the queue when the system has allowed no thread for it. Returns false if there is a thread.
  private func writeWithoutThread(_ patience: Duration) -> Bool {
    guard !state.withLock({ $0.hasThread }) else { return false }
    // Data without a reader stays in the queue.
    let milliseconds = Int32(clamping: patience.nanoseconds / 1_000_000)
    guard waitUntilReady(descriptor, for: POLLOUT, timeout: milliseconds) else { return false }
    if let batch = state.withLock({ $0.queue.take() }) { write(batch) }
    return true
  }

  // MARK: Writing

  /// Returns false if the system allows no more threads. The lines wait, and the next line tries again.
  private func startThread(_ wakeUps: WakeUps) -> Bool {
    guard let thread = try? NamedThread("sluice-output", { [self] in run(wakeUps) }) else { return false }
    thread.detach()
    return true
  }

  private func run(_ wakeUps: WakeUps) {
    while true {
      let batch = state.withLock { state in
        let batch = state.queue.take()
        state.isWriting = batch != nil
        return batch
      }
      if let batch {
        write(batch)
      } else {
        wakeUps.idle.signal()
        waitUntilReady(wakeUps.news.descriptor, for: POLLIN)
        wakeUps.news.drain()
      }
    }
  }

  /// Writes whole lines where possible. No piece is longer than a pipe accepts undivided, because two programs, or both
  /// outputs of this one, may write to the same pipe.
  private func write(_ batch: OutputQueue.Batch) {
    var rest = Array(batch.text.utf8)[...]
    while !rest.isEmpty {
      var piece = rest.prefix(Int(PIPE_BUF))
      if piece.count < rest.count, let end = piece.lastIndex(of: UInt8(ascii: "\n")) { piece = rest[...end] }
      let error = write(&piece)
      rest = rest[piece.startIndex...]
      if let error { return failed(batch, after: rest.startIndex, error) }
    }
    state.withLock { state in
      // Without a queue, the output of a short-lived program lacks lines for good.
      if state.wakeUps != nil { state.failure = nil }
    }
  }

  /// Removes the written bytes from a piece. Returns the error (errno) because of which the others cannot be written.
  private func write(_ piece: inout ArraySlice<UInt8>) -> Int32? {
    while !piece.isEmpty {
      let count = piece.withUnsafeBytes { Glibc.write(descriptor, $0.baseAddress, $0.count) }
      if count > 0 {
        piece = piece[(piece.startIndex + count)...]
        state.withLock { $0.pieces &+= 1 }
        continue
      }
      // A call that takes nothing without an error would be repeated forever.
      let code = count == 0 ? ENOSPC : errno
      switch code {
      case EINTR: continue
      case EAGAIN:
        // Another process that shares this descriptor has made it non-blocking.
        waitUntilReady(descriptor, for: POLLOUT)
      default: return code
      }
    }
    return nil
  }

  /// A full disk may have room for the next batch. A reader that disappeared does not return.
  private func failed(_ batch: OutputQueue.Batch, after count: Int, _ code: Int32) {
    let begins = state.withLock { state in
      state.queue.failed(batch, after: count)
      guard [ENOSPC, EDQUOT, EFBIG].contains(code) else {
        state.isBroken = true
        return false
      }
      defer { state.failure = state.failure ?? code }
      return state.failure == nil
    }
    if begins { onFailure(code) }
  }
}
