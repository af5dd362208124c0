// The directory that streams are stored in: every name is resolved relative to its descriptor, never by a path.

internal import CLinux
package import DiskFiles
package import EventLoops
internal import Glibc
internal import HTTPMessages
package import StreamServing
internal import Synchronization

/// A stream in a file of the store's directory.
final class StreamFile: StoredStream {
  private(set) var name: StreamName
  /// `.part`, or the complete file, for reading only.
  private(set) var stored: OpenFile
  let standing: StreamStanding
  private(set) var length: UInt64
  private(set) var gaps = GapRecord.Summary()
  /// Whether the disk has the file's name.
  fileprivate var isNameSynced = false
  /// What the stream's log says of this recording; nil if there is no log.
  private(set) var part: RecordingPart?
  var start: UInt64 { part?.start ?? 0 }
  var seriesStart: UInt64 { part?.seriesStart ?? 0 }
  private let store: FileStore
  /// What the sender says of the stream.
  private(set) var description: StreamDescription?
  /// The head of a WAV file, once all of it is there.
  private var head: WAVHead?
  /// How many bytes of samples the recording holds until a time of day; nil inside if none divides it, nil if nobody
  /// has looked yet.
  private var untilTime: UInt64??
  /// How much is written at once until the head is there.
  private static let headStep: UInt64 = 128
  /// Whether the file does not begin with one, whatever it is called.
  private var isHeadless = false
  private var splitFailure: SystemError?
  /// After what time it is tried again, and when; nil where nothing has failed.
  private var splitRetry: (pause: Duration, at: MonotonicInstant)?

  /// - Parameter size: of the file, in bytes.
  init(
    _ store: FileStore, _ name: StreamName, _ file: OpenFile, part: RecordingPart?,
    _ standing: StreamStanding = .growing,
    size: UInt64 = 0
  ) throws(SystemError) {
    self.store = store
    self.name = name
    stored = file
    self.part = part
    self.standing = standing
    let header = part?.headerLength ?? 0
    length = (part?.start ?? 0) + (size - min(size, header))
    gaps = try store.readGaps(name, length: length)
    gaps.add(part?.series)
  }

  var extent: RecordingExtent { RecordingExtent(start: start, seriesStart: seriesStart, length: length, gaps: gaps) }

  var contentCount: UInt64 { store.contentCount(of: self) }

  /// Where the byte at a stream offset lies in the file. No request begins before ``start``.
  func position(of offset: UInt64) -> UInt64 { offset - min(offset, start) + (part?.headerLength ?? 0) }

  func place(of offset: UInt64) -> (file: OpenFile, position: UInt64)? { (stored, position(of: offset)) }

  func check() throws(SystemError) {
    guard standing != .complete else { return }
    try stored.check(length: position(of: length))
  }

  func write(
    _ bytes: Span<UInt8>, _ pieces: [Range<Int>], skipping skipped: Int, at offset: UInt64, maySplit: Bool
  ) -> StoredBytes {
    let before = length
    do throws(SystemError) {
      if offset > before { try makeHole(length: offset - before) }
    } catch {
      return StoredBytes(count: 0, error: error, splitFailure: splitFailure)
    }
    var stored = StoredBytes(count: 0)
    stored.error = append(bytes, pieces, skipping: skipped, at: offset, maySplit: maySplit, &stored)
    stored.splitFailure = splitFailure
    if stored.count == 0, offset > before {
      // No byte behind the hole was stored. What cannot be taken back now is when the stream is opened next.
      try? truncate(to: before)
      length = before
    }
    return stored
  }

