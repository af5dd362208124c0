// The bytes of an upload for a handler that keeps none: a file beside the upload's record, handed on as it grows, and
// handed on anew from its beginning after a restart.

internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import HTTPServer
internal import StreamServing

/// A file of one upload's bytes, and how far its handler has been given them.
final class SpooledBody: UploadBody {
  /// How much is read back for the handler in one turn of the loop, in bytes: other streams have their turn in between.
  private static let turn = 256 * 1024
  /// How long it waits to read again when the server lacks descriptors or memory.
  private static let pauses = (first: Duration.milliseconds(100), longest: Duration.seconds(5))

  private let loop: EventLoop
  private let records: any UploadRecords
  private let stored: OpenFile
  private let handler: any RequestHandler
  private(set) var keptCount: UInt64
  /// How many bytes the handler was given.
  private var fed: UInt64 = 0
  /// How many it may be given; nil for all.
  private var heldFrom: UInt64?
  private var accepted = false
  /// Whether the handler takes no more for now.
  private var isPaused = false
  private var ended = false
  private var isOver = false
  private var isPumping = false
  /// How long the next attempt to read waits.
  private var retryPause = Duration.zero
  /// How many syncs are under way: the descriptor stays open for them.
  private var syncCount = 0
  /// What was kept cannot be read back now, or is not there any more (`ESTALE`).
  private let unreadable: (SystemError) -> Void
  /// What the bytes take of the quota of whose upload this is.
  private let account: StreamAccount
  private let share: UploadUsage.Share

  /// - Parameter stored: a file that holds `keptCount` bytes.
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

  /// Nobody is at work: the descriptor can serve somebody else. The file is opened again when it is needed.
  func closeFile() { stored.closeIfIdle() }

  var place: FilePlace? { stored.place }
  func stretches(of range: Range<UInt64>) -> [FileStretch]? { [FileStretch(stored, range)] }

  func append(_ bytes: Span<UInt8>, pieces: [Range<Int>]) -> KeepingError? {
    let descriptor: Int32
    do throws(SystemError) { descriptor = try stored.acquire() } catch { return .disk(error) }
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
      handler.receive(bytes, pieces: error == nil ? pieces : pieces.prefix(octets: written))
    } else {
      pump()
    }
    return error.map { .disk($0) } ?? (granted < count ? .quota : nil)
  }

  /// The handler wants the body.
  func accept() {
    accepted = true
    pump()
  }

  func pause() { isPaused = true }

  func resume() {
    isPaused = false
    pump()
  }

  /// The handler has answered, or is given up: it hears nothing more.
  func stopFeeding() { isOver = true }

  func hold() { heldFrom = heldFrom ?? keptCount }

  func release() {
    heldFrom = nil
    pump()
  }

  func drop(to count: UInt64) throws(SystemError) {
    try stored.check(length: keptCount)
    let descriptor = try stored.acquire()
    defer { stored.release() }
    try retryingInterrupts("ftruncate of an upload") { ftruncate(descriptor, off_t(count)) }
    keptCount = count
    account.shrink(to: count)
  }

  func synchronize(_ completion: @escaping (UInt64, SystemError?) -> Void) {
    let count = keptCount
    records.synchronizeBody(stored) { completion(count, $0) }
  }

  func end() {
    ended = true
    pump()
  }

  // MARK: Handing on

  /// Gives the handler what it lacks, a piece at a time.
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
    // In a turn of its own: not within the call of the handler that asked for it, nor in front of the other streams.
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
      // The bytes are there, and what is lacking comes back.
      guard error.isShortage else {
        isOver = true
        return unreadable(error)
      }
      retryPause = min(max(retryPause * 2, Self.pauses.first), Self.pauses.longest)
      return
    }
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
