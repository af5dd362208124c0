// The thread that waits for the disk, so that no other thread has to.

internal import EventLoops
internal import Spool
internal import StreamBuffers

/// Copies and loads the stretches of one stream. Owned by its own thread; unchecked for that reason.
final class SpoolThread: @unchecked Sendable {
  let loop: EventLoop
  let settings: SpoolSettings
  let report: @Sendable (SpoolEvent) -> Void
  /// The stretches that earlier processes have left, oldest first.
  var left: [LeftStretch] = []
  /// The elements of ``left`` from here on were examined, newest first.
  var lookedFrom = 0
  /// The stretch whose source still exists, until its stream is over.
  private(set) var current: StretchWriter?
  /// The same, until all of it is on the disk.
  private var live: StretchWriter?
  /// Whether each byte is written at once, because no other memory survives this process.
  private var isEager = false
  private var timer: EventLoop.Timer?
  /// The beginning of a block that is awaited shortly before the interval ends; see ``awaitBlock()``.
  private var awaitedBlock: UInt64?
  /// Whether the kernel does not watch the live stretch's buffer. Then only the timer makes its bytes be copied.
  private var isUnwatched = false
  private var isFailing = false
  /// Whether an operation has failed since the last attempt to use the disk.
  private var hasFailed = false
  /// The end of the live stretch, which waits for the last bytes of its source.
  private var awaitedEnd: (timer: EventLoop.Timer, action: () -> Void)?
  let buffer = UnsafeMutableRawBufferPointer.allocate(byteCount: 1 << 20, alignment: 4096)

  init(_ settings: SpoolSettings, report: @escaping @Sendable (SpoolEvent) -> Void) throws(SystemError) {
    self.settings = settings
    self.report = report
    loop = try EventLoop()
    // Retained by its thread until ``stop()``.
    try NamedThread("spool") { [self] in
      loop.run()
      endAwaited()
      (left, current, live) = ([], nil, nil)
    }.detach()
  }

  deinit { buffer.deallocate() }

  /// The open stretches, oldest first.
  var writers: [StretchWriter] { left.compactMap { $0.opened?.writer } + (current.map { [$0] } ?? []) }

  /// The most bytes that a stretch keeps: the limit, and those that a killed process leaves in memory.
  func capacity(_ buffer: Int) -> UInt64 {
    // No disk is larger, and sums with it cannot overflow.
    min(settings.limit, 1 << 52) + StreamSpool.sizeBesidesLimit(buffer: buffer)
  }

  /// How many positions the ring of a file spans. While the disk is full, positions pass without bytes. A larger ring
  /// does not drop older bytes for them, and costs nothing, because the file is sparse.
  static func reach(of capacity: UInt64) -> UInt64 {
    min(16 * capacity, 1 << 40, SpoolFile.capacityOfLargestFile)
  }

  // MARK: The live stretch

  /// - Parameter isEager: whether unwritten bytes would be lost with this process.
  func add(_ writer: StretchWriter, isEager: Bool) {
    endAwaited()
    (current, live) = (writer, writer)
    self.isEager = isEager
    watch(writer)
    copyLive()
  }

  private func watch(_ live: StretchWriter) {
    do throws(SystemError) {
      try loop.register(live.copier.descriptor, [.readable, .edgeTriggered]) { [unowned self] _ in copyLive() }
      isUnwatched = false
    } catch {
      isUnwatched = true
      // The timer tries again.
      failed(SpoolError(.system(error), path: live.file?.path ?? ""), live.stretch)
    }
  }

  /// The circular buffer has bytes to copy, or waits for space.
  private func copyLive() {
    guard let live else { return }
    let copied = copy(live, atMost: Self.turn)
    if isEager, commit(live, sync: false) { settleMemory(live) }
    if live.isAtEnd { return finishLive() }
    if let awaitedBlock, live.copier.head >= awaitedBlock { return synchronize(blocksFrom: awaitedBlock) }
    armTimer()
    awaitBytes(live, after: copied)
  }

  /// The interval is nearly over. When the next block begins, its bytes have just arrived: those before it are written
  /// to the disk, and these have a whole interval of their own. Without such a moment, all are written at the
  /// interval's end, together with a checkpoint.
  private func awaitBlock() {
    timer = loop.schedule(after: patience) { [unowned self] in synchronize(blocksFrom: nil) }
    guard let live, !isEager, !live.needsCommit else { return }
    awaitedBlock = SpoolFile.nextBlock(after: live.copier.head)
    awaitBytes(live, after: .nothing)
  }

  private var patience: Duration { min(settings.syncInterval * 3 / 16, .milliseconds(500)) }

