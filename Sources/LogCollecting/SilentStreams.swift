// The end of live streams that no longer send.

internal import EventLoops

/// Closes the recordings of live uploads that are silent for a time. Only on the loop's thread.
///
/// Their bytes are in the checkpoint, so none of them arrives again. While the collector is behind, silence is unknown.
final class SilentStreams {
  private unowned let collection: Collection
  private let checkpoints: CheckpointWriter
  private let finishAfter: Duration
  private var timer: EventLoop.Timer?
  /// The time from which on all messages were read immediately. Nil while the collector is behind.
  private var currentSince: MonotonicInstant?

  /// - Parameter finishAfter: how long an upload may be silent.
  init(_ collection: Collection, _ checkpoints: CheckpointWriter, finishAfter: Duration) {
    self.collection = collection
    (self.checkpoints, self.finishAfter) = (checkpoints, finishAfter)
  }

  /// Called when the log has no messages that were not read.
  func caughtUp() {
    if currentSince == nil { currentSince = .now }
  }

  /// Called when the log has, or may have, messages that were not read.
  func fellBehind() { currentSince = nil }

  /// Waits for the silence of the live uploads, if there are any.
  func arm() {
    guard timer == nil, !collection.isStopping else { return }
    let live = collection.uploads.values.filter { $0.isLive && $0.phase == .open }
    guard let oldest = live.map(\.lastActivity).min() else { return }
    // Streams that become silent at nearly the same time are closed together.
    let soonest = MonotonicInstant.now + .nanoseconds(max(finishAfter.nanoseconds / 64, 50_000_000))
    timer = collection.loop.schedule(at: max(oldest + finishAfter, soonest)) { [unowned self] in
      timer = nil
      close()
      arm()
    }
  }

  private func close() {
    guard let currentSince, checkpoints.coversAll, !collection.isHolding else { return }
    let now = MonotonicInstant.now
    guard now - currentSince >= finishAfter else { return }
    for upload in Array(collection.uploads.values) where upload.isLive && now - upload.lastActivity >= finishAfter {
      guard upload.phase == .open, collection.lanes[upload.name] == nil else { continue }
      guard upload.checkpoint != nil else {
        // It has no recording. Its first message is still in the log if more bytes arrive.
        collection.forget(upload)
        continue
      }
      upload.closeSilent()
      checkpoints.touched(upload.name)
    }
    if checkpoints.isDue { collection.armCheckpoint() }
  }

  /// Called at the end of the collection.
  func stop() {
    if let timer { collection.loop.cancel(timer) }
  }
}