  /// Stores the bytes at the end of the recording, and of those that the stream continues in. Returns what kept the rest
  /// from it.
  private func append(
    _ bytes: Span<UInt8>, _ pieces: [Range<Int>], skipping skipped: Int, at offset: UInt64, maySplit: Bool,
    _ stored: inout StoredBytes
  ) -> SystemError? {
    let count = pieces.reduce(0) { $0 + $1.count } - skipped
    do throws(SystemError) {
      while stored.count < count {
        try check()
        // As much as the recording takes; the rest belongs to the next one.
        let room = maySplit ? splitIfFull(&stored.splits) : nil
        let limit = Int(min(UInt64(count - stored.count), room ?? .max))
        let descriptor = try self.stored.acquire()
        defer { self.stored.release() }
        let result = BodyWriter.write(
          descriptor, bytes, limit == count ? pieces : pieces.prefix(octets: skipped + stored.count + limit),
          skipping: skipped + stored.count, at: position(of: offset + UInt64(stored.count)))
        stored.count += result.written
        length = offset + UInt64(stored.count)
        if let error = result.error { return error }
      }
      return nil
    } catch {
      return error
    }
  }

  /// How many bytes the recording may still take, after the stream was moved to the next one if it is full; nil for any
  /// number.
  private func splitIfFull(_ splits: inout [SplitRecording]) -> UInt64? {
    guard let split = RecordingSplit.shortest(store.split, description.flatMap { RecordingSplit($0) }),
      splitRetry.map({ $0.at <= .now }) ?? true,
      name.part < RecordingPart.largestNumber, name.finalExtension == ".wav", !isHeadless
    else { return nil }
    let size = position(of: length)
    if head == nil, size > 0 { head = store.wavHead(of: stored) }
    guard let head else {
      isHeadless = size >= WAVHead.maximumLength
      // Not many samples with it: they would be too many if the recording is to be short.
      return isHeadless ? nil : Self.headStep
    }
    let room = split.room(head, fileLength: size, untilTime: untilTime(split, head))
    if room != 0 { return room }
    // A hole is taken back if no byte behind it can be stored: the recording that it is in must not be finished yet.
    if gaps.holesEnd == length { return UInt64(head.frameLength) }
    do throws(SystemError) {
      splits.append(try store.split(self, head))
      (splitFailure, splitRetry) = (nil, nil)
      return split.room(head, fileLength: position(of: length), untilTime: untilTime(split, head))
    } catch {
      // The recording goes on, and is longer than it should be.
      let pauses = RecordingSplit.retryPauses
      let pause = splitRetry.map { min($0.pause * 2, pauses.longest) } ?? pauses.first
      (splitFailure, splitRetry) = (error, (pause, .now + pause))
      return nil
    }
  }

  private func untilTime(_ split: RecordingSplit, _ head: WAVHead) -> UInt64? {
    if let untilTime { return untilTime }
    let end = store.endByClock(of: self, split, head)
    untilTime = end.map { position(of: $0) - min(position(of: $0), UInt64(head.received.count)) }
    return untilTime ?? nil
  }

  /// The stream continues in another file.
  func continueIn(_ name: StreamName, _ file: OpenFile, _ part: RecordingPart) {
    (self.name, stored, self.part) = (name, file, part)
    (isNameSynced, untilTime) = (false, nil)
  }

  func matches(
    _ bytes: Span<UInt8>, _ pieces: [Range<Int>], count: Int, at offset: UInt64
  ) throws(SystemError) -> Bool {
    let earlier = Int(min(UInt64(count), start - min(start, offset)))
    if earlier > 0, try !store.matchesEarlier(name, bytes, pieces, count: earlier, at: offset) { return false }
    if earlier == count { return true }
    let descriptor = try stored.acquire()
    defer { stored.release() }
    return try BodyWriter.matches(
      descriptor, bytes, earlier == 0 ? pieces : pieces.dropped(octets: earlier), count: count - earlier,
      at: position(of: offset + UInt64(earlier)), of: stored)
  }

  func truncate(to length: UInt64) throws(SystemError) {
    guard length >= start else { throw SystemError(operation: "take back bytes of \(name.partial)", code: ESTALE) }
    try stored.check(length: position(of: self.length))
    let descriptor = try stored.acquire()
    defer { stored.release() }
    try retryingInterrupts("ftruncate of a stream") { ftruncate(descriptor, off_t(position(of: length))) }
    if length < gaps.holesEnd {
      let text = try store.gapText(name) ?? []
      try store.trimGaps(name, to: GapRecord.remainder(of: text, from: firstReceived, length: length))
      gaps = try store.readGaps(name, length: length)
      gaps.add(part?.series)
    }
    self.length = length
  }

