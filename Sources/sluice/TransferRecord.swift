// The file in which `put` and `get` remember an unfinished transfer, so that not even a killed process forgets it.
//
// It is written beside the user's own files, so each step makes sure that it is ours: its first line says what it is, and
// a lock says whose it is. Anything else is left as it is. It has one name all its life: what is to be remembered is
// added behind what was, and the last state that is complete counts. So a kill leaves neither half a state nor another
// file.

internal import EventLoops
internal import Glibc
internal import Synchronization

/// The record of one transfer. It exists, locked, from the start of the transfer to its end, and stays only for one that
/// is unfinished then. As secret as the transfer's URL, so nobody else may read it.
final class TransferRecord: Sendable {
  /// What is locked, and what it was seen or made to hold: nobody else writes into it.
  private struct OpenFile {
    var descriptor: Int32
    var text: String
  }

  /// What of, in a word: an upload or a download.
  enum Kind: String, Sendable {
    case upload, download

    fileprivate var magic: String { "sluice \(rawValue) record" }
    fileprivate var firstLine: String { "\(magic) 2" }
    fileprivate var user: String { self == .upload ? "another sluice put uploads" : "another sluice get downloads" }
  }

  /// The line behind each state. No field's value begins with a space.
  private static let stateEnd = " end"
  /// More than a record has in bytes, but for one of thousands of states: that one begins anew.
  private static let limit = 1 << 20

  let path: String
  private let kind: Kind
  /// The record while it is open, whose lock lasts as long; nil while there is none.
  private let file = Mutex<OpenFile?>(nil)
  /// Why no record can be written; nil if one can.
  private let obstacle = Mutex<SystemError?>(nil)

  init(_ kind: Kind, path: String) { (self.kind, self.path) = (kind, path) }

  deinit { release() }

  // MARK: Begin and end

  /// Makes the record and locks it, or locks the one that is there.
  ///
  /// - Returns: the lines of what that one remembers; nil if there was none, or none could be made, or its transfer had
  ///   not begun.
  /// - Throws: ``CommandError`` when the file is not a record, or another process uses it.
  func claim() throws(CommandError) -> [String]? {
    // Whoever has the lock may replace or remove the file before it gives the lock up.
    for _ in 0..<100 {
      var status = stat()
      if lstat(path, &status) != 0 {
        do throws(SystemError) {
          guard errno == ENOENT else { throw .last("lstat") }
          try begin(
            try retryingInterrupts("open") { open(path, O_RDWR | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0o600) })
        } catch {
          if error.code == EEXIST { continue }
          // The transfer can do without.
          obstacle.withLock { $0 = error }
        }
        return nil
      }
      guard status.st_mode & S_IFMT == S_IFREG else { throw notARecord("it is not a regular file") }
      let found: Int32
      do throws(SystemError) {
        found = try retryingInterrupts("open") { open(path, O_RDWR | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC) }
      } catch {
        if error.code == ENOENT { continue }
        throw notARecord(error.reason)
      }
      do throws(CommandError) {
        guard try lock(found) else {
          close(found)
          continue
        }
        let text = try contents(found)
        let lines = try lines(text, found)
        file.withLock { $0 = OpenFile(descriptor: found, text: text) }
        return lines
      } catch {
        Self.unlock(found)
        throw error
      }
    }
    throw busy
  }

  /// Removes the record, unless somebody else has put another file into its place or written into it.
  func remove() {
    file.withLock { file in
      guard let open = file else { return }
      if isUnchanged(open) {
        unlink(path)
        ReplacedFile.syncDirectory(of: path)
      }
      Self.unlock(open.descriptor)
      file = nil
    }
  }

  /// Whether there is something to continue later.
  var isKept: Bool { file.withLock { $0.map(isUnchanged) ?? false } }

  /// Gives the lock up and leaves the record.
  func release() {
    file.withLock { file in
      file.map { Self.unlock($0.descriptor) }
      file = nil
    }
  }

  // MARK: Writing

  /// Remembers what these lines say; nil when it does, or why it cannot.
  func write(_ lines: [String]) -> SystemError? {
    if let obstacle = obstacle.withLock({ $0 }) { return obstacle }
    let state = (lines + [Self.stateEnd]).map { $0 + "\n" }.joined()
    return file.withLock { file in
      guard let open = file else { return SystemError(operation: "write", code: EBADF) }
      guard isUnchanged(open) else { return SystemError(operation: "write", code: ESTALE) }
      var kept = kind.firstLine + "\n" + (Self.states(open.text, kind).map { $0 + "\n" }.joined())
      if kept.hasSuffix("\n" + state), kept == open.text { return nil }
      if kept.utf8.count + state.utf8.count > Self.limit { kept = kind.firstLine + "\n" }
      do throws(SystemError) {
        try Self.truncate(open.descriptor, to: kept)
        file?.text = kept
        try ReplacedFile.writeAll(state, open.descriptor)
        try retryingInterrupts("fsync") { fsync(open.descriptor) }
        file?.text = kept + state
        return nil
      } catch {
        try? Self.truncate(open.descriptor, to: kept)
        return error
      }
    }
  }

