// Keeps as many files open as there are descriptors for. A quiet stream needs none. Otherwise, with a limit of 64, a
// few quiet streams would keep all others out.
//
// The kernel always assigns the lowest free number, so a high number shows that descriptors are running short. The
// highest ones are reserved for urgent uses: connections stay below ``connectionLimit``, files below ``fileLimit``, and
// the rest is for the metrics port and short operations.

package import EventLoops
package import Glibc

/// The files of a server, which are closed when descriptors run short, and opened again on use. Any thread.
package final class OpenFiles: Sendable {
  private let all = Lock<[ObjectIdentifier: OpenFile.Descriptor]>([:])

  package init() {}

  private static var limit: Int32 {
    var limit = rlimit()
    guard getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit) == 0 else { return .max }
    return Int32(clamping: limit.rlim_cur)
  }

  /// Connections have smaller numbers than this. A quarter of all, or 256, is for files.
  package static var connectionLimit: Int32 {
    let limit = limit
    return limit - min(limit / 4, 256)
  }

  /// Files have smaller numbers than this.
  private static var fileLimit: Int32 {
    let limit = limit
    return limit - min(limit / 16, 16)
  }

  /// Calls `body`, which opens a file; closes idle ones if there is no descriptor for it.
  package func open(_ operation: @autoclosure () -> String, _ body: () -> Int32) throws(SystemError) -> Int32 {
    while true {
      let descriptor = body()
      if descriptor >= 0 { return descriptor < Self.fileLimit ? descriptor : lowered(descriptor) }
      let error = SystemError.last(operation())
      if error.code == EINTR { continue }
      guard error.code == EMFILE || error.code == ENFILE, closeIdle() > 0 else { throw error }
    }
  }

  /// Exchanges a high number for a lower one, if one is free.
  private func lowered(_ descriptor: Int32) -> Int32 {
    guard closeIdle() > 0 else { return descriptor }
    let other = fcntl(descriptor, F_DUPFD_CLOEXEC, 0)
    guard other >= 0 else { return descriptor }
    close(max(descriptor, other))
    return min(descriptor, other)
  }

  /// Closes a quarter of the files that are not in use, the least recently used first. Returns their number.
  @discardableResult
  package func closeIdle() -> Int {
    let idle = all.withLock { all in all.values.compactMap { file in file.idleSince.map { (file, $0) } } }
    var closed = 0
    for (file, _) in idle.sorted(by: { $0.1 < $1.1 }).prefix(idle.count / 4 + 1) where file.closeIfIdle() {
      closed += 1
    }
    return closed
  }

  fileprivate func add(_ file: OpenFile.Descriptor) { all.withLock { $0[ObjectIdentifier(file)] = file } }
  fileprivate func remove(_ file: OpenFile.Descriptor) { all.withLock { $0[ObjectIdentifier(file)] = nil } }
}