  /// Once in each interval that brought new bytes, and in each one in which the buffer is not watched.
  private func synchronize(blocksFrom start: UInt64?) {
    if let timer { loop.cancel(timer) }
    (timer, awaitedBlock) = (nil, nil)
    hasFailed = writers.contains { $0.isUnreadable }
    // After the last stretch has ended on a full disk, nothing shows whether the disk has space again.
    let usesDisk = !writers.isEmpty || left.contains { !$0.isSettled && !$0.isUnreadable }
    writers.forEach(check)
    if let live, isUnwatched { watch(live) }
    evictOld()
    let copied = live.map { synchronize($0, blocksFrom: start) } ?? .nothing
    for writer in writers where writer !== live && (writer.holdsRoom || writer.hasNewResumption) {
      commit(writer, sync: true)
    }
    settleLeft()
    if usesDisk, !hasFailed { worked() }
    // Bytes that are only being sent will soon have progressed further.
    if writers.contains(where: { $0 !== live }) { armTimer() }
    guard let live else { return }
    if live.isAtEnd { return finishLive() }
    if copied != .nothing || live.isDirty { armTimer() }
    awaitBytes(live, after: copied)
  }

  /// Checks whether another program has removed or truncated the file.
  private func check(_ writer: StretchWriter) {
    if let path = writer.findRemoval() { report(.removed(path)) }
    do throws(SpoolError) {
      guard let path = try writer.findTruncation() else { return }
      report(.truncated(path))
      commit(writer, sync: true)
    } catch {
      failed(error, writer.stretch)
    }
  }

  private func synchronize(_ live: StretchWriter, blocksFrom start: UInt64?) -> StretchWriter.Copied {
    let copied = copy(live, atMost: Self.turn)
    live.releaseAcknowledged()
    do throws(SpoolError) {
      if let start, try live.synchronizeBlocks(from: start) { return copied }
    } catch {
      failed(error, live.stretch)
      return copied
    }
    if live.isDirty || live.hasNewResumption { commit(live, sync: true) }
    // Not between the bytes of a steady stream, because each record is a write.
    if copied == .nothing, !live.isDirty { settleMemory(live) }
    return copied
  }

  private func settleMemory(_ live: StretchWriter) {
    do throws(SpoolError) { try live.settleMemory() } catch { failed(error, live.stretch) }
  }

  func armTimer() {
    guard timer == nil else { return }
    timer = loop.schedule(after: settings.syncInterval - patience) { [unowned self] in awaitBlock() }
  }

  private func awaitBytes(_ live: StretchWriter, after copied: StretchWriter.Copied) {
    // Without space, further bytes do not help. The timer tries again, and so does the consumer when it releases bytes.
    if case .blocked = copied { return }
    // While the timer runs, only a buffer that fills quickly must be handled before it.
    // The first one after a time without any must be noted at once, and so must the first of all: until then, the file
    // does not show that the stream has begun.
    let isFirst = live.position == 0 || !live.isMemoryNoted
    let step = isEager || timer == nil || isFirst ? 1 : UInt64(live.copier.capacity / 4)
    let next = min(live.position.addingSaturated(step), awaitedBlock ?? .max)
    if !live.copier.requestWakeUp(atHead: next) {
      loop.afterReady { [unowned self] in copyLive() }
    }
  }

  /// The source has ended.
  private func finishLive() {
    if let live, keep(live) {
      loop.deregister(live.copier.descriptor)
      self.live = nil
      armTimer()
    }
    endAwaited()
  }

  // MARK: Any stretch

  /// Writes all existing bytes to the file. If the disk refuses, returns false, and the bytes stay in memory, where the
  /// next process finds them.
  func keep(_ writer: StretchWriter) -> Bool {
    if case .blocked = copy(writer) { return false }
    return commit(writer, sync: true)
  }

  /// How many bytes are copied before other work gets its turn, such as commits and loads for the consumer.
  private static let turn = 16 << 20

  private func copy(_ writer: StretchWriter, atMost limit: Int = .max) -> StretchWriter.Copied {
    let copied = writer.copy(through: buffer, atMost: limit) { count, file in makeRoom(for: count, writer, file) }
    if case .blocked(let error) = copied { failed(error, writer.stretch) }
    return copied
  }

  @discardableResult
  func commit(_ writer: StretchWriter, sync: Bool) -> Bool {
    do throws(SpoolError) {
      try writer.commit(sync: sync)
      return true
    } catch {
      failed(error, writer.stretch)
      return false
    }
  }

  func failed(_ error: SpoolError, _ stretch: SpooledStretch?) {
    hasFailed = true
    armTimer()
    // A full spool works as configured: the source waits.
    if case .full = error.cause, !settings.evicts {
      stretch?.isStarved()
      return
    }
    if !isFailing { report(.failing(error)) }
    isFailing = true
  }

