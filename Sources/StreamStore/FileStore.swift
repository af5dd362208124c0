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
  /// The streams whose files are being removed, and who waits for that: by the base of their names.
  let removals = Lock<[String: [@Sendable () -> Void]]>([:])

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
    guard fstat(descriptor, &status) == 0, status.st_mode & S_IFMT == S_IFREG else {
      close(descriptor)
      throw SystemError(operation: "open \(name), which is not a regular file,", code: EINVAL)
    }
    let again = flags & ~(O_CREAT | O_EXCL)
    return (OpenFile(descriptor, name, in: directory, again, status, files), UInt64(status.st_size))
  }
}
