// The directory that streams are stored in: every name is resolved relative to its descriptor, never by a path.

internal import CLinux
internal import EventLoops
internal import Glibc

/// A stream in a file of the store's directory.
final class StreamFile: StoredStream {
  let name: StreamName
  /// `.part`, or the complete file, for reading only.
  fileprivate let stored: OpenFile
  let isComplete: Bool
  /// Whether this request made the file.
  let isNew: Bool
  var length: UInt64
  fileprivate(set) var missing: UInt64
  /// Whether the disk has the file's name.
  fileprivate var isNameSynced = false
  private let store: FileStore

  fileprivate init(
    _ store: FileStore, _ name: StreamName, _ file: OpenFile, isComplete: Bool = false, isNew: Bool = false,
    length: UInt64 = 0, missing: UInt64 = 0
  ) {
    self.store = store
    self.name = name
    stored = file
    self.isComplete = isComplete
    self.isNew = isNew
    self.length = length
    self.missing = missing
  }

  var file: OpenFile? { stored }

  func write(
    _ bytes: Span<UInt8>, _ pieces: [Range<Int>], skipping skipped: Int, at offset: UInt64
  ) -> (written: Int, error: SystemError?) {
    do throws(SystemError) {
      let descriptor = try stored.acquire()
      defer { stored.release() }
      return BodyWriter.write(descriptor, bytes, pieces, skipping: skipped, at: offset)
    } catch {
      return (0, error)
    }
  }

  func matches(
    _ bytes: Span<UInt8>, _ pieces: [Range<Int>], count: Int, at offset: UInt64
  ) throws(SystemError) -> Bool {
    let descriptor = try stored.acquire()
    defer { stored.release() }
    return try BodyWriter.matches(descriptor, bytes, pieces, count: count, at: offset)
  }

  func truncate(to length: UInt64) throws(SystemError) {
    try stored.check(length: self.length)
    let descriptor = try stored.acquire()
    defer { stored.release() }
    try retryingInterrupts("ftruncate of a stream") { ftruncate(descriptor, off_t(length)) }
  }

  func makeHole(length: UInt64) throws(SystemError) { try store.makeHole(self, length: length) }

  func synchronize(on loop: EventLoop, _ completion: @escaping (SystemError?) -> Void) {
    store.synchronize(self, loop: loop, completion: completion)
  }

  func finish(on loop: EventLoop, _ completion: @escaping (SystemError?) -> Void) {
    store.finish(self, loop: loop, completion: completion)
  }
}

/// How much is done for a stream's bytes before its sender is told that they are kept.
///
/// Whatever is chosen, a byte that was acknowledged survives the server's death. What differs is the machine's: a failure of
/// the power, or of the kernel.
public enum Durability: String, Sendable, Equatable, CaseIterable {
  /// The kernel has it, and writes it to the disk when it likes, within about half a minute as a rule.
  case none
  /// The disk has a complete stream, file and name, before its sender is told: fdatasync(2), then rename, then fsync(2) of
  /// the directory. Of an upload that is not complete the disk is given everything once a second, in the background.
  case interval
  /// As `interval`, and no offset of an upload is told, in whatever answer, before the disk has all bytes up to it.
  case always
}

/// A directory of streams, locked against other servers for as long as this lives.
final class FileStore: StreamStore, Sendable {
  /// Begins with a dot, which no stream's name does.
  private static let lockName = ".sluice.lock"

  /// Of the store, for whoever keeps something beside the streams.
  let directory: Int32
  private let lock: Int32
  private let owners: StreamOwners
  private let recordings: CompleteRecordings
  private let durability: Durability
  let worker = BackgroundWorker()
  let disk: DiskSync
  let files: OpenFiles

  /// Opens the directory, makes its last component if it is missing, and locks it.
  init(path: String, durability: Durability, files: OpenFiles) throws(UploadServerError) {
    self.durability = durability
    self.files = files
    mkdir(path, 0o755)
    let directory = Glibc.open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    guard directory >= 0 else { throw .noDirectory(path, reason: String(cString: strerror(errno))) }
    let lock = openat(directory, Self.lockName, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0o644)
    // The lock may be there from a time when the directory could be written.
    guard lock >= 0, faccessat(directory, ".", W_OK | X_OK, 0) == 0 else {
      let reason = String(cString: strerror(errno))
      if lock >= 0 { close(lock) }
      close(directory)
      throw .unwritableDirectory(path, reason: reason)
    }
    guard flock(lock, LOCK_EX | LOCK_NB) == 0 else {
      close(lock)
      close(directory)
      throw .directoryInUse(path)
    }
    self.directory = directory
    self.lock = lock
    owners = StreamOwners(in: directory, files)
    recordings = CompleteRecordings(in: directory)
    disk = DiskSync(directory: directory, worker: worker, files: files)
    recordings.scan(on: worker)
  }

