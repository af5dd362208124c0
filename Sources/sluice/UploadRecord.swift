// The file in which `put` remembers an unfinished upload, so that not even a killed process forgets it.
//
// It is written beside the user's own files, so each step makes sure that it is ours: its first line says what it is, a
// lock says whose it is, and its last line says which state of which file it belongs to. Anything else is left as it
// is.

internal import EventLoops
internal import Glibc
internal import LiveStreaming
internal import ResumableUploads
internal import Synchronization
internal import UploadClient

/// The record of one upload. It exists, locked, from the start of the upload to its end, and stays only for an upload
/// that is unfinished then. As secret as the upload's URL, so nobody else may read it.
final class UploadRecord: Sendable {
  /// What an earlier process left.
  struct Unfinished: Equatable {
    var data: ResumeData
    /// The state of the file that it is of, as ``FileVersion`` describes it.
    var version: String
  }

  private static let kind = "sluice upload record"
  private static let firstLine = "\(kind) 1"

  let path: String
  private let version: String
  /// The record's descriptor, whose lock lasts as long as it is open; nil while there is none.
  private let descriptor = Mutex<Int32?>(nil)
  /// Why no record can be written; nil if one can.
  private let obstacle = Mutex<SystemError?>(nil)

  /// - Parameter version: the state of the file that is uploaded.
  init(path: String, version: FileVersion) {
    self.path = path
    self.version = "\(version)"
  }

  deinit { descriptor.withLock { $0.map { _ = close($0) } } }

  // MARK: Begin and end

  /// Makes the record and locks it, or locks the one that is there.
  ///
  /// - Returns: what that one remembers; nil if there was none, or none could be made.
  /// - Throws: ``CommandError`` when the file is not a record, or another process uses it.
  func claim() throws(CommandError) -> Unfinished? {
    // Whoever has the lock may replace or remove the file before it gives the lock up.
    for _ in 0..<100 {
      var status = stat()
      if lstat(path, &status) != 0 {
        let made = errno == ENOENT ? open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0o600) : -1
        if made < 0, errno == EEXIST { continue }
        guard made >= 0 else {
          // The upload can do without.
          obstacle.withLock { $0 = .last("open") }
          return nil
        }
        close(made)
        continue
      }
      guard status.st_mode & S_IFMT == S_IFREG else { throw notARecord("it is not a regular file") }
      let found = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
      if found < 0, errno == ENOENT { continue }
      guard found >= 0 else { throw notARecord(String(cString: strerror(errno))) }
      do throws(CommandError) {
        guard try lock(found) else {
          close(found)
          continue
        }
        let unfinished = try contents(found)
        descriptor.withLock { $0 = found }
        if unfinished == nil { try begin() }
        return unfinished
      } catch {
        close(found)
        descriptor.withLock { $0 = nil }
        throw error
      }
    }
    throw busy
  }

  /// Removes the record, unless somebody else has put another file into its place.
  func remove() {
    descriptor.withLock { descriptor in
      guard let open = descriptor else { return }
      if isNamed(open) {
        unlink(path)
        ReplacedFile.syncDirectory(of: path)
      }
      close(open)
      descriptor = nil
    }
  }

  /// Whether there is something to continue later.
  var isKept: Bool { descriptor.withLock { $0 != nil } }

  /// Gives the lock up and leaves the record.
  func release() {
    descriptor.withLock { descriptor in
      descriptor.map { _ = close($0) }
      descriptor = nil
    }
  }

  // MARK: Writing

  /// Remembers the upload; nil when it does, or why it cannot.
  func write(_ data: ResumeData) -> SystemError? {
    if let obstacle = obstacle.withLock({ $0 }) { return obstacle }
    guard let text = data.text else { return SystemError(operation: "write", code: EILSEQ) }
    return replace("\(Self.firstLine)\n\(text)\n\(version)\n")
  }

  /// So that even a file that was empty says what it is.
  private func begin() throws(CommandError) {
    if let error = replace("\(Self.firstLine)\n") { obstacle.withLock { $0 = error } }
  }

  private func replace(_ text: String) -> SystemError? {
    descriptor.withLock { descriptor -> SystemError? in
      guard let old = descriptor else { return SystemError(operation: "write", code: EBADF) }
      do throws(SystemError) {
        let new = try ReplacedFile.replace(path, by: text, mode: 0o600) { (new) throws(SystemError) in
          guard isNamed(old) else { throw SystemError(operation: "rename", code: ESTALE) }
          // Before it has the name, so that nobody else gets it. What has no locks has to do without.
          flock(new, LOCK_EX | LOCK_NB)
        }
        close(old)
        descriptor = new
        return nil
      } catch {
        return error
      }
    }
  }

  // MARK: Whose it is

  /// Whether the path still names the open file.
  private func isNamed(_ descriptor: Int32) -> Bool {
    var (own, named) = (stat(), stat())
    return fstat(descriptor, &own) == 0 && lstat(path, &named) == 0 && own.st_dev == named.st_dev
      && own.st_ino == named.st_ino
  }

  /// False if the file has another name or none by now: look again.
  private func lock(_ descriptor: Int32) throws(CommandError) -> Bool {
    if flock(descriptor, LOCK_EX | LOCK_NB) != 0, errno == EWOULDBLOCK { throw busy }
    return isNamed(descriptor)
  }

  /// Reads a record; nil for one of an upload that has not begun, and for an empty file.
  private func contents(_ descriptor: Int32) throws(CommandError) -> Unfinished? {
    var bytes = [UInt8](repeating: 0, count: 64 * 1024)
    let count = bytes.withUnsafeMutableBytes { pread(descriptor, $0.baseAddress, $0.count, 0) }
    guard count >= 0 else { throw notARecord(String(cString: strerror(errno))) }
    guard count > 0 else { return nil }
    guard let text = String(validating: bytes[..<count], as: UTF8.self) else { throw notARecord("it holds other data") }
    let lines = text.split(separator: "\n", omittingEmptySubsequences: false)
    guard lines[0] == Self.firstLine else {
      throw notARecord(lines[0].hasPrefix(Self.kind) ? "another version of sluice wrote it" : "it holds other data")
    }
    var status = stat()
    // What another user left there would send this file to a server of that user's choice.
    guard fstat(descriptor, &status) == 0, status.st_uid == geteuid() else { throw notARecord("another user owns it") }
    if lines.count == 2, lines[1].isEmpty { return nil }
    guard lines.count == 4, lines[3].isEmpty, let data = ResumeData(String(lines[1])) else {
      throw notARecord("it is damaged")
    }
    return Unfinished(data: data, version: String(lines[2]))
  }

  private var busy: CommandError {
    CommandError(
      .inputOutput,
      "\(shown) is in use: another sluice put uploads this file. Wait for its end, or choose another record with --resume-file PATH."
    )
  }

  private func notARecord(_ reason: String) -> CommandError {
    CommandError(
      .badData,
      "\(shown) cannot be used as the record of the upload: \(reason). It is left as it is; choose another path with --resume-file PATH."
    )
  }

  private var shown: String { path.shellQuoted }
}
