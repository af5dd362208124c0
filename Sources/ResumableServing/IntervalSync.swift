// Syncs the received bytes of all uploads to the disk once per second.

internal import EventLoops

/// The uploads whose bytes were not synced yet. Only on the loop's thread.
///
/// One round covers all uploads, and starts only after the previous one is over. If a disk cannot keep up, the rounds
/// become longer instead of queueing.
final class IntervalSync {
  private static let interval = Duration.seconds(1)
  /// How many uploads of an earlier server one round includes at most. The loop serves no request while a round begins.
  private static let leftCount = 100

  private let loop: EventLoop
  private var waiting: [UploadResource] = []
  /// Uploads of an earlier server that are added to the next rounds.
  private var left: [UploadResource] = []
  private var timer: EventLoop.Timer?
  /// How many syncs of the present round are under way.
  private var open = 0

  init(_ loop: EventLoop) { self.loop = loop }

  func add(_ resource: UploadResource) {
    waiting.append(resource)
    arm()
  }

  /// Adds an upload that an earlier server has left with bytes that it may not have synced.
  func addLeft(_ resource: UploadResource) {
    left.append(resource)
    arm()
  }

  private func arm() {
    guard timer == nil, open == 0, !waiting.isEmpty || !left.isEmpty else { return }
    timer = loop.schedule(after: Self.interval) { [unowned self] in
      // Each adds itself, unless its client has returned and it waits already.
      for resource in left.suffix(Self.leftCount) { resource.syncSoon() }
      left.removeLast(min(Self.leftCount, left.count))
      timer = nil
      begin()
    }
  }

  private func begin() {
    let round = waiting
    waiting = []
    open = round.count
    for resource in round {
      resource.synchronizeInBackground { [self] in
        open -= 1
        arm()
      }
    }
  }

  /// The server ends, and leaves unsynced bytes to the kernel.
  func cancel() {
    if let timer { loop.cancel(timer) }
    timer = nil
    (waiting, left) = ([], [])
  }
}