  private func worked() {
    if isFailing { report(.recovered) }
    isFailing = false
  }

  // MARK: Any thread

  func makeStretch(
    kept: Range<UInt64>, released: UInt64, capacity: UInt64, resumption: String = "", firstHole: UInt64 = 0
  ) -> SpooledStretch {
    let owner = Owner()
    let stretch = SpooledStretch(
      kept: kept, released: released, capacity: capacity, resumption: resumption, firstHole: firstHole,
      load: { [self] position in loop.execute { [self] in load(owner, from: position) } },
      roomIsThere: { [self] in loop.execute { [self] in copyLive() } },
      keep: { [self] in loop.execute { [self] in keepResumption(of: owner) } })
    owner.stretch = stretch
    return stretch
  }

  /// Identifies the stretch of a call, because a stretch cannot refer to itself before it exists.
  private final class Owner: @unchecked Sendable {
    // Unchecked, because it is set before any call.
    weak var stretch: SpooledStretch?
  }

  private func writer(of owner: Owner) -> StretchWriter? { writers.first { $0.stretch === owner.stretch } }

  /// Loads bytes for a consumer. If the disk cannot read them now, retries until it can.
  private func load(_ owner: Owner, from position: UInt64) {
    guard let writer = writer(of: owner), let error = writer.load(from: position) else { return }
    failed(error, writer.stretch)
    loop.schedule(after: settings.syncInterval) { [weak self] in self?.load(owner, from: position) }
  }

  /// Makes a stretch keep its resumption data now.
  private func keepResumption(of owner: Owner) {
    guard let writer = writer(of: owner), writer.hasNewResumption else { return }
    commit(writer, sync: true)
  }

  /// The server has stored everything, or the stream is over for another reason.
  ///
  /// - Parameters:
  ///   - isDelivered: whether none of the stretch is needed any more.
  ///   - done: called on the spool's thread with the number of bytes that exist only in memory or in a removed file.
  func end(_ stretch: SpooledStretch, isDelivered: Bool, then done: @escaping @Sendable (UInt64) -> Void) {
    loop.execute { [self] in
      guard !isDelivered, let live, live.stretch === stretch, !live.isAtEnd else {
        return done(end(stretch, isDelivered: isDelivered))
      }
      // The source was stopped a moment ago, and its thread still adds what it has captured by then.
      let timer = loop.schedule(after: settings.sourcePatience) { [unowned self] in endAwaited() }
      awaitedEnd = (timer, { [unowned self] in done(end(stretch, isDelivered: false)) })
      copyLive()
      // The disk writes meanwhile, because the stream waits for it only for a limited time.
      if self.live === live { commit(live, sync: true) }
    }
  }

  private func endAwaited() {
    guard let (timer, action) = awaitedEnd.take() else { return }
    loop.cancel(timer)
    action()
  }

  private func end(_ stretch: SpooledStretch, isDelivered: Bool) -> UInt64 {
    let stretchLeft = left.first { $0.opened?.writer.stretch === stretch }
    guard let writer = stretchLeft?.opened?.writer ?? current, writer.stretch === stretch else { return 0 }
    writer.releaseAcknowledged()
    // Bytes that the source may still add stay in the buffer, for the next process.
    let mayGrow = writer === live && !writer.isAtEnd
    if writer === live {
      loop.deregister(writer.copier.descriptor)
      live = nil
    }
    defer { if writer === current { current = nil } }
    if isDelivered {
      do throws(SpoolError) {
        if let stretchLeft { try stretchLeft.remove() } else { try writer.remove() }
      } catch { report(.failing(error)) }
      left.removeAll { $0.isGone }
      return 0
    }
    let isKept = keep(writer) && (!mayGrow || writer.isAtEnd) && settle(writer, stretchLeft)
    check(writer)
    if !isKept { writer.findLossAtEnd() }
    let head = writer.copier.head
    let inMemory =
      writer.isRemoved
      ? stretch.unacknowledged(upTo: head)
      : isKept ? 0 : max(writer.byteCountInMemory, stretch.notSynchronized(upTo: head))
    if let stretchLeft { stretchLeft.close() } else { writer.close() }
    return inMemory
  }

  private func settle(_ writer: StretchWriter, _ stretchLeft: LeftStretch?) -> Bool {
    do throws(SpoolError) {
      if let stretchLeft { try stretchLeft.settle() } else { try writer.leaveMemory() }
      return true
    } catch {
      failed(error, writer.stretch)
      return false
    }
  }

  /// Ends the thread.
  func stop() { loop.stop() }
}