  deinit {
    // The lock goes with its descriptor. The file stays: removing it would let two servers lock two files of that name.
    close(lock)
    close(directory)
  }

  /// Lets another server have the directory. Nothing may be stored after it.
  func unlock() { flock(lock, LOCK_UN) }

  func admits(_ credential: [UInt8]?, to name: StreamName) -> Bool {
    guard let credential, let owner = owners.owner(of: name) else { return true }
    if owner == credential { return true }
    // The record of a stream whose files were removed binds nobody.
    return faccessat(directory, name.partial, F_OK, AT_SYMLINK_NOFOLLOW) != 0 && recordings.find(name) == .none
  }

  func open(_ name: StreamName, for credential: [UInt8]?) throws(SystemError) -> any StoredStream {
    // Before there is a file: one without an owner is everybody's.
    if let credential, owners.owner(of: name) != credential { try recordOwner(credential, of: name) }
    return try open(name)
  }

  /// The disk has the record before any byte of the stream: after a power failure nobody else is let in.
  private func recordOwner(_ credential: [UInt8], of name: StreamName) throws(SystemError) {
    try owners.record(credential, of: name)
    guard durability != .none else { return }
    // The worker takes one after the other: whoever waits for a sync of the stream waits for these as well.
    for file in [owners.path(name), StreamOwners.directoryName] {
      disk.sync(.named(file, in: directory), "fdatasync of the owner's record of a stream") { _ in }
    }
  }

  private func open(_ name: StreamName) throws(SystemError) -> StreamFile {
    if let (growing, length) = try openExisting(name.partial, Self.growing) {
      return StreamFile(self, name, growing, length: length, missing: readMissing(name, length: length))
    }
    if let (name, (complete, length)) = try openComplete(name) {
      return StreamFile(
        self, name, complete, isComplete: true, length: length, missing: readMissing(name, length: length))
    }
    let (new, _) = try openFile(name.partial, Self.growing | O_CREAT | O_EXCL)
    return StreamFile(self, name, new, isNew: true)
  }

  /// The complete recording of that stream, whatever its extension, and its name; nil if there is none.
  private func openComplete(_ name: StreamName) throws(SystemError) -> (StreamName, (file: OpenFile, length: UInt64))? {
    switch recordings.find(name) {
    case .none: return nil
    case .unknown: throw SystemError(operation: "look for a recording before all of them are listed", code: EAGAIN)
    case .found(let found):
      // One that was removed a moment ago is not there.
      return try openExisting(found.final, O_RDONLY).map { (found, $0) }
    }
  }

  /// How a file is opened that grows. All that is written comes at its end, and with O_APPEND it does so also if somebody else
  /// has cut it: its length then shows that bytes are missing, where a hole of zeros would hide it.
  private static let growing = O_RDWR | O_APPEND

  private func openExisting(_ name: String, _ mode: Int32) throws(SystemError) -> (file: OpenFile, length: UInt64)? {
    do throws(SystemError) {
      return try openFile(name, mode)
    } catch {
      if error.code == ENOENT { return nil }
      throw error
    }
  }

  private func openFile(_ name: String, _ mode: Int32) throws(SystemError) -> (file: OpenFile, length: UInt64) {
    // O_NONBLOCK so that a FIFO that somebody put there cannot stop the loop.
    let flags = mode | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC
    let descriptor = try files.open("open \(name)") { openat(directory, name, flags, 0o644) }
    var status = stat()
    guard fstat(descriptor, &status) == 0, status.st_mode & S_IFMT == S_IFREG else {
      close(descriptor)
      throw SystemError(operation: "open \(name), which is no file,", code: EINVAL)
    }
    let again = flags & ~(O_CREAT | O_EXCL)
    return (OpenFile(descriptor, name, in: directory, again, status, files), UInt64(status.st_size))
  }

  private func readMissing(_ name: StreamName, length: UInt64) -> UInt64 {
    let flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC
    guard let descriptor = try? files.open("open \(name.gaps)", { openat(directory, name.gaps, flags) }) else {
      return 0
    }
    defer { close(descriptor) }
    var text: [UInt8] = []
    var buffer = [UInt8](repeating: 0, count: 16 * 1024)
    while case let count = read(descriptor, &buffer, buffer.count), count > 0 { text += buffer[..<count] }
    return GapRecord.missing(in: String(decoding: text, as: UTF8.self), length: length)
  }

