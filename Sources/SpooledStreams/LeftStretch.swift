// A stretch that an earlier process has left. At first only its name is known, and it is open only while it is needed.

internal import EventLoops
internal import Spool
internal import StreamBuffers

/// Owned by the spool's thread; unchecked for that reason.
final class LeftStretch: @unchecked Sendable {
  /// The name of its file.
  let name: String
  let path: String
  private let folder: SpoolFolder
  /// Describes a stretch that has no file yet, because the disk had no space for one.
  private let withoutFile: SharedStretch.Description?

  /// The writer and the backlog while it is open.
  private(set) var opened: (writer: StretchWriter, backlog: SpooledBacklog)?
  /// Whether a stream is sending it.
  var isTaken = false
  /// Whether none of it is needed any more.
  private(set) var isGone = false
  /// Whether it was tried and found unusable.
  var isUnreadable = false
  /// Why it could not be opened the last time.
  var problem: SpoolError?
  /// Whether all of it is on the disk.
  private(set) var isSettled = false
  /// How many bytes it keeps that the server has not stored, as far as is known.
  private var knownByteCount: UInt64 = 0
  private var isReported = false
  private var hasFile: Bool

  init(path: String, _ folder: SpoolFolder) {
    name = path.split(separator: "/").last.map(String.init) ?? path
    hasFile = true
    (self.path, self.folder, withoutFile) = (path, folder, nil)
  }

  init(_ withoutFile: SharedStretch.Description, _ folder: SpoolFolder) {
    name = withoutFile.identity.fileName
    path = "\(folder.path)/\(name)"
    hasFile = false
    (self.folder, self.withoutFile) = (folder, withoutFile)
  }

  var keptByteCount: UInt64 { opened?.writer.keptByteCount ?? knownByteCount }

  /// Examines it without leaving it open. A stretch that is completely on the disk is then settled.
  ///
  /// - Throws: ``SpoolError``. The stretch stays unchanged.
  func look(_ thread: SpoolThread) throws(SpoolError) {
    guard opened == nil, hasFile else { return }
    let file = try SpoolFile.open(path, access: .readOnly, folder: folder)
    try file.settleDoubt()
    report(file, thread)
    knownByteCount = file.keptByteCount
    isSettled = file.wasSealed && !SharedStretch(id: file.id).isThere
  }

  /// Opens it, unless it is open already.
  ///
  /// - Throws: ``SpoolError``. The stretch stays unchanged.
  func open(_ thread: SpoolThread) throws(SpoolError) -> (writer: StretchWriter, backlog: SpooledBacklog) {
    if let opened { return opened }
    let new = try openStretch(thread)
    opened = new
    return new
  }