  private static func truncate(_ descriptor: Int32, to text: String) throws(SystemError) {
    try retryingInterrupts("ftruncate") { ftruncate(descriptor, off_t(text.utf8.count)) }
  }

  /// The lines of all complete states behind the first line.
  private static func states(_ text: String, _ kind: Kind) -> ArraySlice<Substring> {
    let lines = text.split(separator: "\n", omittingEmptySubsequences: false)
    // Behind the last line feed is nothing, or a line that was not written completely.
    guard let end = lines.dropLast().lastIndex(of: stateEnd[...]) else { return [] }
    return lines[1...end]
  }

  /// Locks the file that was just made, and writes the line that tells it from anybody else's.
  private func begin(_ made: Int32) throws(SystemError) {
    do throws(SystemError) {
      // Another process that finds it empty lets it go at once. What has no locks has to do without.
      _ = try? retryingInterrupts("flock") { flock(made, LOCK_EX) }
      let text = "\(kind.firstLine)\n"
      try ReplacedFile.writeAll(text, made)
      try retryingInterrupts("fsync") { fsync(made) }
      ReplacedFile.syncDirectory(of: path)
      file.withLock { $0 = OpenFile(descriptor: made, text: text) }
    } catch {
      // It may be empty, and would be somebody else's then.
      if isNamed(made) { unlink(path) }
      close(made)
      throw error
    }
  }

  // MARK: Whose it is

  /// Whether the path still names the open file.
  private func isNamed(_ descriptor: Int32) -> Bool {
    var (own, named) = (stat(), stat())
    return fstat(descriptor, &own) == 0 && lstat(path, &named) == 0 && own.st_dev == named.st_dev
      && own.st_ino == named.st_ino
  }

  /// Whether it still holds, under its path, what this process knows.
  private func isUnchanged(_ file: OpenFile) -> Bool {
    guard isNamed(file.descriptor), let bytes = Self.bytes(file.descriptor) else { return false }
    return bytes.elementsEqual(file.text.utf8)
  }

  /// As much of a file as a record may have; nil if it cannot be read.
  private static func bytes(_ descriptor: Int32) -> ArraySlice<UInt8>? {
    var bytes = [UInt8](repeating: 0, count: limit + 1)
    let count = try? retryingInterrupts("read") {
      bytes.withUnsafeMutableBytes { pread(descriptor, $0.baseAddress, $0.count, 0) }
    }
    return count.map { bytes[..<$0] }
  }

  /// False if the file has another name or none by now: look again.
  private func lock(_ descriptor: Int32) throws(CommandError) -> Bool {
    do throws(SystemError) {
      try retryingInterrupts("flock") { flock(descriptor, LOCK_EX | LOCK_NB) }
    } catch {
      // What has no locks has to do without.
      if error.code == EWOULDBLOCK { throw busy }
    }
    return isNamed(descriptor)
  }

  /// Closes it. A child that another thread has just forked has the descriptor until it executes its program, and with
  /// it the lock.
  private static func unlock(_ descriptor: Int32) {
    flock(descriptor, LOCK_UN)
    close(descriptor)
  }

  private func contents(_ descriptor: Int32) throws(CommandError) -> String {
    guard let bytes = Self.bytes(descriptor) else { throw notARecord(String(cString: strerror(errno))) }
    guard !bytes.isEmpty else { throw notARecord("it is empty") }
    guard let text = String(validating: bytes, as: UTF8.self) else { throw notARecord("it holds other data") }
    return text
  }

  /// Reads a record; nil for one of a transfer that has not begun.
  private func lines(_ text: String, _ descriptor: Int32) throws(CommandError) -> [String]? {
    let lines = text.split(separator: "\n", omittingEmptySubsequences: false)
    guard lines[0] == kind.firstLine else {
      throw notARecord(lines[0].hasPrefix(kind.magic) ? "another version of sluice wrote it" : "it holds other data")
    }
    var status = stat()
    // What another user left there would exchange this user's file with a server of that user's choice.
    guard fstat(descriptor, &status) == 0, status.st_uid == geteuid() else { throw notARecord("another user owns it") }
    guard lines.count > 1 else { throw damaged }
    let states = Self.states(text, kind)
    guard !states.isEmpty else { return nil }
    return states.dropLast().split(separator: Self.stateEnd[...], omittingEmptySubsequences: false).last?.map(
      String.init)
  }

  /// What is in it does not make sense.
  var damaged: CommandError { notARecord("it is damaged") }

  private var busy: CommandError {
    CommandError(
      .inputOutput,
      "\(shown) is in use: \(kind.user) this file. Wait for its end, or choose another record with --resume-file PATH."
    )
  }

  private func notARecord(_ reason: String) -> CommandError {
    CommandError(
      .badData,
      "\(shown) cannot be used as the record of the \(kind.rawValue): \(reason). It is left as it is; choose another path with --resume-file PATH."
    )
  }

  private var shown: String { path.shellQuoted }
}