  private var firstReceived: UInt64 { part?.firstReceived ?? 0 }

  func makeHole(length: UInt64) throws(SystemError) {
    try store.makeHole(self, length: length)
    self.length += length
    gaps.missing += length
    gaps.holesEnd = self.length
  }

  func synchronize(on loop: EventLoop, _ completion: @escaping (SystemError?) -> Void) {
    store.synchronize(self, loop: loop, completion: completion)
  }

  func describe(_ description: StreamDescription) throws(SystemError) {
    // Without sidecars nothing would say where a file lies in its stream.
    self.description = store.hasSidecars ? description : nil
    untilTime = nil
    try store.describe(self, description)
  }

  func finish(_ ending: StreamEnding, on loop: EventLoop, _ completion: @escaping (UnfinishedStream?) -> Void) {
    switch ending {
    case .complete(let isLive):
      store.finish(
        self, isLive ? .live : .file, forgetsLog: part != nil && name.part == 1, loop: loop, completion: completion)
    case .interrupted(let owner, let isTrusted):
      store.closeInterrupted(self, for: owner, isTrusted: isTrusted, loop: loop, completion: completion)
    }
  }
}

/// A directory of streams, locked against other servers for as long as this lives.
package final class FileStore: Sendable {
  /// Begins with a dot, which no stream's name does.
  private static let lockName = ".sluice.lock"
  /// What a collector keeps in its directory: up to where the recordings are those of its log.
  package static let checkpointName = ".collected"

  /// Of the store, for whoever keeps something beside the streams.
  package let directory: Int32
  private let lock: Int32
  let owners: StreamOwners
  let parts: StreamParts
  let recordings: CompleteRecordings
  /// How long a closed stream is remembered when its files are gone.
  let closedLifetime: Duration
  let durability: Durability
  /// nil where no limit needs them.
  package let accounts: StreamAccounts?
  package let worker = BackgroundWorker()
  package let disk: DiskSync
  let files: OpenFiles
  /// Whether each complete recording gets a sidecar, and a finished WAV file its true sizes.
  let hasSidecars: Bool
  /// The server's software, as sidecars name it.
  let software: String
  /// How each live WAV stream is divided into files; nil if only those are whose senders ask for it.
  let split: RecordingSplit?
  /// The files that are being finished while their streams continue in others.
  let splitting = Lock<Set<String>>([])
  /// Streams of which the disk has refused such a file.
  let brokenSplits = Lock<[String: SystemError]>([:])
  /// Recordings that the disk did not let finish. They have their names, and wait to be tried again.
  let unfinished = Lock<Set<UnfinishedRecording>>([])
  /// nil if no recording gets a link.
  let names: RecordingNames?
  /// nil if no recording is ever removed.
  let retention: RetentionState?
  /// Whether another server may have the directory.
  let isEnded = Atomic(false)

  /// Opens the directory, makes its last component if it is missing, and locks it.
  ///
  /// - Parameter isCollected: whether it is for a collector.
  package init(
    path: String, durability: Durability, closedLifetime: Duration, hasSidecars: Bool = false, software: String = "",
    split: RecordingSplit? = nil, names: RecordingNames? = nil, retention: RetentionState? = nil,
    isCollected: Bool = false,
    files: OpenFiles,
    _ usage: UploadUsage
  ) throws(DirectoryError) {
    self.durability = durability
    self.hasSidecars = hasSidecars
    self.software = software
    self.split = split
    self.names = names
    self.retention = retention
    self.closedLifetime = closedLifetime
    self.files = files
    mkdir(path, 0o755)
    let directory = Glibc.open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    guard directory >= 0 else { throw .missing(reason: String(cString: strerror(errno))) }
    let lock = openat(directory, Self.lockName, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0o644)
    // The lock may be there from a time when the directory could be written.
    guard lock >= 0, faccessat(directory, ".", W_OK | X_OK, 0) == 0 else {
      let reason = String(cString: strerror(errno))
      if lock >= 0 { close(lock) }
      close(directory)
      throw .unwritable(reason: reason)
    }
    guard flock(lock, LOCK_EX | LOCK_NB) == 0 else {
      close(lock)
      close(directory)
      throw .inUse
    }
    guard isCollected || faccessat(directory, Self.checkpointName, F_OK, AT_SYMLINK_NOFOLLOW) != 0 else {
      close(lock)
      close(directory)
      throw .collected
    }
    self.directory = directory
    self.lock = lock
    owners = StreamOwners(in: directory, files)
    recordings = CompleteRecordings(in: directory)
    parts = StreamParts(in: directory, files)
    disk = DiskSync(directory: directory, worker: worker, files: files)
    accounts = usage.limitsBytes ? StreamAccounts(usage, in: directory) : nil
    do throws(SystemError) { try countStored() } catch { throw .unreadable(reason: error.description) }
  }

  deinit {
    // The lock goes with its descriptor. The file stays: removing it would let two servers lock two files of that name.
    close(lock)
    close(directory)
  }

  /// Lets another server have the directory. Nothing may be stored after it.
  package func unlock() {
    isEnded.store(true, ordering: .releasing)
    flock(lock, LOCK_UN)
  }

  package func admits(_ credential: [UInt8]?, to name: StreamName) throws(SystemError) -> Bool {
    guard let credential, let owner = try owners.owner(of: name) else { return true }
    if owner == credential { return true }
    let log = try parts.lines(of: name.base)
    // Its owner continues a closed stream in a next part, wherever an operator has moved the closed one.
    if log.contains(where: { $0.end != nil }) { return false }
    // The record of another stream whose files were removed binds nobody.
    var name = name
    name.part = log.last?.number ?? 1
    if isThere(name.partial) || log.contains(where: { isThere($0.file) }) { return false }
    return try findComplete(name) == nil
  }

  func open(
    _ name: StreamName, for credential: [UInt8]?, at offset: UInt64, creating: Bool
  ) throws(SystemError) -> StreamFile? {
    // Before there is a file: one without an owner is everybody's.
    if let credential, let owner = try owners.owner(of: name), owner != credential { parts.forget(name.base) }
    let log = try parts.lines(of: name.base)
    if let credential { try recordOwner(credential, of: name, log) }
    var name = name
    name.part = log.last?.number ?? 1
    if let growing = try openGrowing(name, log) { return growing }
    if log.last?.end == nil, let (name, complete) = try openComplete(name) {
      return try StreamFile(self, name, complete.file, part: log.last, .complete, size: complete.length)
    }
    guard creating else { return nil }
    if let previous = log.last(where: { $0.end != nil }) { return try beginPart(name, after: previous, at: offset) }
    // Of files that somebody has removed or moved away: it would take bytes of this one for holes.
    unlinkat(directory, name.gaps, 0)
    return try StreamFile(self, name, create(name), part: log.last, .new)
  }

  /// The disk has the record before any byte of the stream: after a power failure nobody else is let in.
  ///
  /// Whoever continues a stream without an owner keeps everybody else from it, and still did not begin it: the bytes
  /// that are there are not theirs to download.
  private func recordOwner(
    _ credential: [UInt8], of name: StreamName, _ log: [RecordingPart]
  ) throws(SystemError) {
    let record = try owners.record(of: name)
    if let record, record.owner == credential, record.isBeginner { return }
    var isNew = log.isEmpty && !isThere(name.partial)
    if isNew { isNew = try findComplete(name) == nil }
    if record?.owner == credential, !isNew { return }
    try owners.record(credential, of: name, isBeginner: isNew)
    guard durability != .none else { return }
    // The worker takes one after the other: whoever waits for a sync of the stream waits for these as well.
    for file in [owners.path(name), StreamOwners.directoryName] {
      disk.sync(.named(file, in: directory), "fdatasync of the owner's record of a stream") { _ in }
    }
  }

  /// The stream's recording that still grows; nil if there is none.
  func openGrowing(_ name: StreamName, _ log: [RecordingPart]) throws(SystemError) -> StreamFile? {
    guard let (growing, size) = try openExisting(name.partial, Self.growing) else { return nil }
    // A server died while it completed the recording, which goes on now.
    try restoreHead(name)
    // A server died before the file had its beginning: nothing was acknowledged of it.
    if size < log.last?.beginningLength ?? 0 {
      try retryingInterrupts("unlink \(name.partial)") { unlinkat(directory, name.partial, 0) }
      return nil
    }
    var part = log.last
    if part?.end != nil, var reopened = part {
      // A server died while it closed the recording, which goes on now.
      (reopened.end, reopened.count) = (nil, 0)
      try parts.append(reopened, to: name.base)
      part = reopened
    }
    let stream = try StreamFile(self, name, growing, part: part, size: size)
    guard let text = try gapText(name) else { return stream }
    let remainder = remainder(of: text, part, length: stream.length)
    if remainder.length < stream.length {
      // The server was killed before it stored a byte behind the hole.
      try stream.truncate(to: remainder.length)
      return try openGrowing(name, log)
    }
    if remainder.count < text.count || text.isEmpty {
      try trimGaps(name, to: remainder)
      return try StreamFile(self, name, growing, part: part, size: size)
    }
    return stream
  }

  func create(_ name: StreamName) throws(SystemError) -> OpenFile {
    // It describes a recording of that name that was moved away.
    if hasSidecars { unlinkat(directory, name.pendingSidecar, 0) }
    return try openFile(name.partial, Self.growing | O_CREAT | O_EXCL).file
  }

  /// The complete recording of that stream, whatever its extension, and its name; nil if there is none.
  private func openComplete(_ name: StreamName) throws(SystemError) -> (StreamName, (file: OpenFile, length: UInt64))? {
    guard let found = try findComplete(name) else { return nil }
    // One that was removed a moment ago is not there.
    guard let (file, size) = try openExisting(found.final, O_RDONLY) else { return nil }
    guard found.finalExtension == ".wav", case let head = receivedHead(of: found, size: size), !head.isEmpty else {
      return (found, (file, size))
    }
    // A client that sends the head again compares it with what came.
    file.headChanges(from: head)
    return (found, (file, size))
  }

  private func findComplete(_ name: StreamName) throws(SystemError) -> StreamName? {
    try recordings.find(name)
  }

  /// How a file is opened that grows. All that is written comes at its end, and with O_APPEND it does so also if
  /// somebody else has cut it: its length then shows that bytes are missing, where a hole of zeros would hide it.
  private static let growing = O_RDWR | O_APPEND

  func isThere(_ file: String) -> Bool { faccessat(directory, file, F_OK, AT_SYMLINK_NOFOLLOW) == 0 }

  func openExisting(_ name: String, _ mode: Int32) throws(SystemError) -> (file: OpenFile, length: UInt64)? {
    do throws(SystemError) {
      return try openFile(name, mode)
    } catch {
      if error.code == ENOENT { return nil }
      throw error
    }
  }

  func openFile(_ name: String, _ mode: Int32) throws(SystemError) -> (file: OpenFile, length: UInt64) {
    // O_NONBLOCK so that a FIFO that somebody put there cannot stop the loop.
    let flags = mode | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC
    let descriptor = try files.open("open \(name)") { openat(directory, name, flags, 0o644) }
    var status = stat()
    guard fstat(descriptor, &status) == 0, status.st_mode & S_IFMT == S_IFREG else {
      close(descriptor)
      throw SystemError(operation: "open \(name), which is not a regular file,", code: EINVAL)
    }
    let again = flags & ~(O_CREAT | O_EXCL)
    return (OpenFile(descriptor, name, in: directory, again, status, files), UInt64(status.st_size))
  }

  func readGaps(
    _ name: StreamName, from first: UInt64 = 0, length: UInt64
  ) throws(SystemError) -> GapRecord.Summary {
    GapRecord.summary(of: try gapText(name) ?? [], from: first, length: length)
  }

  /// nil if there is no record of gaps. One that cannot be read is not the same: bytes that never came would count.
  func gapText(_ name: StreamName) throws(SystemError) -> [UInt8]? {
    let flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC
    let descriptor: Int32
    do throws(SystemError) {
      descriptor = try files.open("open \(name.gaps)") { openat(directory, name.gaps, flags) }
    } catch {
      if error.isMissing { return nil }
      throw error
    }
    defer { close(descriptor) }
    var text: [UInt8] = []
    var buffer = [UInt8](repeating: 0, count: 16 * 1024)
    while case let count = try retryingInterrupts("read \(name.gaps)", { read(descriptor, &buffer, buffer.count) }),
      count > 0
    {
      text += buffer[..<count]
    }
    return text
  }

  /// What counts of a growing recording.
  private func remainder(of text: [UInt8], _ part: RecordingPart?, length: UInt64) -> GapRecord.Remainder {
    // Nobody continues it if the disk has refused bytes of it, and its length is not known.
    if GapRecord.summary(of: text, length: 0).isDistrusted {
      return GapRecord.Remainder(count: text.count, length: length)
    }
    return GapRecord.remainder(of: text, from: part?.firstReceived ?? 0, length: length)
  }

  /// Takes lines back that are not true any more.
  fileprivate func trimGaps(_ stream: StreamName, to remainder: GapRecord.Remainder) throws(SystemError) {
    let name = stream.gaps
    let record: Int32
    do throws(SystemError) {
      record = try files.open("open \(name)") {
        openat(directory, name, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
      }
    } catch {
      if error.isMissing { return }
      throw error
    }
    defer { close(record) }
    try retryingInterrupts("ftruncate \(name)") { ftruncate(record, off_t(remainder.count)) }
    // After a power failure they must not speak of bytes that came later.
    if durability != .none { try retryingInterrupts("fdatasync \(name)") { fdatasync(record) } }
    if remainder.count == 0 { unlinkat(directory, name, 0) }
  }

  /// Makes a hole at the end of the stream's file, after noting it: what is missing is said even if we die in between.
  fileprivate func makeHole(_ stream: StreamFile, length: UInt64) throws(SystemError) {
    try stream.stored.check(length: stream.position(of: stream.length))
    let descriptor = try stream.stored.acquire()
    defer { stream.stored.release() }
    let before = try note(
      GapRecord(offset: stream.length, length: length, cause: stream.length == 0 ? .beganLate : .notReceived),
      stream.name)
    do throws(SystemError) {
      try retryingInterrupts("ftruncate \(stream.name.partial)") {
        ftruncate(descriptor, off_t(stream.position(of: stream.length + length)))
      }
    } catch {
      // What is left of the line when this fails as well is taken back when the stream is opened next.
      try? trimGaps(stream.name, to: GapRecord.Remainder(count: before, length: stream.length))
      throw error
    }
  }

  /// Adds a line to a recording's `.gaps`, and returns how many octets were in front of it. If that fails, the record
  /// is as it was.
  @discardableResult
  func note(_ gap: GapRecord, _ stream: StreamName) throws(SystemError) -> Int {
    let name = stream.gaps
    let record = try files.open("open \(name)") {
      openat(directory, name, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0o644)
    }
    defer { close(record) }
    let before = try retryingInterrupts("lseek \(name)") { lseek(record, 0, SEEK_END) }
    let line = Array(gap.jsonLine.utf8)
    do throws(SystemError) {
      let written = try retryingInterrupts("write \(name)") {
        line.withUnsafeBytes { write(record, $0.baseAddress, $0.count) }
      }
      guard written == line.count else { throw SystemError(operation: "write \(name)", code: ENOSPC) }
      // The end of a recording that is closed is synced with it.
      guard durability != .none, gap.cause != .interrupted, gap.cause != .notSynced else { return before }
      try retryingInterrupts("fdatasync \(name)") { fdatasync(record) }
      // It may be new: without its name it says nothing of a hole that the disk has already.
      try retryingInterrupts("fsync of the directory") { fsync(directory) }
      return before
    } catch {
      // Neither a part of a line stays nor a new file without one.
      if before > 0 { ftruncate(record, off_t(before)) } else { unlinkat(directory, name, 0) }
      throw error
    }
  }

  /// Gives a complete stream its final name, after making it as durable as it is to be. `completion` is called on the
  /// loop's thread: at once, or when the disk is done.
  ///
  /// - Parameter forgetsLog: whether nothing of the stream need be known once it is complete.
  func finish(
    _ stream: StreamFile, _ ending: RecordingEnding, forgetsLog: Bool, loop: EventLoop,
    completion: @escaping (UnfinishedStream?) -> Void
  ) {
    let finishing = FinishingRecording(
      name: stream.name, start: stream.start, length: stream.length, size: stream.position(of: stream.length),
      ending: ending)
    // Touched on the loop's thread only; the worker merely carries it back there.
    nonisolated(unsafe) let completion = completion
    let isSynced = durability != .none
    complete(finishing, stream.stored, forgetsLog: forgetsLog) { error, isNameRefused in
      let failure = error.map { UnfinishedStream(error: $0, isNameRefused: isNameRefused) }
      // Where nothing is synced, this is the loop's thread.
      if isSynced { loop.execute { completion(failure) } } else { completion(failure) }
    }
  }

  /// - Parameters:
  ///   - dataSynced: called when the disk has the recording's bytes as far as it is to, before anything else is done.
  ///   - completion: called with the error, and whether it was a step that failed and not a sync: at once if nothing is
  ///     synced, and else on the worker's thread.
  func complete(
    _ finishing: FinishingRecording, _ file: OpenFile, forgetsLog: Bool,
    dataSynced: @escaping @Sendable () -> Void = {},
    completion: @escaping @Sendable (_ error: SystemError?, _ isNameRefused: Bool) -> Void
  ) {
    let (name, size) = (finishing.name, finishing.size)
    // Before it gets its name: what is complete holds what was acknowledged, and nothing of anybody else's.
    let check: DiskSync.Step = { [self] () throws(SystemError) in
      dataSynced()
      switch finishing.ending {
      case .live, .file: if let error = brokenSplit(of: name) { throw error }
      case .split where isEnded.load(ordering: .acquiring):
        throw SystemError(operation: "finish \(name.partial) when the server has ended", code: ECANCELED)
      case .split, .interrupted: break
      }
      try file.check(length: size)
      return DiskSync.Touched()
    }
    let naming: DiskSync.Step = { [self] () throws(SystemError) in
      try rename(name, forgetsLog: forgetsLog)
      return DiskSync.Touched(directory: directory)
    }
    let steps = [check] + (hasSidecars ? sidecarSteps(finishing, file) : []) + [naming]
    // On the worker's thread, unless nothing is synced.
    let finished: @Sendable (SystemError?) -> Void = { [self] error in
      // What follows a recording that was closed does not depend on it.
      if error == nil, finishing.ending == .interrupted { brokenSplits.withLock { $0[name.base] = nil } }
      guard hasSidecars else { return }
      if error == nil { completeSidecar(name) } else { try? restoreHead(name) }
    }
    if durability == .none {
      let error = attempt { () throws(SystemError) in
        for step in steps { _ = try step() }
      }
      finished(error)
      return completion(error, error != nil)
    }
    let isNameRefused = Lock(false)
    let stepFailed: @Sendable () -> Void = { isNameRefused.withLock { $0 = true } }
    disk.sync(.open(file), "fdatasync \(name.partial)", steps, stepFailed: stepFailed) { error in
      finished(error)
      completion(error, isNameRefused.withLock { $0 })
    }
  }

  fileprivate func synchronize(
    _ stream: StreamFile, loop: EventLoop, completion: @escaping (SystemError?) -> Void
  ) {
    // Both are touched on the loop's thread only; the worker merely carries them back there.
    nonisolated(unsafe) let carried = (stream: stream, completion: completion)
    // A new file's bytes are not found again without its name (fsync(2)).
    let unsynced = stream.isNameSynced ? nil : directory
    let name = stream.name
    disk.sync(.open(stream.stored), "fdatasync of a stream", in: unsynced) { [self] error in
      let error = error ?? brokenSplit(of: name)
      loop.execute {
        if error == nil { carried.stream.isNameSynced = true }
        carried.completion(error)
      }
    }
  }

  package func measure(_ name: StreamName) throws(SystemError) -> StreamExtent {
    let part = try parts.lines(of: name.base).last
    var name = name
    name.part = part?.number ?? 1
    let growing = try openExisting(name.partial, Self.growing)
    var found = growing
    // A closed recording is nobody's to continue.
    if found == nil, part?.end != nil { return .closed }
    var complete: StreamName?
    if found == nil, let (name, file) = try openComplete(name) { (complete, found) = (name, file) }
    guard let (_, size) = found else { return .absent }
    let start = part?.seriesStart ?? 0
    var length = (part?.start ?? 0) + (size - min(size, part?.headerLength ?? 0))
    if growing != nil { length = remainder(of: try gapText(name) ?? [], part, length: length).length }
    var gaps = try readGaps(name, length: length)
    gaps.add(part?.series)
    if let complete { return .complete(complete, start: start, length: length, gaps) }
    return .stored(start: start, length: length, gaps)
  }

  /// A recording that is complete was synced when it ended, if it was to be.
  package func synchronize(_ name: StreamName, on loop: EventLoop, _ completion: @escaping (SystemError?) -> Void) {
    var name = name
    do throws(SystemError) {
      name.part = try parts.lines(of: name.base).last?.number ?? 1
    } catch {
      return completion(error)
    }
    // Touched on the loop's thread only; the worker merely carries it back there.
    nonisolated(unsafe) let completion = completion
    let stream = name
    disk.sync(.named(name.partial, in: directory), "fdatasync \(name.partial)", in: directory) { [self] error in
      let error = error ?? brokenSplit(of: stream)
      loop.execute { completion(error) }
    }
  }

  /// Forgets a stream's recording that still grows. One that is complete stays.
  func remove(_ name: StreamName) {
    guard let log = try? parts.lines(of: name.base) else { return }
    var name = name
    name.part = log.last?.number ?? 1
    // A complete recording is not removed, and neither is what belongs to it.
    guard unlinkat(directory, name.partial, 0) == 0 else { return }
    unlinkat(directory, name.gaps, 0)
    unlinkat(directory, name.pendingSidecar, 0)
    accounts?.remove(name)
    guard !log.contains(where: { $0.end != nil }) else { return }
    parts.forget(name.base)
    owners.forget(name)
  }

  func attempt(_ body: () throws(SystemError) -> Void) -> SystemError? {
    do throws(SystemError) {
      try body()
      return nil
    } catch {
      return error
    }
  }

  private func rename(_ name: StreamName, forgetsLog: Bool) throws(SystemError) {
    try rename(name)
    if forgetsLog { parts.forget(name.base) }
  }

  private func rename(_ name: StreamName) throws(SystemError) {
    // Somebody put a recording there while this one grew. One stream has one recording, of whatever type.
    if (try? recordings.find(name)) != nil {
      throw SystemError(operation: "rename \(name.partial): the stream has a complete recording already", code: EEXIST)
    }
    try moveUnlessThere(name.partial, in: directory, to: name.final)
    recordings.add(name)
  }

  /// Gives a file its name in the directory of recordings, unless there is one of that name.
  func moveUnlessThere(_ file: String, in parent: Int32, to name: String) throws(SystemError) {
    if renameat2(parent, file, directory, name, SLUICE_RENAME_NOREPLACE) == 0 { return }
    guard errno == EINVAL else { throw .last("rename \(file) to \(name)") }
    // Some network file systems have no such flag. The directory is locked, so that nobody comes in between.
    guard faccessat(directory, name, F_OK, 0) != 0 else {
      throw SystemError(operation: "rename \(file) to \(name)", code: EEXIST)
    }
    try retryingInterrupts("rename \(file)") { renameat(parent, file, directory, name) }
  }
}
