// Writes one output without keeping its callers waiting.
//
// A terminal after Ctrl-S, an ssh connection that hangs and a pipe that nobody reads accept no byte, perhaps for ever.
// The network loop and the signal handling must not wait for them. So lines go into a queue, and a thread writes them.

internal import EventLoops
internal import Glibc

/// The queue of one descriptor, and the thread that empties it.
final class OutputWriter: Sendable {
  /// How the thread and the others wake each other.
  private final class WakeUps: Sendable {
    let news: EventCounter
    /// Signalled when all is written.
    let idle: EventCounter
    init() throws(SystemError) {
      news = try EventCounter()
      idle = try EventCounter()
    }
  }

  private struct State {
    var queue: OutputQueue
    /// nil as long as the callers write themselves, and wait.
    var wakeUps: WakeUps?
    var hasThread = false
    /// Whether the thread is writing what it took.
    var isWriting = false
    /// Whether no byte can be written any more: the reader has gone.
    var isBroken = false
    /// Why a file lacks a piece (errno).
    var failure: Int32?
    /// Pieces written so far. They tell a slow reader from one that has stopped.
    var pieces: UInt64 = 0
  }

  private let descriptor: Int32
  private let state: Lock<State>

  /// - Parameter limit: how many bytes of lines may wait. The oldest are dropped beyond that.
  init(descriptor: Int32, limit: Int = 256 << 10, notice: @escaping @Sendable (UInt64) -> String) {
    self.descriptor = descriptor
    state = Lock(State(queue: OutputQueue(limit: limit, notice: notice)))
  }

  /// From now on no caller waits for this output. Before, each line is written at once, as a short-lived program does
  /// it.
  func begin() throws(SystemError) {
    let wakeUps = try WakeUps()
    state.withLock { state in
      if state.wakeUps == nil { state.wakeUps = wakeUps }
    }
  }

  /// Lines dropped so far.
  var droppedCount: UInt64 { state.withLock { $0.queue.droppedEver } }

  /// The first error (errno) because of which a file lacks lines. A reader that has gone wants no more, and is none.
  var failure: Int32? { state.withLock { $0.failure } }

  /// Changes what is to be written. Any thread.
  func update(_ change: (inout OutputQueue) -> Void) {
    let text = state.withLock { state -> String? in
      change(&state.queue)
      guard !state.isBroken, let wakeUps = state.wakeUps else {
        let text = state.queue.take()
        return state.isBroken ? nil : text
      }
      if !state.hasThread, !state.queue.isEmpty { state.hasThread = startThread(wakeUps) }
      wakeUps.news.signal()
      return nil
    }
    if let text { write(text) }
  }

  /// Waits until all is written, as long as somebody reads: no longer than `patience` without progress, and ten times
  /// that in all. Returns false when something is left.
  func flush(patience: Duration) -> Bool {
    guard let wakeUps = state.withLock({ $0.wakeUps }) else { return true }
    for _ in 0..<10 {
      // First: a signal of an earlier idleness must not end the wait below.
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

  /// Writes what waits where the system has allowed no thread for it; false if there is one.
  private func writeWithoutThread(_ patience: Duration) -> Bool {
    guard !state.withLock({ $0.hasThread }) else { return false }
    // What nobody reads stays where it is.
    let milliseconds = Int32(clamping: patience.nanoseconds / 1_000_000)
    guard waitUntilReady(descriptor, for: POLLOUT, timeout: milliseconds) else { return false }
    if let text = state.withLock({ $0.queue.take() }) { write(text) }
    return true
  }

  // MARK: Writing

  /// False when the system allows no more threads: the lines wait, and the next one tries again.
  private func startThread(_ wakeUps: WakeUps) -> Bool {
    guard let thread = try? NamedThread("sluice-output", { [self] in run(wakeUps) }) else { return false }
    thread.detach()
    return true
  }

  private func run(_ wakeUps: WakeUps) {
    while true {
      let text = state.withLock { state in
        let text = state.queue.take()
        state.isWriting = text != nil
        return text
      }
      if let text {
        write(text)
      } else {
        wakeUps.idle.signal()
        waitUntilReady(wakeUps.news.descriptor, for: POLLIN)
        wakeUps.news.drain()
      }
    }
  }

  /// Whole lines where possible, each piece no longer than a pipe accepts undivided: two programs, or both outputs of
  /// this one, may write into the same pipe.
  private func write(_ text: String) {
    var rest = Array(text.utf8)[...]
    while !rest.isEmpty {
      var piece = rest.prefix(Int(PIPE_BUF))
      if piece.count < rest.count, let end = piece.lastIndex(of: UInt8(ascii: "\n")) { piece = rest[...end] }
      guard write(piece) else { return }
      rest = rest[piece.endIndex...]
    }
  }

  /// False when the piece cannot be written. A full disk may have room for the next one; a reader that has gone does
  /// not return.
  private func write(_ piece: ArraySlice<UInt8>) -> Bool {
    var rest = piece
    while !rest.isEmpty {
      let count = rest.withUnsafeBytes { Glibc.write(descriptor, $0.baseAddress, $0.count) }
      if count > 0 {
        rest = rest.dropFirst(count)
        state.withLock { $0.pieces &+= 1 }
        continue
      }
      switch errno {
      case EINTR: continue
      case EAGAIN:
        // Somebody else who has this descriptor open has made it non-blocking.
        waitUntilReady(descriptor, for: POLLOUT)
      case ENOSPC, EDQUOT, EFBIG:
        let code = errno
        state.withLock { $0.failure = $0.failure ?? code }
        return false
      default:
        state.withLock { $0.isBroken = true }
        return false
      }
    }
    return true
  }
}