  private func openStretch(_ thread: SpoolThread) throws(SpoolError) -> (StretchWriter, SpooledBacklog) {
    var file = hasFile ? try SpoolFile.open(path, folder: folder) : nil
    if let file {
      try file.settleDoubt()
      report(file, thread)
    }
    guard let id = file?.id ?? withoutFile?.identity.id else { throw SpoolError(.notASpool, path: path) }
    var shared: SharedStretch? = SharedStretch(id: id)
    var remains: CircularBuffer.Remains?
    do throws(SpoolError) {
      remains = try shared?.remains()
    } catch {
      // The stream must not end before bytes that are readable later.
      if error.mayPass { throw error }
      // The remains stay in memory. The bytes in the file are sent.
      if case .system = error.cause, file == nil { throw error }
      if error.cause == .truncated {
        // It can be removed with the rest. The file may show that it was not needed, or has reported the loss.
        if let file, !file.needsNoMemory, !file.hasLostMemory { thread.report(.unreadable(error)) }
      } else {
        // Without a file, the loss is reported below, when the disk accepts one.
        if file != nil { thread.report(.unreadable(error)) }
        shared = nil
      }
    }
    // None of it is what the process left there.
    if file?.hasLostMemory == true { remains = nil }
    if file == nil, remains == nil, let withoutFile {
      let new = try Self.createForLoss(withoutFile, folder)
      report(new, thread)
      file = new
    }
    // It may be newer than the newest checkpoint, even if all bytes were copied.
    let note = remains?.note
    if let file, file.checkpoint.isFinished || (remains?.head ?? 0) < file.head {
      // Everything was copied, and the process was killed before it removed the rest.
      remains = nil
    }
    guard file != nil || remains != nil else { throw SpoolError(.notASpool, path: path) }
    let (kept, checkpoint) = (file.map { $0.oldest..<$0.head }, file?.checkpoint ?? SpoolCheckpoint())
    let released = max(file?.released ?? 0, remains?.passed ?? 0)
    let resumption = note ?? checkpoint.state
    let oldest = remains?.oldest ?? 0
    // Nothing is captured any more, so the capacity needs only what is in memory.
    let capacity = remains.map { $0.head - $0.oldest + 1 << 20 } ?? 0
    let stretch = thread.makeStretch(
      kept: kept ?? oldest..<oldest, released: released,
      capacity: file.map { min($0.capacity, max(thread.settings.limit, $0.keptByteCount)) } ?? capacity,
      resumption: resumption, firstHole: remains.map { $0.consumed ?? $0.oldest } ?? 0)
    let ends: CircularBuffer.FinishedEnds
    do throws(SystemError) {
      if let remains {
        ends = try CircularBuffer.makeFinished(remains, from: released, backing: stretch)
        stretch.keepsWords(in: ends.copier.note)
        file?.acceptRemains()
      } else {
        // A pause after the last byte was recorded by a process that ended in a power failure.
        let pauses = checkpoint.pauses.filter { $0.position <= checkpoint.head }
        ends = try CircularBuffer.makeFinished(
          head: file?.head ?? 0, pauses: pauses.map { CircularBuffer.Pause(position: $0.position, length: $0.length) },
          pausedBefore: checkpoint.pausedByteCount, backing: stretch)
      }
    } catch {
      throw SpoolError(.system(error), path: path)
    }
    let (copier, folder, withoutFile) = (ends.copier, folder, withoutFile)
    let patience = thread.settings.readingPatience
    let writer = StretchWriter(file: file, stretch: stretch, copier: copier, shared: shared, patience: patience) {
      () throws(SpoolError) in
      guard let withoutFile else { throw SpoolError(.notASpool, path: folder.path) }
      return try SpoolFile.create(
        in: folder, withoutFile.identity, description: withoutFile.text, capacity: capacity)
    }
    let backlog = SpooledBacklog(
      name: name, created: file?.created ?? withoutFile?.identity.created ?? 0,
      description: file?.description ?? withoutFile?.text ?? "", stretch: stretch,
      kept: max(released, kept?.lowerBound ?? oldest)..<max(released, remains?.head ?? 0, kept?.upperBound ?? 0),
      released: released, pausedByteCount: copier.pauses(from: released).byteCountBefore, resumption: resumption,
      ends: ends)
    return (writer, backlog)
  }

  /// The file of a stretch that was only in memory, which is gone. It has no bytes, and records that some may be lost.
  private static func createForLoss(
    _ stretch: SharedStretch.Description, _ folder: SpoolFolder
  ) throws(SpoolError) -> SpoolFile {
    let file = try SpoolFile.create(in: folder, stretch.identity, description: stretch.text, capacity: 1)
    file.noteLostMemory()
    return file
  }

  private func report(_ file: SpoolFile, _ thread: SpoolThread) {
    guard !isReported else { return }
    isReported = true
    for damage in file.damage { thread.report(.damaged(stretch: file.name, damage)) }
  }

  /// Whether the server has stored everything, and need not learn that nothing follows.
  var isDone: Bool {
    guard let opened, !isTaken else { return false }
    return opened.writer.keptByteCount == 0 && opened.writer.byteCountInMemory == 0
      && opened.backlog.resumption.isEmpty
  }

  /// Whether there is nothing to send, and its file exists only because bytes may be lost.
  var isKeptForOperator: Bool { isDone && opened?.writer.mayLackBytes == true }

  /// All existing bytes were written.
  func settle() throws(SpoolError) {
    try opened?.writer.leaveMemory()
    isSettled = true
  }

  /// It no longer needs to be open.
  func close() {
    guard let opened else { return }
    knownByteCount = opened.writer.keptByteCount
    hasFile = hasFile || opened.writer.file != nil
    opened.writer.close()
    self.opened = nil
    isTaken = false
  }

  /// None of it is needed any more. If bytes of it may be lost, its file stays, without anything to send.
  func remove() throws(SpoolError) {
    isGone = true
    try opened?.writer.remove()
    opened = nil
  }
}
