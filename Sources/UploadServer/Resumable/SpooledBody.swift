// The bytes of an upload for a handler that keeps none: a file beside the upload's record, handed on as it grows, and
// handed on anew from its beginning after a restart.

internal import EventLoops
internal import Glibc

/// A file of one upload's bytes, and how far its handler has been given them.
final class SpooledBody: UploadBody {
  /// How much is read back for the handler in one turn of the loop, in bytes: other streams have their turn in between.
  private static let turn = 256 * 1024

  private let loop: EventLoop
  private let records: any UploadRecords
  /// -1 while the file is closed.
  private var descriptor: Int32
  private let reopen: () throws(SystemError) -> Int32
  private let handler: any RequestHandler
  private(set) var keptCount: UInt64
  /// How many bytes the handler was given.
  private var fed: UInt64 = 0
  /// How many it may be given; nil for all.
  private var heldFrom: UInt64?
  private var accepted = false
  private var ended = false
  private var isOver = false
  private var isPumping = false
  /// What was kept cannot be read back.
  private let unreadable: () -> Void

  /// Takes over the descriptor of a file that holds `keptCount` bytes.
  init(
    descriptor: Int32, keptCount: UInt64, handler: any RequestHandler, loop: EventLoop,
    records: any UploadRecords, reopen: @escaping () throws(SystemError) -> Int32, unreadable: @escaping () -> Void
  ) {
    self.reopen = reopen
    self.unreadable = unreadable
    self.descriptor = descriptor
    self.keptCount = keptCount
    self.handler = handler
    self.loop = loop
    self.records = records
  }

  deinit { if descriptor >= 0 { close(descriptor) } }

  /// Nobody is at work: the descriptor can serve somebody else. The file is opened again when it is needed.
  func closeFile() {
    guard !isPumping, descriptor >= 0 else { return }
    close(descriptor)
    descriptor = -1
  }

  private func open() -> SystemError? {
    guard descriptor < 0 else { return nil }
    do throws(SystemError) { descriptor = try reopen() } catch { return error }
    return nil
  }

  var file: (descriptor: Int32, start: UInt64)? { open() == nil ? (descriptor, 0) : nil }

  func append(_ bytes: Span<UInt8>, pieces: [Range<Int>]) -> SystemError? {
    if let error = open() { return error }
    let (written, error) = BodyWriter.write(descriptor, bytes, pieces, skipping: 0, at: keptCount)
    let isNext = accepted && heldFrom == nil && fed == keptCount && !isPumping
    keptCount += UInt64(written)
    if isNext {
      fed = keptCount
      handler.receive(bytes, pieces: error == nil ? pieces : pieces.prefix(octets: written))
    } else {
      pump()
    }
    return error
  }

  /// The handler wants the body.
  func accept() {
    accepted = true
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
    if let error = open() { throw error }
    try retryingInterrupts("ftruncate of an upload") { ftruncate(descriptor, off_t(count)) }
    keptCount = count
  }

  func synchronize(_ completion: @escaping (UInt64, SystemError?) -> Void) {
    let count = keptCount
    // What was closed had been synced, where that was promised.
    guard descriptor >= 0 else { return completion(count, nil) }
    records.synchronizeBody(descriptor) { [self] error in
      // Named here so that the descriptor stays open until now.
      withExtendedLifetime(self) { completion(count, error) }
    }
  }

  func end() {
    ended = true
    pump()
  }

  // MARK: Handing on

  /// Gives the handler what it lacks, a piece at a time.
  private func pump() {
    guard accepted, !isPumping, !isOver else { return }
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
    loop.schedule(after: .zero) { [self] in
      isPumping = false
      readBack(upTo: heldFrom ?? keptCount)
      pump()
    }
  }

  private func readBack(upTo limit: UInt64) {
    guard !isOver, fed < limit else { return }
    if open() != nil {
      isOver = true
      return unreadable()
    }
    let buffer = UnsafeMutableBufferPointer<UInt8>.allocate(capacity: Int(min(UInt64(Self.turn), limit - fed)))
    defer { buffer.deallocate() }
    let count = pread(descriptor, buffer.baseAddress, buffer.count, off_t(fed))
    guard count > 0 else {
      isOver = true
      return unreadable()
    }
    fed += UInt64(count)
    handler.receive(UnsafeBufferPointer(rebasing: buffer[..<count]).span, pieces: [0..<count])
  }
}
