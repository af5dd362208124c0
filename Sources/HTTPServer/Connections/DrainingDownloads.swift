// Decides which downloads a stopping server waits for: those whose clients still receive bytes. Pure.

internal import EventLoops

/// The downloads of one loop while the server stops, by the descriptors of their connections.
struct DrainingDownloads {
  private struct Progress {
    var undelivered: UInt64
    /// When the undelivered count reached its minimum.
    var since: MonotonicInstant
  }

  /// How long a client may receive nothing.
  let patience: Duration
  private var progress: [Int32: Progress] = [:]

  init(patience: Duration) { self.patience = patience }

  /// Whether the server waits for a download.
  ///
  /// - Parameter undelivered: how many bytes the client has yet to receive; nil if it has received all.
  mutating func isAlive(_ connection: Int32, undelivered: UInt64?, now: MonotonicInstant) -> Bool {
    guard let undelivered else {
      progress[connection] = nil
      return false
    }
    if let last = progress[connection], last.undelivered == undelivered { return now - last.since < patience }
    progress[connection] = Progress(undelivered: undelivered, since: now)
    return true
  }
}
