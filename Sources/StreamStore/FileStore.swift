// The directory in which streams are stored. Each name is resolved relative to its descriptor, never by a path.

package import DiskFiles
internal import EventLoops
internal import Glibc
internal import Recordings
package import StreamServing
internal import Synchronization

/// A directory of streams, locked against other servers for as long as this lives.
package final class FileStore: Sendable {
  /// Begins with a dot, unlike the names of streams.
  private static let lockName = ".sluice.lock"
  /// The checkpoint of a collector in its directory: the position in the log up to which the recordings are complete.
  package static let checkpointName = CollectedStreams.fileName

  /// The store's directory, for callers that keep other files beside the streams.
  package let directory: Int32
  private let lock: Int32
  let owners: StreamOwners
  let parts: StreamParts
  let recordings: CompleteRecordings
  /// How long a closed stream is remembered after its files are gone.
  let closedLifetime: Duration
  let durability: Durability
  /// nil if no limit requires them.
  package let accounts: StreamAccounts?
  package let worker = BackgroundWorker()
  package let disk: DiskSync
  let files: OpenFiles
  /// Whether each complete recording gets a sidecar, and a finished WAV file its true sizes.
  package let hasSidecars: Bool
  /// The name of the server's software in sidecars.
  let software: String
  /// How live WAV streams are divided into files; nil to divide only those whose senders request it.
  let split: RecordingSplit?
  /// The files that must be finished while their streams continue in others, by their names without extension.
  let splits = Lock<[String: SplitFinish]>([:])
  /// The files of recordings that an earlier server has split off and that this one has queued for a sync, by their
  /// names without extension.
  let syncedSplits = Lock<Set<String>>([])
  /// Whether the directory is that of a collector.
  let isCollected: Bool
  /// The names of reported files that are not those of a server: ``reportForeign(_:_:)``.
  let foreignFiles = Lock<Set<String>>([])
  /// Held while the log of a stream is corrected after a power failure.
  let tornLock = Lock(())
  let refusals = SyncRefusals()
  /// The growing files that may have bytes after their marks: ``markUnmarked()``.
  let unmarked = Lock<Set<String>>([])
  /// Recordings that the disk could not finish. They have their names, and wait for another attempt.
  let unfinished = Lock(UnfinishedRecordings())
  /// Receives the errors of these recordings: ``reportUnfinished(to:)``.
  let reports = Lock<(@Sendable (ServerEvent) -> Void)?>(nil)
  /// Receives each finished sidecar: ``reportSidecars(to:)``.
  let finishedSidecars = Lock<(@Sendable (StreamName, RecordingProof) -> Void)?>(nil)
  /// nil if no recording gets a link.
  let names: RecordingNames?
  /// nil if no recording is ever removed.
  let retention: RetentionState?
  /// Whether the closed recordings of an earlier server could not all be counted: ``listAgain()``.
  let lacksClosed = Atomic(false)
  /// Whether another server may use the directory.
  let isEnded = Atomic(false)
  /// Held during work that must be over before another server uses the directory.
  private let ending = Lock(())
  /// The streams whose files are being removed, or could not be removed: by the base of their names.
  let removals = Lock<Set<String>>([])

  /// Opens the directory, creates its last component if it is missing, and locks it.
  ///
  /// - Parameters:
  ///   - isCollected: whether the directory is for a collector.
  ///   - boot: identifies the present boot of the machine.
  package init(
    path: String, durability: Durability, closedLifetime: Duration, hasSidecars: Bool = false, software: String = "",
    split: RecordingSplit? = nil, names: RecordingNames? = nil, retention: RetentionState? = nil,
    isCollected: Bool = false,
    boot: String = BootIdentifier.current,
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
    self.isCollected = isCollected
    self.files = files
    let directory = try Self.openDirectory(path)
    let lock: Int32
    do throws(DirectoryError) {
      lock = try Self.lock(directory, isCollected: isCollected)
    } catch {
      close(directory)
      throw error
    }
    self.directory = directory
    self.lock = lock
    owners = StreamOwners(in: directory, files)
    recordings = CompleteRecordings(in: directory)
    parts = StreamParts(in: directory, files)
    let marking: DiskSync.Marking =
      switch durability {
      case .none: .none
      // Otherwise, a stream whose file cannot be opened would stop all checkpoints of a collector.
      case .interval: isCollected ? .exceptInaccessible : .possible
      case .always: .all
      }
    disk = DiskSync(directory: directory, worker: worker, files: files, boot: boot, marking: marking)
    accounts = usage.limitsBytes ? StreamAccounts(usage, in: directory) : nil
    do throws(SystemError) { try countStored() } catch { throw .unreadable(reason: error.description) }
  }

  /// Opens it, and makes its last component if it is missing.
  private static func openDirectory(_ path: String) throws(DirectoryError) -> Int32 {
    var refusal: SystemError?
    do throws(SystemError) { try retryingInterrupts("mkdir") { mkdir(path, 0o755) } } catch { refusal = error }
    do throws(SystemError) {
      return try retryingInterrupts("open") { Glibc.open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) }
    } catch {
      // It is missing because it could not be made.
      if error.isMissing, let refusal, refusal.code != EEXIST { throw .missing(reason: refusal.reason) }
      throw .missing(reason: error.reason)
    }
  }

  /// Locks it against other servers. Returns the descriptor that has the lock.
  private static func lock(_ directory: Int32, isCollected: Bool) throws(DirectoryError) -> Int32 {
    var lock: Int32 = -1
    do throws(SystemError) {
      lock = try RegularFile.open(lockName, in: directory, O_RDWR | O_CREAT, mode: 0o644)
      // The lock may be there from a time when the directory could be written.
      try retryingInterrupts("access") { faccessat(directory, ".", W_OK | X_OK, 0) }
      try retryingInterrupts("flock") { flock(lock, LOCK_EX | LOCK_NB) }
    } catch {
      if lock >= 0 { close(lock) }
      if error.isSpecialFile { throw .unwritable(reason: error.description) }
      throw error.code == EWOULDBLOCK ? .inUse : .unwritable(reason: error.reason)
    }
    guard !isCollected else { return lock }
    do throws(SystemError) {
      try retryingInterrupts("access") { faccessat(directory, checkpointName, F_OK, AT_SYMLINK_NOFOLLOW) }
    } catch {
      if error.isMissing { return lock }
      close(lock)
      throw .unreadable(reason: error.reason)
    }
    close(lock)
    throw .collected
  }

  deinit {
    // The lock ends with its descriptor. The file stays, because if it were removed, two servers could lock two files
    // of that name.
    close(lock)
    close(directory)
  }

  /// Lets another server use the directory. Nothing may be stored after this.
  package func unlock() {
    ending.withLock { _ in isEnded.store(true, ordering: .releasing) }
    // They refer to the server or collector, which refers to this.
    reports.withLock { $0 = nil }
    finishedSidecars.withLock { $0 = nil }
    flock(lock, LOCK_UN)
  }

  /// Calls `body`, which takes a few milliseconds, before another server may use the directory. Returns false if one
  /// may already.
  ///
  /// Not within another `body`, nor while ``SplitFinish`` guards a step. Loops wait here only for their end.
  @discardableResult
  func unlessEnded<Failure: Error>(_ body: () throws(Failure) -> Void) throws(Failure) -> Bool {
    try ending.withLock { (_) throws(Failure) in
      guard !isEnded.load(ordering: .acquiring) else { return false }
      try body()
      return true
    }
  }

  /// Like ``unlessEnded(_:)`` for work that may outlive the loops. The work of a loop is over before another server may
  /// use the directory, and a loop does not wait for the worker.
  @discardableResult
  func unlessEnded<Failure: Error>(
    outlivesLoop: Bool, _ body: () throws(Failure) -> Void
  ) throws(Failure) -> Bool {
    if outlivesLoop { return try unlessEnded(body) }
    try body()
    return true
  }

  // MARK: Files

  func isThere(_ file: String) -> Bool { isInDirectory(file, directory) }

  /// Like ``isThere(_:)``, for callers that can try again.
  ///
  /// - Throws: ``SystemError`` if the disk does not answer.
  func exists(_ file: String) throws(SystemError) -> Bool { try existsInDirectory(file, directory) }

  /// The status of a regular file; nil if there is none.
  ///
  /// - Throws: ``SystemError`` if the disk does not answer.
  func knownStatus(_ file: String, in directory: Int32) throws(SystemError) -> stat? {
    var status = stat()
    do throws(SystemError) {
      try retryingInterrupts("look at \(file)") { fstatat(directory, file, &status, AT_SYMLINK_NOFOLLOW) }
    } catch {
      if error.isMissing { return nil }
      throw error
    }
    return status.st_mode & S_IFMT == S_IFREG ? status : nil
  }

  func openExisting(_ name: String, _ mode: Int32) throws(SystemError) -> (file: OpenFile, length: UInt64)? {
    do throws(SystemError) {
      return try openFile(name, mode)
    } catch {
      if error.code == ENOENT { return nil }
      throw error
    }
  }

  /// Opens a growing file of an earlier request, or of an earlier server.
  func openGrowingFile(_ name: String) throws(SystemError) -> (file: OpenFile, length: UInt64)? {
    guard let (file, length) = try openExisting(name, Self.growing) else { return nil }
    return (file, try disk.settle(file, length: length))
  }

  func openFile(_ name: String, _ mode: Int32) throws(SystemError) -> (file: OpenFile, length: UInt64) {
    let (descriptor, status) = try files.openWithStatus(name, in: directory, mode, mode: 0o644)
    let again = mode & ~(O_CREAT | O_EXCL)
    return (OpenFile(descriptor, name, in: directory, again, status, files), UInt64(status.st_size))
  }
}

/// Whether a file is in a directory. Also true if the disk does not answer, because an error of the disk must not make
/// the server forget a file, begin it again, or give it to another client.
func isInDirectory(_ file: String, _ directory: Int32) -> Bool {
  do throws(SystemError) {
    try retryingInterrupts("access") { faccessat(directory, file, F_OK, AT_SYMLINK_NOFOLLOW) }
    return true
  } catch {
    return !error.isMissing
  }
}

/// Like ``isInDirectory(_:_:)``, for callers that can try again.
///
/// - Throws: ``SystemError`` if the disk does not answer.
func existsInDirectory(_ file: String, _ directory: Int32) throws(SystemError) -> Bool {
  do throws(SystemError) {
    try retryingInterrupts("look for \(file)") { faccessat(directory, file, F_OK, AT_SYMLINK_NOFOLLOW) }
    return true
  } catch {
    if error.isMissing { return false }
    throw error
  }
}
