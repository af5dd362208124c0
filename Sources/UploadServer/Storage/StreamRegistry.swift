// Which streams have a request at work on them, so that a newer request can take over from an older one.

internal import EventLoops

/// What all requests of a server share that store streams. Only on the loop's thread.
final class StreamRegistry {
  let store: any StreamStore
  let loop: EventLoop
  /// The largest hole that a request may leave, in bytes.
  let maximumHole: UInt64
  let emit: (ServerEvent) -> Void
  let assignment: LoopAssignment
  let figures: LoopFigures

  private var owners: [StreamName: StreamStoreHandler] = [:]
  /// Streams whose end is on its way to the disk, and who waits for it.
  private var finishing: [StreamName: [() -> Void]] = [:]
  private var idle: (() -> Void)?

  init(
    store: any StreamStore, loop: EventLoop, maximumHole: UInt64, assignment: LoopAssignment, figures: LoopFigures,
    emit: @escaping (ServerEvent) -> Void
  ) {
    self.assignment = assignment
    self.figures = figures
    self.store = store
    self.loop = loop
    self.maximumHole = maximumHole
    self.emit = emit
  }

  /// The handler that stores the stream now.
  func owner(of name: StreamName) -> StreamStoreHandler? { owners[name] }

  func claim(_ name: StreamName, for handler: StreamStoreHandler) { owners[name] = handler }

  func release(_ name: StreamName, by handler: StreamStoreHandler) {
    if owners[name] === handler { owners[name] = nil }
  }

  /// Whether `action` will be called later, because the stream is just being completed.
  func waits(for name: StreamName, _ action: @escaping () -> Void) -> Bool {
    guard finishing[name] != nil else { return false }
    finishing[name]?.append(action)
    return true
  }

  /// Completes the stream; `completion` first, then those who wait for it.
  func finish(_ stream: any StoredStream, completion: @escaping (SystemError?) -> Void) {
    finishing[stream.name] = []
    stream.finish(on: loop) { [self] error in
      let waiting = finishing.removeValue(forKey: stream.name) ?? []
      completion(error)
      for action in waiting { action() }
      if finishing.isEmpty, let idle {
        self.idle = nil
        idle()
      }
    }
  }

  /// Calls `action` when no stream is being completed: now, or when the last one is.
  func whenNothingFinishes(_ action: @escaping () -> Void) {
    if finishing.isEmpty { action() } else { idle = action }
  }
}
