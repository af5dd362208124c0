// The thread that waits for the disk, so that nobody else has to.

public import EventLoops
internal import Glibc
public import Spool
internal import StreamBuffers

/// How a stream is spooled.
public struct SpoolSettings: Sendable {
  /// The most bytes that all stretches of the stream keep together.
  public var limit: UInt64
  /// How much a power cut may take, in time.
  public var syncInterval = Duration.seconds(1)
  /// Whether the oldest bytes make room when ``limit`` is reached. Otherwise nothing more is copied until there is room.
  public var evicts = true
  /// Bytes that were captured longer ago are evicted; nil for never.
  public var retention: Duration?

  public init(limit: UInt64) { self.limit = limit }
}

/// Something that happened to a spool.
public enum SpoolEvent: Equatable, Sendable {
  /// Nothing can be written, for this reason. The stream continues in memory, and the spool tries again.
  case failing(SpoolError)
  /// It can be written again.
  case recovered
  /// The file system in memory has no room for what must survive the end of the process: bytes are written to the disk more often.
  case withoutSharedMemory(SystemError)
  /// A stretch of an earlier process has lost bytes.
  case damaged(stretch: String, SpoolDamage)
  /// A stretch of an earlier process cannot be read. It stays where it is.
  case unreadable(SpoolError)
}

/// Copies and loads the stretches of one stream. Owned by its own thread; unchecked for that reason.
final class SpoolThread: @unchecked Sendable {
  let loop: EventLoop
  private let settings: SpoolSettings
  private let report: @Sendable (SpoolEvent) -> Void
  /// Oldest first.
  private var writers: [StretchWriter] = []
  /// The one whose source is still there.
  private var live: StretchWriter?
  /// Whether each byte goes to the disk's cache at once, because no other memory survives this process.
  private var isEager = false
  private var timer: EventLoop.Timer?
  private var isFailing = false
  private let buffer = UnsafeMutableRawBufferPointer.allocate(byteCount: 1 << 20, alignment: 4096)

  /// How many blocks are looked at for their age in each interval: each is a read.
  private static let evictedAtOnce = 1024

  init(_ settings: SpoolSettings, report: @escaping @Sendable (SpoolEvent) -> Void) throws(SystemError) {
    self.settings = settings
    self.report = report
    loop = try EventLoop()
    // Kept by its thread, and that until ``stop()``.
    try NamedThread("spool") { [self] in
      loop.run()
      (writers, live) = ([], nil)
    }.detach()
  }

  deinit { buffer.deallocate() }

  /// - Parameter isEager: whether this process alone has what is not written.
  func add(_ writer: StretchWriter, isEager: Bool = false) {
    writers.append(writer)
    guard let copier = writer.copier else { return }
    live = writer
    self.isEager = isEager
    do throws(SystemError) {
      try loop.register(copier.descriptor, [.readable, .edgeTriggered]) { [unowned self] _ in copyLive() }
    } catch {
      report(.failing(SpoolError(.system(error), path: writer.file.path)))
    }
    copyLive()
  }

  // MARK: The live stretch

  /// The circular buffer has something to copy, or waits for room.
  private func copyLive() {
    guard let live else { return }
    let copied = copy(live)
    if isEager { commit(live, sync: false) }
    if live.isAtEnd { return finishLive() }
    armTimer()
    awaitBytes(live, after: copied)
  }

  /// Once in each interval in which there was something new.
  private func synchronize() {
    timer = nil
    evictOld()
    guard let live else { return }
    let copied = copy(live)
    live.releaseAcknowledged()
    var isCommitted = true
    if live.isDirty || live.hasNewResumption { isCommitted = commit(live, sync: true) }
    for writer in writers where writer !== live && writer.holdsRoom { commit(writer, sync: true) }
    if case .blocked = copied { isCommitted = false }
    if isCommitted { worked() }
    if live.isAtEnd { return finishLive() }
    if copied != .nothing { armTimer() }
    awaitBytes(live, after: copied)
  }

  private func armTimer() {
    guard timer == nil else { return }
    timer = loop.schedule(after: settings.syncInterval) { [unowned self] in synchronize() }
  }

  private func awaitBytes(_ live: StretchWriter, after copied: StretchWriter.Copied) {
    // Where there is no room, more bytes bring none: the timer tries again, and so does the consumer when it releases some.
    if case .blocked = copied { return }
    guard let copier = live.copier else { return }
    // While the timer runs, only a buffer that fills quickly cannot wait for it.
    let step = isEager || timer == nil ? 1 : UInt64(copier.capacity / 4)
    if !copier.requestWakeUp(atHead: live.position + step) {
      loop.afterReady { [unowned self] in copyLive() }
    }
  }

  /// The source has ended.
  private func finishLive() {
    guard let live, keep(live) else { return }
    endLive()
  }

  private func endLive() {
    if let timer { loop.cancel(timer) }
    timer = nil
    if let copier = live?.copier { loop.deregister(copier.descriptor) }
    live = nil
  }

