// The uploads whose messages are about to be removed from the log, because their recordings are stored.

internal import EventLoops
internal import JetStream
internal import StreamServing
internal import StreamStore

/// Removes messages that may be removed according to a checkpoint, of one upload after another. Only on the loop's
/// thread.
///
/// The log may have the only copy of the received bytes. So the messages of a recording whose digest is known stay
/// until its stored bytes have been compared with it, and for ever if they differ.
final class PurgeQueue {
  private let stream: MessageStream
  private let store: FileStore
  private let checkpoints: CheckpointWriter
  private let warn: (String) -> Void
  /// Called when the next checkpoint must contain a change. The recording and its sidecar may be moved away before the
  /// next collector starts.
  private let changed: () -> Void
  /// Those that wait for a checkpoint, a comparison or the brokers.
  private(set) var pending: [CollectorCheckpoint.Purge]
  private var isPurging = false
  /// The last reported error.
  private var complaint: String?
  /// Whether the brokers certainly have the log of the checkpoint.
  private var isLogKnown = false
  private var isStopped = false

  init(
    _ pending: [CollectorCheckpoint.Purge], _ stream: MessageStream, _ store: FileStore,
    _ checkpoints: CheckpointWriter, warn: @escaping (String) -> Void, changed: @escaping () -> Void
  ) {
    (self.pending, self.stream, self.store, self.checkpoints) = (pending, stream, store, checkpoints)
    (self.warn, self.changed) = (warn, changed)
  }

  /// Waits for the comparisons of stored bytes with the received ones.
  func start(on loop: EventLoop) {
    // Used only on the loop's thread.
    nonisolated(unsafe) weak let queue = self
    store.reportSidecars { name, proof in
      loop.execute { queue?.judge(name.fileBase, proof) }
    }
    judge()
  }

  /// The recording of these uploads is complete and synced.
  func add(_ uploads: [CollectedUpload], of name: StreamName) {
    let proof = store.proof(of: name)
    // Without a sidecar, an earlier collector may have found damage.
    if proof == .damaged || proof == .unknown && store.hasSidecars { return keep(name.base, because: proof) }
    let awaited = proof == .pending ? name.base : nil
    pending += uploads.map { .init(token: $0.token, sequence: $0.appliedSequence, awaited: awaited) }
  }

  func logIsKnown() {
    guard !isLogKnown else { return }
    isLogKnown = true
    proceed()
  }

  /// The brokers have lost messages that were collected. Messages that were not collected may have these sequences.
  func rewind() { (pending, isLogKnown) = ([], false) }

  /// Continues when a checkpoint was written.
  func proceed() {
    guard isLogKnown, !isPurging, let purge = pending.first(where: { mayStart($0) }) else { return }
    isPurging = true
    LogPurge(stream, purge).start { [self] answer in
      isPurging = false
      switch answer {
      case .success:
        complaint = nil
        pending.removeAll { $0 == purge }
        proceed()
      // The next checkpoint retries it.
      case .failure(let error):
        if complaint != "\(error)" { warn("messages of a collected recording stay in the log: \(error)") }
        complaint = "\(error)"
      }
    }
  }

  /// Whether the checkpoint states the purge, and nothing is awaited any more.
  private func mayStart(_ purge: CollectorCheckpoint.Purge) -> Bool {
    purge.awaited == nil
      && checkpoints.latest.purges.contains { $0.token == purge.token && $0.sequence == purge.sequence }
  }

  /// Decides about the purges that wait for a comparison. It may have ended under an earlier collector.
  func judge() {
    for base in Set(pending.compactMap(\.awaited)) { judge(base, store.proof(of: StreamName(base: base))) }
  }

  private func judge(_ base: String, _ proof: RecordingProof) {
    guard !isStopped, pending.contains(where: { $0.awaited == base }) else { return }
    switch proof {
    case .pending: return
    case .undisputed:
      for index in pending.indices where pending[index].awaited == base { pending[index].awaited = nil }
      proceed()
    case .damaged, .unknown:
      pending.removeAll { $0.awaited == base }
      keep(base, because: proof)
    }
    changed()
  }

  private func keep(_ base: String, because proof: RecordingProof) {
    let reason =
      proof == .damaged
      ? "its stored bytes differ from the received ones"
      : "its sidecar is missing, so its stored bytes cannot be compared with the received ones"
    warn(
      "the messages of \(base) stay in the log, because \(reason). Collect the log into another directory, and purge "
        + "the messages when you have the recording.")
  }

  /// The next collector decides about the rest.
  func stop() { isStopped = true }
}
