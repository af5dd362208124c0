// Counts the bytes of a response that wait for the program or the disk, and decides when to pause the server.

internal import EventLoops
internal import UploadClient

/// Counts received bytes that were not taken yet. Any thread.
///
/// The server is paused above the limit, and resumed at half of it. A single threshold would stop and start the
/// transfer with each piece.
final class Intake: Sendable {
  /// The maximum number of bytes that wait, not counting pieces under way.
  static let limit = 1 << 20

  private struct State {
    var waiting = 0
    var isFull = false
  }

  private let state = Lock(State())

  /// Whether the server should pause.
  var isFull: Bool { state.withLock { $0.isFull } }

  /// - Returns: whether it became full.
  func add(_ count: Int) -> Bool {
    state.withLock { state in
      state.waiting += count
      guard state.waiting > Self.limit, !state.isFull else { return false }
      state.isFull = true
      return true
    }
  }

  /// - Returns: whether space became available.
  func take(_ count: Int) -> Bool {
    state.withLock { state in
      state.waiting -= count
      guard state.waiting <= Self.limit / 2, state.isFull else { return false }
      state.isFull = false
      return true
    }
  }
}

extension Transfer {
  /// The program or the disk has taken bytes. Any thread.
  func took(_ count: Int) {
    if intake.take(count) { onLoop { [self] in updateReception() } }
  }

  /// Pauses or resumes the server.
  func updateReception() {
    if intake.isFull { running?.pauseReception() } else { running?.resumeReception() }
  }
}