  /// Has the file keep everything that there is. False if the disk refuses that: it stays in memory, where the next process
  /// finds it.
  private func keep(_ writer: StretchWriter) -> Bool {
    if case .blocked = copy(writer) { return false }
    return commit(writer, sync: true)
  }

  private func copy(_ writer: StretchWriter) -> StretchWriter.Copied {
    let copied = writer.copy(through: buffer) { count in makeRoom(for: count, writer) }
    if case .blocked(let error) = copied { failed(error, writer) }
    return copied
  }

  @discardableResult
  private func commit(_ writer: StretchWriter, sync: Bool) -> Bool {
    do throws(SpoolError) {
      try writer.commit(sync: sync)
      return true
    } catch {
      failed(error, writer)
      return false
    }
  }

  private func failed(_ error: SpoolError, _ writer: StretchWriter) {
    armTimer()
    // A full spool is as it was asked for: the source waits.
    if case .full = error.cause, !settings.evicts { return writer.stretch.isStarved() }
    if !isFailing { report(.failing(error)) }
    isFailing = true
  }

  private func worked() {
    if isFailing { report(.recovered) }
    isFailing = false
  }

  // MARK: Room

  /// Lets the oldest bytes go if there is no room for `count` more of a stretch; false if they must stay.
  private func makeRoom(for count: UInt64, _ writer: StretchWriter) -> Bool {
    for writer in writers { writer.releaseAcknowledged() }
    if settings.evicts, writer.position + count > writer.file.oldest + writer.file.capacity {
      evict(writer, upTo: writer.leastOldest(for: count))
    }
    let kept = writers.reduce(UInt64(0)) { $0 + $1.keptByteCount }
    guard kept + count > settings.limit else { return true }
    guard settings.evicts else { return false }
    var excess = kept + count - settings.limit
    for writer in writers where excess > 0 {
      let evicted = min(excess, writer.keptByteCount)
      evict(writer, upTo: writer.file.oldest + evicted)
      excess -= evicted
    }
    return excess == 0
  }

  private func evict(_ writer: StretchWriter, upTo position: UInt64) {
    writer.file.evict(upTo: position)
    writer.stretch.evicted(upTo: position)
  }

  /// Lets go what was captured too long ago.
  private func evictOld() {
    guard let retention = settings.retention, WallClock.isSynchronized == true else { return }
    let limit = WallClock.now.sinceEpoch - retention.nanoseconds / 1_000_000
    for writer in writers {
      for _ in 0..<Self.evictedAtOnce where writer.file.oldest < writer.file.head {
        // What cannot be read is of no age.
        if let time = (try? writer.file.time(at: writer.file.oldest)) ?? nil, time >= limit { break }
        evict(writer, upTo: SpoolFile.nextBlock(after: writer.file.oldest))
      }
    }
  }

  // MARK: Any thread

  /// - Parameter shared: what survives the process without having been written; nil for a stretch of an earlier one.
  func makeStretch(
    _ file: SpoolFile, shared: SharedStretch? = nil, resumption: SpooledStretch.Resumption = .init()
  ) -> SpooledStretch {
    let id = ObjectIdentifier(file)
    return SpooledStretch(
      kept: file.oldest..<file.head, released: file.released, capacity: file.capacity, resumption: resumption,
      load: { [self] position in load(from: position, of: id) },
      roomIsThere: { [self] in loop.execute { [self] in copyLive() } },
      keep: { [self] resumption, isUrgent in
        shared?.write(resumption)
        // Without that, the next commit has it. A backlog has no other commits.
        if isUrgent || shared == nil { keepResumption(of: id) }
      })
  }

  private func load(from position: UInt64, of file: ObjectIdentifier) {
    loop.execute { [self] in
      for writer in writers where ObjectIdentifier(writer.file) == file { writer.load(from: position) }
    }
  }

  /// Has a stretch keep how to go on with it, now.
  private func keepResumption(of file: ObjectIdentifier) {
    loop.execute { [self] in
      for writer in writers where ObjectIdentifier(writer.file) == file && writer.hasNewResumption {
        commit(writer, sync: true)
      }
    }
  }

  /// The server has everything, or the stream is over for another reason.
  ///
  /// - Parameter isDelivered: whether nothing of the stretch is needed any more.
  func end(_ stretch: SpooledStretch, isDelivered: Bool, then done: @escaping @Sendable () -> Void) {
    loop.execute { [self] in
      end(stretch, isDelivered: isDelivered)
      // Nothing here refers to the file any more.
      done()
    }
  }

  private func end(_ stretch: SpooledStretch, isDelivered: Bool) {
    guard let index = writers.firstIndex(where: { $0.stretch === stretch }) else { return }
    let writer = writers[index]
    writer.releaseAcknowledged()
    if writer === live { endLive() }
    writers.remove(at: index)
    if isDelivered {
      do throws(SpoolError) { try writer.remove() } catch { report(.failing(error)) }
    } else if keep(writer) {
      writer.close()
    }
  }

  /// Ends the thread.
  func stop() { loop.stop() }
}
