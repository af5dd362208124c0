// Stores the bytes of an upload whose handler does not keep them, in a file beside the upload's record. It passes them
// on as the file grows, and again from the beginning after a restart.

internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import HTTPServer
internal import StreamServing

/// A file of one upload's bytes, and how many of them its handler has received.
final class SpooledBody: KeptBody {
  /// How many bytes are read back for the handler per turn of the loop. Other streams get their turn in between.
  private static let turn = 256 * 1024

  private let loop: EventLoop
  private let records: any UploadRecords
  private let stored: OpenFile
  private let handler: any RequestHandler
  private(set) var keptCount: UInt64
  /// How many bytes the handler has received.
  private var fed: UInt64 = 0
  /// How many it may receive; nil for all.
  private var heldFrom: UInt64?
  private var accepted = false
  /// Whether the handler has paused its body.
  private var isPaused = false
  private var ended = false
  private var isOver = false
  private var isPumping = false
  /// The pauses before it reads again when the server lacks descriptors or memory.
  private var retryPauses = RetryPauses(.milliseconds(100)...(.seconds(5)))
  /// The pause before the next attempt to read.
  private var retryPause = Duration.zero
  /// Called when the kept bytes cannot be read back now, or no longer exist (`ESTALE`).
  private let unreadable: (SystemError) -> Void
  /// The bytes' share of their owner's quota.
  private let account: StreamAccount
  private let share: UploadUsage.Share

  /// - Parameter stored: a file that contains `keptCount` bytes.
  init(
    _ stored: OpenFile, keptCount: UInt64, account: StreamAccount, share: UploadUsage.Share,
    handler: any RequestHandler, loop: EventLoop, records: any UploadRecords,
    unreadable: @escaping (SystemError) -> Void
  ) {
    self.unreadable = unreadable
    (self.account, self.share) = (account, share)
    self.stored = stored
    self.keptCount = keptCount
    self.handler = handler
    self.loop = loop
    self.records = records
  }

  /// No request is active, so the descriptor can serve another upload. The file is opened again when necessary.
  func closeFile() { stored.closeWhenIdle() }

  var place: FilePlace? { stored.place }
  func stretches(of range: Range<UInt64>) -> [FileStretch]? { [FileStretch(stored, range)] }

  func append(_ bytes: Span<UInt8>, pieces: [Range<Int>]) -> KeepingError? {
    let descriptor: Int32
    do throws(SystemError) {
      // The next server would not find bytes in a file that has lost its name.
      try checkFile()
      descriptor = try stored.acquire()
    } catch {
      return .disk(error)
    }
    let count = pieces.reduce(0) { $0 + $1.count }
    let granted = Int(clamping: account.reserve(UInt64(count), for: share))
    let pieces = granted < count ? pieces.prefix(octets: granted) : pieces
    let (written, error) = BodyWriter.write(descriptor, bytes, pieces, skipping: 0, at: keptCount)
    stored.release()
    account.shrink(to: keptCount + UInt64(written))
    let isNext = accepted && !isPaused && heldFrom == nil && fed == keptCount && !isPumping
    keptCount += UInt64(written)
    if isNext {
      fed = keptCount
      // A handler may rely on at least one byte, even if the quota or the disk accepts none.
      if written > 0 { handler.receive(bytes, pieces: error == nil ? pieces : pieces.prefix(octets: written)) }
    } else {
      pump()
    }
    return error.map { .disk($0) } ?? (granted < count ? .quota : nil)
  }

  /// Checks that nothing else has changed, removed or replaced the file.
  func checkFile() throws(SystemError) { try stored.check(length: keptCount) }

  /// The handler accepts the body.
  func accept() {
    accepted = true
    pump()
  }

  func pause() { isPaused = true }

  func resume() {
    isPaused = false
    pump()
  }

  /// The handler has answered, or was abandoned, and receives nothing more.
  func stopFeeding() { isOver = true }

  func hold() { heldFrom = heldFrom ?? keptCount }

  func release() {
    heldFrom = nil
    pump()
  }

  func drop(to count: UInt64) throws(SystemError) {
    try checkFile()
    try stored.truncate(to: count, "ftruncate of an upload")
    keptCount = count
    account.shrink(to: count)
  }

  func synchronize(_ completion: @escaping (UInt64, SystemError?) -> Void) {
    let count = keptCount
    records.synchronizeBody(stored) { completion(count, $0) }
  }

  func end(sha256: [UInt8]?) {
    ended = true
    pump()
  }

  // MARK: Passing on

  /// Passes the missing bytes to the handler, one piece at a time.
  private func pump() {
    guard accepted, !isPaused, !isPumping, !isOver else { return }
    let limit = heldFrom ?? keptCount
    guard fed < limit else {
      if ended, heldFrom == nil {
        isOver = true
        handler.end()
      }
      return
    }
    isPumping = true
    // In a separate turn: not within the handler's call that asked for it, and not ahead of the other streams.
    loop.schedule(after: retryPause) { [self] in
      isPumping = false
      readBack(upTo: heldFrom ?? keptCount)
      pump()
    }
  }

  private func readBack(upTo limit: UInt64) {
    guard !isPaused, !isOver, fed < limit else { return }
    let buffer = UnsafeMutableBufferPointer<UInt8>.allocate(capacity: Int(min(UInt64(Self.turn), limit - fed)))
    defer { buffer.deallocate() }
    let count: Int
    do throws(SystemError) {
      count = try read(into: buffer)
    } catch {
      // The bytes are there, and the shortage will pass.
      guard error.isShortage else {
        isOver = true
        return unreadable(error)
      }
      retryPause = retryPauses.next()
      return
    }
    retryPauses.reset()
    retryPause = .zero
    fed += UInt64(count)
    handler.receive(UnsafeBufferPointer(rebasing: buffer[..<count]).span, pieces: [0..<count])
  }

  private func read(into buffer: UnsafeMutableBufferPointer<UInt8>) throws(SystemError) -> Int {
    let descriptor = try stored.acquire()
    defer { stored.release() }
    let count = try retryingInterrupts("read an upload") {
      pread(descriptor, buffer.baseAddress, buffer.count, off_t(fed))
    }
    guard count > 0 else {
      throw SystemError(operation: "read an upload, whose file was shortened", code: ESTALE)
    }
    return count
  }
}
