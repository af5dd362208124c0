// Once a second, for all uploads together: the disk takes what they have been sent.

internal import EventLoops

/// The uploads that have bytes which the disk was not asked for yet. Only on the loop's thread.
///
/// One round for all, and none before the last one is over: a disk that cannot keep up makes the rounds longer, and not
/// a queue of them.
final class IntervalSync {
  private static let interval = Duration.seconds(1)

  private let loop: EventLoop
  private var waiting: [UploadResource] = []
  private var timer: EventLoop.Timer?
  /// How many of the present round the disk has not taken yet.
  private var open = 0

  init(_ loop: EventLoop) { self.loop = loop }

  func add(_ resource: UploadResource) {
    waiting.append(resource)
    arm()
  }

  private func arm() {
    guard timer == nil, open == 0, !waiting.isEmpty else { return }
    timer = loop.schedule(after: Self.interval) { [unowned self] in
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

  /// The server ends: what is unsynced is the kernel's to write.
  func cancel() {
    if let timer { loop.cancel(timer) }
    timer = nil
    waiting = []
  }
}