/// A file of a directory. It is open while it is used, and afterwards for as long as there are spare descriptors. Any
/// thread. Users must release it soon, because files that wait for something must not keep descriptors.
package final class OpenFile: Sendable {
  /// Shared with ``OpenFiles``, which closes it from any thread.
  fileprivate final class Descriptor: Sendable {
    private struct State {
      var descriptor: Int32
      var users = 0
      /// Whether the last user closes it.
      var isUnwanted = false
      var lastUse = MonotonicInstant.now

      mutating func close() {
        if descriptor >= 0 { Glibc.close(descriptor) }
        (descriptor, isUnwanted) = (-1, false)
      }
    }

    private let state: Lock<State>

    init(_ descriptor: Int32) { state = Lock(State(descriptor: descriptor)) }

    /// nil while it is closed or in use.
    var idleSince: MonotonicInstant? {
      state.withLock { $0.descriptor >= 0 && $0.users == 0 ? $0.lastUse : nil }
    }

    func closeIfIdle() -> Bool {
      state.withLock { state in
        guard state.descriptor >= 0, state.users == 0 else { return false }
        state.close()
        return true
      }
    }

    /// Closes it now, or when its last user has released it.
    func closeWhenIdle() {
      state.withLock { state in
        state.isUnwanted = state.users > 0
        if !state.isUnwanted { state.close() }
      }
    }

    /// It is not used, and never will be.
    func end() { state.withLock { $0.close() } }

    /// Keeps it open. Returns -1 if it must be opened first.
    func acquire() -> Int32 {
      state.withLock { state in
        state.users += 1
        return state.descriptor
      }
    }

    /// Call it while acquired. Returns the valid descriptor, because another thread may have been faster.
    func opened(_ descriptor: Int32) -> Int32 {
      state.withLock { state in
        if state.descriptor >= 0 { close(descriptor) } else { state.descriptor = descriptor }
        return state.descriptor
      }
    }

    func release() {
      state.withLock { state in
        state.users -= 1
        state.lastUse = .now
        if state.isUnwanted, state.users == 0 { state.close() }
      }
    }
  }

  private let files: OpenFiles
  private let directory: Int32
  private let name: String
  private let flags: Int32
  package let place: FilePlace
  private let descriptor: Descriptor
  /// The received beginning of the file, if the file's was changed since.
  private let receivedHead = Lock<[UInt8]>([])

  /// Takes over the descriptor of the regular file with this `name` in a directory.
  ///
  /// - Parameter flags: how it is opened again.
  package init(
    _ descriptor: Int32, _ name: String, in directory: Int32, _ flags: Int32, _ status: stat, _ files: OpenFiles
  ) {
    self.files = files
    self.directory = directory
    self.name = name
    self.flags = flags
    place = FilePlace(directory: directory, name: name, status)
    self.descriptor = Descriptor(descriptor)
    files.add(self.descriptor)
  }

  deinit {
    files.remove(descriptor)
    descriptor.end()
  }

  /// The descriptor, which stays open until ``release()``.
  ///
  /// - Throws: ``SystemError``; `ESTALE` if the name now belongs to another file.
  package func acquire() throws(SystemError) -> Int32 {
    let open = descriptor.acquire()
    if open >= 0 { return open }
    do throws(SystemError) {
      let opened = try files.open("open \(name)") { openat(directory, name, flags | RegularFile.flags) }
      var status = stat()
      do throws(SystemError) {
        try retryingInterrupts("open \(name) again") { fstat(opened, &status) }
      } catch {
        close(opened)
        throw error
      }
      guard place.isSame(status) else {
        close(opened)
        throw SystemError(operation: "open \(name) again", code: ESTALE)
      }
      return descriptor.opened(opened)
    } catch {
      descriptor.release()
      throw error.isMissing ? SystemError(operation: "open \(name) again", code: ESTALE) : error
    }
  }

  package func release() { descriptor.release() }

  /// Replaces the read bytes by the received ones, in a head that was changed since.
  ///
  /// - Parameters:
  ///   - read: bytes of the file.
  ///   - position: the position of the first of them in the file.
  package func restoreReceived(_ read: UnsafeMutableRawBufferPointer, at position: UInt64) {
    receivedHead.withLock { received in
      guard position < received.count else { return }
      read.copyBytes(from: received[Int(position)...].prefix(read.count))
    }
  }

  /// The beginning of the file is about to be changed. Readers still get the received bytes.
  package func headChanges(from received: [UInt8]) { receivedHead.withLock { $0 = received } }

  /// Closes it now, or when nobody uses it any more. It is opened again when necessary.
  package func closeWhenIdle() { descriptor.closeWhenIdle() }

  /// Checks that nothing else has changed its length, removed it, or replaced it.
  ///
  /// - Parameter length: its expected length in bytes.
  /// - Throws: ``SystemError``, `ESTALE` if something has.
  package func check(length: UInt64) throws(SystemError) {
    var status = stat()
    do throws(SystemError) {
      try retryingInterrupts("look at \(name)") { fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) }
    } catch {
      if !error.isMissing { throw error }
    }
    // The status of a missing file is all zeros.
    guard place.isSame(status), UInt64(status.st_size) == length else {
      throw SystemError(operation: "something else has changed or replaced \(name)", code: ESTALE)
    }
  }
}

/// A name in a directory, and the file or folder that it identified. The directory must stay open longer than this is
/// used.
package struct FilePlace: Equatable, Sendable {
  private let directory: Int32
  private let name: String
  let device: UInt64
  private let inode: UInt64
  /// `S_IFREG` or `S_IFDIR`.
  private let kind: mode_t

  package init(directory: Int32, name: String, _ status: stat) {
    (self.directory, self.name) = (directory, name)
    (device, inode) = (UInt64(status.st_dev), UInt64(status.st_ino))
    kind = status.st_mode & S_IFMT
  }

  package func isSame(_ status: stat) -> Bool {
    device == UInt64(status.st_dev) && inode == UInt64(status.st_ino) && status.st_mode & S_IFMT == kind
  }

  /// Whether something else has put another file there. A removed file does not count as replaced.
  package var isReplaced: Bool {
    var status = stat()
    return fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) == 0 && !isSame(status)
  }

  /// Whether the name now identifies something else, or nothing. False if this cannot be determined.
  package var isLost: Bool {
    var status = stat()
    guard fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) == 0 else { return errno == ENOENT }
    return !isSame(status)
  }
}

extension SystemError {
  /// Whether space is lacking, as opposed to another error.
  package var isFull: Bool { code == ENOSPC || code == EDQUOT || code == EFBIG }
  /// Whether the server was interrupted, or lacks descriptors or memory, which become free in time.
  package var isShortage: Bool { [EMFILE, ENFILE, ENOMEM, EAGAIN, EINTR].contains(code) }
  package var isMissing: Bool { code == ENOENT }
  /// Whether a permission is missing, or something else is in the place of the file. An operator can change that.
  package var isObstacle: Bool { [EACCES, EPERM, ENOTDIR].contains(code) || isSpecialFile || isForeignFile }
  /// Whether the written file is no longer the one with its name, or was changed by another process.
  package var isForeignChange: Bool { code == ESTALE }
}
