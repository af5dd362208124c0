// Recordings that are being finished on the disk, and the actions that wait for that.

internal import DiskFiles
internal import EventLoops
internal import StreamServing

/// The recordings of one loop that are being finished on the disk. Only on the loop's thread.
///
/// Until a stream is finished, it cannot be opened. If the stream continues in another recording, its earlier one is
/// finished at any time, and nothing but the end of the server waits for that.
final class FinishingRecordings {
  private let loop: EventLoop
  private let distrusted: DistrustedRecordings
  private let emit: (ServerEvent) -> Void
  /// The actions that wait for the end of each stream.
  private var waiting: [StreamName: [() -> Void]] = [:]
  /// The number of recordings that are being finished while their streams continue in others.
  private var splitCount = 0
  private var idle: (() -> Void)?
  private var stops = false

  init(_ loop: EventLoop, _ distrusted: DistrustedRecordings, emit: @escaping (ServerEvent) -> Void) {
    (self.loop, self.distrusted, self.emit) = (loop, distrusted, emit)
  }

  /// Whether the stream is being finished at the moment.
  func contains(_ name: StreamName) -> Bool { waiting[name] != nil }

  func begin(_ name: StreamName) { waiting[name] = [] }

  /// Calls `completion` first, and then the actions that wait for the end.
  func end(_ name: StreamName, _ completion: () -> Void) {
    let actions = waiting.removeValue(forKey: name) ?? []
    completion()
    for action in actions { action() }
    checkIdle()
  }

  /// Whether `action` will be called later, because the stream is being finished at the moment.
  func waits(for name: StreamName, _ action: @escaping () -> Void) -> Bool {
    guard waiting[name] != nil else { return false }
    waiting[name]?.append(action)
    return true
  }

  /// Finishes a recording whose stream continues in another.
  ///
  /// - Parameters:
  ///   - complaint: the last reported reason why the recording is not finished.
  ///   - pauses: the times before the next attempts.
  func finishSplit(
    _ split: SplitRecording, peer: String, complaint: String? = nil, pauses: RetryPauses = RecordingSplit.retryPauses
  ) {
    splitCount += 1
    split.finish(loop) { [self] outcome in
      splitCount -= 1
      let name = split.name
      switch outcome {
      case .discarded: break
      case .failed(let error, let isDataLost):
        if complaint != "\(error)" { emit(ServerEvent(.warning, reason: "cannot finish \(name.partial): \(error)")) }
        if isDataLost {
          // The stream continues in a next part.
          distrusted.add(name, error)
        } else if !error.isForeignChange {
          // The disk may have space later. The next server finishes the recording if this one does not.
          var pauses = pauses
          loop.schedule(after: pauses.next()) { [weak self, pauses] in
            guard let self, !stops else { return }
            finishSplit(split, peer: peer, complaint: "\(error)", pauses: pauses)
          }
        }
      case .finished:
        var event = ServerEvent(.split, peer: peer)
        event.stream = name.streamID.isEmpty ? nil : name.streamID
        event.file = name.final
        event.offset = split.length
        event.bytes = split.length - min(split.length, split.start)
        event.missing = split.missing
        emit(event)
      }
      checkIdle()
    }
  }

  /// Calls `action` when no recording is being finished any more, which may be at once.
  func whenNone(_ action: @escaping () -> Void) {
    if waiting.isEmpty, splitCount == 0 { action() } else { idle = action }
  }

  private func checkIdle() {
    guard waiting.isEmpty, splitCount == 0, let idle else { return }
    self.idle = nil
    idle()
  }

  /// Called at the end of the server. What the disk refused is not retried after this.
  func stop() { stops = true }
}
