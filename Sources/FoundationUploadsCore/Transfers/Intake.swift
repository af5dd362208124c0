// Counts the bytes of a response that wait for the program or the disk, and decides when to pause the server.

internal import EventLoops
internal import UploadClient

/// Counts bytes that have come and were not taken, from any thread.
///
/// The server is held up above the limit, and let go at half of it: a gauge that says so for each piece would stop and
/// start the transfer all the time.
final class Intake: Sendable {
  /// The most that waits, in bytes, but for the pieces that are under way.
  static let limit = 1 << 20

  private struct State {
    var waiting = 0
    var isFull = false
  }

  private let state = Lock(State())

  /// Whether nothing more should come.
  var isFull: Bool { state.withLock { $0.isFull } }

  /// - Returns: whether it is full from now on.
  func add(_ count: Int) -> Bool {
    state.withLock { state in
      state.waiting += count
      guard state.waiting > Self.limit, !state.isFull else { return false }
      state.isFull = true
      return true
    }
  }

  /// - Returns: whether there is room from now on.
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
  /// The program, or the disk, has taken bytes. Any thread.
  func took(_ count: Int) {
    if intake.take(count) { onLoop { [self] in updateReception() } }
  }

  /// Holds the server up, or lets it go on.
  func updateReception() {
    if intake.isFull { running?.pauseReception() } else { running?.resumeReception() }
  }
}