  /// Makes a hole at the end of the stream's file, after noting it: what is missing is said even if we die in between.
  fileprivate func makeHole(_ stream: StreamFile, length: UInt64) throws(SystemError) {
    try stream.stored.check(length: stream.length)
    let gap = GapRecord(offset: stream.length, length: length, cause: stream.isNew ? .beganLate : .notReceived)
    let name = stream.name.gaps
    let record = try files.open("open \(name)") {
      openat(directory, name, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0o644)
    }
    defer { close(record) }
    let line = Array(gap.jsonLine.utf8)
    let written = try retryingInterrupts("write \(name)") {
      line.withUnsafeBytes { write(record, $0.baseAddress, $0.count) }
    }
    guard written == line.count else { throw SystemError(operation: "write \(name)", code: ENOSPC) }
    if durability != .none { try retryingInterrupts("fdatasync \(name)") { fdatasync(record) } }
    let descriptor = try stream.stored.acquire()
    defer { stream.stored.release() }
    try retryingInterrupts("ftruncate \(stream.name.partial)") {
      ftruncate(descriptor, off_t(stream.length + length))
    }
    stream.length += length
    stream.missing += length
  }

  /// Gives a complete stream its final name, after making it as durable as it is to be. `completion` is called on the
  /// loop's thread: at once, or when the disk is done.
  fileprivate func finish(
    _ stream: StreamFile, loop: EventLoop, completion: @escaping (SystemError?) -> Void
  ) {
    let (name, file, length) = (stream.name, stream.stored, stream.length)
    // Before it gets its name: what is complete holds what was acknowledged, and nothing of anybody else's.
    let naming: DiskSync.Rename = { [self] () throws(SystemError) in
      try file.check(length: length)
      try rename(name)
    }
    if durability == .none { return completion(attempt(naming)) }
    // Both are touched on the loop's thread only; the worker merely carries them back there.
    nonisolated(unsafe) let carried = (stream: stream, completion: completion)
    disk.sync(.open(file), "fdatasync \(name.partial)", naming, in: directory) { error in
      loop.execute { withExtendedLifetime(carried.stream) { carried.completion(error) } }
    }
  }

  fileprivate func synchronize(
    _ stream: StreamFile, loop: EventLoop, completion: @escaping (SystemError?) -> Void
  ) {
    // Both are touched on the loop's thread only; the worker merely carries them back there.
    nonisolated(unsafe) let carried = (stream: stream, completion: completion)
    // A new file's bytes are not found again without its name (fsync(2)).
    let unsynced = stream.isNameSynced ? nil : directory
    disk.sync(.open(stream.stored), "fdatasync of a stream", in: unsynced) { error in
      loop.execute {
        if error == nil { carried.stream.isNameSynced = true }
        carried.completion(error)
      }
    }
  }

  func measure(_ name: StreamName, syncing: Bool) throws(SystemError) -> UInt64? {
    var found = try openExisting(name.partial, Self.growing)
    if found == nil { found = try openComplete(name)?.1 }
    guard let (file, length) = found else { return nil }
    guard syncing else { return length }
    let descriptor = try file.acquire()
    defer { file.release() }
    try retryingInterrupts("fdatasync of \(name.base)") { fdatasync(descriptor) }
    try retryingInterrupts("fsync of the directory") { fsync(directory) }
    return length
  }

  func remove(_ name: StreamName) {
    unlinkat(directory, name.partial, 0)
    unlinkat(directory, name.gaps, 0)
    owners.forget(name)
  }

  private func attempt(_ body: () throws(SystemError) -> Void) -> SystemError? {
    do throws(SystemError) {
      try body()
      return nil
    } catch {
      return error
    }
  }

  private func rename(_ name: StreamName) throws(SystemError) {
    // Somebody put a recording there while this one grew. One stream has one recording, of whatever type.
    if case .found = recordings.find(name) {
      throw SystemError(operation: "rename \(name.partial): the stream has a complete recording already", code: EEXIST)
    }
    try renameUnlessThere(name)
    recordings.add(name)
  }

  private func renameUnlessThere(_ name: StreamName) throws(SystemError) {
    if renameat2(directory, name.partial, directory, name.final, SLUICE_RENAME_NOREPLACE) == 0 { return }
    guard errno == EINVAL else { throw .last("rename \(name.partial) to \(name.final)") }
    // Some network file systems have no such flag. The directory is locked, so that nobody comes in between.
    guard faccessat(directory, name.final, F_OK, 0) != 0 else {
      throw SystemError(operation: "rename \(name.partial) to \(name.final)", code: EEXIST)
    }
    try retryingInterrupts("rename \(name.partial)") { renameat(directory, name.partial, directory, name.final) }
  }
}
