// The directory that streams are stored in: every name is resolved relative to its descriptor, never by a path.

package import DiskFiles
internal import EventLoops
internal import Glibc
package import StreamServing
internal import Synchronization

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
  /// The files that are to be finished while their streams continue in others, by their names without extension.
  let splits = Lock<[String: SplitFinish]>([:])
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
  /// Taken by whoever does something that must be over before another server has the directory.
  private let ending = Lock(())
  /// The streams whose files are being removed, or could not be removed: by the base of their names.
  let removals = Lock<Set<String>>([])

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
    disk = DiskSync(directory: directory, worker: worker, files: files)
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
      lock = try retryingInterrupts("open") {
        openat(directory, lockName, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0o644)
      }
      // The lock may be there from a time when the directory could be written.
      try retryingInterrupts("access") { faccessat(directory, ".", W_OK | X_OK, 0) }
      try retryingInterrupts("flock") { flock(lock, LOCK_EX | LOCK_NB) }
    } catch {
      if lock >= 0 { close(lock) }
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
    // The lock goes with its descriptor. The file stays: removing it would let two servers lock two files of that name.
    close(lock)
    close(directory)
  }

  /// Lets another server have the directory. Nothing may be stored after it.
  package func unlock() {
    ending.withLock { _ in isEnded.store(true, ordering: .releasing) }
    flock(lock, LOCK_UN)
  }

  /// Does `body`, a few milliseconds of work, before another server may have the directory. False if one may already.
  func unlessEnded(_ body: () -> Void) -> Bool {
    ending.withLock { _ in
      guard !isEnded.load(ordering: .acquiring) else { return false }
      body()
      return true
    }
  }

  // MARK: Files

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
    do throws(SystemError) {
      try retryingInterrupts("fstat \(name)") { fstat(descriptor, &status) }
      guard status.st_mode & S_IFMT == S_IFREG else {
        throw SystemError(operation: "open \(name), which is not a regular file,", code: EINVAL)
      }
    } catch {
      close(descriptor)
      throw error
    }
    let again = flags & ~(O_CREAT | O_EXCL)
    return (OpenFile(descriptor, name, in: directory, again, status, files), UInt64(status.st_size))
  }
}
