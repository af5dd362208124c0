// The file of an incomplete download: its identity, writing, reading and renaming. It may also be a pipe, from which
// nothing can be taken back.

internal import CLinux
internal import Digests
package import DiskFiles
package import EventLoops
internal import Glibc

/// A file that one download has open and locked. Bytes are written on a worker's thread, in the order of the calls.
/// Owned by one loop, except where stated otherwise.
package final class PartialFile: @unchecked Sendable {
  package let path: String
  package let inode: UInt64
  /// In milliseconds since 1970; nil if the file system does not provide it.
  package let birth: Int64?
  /// Whether it is a pipe, a terminal or the like, where bytes can neither be read again nor taken back.
  let isStream: Bool
  private let descriptor: Int32
  private let worker: BackgroundWorker
  private let state = Lock(State())
  /// The digests of the whole file, and of its bytes from a later one on. On the worker's thread only.
  private var running: [DigestOfWrites] = []
  /// How many bytes are certainly on the disk. On the worker's thread only.
  private var synchronized: UInt64 = 0

  private struct State {
    /// How many bytes are in the file.
    var written: UInt64 = 0
    /// How many bytes wait in memory.
    var waiting = 0
    /// How many truncations are pending.
    var truncations = 0
    var isIdle: Bool { waiting == 0 && truncations == 0 }
    var isFull = false
    var error: SystemError?
    var abandonsDigests = false
    var isRenamed = false
    /// Work to run when nothing is pending any more.
    var flushed: [@Sendable () -> Void] = []
  }

  /// A digest of the written bytes. A class, because an array cannot contain values that cannot be copied.
  private final class DigestOfWrites {
    let start: UInt64
    var digest: RunningDigest
    /// The end of its bytes in the file.
    var end: UInt64 { start + digest.byteCount }
    init(_ algorithm: DigestAlgorithm, from start: UInt64) {
      self.start = start
      digest = RunningDigest(algorithm)
    }
  }

  /// The maximum number of bytes that wait for the disk, not counting pieces under way.
  private static let limit = 1 << 20

  /// How many bytes are in the file. Any thread.
  package var written: UInt64 { state.withLock { $0.written } }
  /// Why no more can be written. Any thread.
  package var error: SystemError? { state.withLock { $0.error } }
  /// Whether all requested work is done or has failed. Any thread.
  package var isIdle: Bool { state.withLock { $0.isIdle } }
  /// Whether it has its final name, so that no later process can continue it. Any thread.
  var isRenamed: Bool { state.withLock { $0.isRenamed } }
  /// Whether the caller should pause. Any thread.
  var isFull: Bool { state.withLock { $0.isFull } }

  /// Writes to a descriptor of the caller.
  init(streaming descriptor: Int32, _ worker: BackgroundWorker) {
    (path, self.descriptor, inode, birth) = ("standard output", descriptor, 0, nil)
    (isStream, self.worker) = (true, worker)
  }

  /// Creates the file, which must not exist.
  ///
  /// - Parameters:
  ///   - mode: its permissions, which the umask reduces.
  ///   - isExact: whether to ignore the umask.
  package init(making path: String, mode: UInt32, isExact: Bool = false, _ worker: BackgroundWorker) throws(SystemError)
  {
    let made = try retryingInterrupts("create \(path)") {
      open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode)
    }
    // No other process knows it yet. If the file system has no locks, the file has none.
    flock(made, LOCK_EX | LOCK_NB)
    // Some file systems have no permissions.
    if isExact { fchmod(made, mode) }
    var status = stat()
    guard fstat(made, &status) == 0 else {
      close(made)
      throw .last("fstat \(path)")
    }
    (self.path, descriptor, inode, birth) = (path, made, UInt64(status.st_ino), Self.birth(of: path))
    (isStream, self.worker) = (false, worker)
  }

  /// Opens the file of an earlier download.
  ///
  /// The file at the path must be verified: a regular file of this user with one name and the same inode, which no
  /// other process has open, and with at least the stated number of bytes. Excess bytes are discarded, because later
  /// checkpoints would count them.
  ///
  /// - Throws: ``SystemError``: `ENOENT` if it is gone, `EBUSY` if another process has it, `ESTALE` if it is another
  ///   file.
  package init(resuming data: DownloadResumeData, _ worker: BackgroundWorker) throws(SystemError) {
    let found = try retryingInterrupts("open \(data.path)") {
      open(data.path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
    }
    var status = stat()
    do throws(SystemError) {
      guard fstat(found, &status) == 0 else { throw .last("fstat \(data.path)") }
      // The device is not compared, because some file systems give it a new number at each mount.
      guard status.st_mode & S_IFMT == S_IFREG, status.st_uid == geteuid(), status.st_nlink == 1,
        UInt64(status.st_ino) == data.inode, data.birth == nil || data.birth == Self.birth(of: data.path),
        UInt64(clamping: status.st_size) >= data.byteCount
      else { throw SystemError(operation: "continue \(data.path), which was replaced", code: ESTALE) }
      if flock(found, LOCK_EX | LOCK_NB) != 0, errno == EWOULDBLOCK {
        throw SystemError(operation: "continue \(data.path), which another process is downloading", code: EBUSY)
      }
      if UInt64(clamping: status.st_size) > data.byteCount {
        try retryingInterrupts("ftruncate \(data.path)") { ftruncate(found, off_t(clamping: data.byteCount)) }
      }
    } catch {
      close(found)
      throw error
    }
    (path, descriptor, inode, birth) = (data.path, found, data.inode, data.birth)
    (isStream, self.worker) = (false, worker)
    state.withLock { $0.written = data.byteCount }
  }

  private static func birth(of path: String) -> Int64? { WallClock(birthOf: path, in: AT_FDCWD)?.sinceEpoch }

  deinit { if !isStream { close(descriptor) } }

  // MARK: Writing

  /// Writes the next bytes soon. Any thread.
  ///
  /// - Parameter done: called on the worker's thread with the bytes when they are written, or cannot be, and with
  ///   whether that is news: the file was full and is not any more, or it cannot be written from now on.
  package func write(_ bytes: [UInt8], done: @escaping @Sendable (_ bytes: [UInt8], _ isNews: Bool) -> Void) {
    state.withLock { state in
      state.waiting += bytes.count
      if state.waiting > Self.limit { state.isFull = true }
    }
    worker.execute { [self] in
      var error = self.error
      if error == nil {
        let result = put(bytes)
        error = result.error
        for known in running where known.end == written {
          known.digest.update(bytes.span.extracting(0..<result.written).bytes)
        }
        state.withLock { $0.written += UInt64(result.written) }
      }
      let (isNews, flushed) = state.withLock { state in
        let isNew = error != nil && state.error == nil
        state.error = error
        state.waiting -= bytes.count
        let hasRoom = state.isFull && state.waiting <= Self.limit / 2
        if hasRoom { state.isFull = false }
        return (isNew || hasRoom, Self.takeFlushed(&state))
      }
      done(bytes, isNews)
      for work in flushed { work() }
    }
  }

  /// On the worker's thread.
  private func put(_ bytes: [UInt8]) -> (written: Int, error: SystemError?) {
    guard isStream else {
      return BodyWriter.write(descriptor, bytes.span, [0..<bytes.count], skipping: 0, at: written)
    }
    var count = 0
    do throws(SystemError) {
      while count < bytes.count {
        do throws(SystemError) {
          count += try writing("write") {
            bytes.withUnsafeBytes { Glibc.write(descriptor, $0.baseAddress?.advanced(by: count), $0.count - count) }
          }
        } catch  where error.code == EAGAIN {
          // Another process has made it non-blocking.
          var polled = pollfd(fd: descriptor, events: Int16(POLLOUT), revents: 0)
          _ = try retryingInterrupts("poll") { poll(&polled, 1, -1) }
        }
      }
      return (count, nil)
    } catch {
      return (count, error)
    }
  }

  /// Writes nothing more. On the worker's thread.
  func refuse(_ error: SystemError) { state.withLock { $0.error = $0.error ?? error } }

  /// Begins digests of the bytes written from now on. Of the earlier ones, those of the whole file continue. After
  /// everything passed in before.
  func beginDigests(_ algorithms: [DigestAlgorithm]) {
    worker.execute { [self] in
      let start = written
      running = running.filter { $0.start == 0 && start > 0 } + algorithms.map { DigestOfWrites($0, from: start) }
    }
  }

  private static func takeFlushed(_ state: inout State) -> [@Sendable () -> Void] {
    guard state.isIdle else { return [] }
    defer { state.flushed = [] }
    return state.flushed
  }

  /// Calls `work` when all requested work is done or has failed: at once, or on the worker's thread.
  package func whenWritten(_ work: @escaping @Sendable () -> Void) {
    let isNow = state.withLock { state in
      if !state.isIdle { state.flushed.append(work) }
      return state.isIdle
    }
    if isNow { work() }
  }

  /// Discards the bytes from there on. After everything passed in before.
  ///
  /// - Parameter done: called on the worker's thread.
  package func truncate(to length: UInt64, done: @escaping @Sendable () -> Void = {}) {
    state.withLock { $0.truncations += 1 }
    worker.execute { [self] in
      cut(to: length)
      done()
      let flushed = state.withLock { state in
        state.truncations -= 1
        return Self.takeFlushed(&state)
      }
      for work in flushed { work() }
    }
  }

  /// On the worker's thread.
  private func cut(to length: UInt64) {
    running = []
    synchronized = min(synchronized, length)
    let error: SystemError? =
      ftruncate(descriptor, off_t(clamping: length)) == 0 ? nil : .last("ftruncate \(path)")
    state.withLock { state in
      state.written = length
      state.error = state.error ?? error
    }
  }

  // MARK: The end

  /// Syncs the bytes to the disk. On the worker's thread.
  ///
  /// Linux reports an unwritten page once, and afterwards treats it as written. So after a failure, only the bytes of
  /// the last success count, and the file accepts no more.
  package func synchronize() throws(SystemError) {
    if isStream { return }
    let count = written
    do throws(SystemError) {
      try retryingInterrupts("fsync \(path)") { fsync(descriptor) }
      synchronized = count
    } catch {
      state.withLock { $0.error = $0.error ?? error }
      cut(to: synchronized)
      throw error
    }
  }

  /// Ends the computation of digests, which takes minutes for a large file. Any thread.
  func abandonDigests() { state.withLock { $0.abandonsDigests = true } }

  /// Whether ``abandonDigests()`` was called. Any thread.
  var hasAbandonedDigests: Bool { state.withLock { $0.abandonsDigests } }

  /// The digest of a part of the file; nil if its bytes can no longer be read. On the worker's thread.
  ///
  /// - Throws: ``SystemError``: `ECANCELED` after ``abandonDigests()``.
  func digest(_ algorithm: DigestAlgorithm, of range: Range<UInt64>) throws(SystemError) -> Digest? {
    if let known = running.first(where: {
      $0.digest.algorithm == algorithm && $0.start == range.lowerBound && $0.end == range.upperBound
    }) {
      return known.digest.value()
    }
    guard !isStream else { return nil }
    var running = RunningDigest(algorithm)
    var position = range.lowerBound
    var buffer = [UInt8](repeating: 0, count: 1 << 20)
    while position < range.upperBound {
      if hasAbandonedDigests {
        throw SystemError(operation: "compute the digest of \(path)", code: ECANCELED)
      }
      let wanted = Int(min(UInt64(buffer.count), range.upperBound - position))
      let count = try retryingInterrupts("read \(path)") { pread(descriptor, &buffer, wanted, off_t(position)) }
      guard count > 0 else { throw SystemError(operation: "read \(path), which was shortened", code: ESTALE) }
      running.update(buffer.span.extracting(0..<count).bytes)
      position += UInt64(count)
    }
    return running.value()
  }

  /// Gives the file its final name, and syncs the name to the disk.
  ///
  /// - Parameter replaces: whether to replace an existing file of that name.
  /// - Throws: ``SystemError``: `EEXIST` if there is one that must not be replaced. If ``isRenamed``, only the sync of
  ///   the name has failed.
  func rename(to name: String, replaces: Bool) throws(SystemError) {
    guard isNamed(path) else {
      throw SystemError(operation: "rename \(path), which was replaced", code: ESTALE)
    }
    // Before the rename, so that the part keeps its name if no more files can be opened.
    let directory = try Self.openDirectory(of: name)
    defer { if let directory { close(directory) } }
    if replaces {
      try retryingInterrupts("rename \(path) to \(name)") { Glibc.rename(path, name) }
    } else if renameat2(AT_FDCWD, path, AT_FDCWD, name, SLUICE_RENAME_NOREPLACE) != 0 {
      guard errno == EINVAL else { throw .last("rename \(path) to \(name)") }
      // Some network file systems do not support these flags. link(2) fails if the file exists.
      try retryingInterrupts("link \(path) to \(name)") { link(path, name) }
      unlink(path)
    }
    state.withLock { $0.isRenamed = true }
    if let directory { try Self.synchronizeName(name, in: directory) }
  }

  /// Releases the file for another download. This one does not use it any more.
  package func unlock() { if !isStream { flock(descriptor, LOCK_UN) } }

  /// Removes the file, unless another one has taken its place.
  func remove() { if !isStream, isNamed(path) { unlink(path) } }

  private func isNamed(_ path: String) -> Bool {
    var (own, named) = (stat(), stat())
    return fstat(descriptor, &own) == 0 && lstat(path, &named) == 0 && own.st_dev == named.st_dev
      && own.st_ino == named.st_ino
  }

  /// Opens the directory that contains `path`. Nil if this user may change it, but not read it.
  private static func openDirectory(of path: String) throws(SystemError) -> Int32? {
    let directory = path.lastIndex(of: "/").map { $0 == path.startIndex ? "/" : String(path[..<$0]) } ?? "."
    do throws(SystemError) {
      let opened = try retryingInterrupts("open \(directory)") { open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC) }
      return opened
    } catch {
      if error.code == EACCES { return nil }
      throw error
    }
  }

  /// If the file system does not support this, the name may not survive a crash.
  private static func synchronizeName(_ name: String, in directory: Int32) throws(SystemError) {
    do throws(SystemError) {
      try retryingInterrupts("sync the name of \(name), which is complete") { fsync(directory) }
    } catch {
      guard [EINVAL, ENOTSUP].contains(error.code) else { throw error }
    }
  }
}
