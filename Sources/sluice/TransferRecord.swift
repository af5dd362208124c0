// The file in which `put` and `get` record an unfinished transfer, so that it survives a killed process.
//
// It lies beside the user's files, so each step checks that the file is ours. Its first line identifies it, and a lock
// names its owner. Any other file stays unchanged. The record keeps one name for its whole life. A new state is
// appended to the former one, and the last complete state counts. So a kill leaves neither half a state nor a second
// file. Each state ends with a digest of the file up to there, so that a changed record is noticed: it could name
// another file's upload.

internal import Digests
internal import EventLoops
internal import Glibc
internal import Synchronization

/// The record of one transfer. It exists, locked, from the start of the transfer to its end, and remains only if the
/// transfer is unfinished. It is as secret as the transfer's URL, so no other user may read it.
final class TransferRecord: Sendable {
  /// The locked file, and its content as it was last read or written. No other process writes to it.
  private struct OpenFile {
    var descriptor: Int32
    var text: String
    var form = Form.current
    /// Whether this process has created the file.
    var isNew = false
  }

  /// The kind of transfer: an upload or a download.
  enum Kind: String, Sendable {
    case upload, download

    fileprivate var magic: String { "sluice \(rawValue) record" }
    fileprivate func firstLine(_ form: Form) -> String { "\(magic) \(form.rawValue)" }
    /// The content of a record whose transfer has not begun.
    fileprivate func emptyRecord(_ form: Form) -> String { "\(firstLine(form))\n" }
    fileprivate var user: String { self == .upload ? "another sluice put uploads" : "another sluice get downloads" }
    /// How to transfer the file without its damaged record.
    fileprivate var newBeginning: String {
      self == .upload
        ? "delete it and upload the file from its first byte"
        : "delete it and the part, and download the file from its first byte"
    }
  }

  /// The number in the first line. A record keeps its form for its whole life, because an older version of sluice may
  /// have written its states.
  fileprivate enum Form: Int, CaseIterable {
    case withoutDigests = 2
    case current = 3

    /// How the line after each state begins. No field's value begins with a space.
    static let endMark = " end"

    /// The line after a state, without its line feed.
    ///
    /// - Parameter text: the record from its first byte to the line feed of the state's last field.
    func endLine(after text: some StringProtocol) -> String {
      switch self {
      case .withoutDigests: Self.endMark
      case .current: "\(Self.endMark) \(Digest(.sha256, of: Array(text.utf8).span.bytes).hexadecimal)"
      }
    }

    /// The bytes to append to a record for another state.
    func state(_ lines: [String], after text: String) -> String {
      let fields = lines.map { $0 + "\n" }.joined()
      return fields + endLine(after: text + fields) + "\n"
    }
  }

  /// The complete states of a record.
  private struct States {
    /// The record from its first byte to the end of the last state.
    var text: String
    /// The lines of the last state. Nil if there is none.
    var last: [String]?
  }

  /// More bytes than a record has, unless it has thousands of states. Then it is rewritten.
  private static let limit = 1 << 20

  let path: String
  private let kind: Kind
  /// The record while it is open. Its lock lasts as long. Nil while there is none.
  private let file = Mutex<OpenFile?>(nil)
  /// The reason why no record can be written, or nil.
  private let obstacle = Mutex<SystemError?>(nil)

  init(_ kind: Kind, path: String) { (self.kind, self.path) = (kind, path) }

  deinit { release() }

  // MARK: Begin and end

  /// Creates and locks the record, or locks the existing one.
  ///
  /// - Returns: the lines of the existing record. Nil if there was none, if none could be created, or if its transfer
  ///   had not begun.
  /// - Throws: ``CommandError`` when the file is not a record, or another process uses it.
  func claim() throws(CommandError) -> [String]? {
    var isEmpty = false
    // The owner of the lock may replace or remove the file before it releases the lock.
    for _ in 0..<100 {
      isEmpty = false
      var status = stat()
      guard lstat(path, &status) == 0 else {
        let code = errno
        guard code == ENOENT else {
          // The transfer does not require a record.
          obstacle.withLock { $0 = SystemError(operation: "lstat", code: code) }
          return nil
        }
        if create() { return nil }
        continue
      }
      if status.st_mode & S_IFMT != S_IFREG { throw notARecord("it is not a regular file") }
      let found: Int32
      do throws(SystemError) {
        found = try retryingInterrupts("open") {
          open(path, O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)
        }
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
        guard !text.isEmpty else {
          // Its creator may be about to write to it, if it was not created in one step.
          Self.unlock(found)
          isEmpty = true
          usleep(1000)
          continue
        }
        let (form, lines) = try parse(text, found)
        file.withLock { $0 = OpenFile(descriptor: found, text: text, form: form) }
        return lines
      } catch {
        Self.unlock(found)
        throw error
      }
    }
    throw isEmpty ? notARecord("it is empty, and may belong to another program") : busy
  }

  /// Removes the record, unless another process has replaced it or written to it.
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

  /// Removes the record if this process has created it. An earlier one is kept, and its lock is released.
  func withdraw() {
    if file.withLock({ $0?.isNew ?? false }) { remove() } else { release() }
  }

  /// Whether an earlier process has created the claimed record.
  var isInherited: Bool { file.withLock { $0.map { !$0.isNew } ?? false } }

  /// Whether there is a record for a later process.
  var isKept: Bool { file.withLock { $0.map(isUnchanged) ?? false } }

  /// How the user continues after an interruption.
  ///
  /// - Parameter command: the command that resumes the transfer.
  func advice(resumingWith command: String) -> String {
    guard isKept else {
      return "there is no record to resume from: the same command begins with the first byte, without --resume"
    }
    return file.withLock { $0.map { $0.text == kind.emptyRecord($0.form) } ?? false }
      ? "nothing to resume: the same command begins with the first byte, with or without --resume"
      : "resume with: \(command)"
  }

  /// Releases the lock and keeps the record.
  func release() {
    file.withLock { file in
      file.map { Self.unlock($0.descriptor) }
      file = nil
    }
  }

  // MARK: Writing

  /// Records these lines. Returns nil on success, and the error otherwise.
  func write(_ lines: [String]) -> SystemError? {
    if let obstacle = createIfMissing() { return obstacle }
    return file.withLock { file in
      guard let open = file else { return SystemError(operation: "write", code: EBADF) }
      guard isUnchanged(open), let known = states(open.text, open.form) else {
        return SystemError(operation: "write", code: ESTALE)
      }
      // Without what remains of a state that was not written completely.
      var kept = known.text
      if known.last == lines, kept == open.text { return nil }
      var state = open.form.state(lines, after: kept)
      if kept.utf8.count + state.utf8.count > Self.limit {
        kept = kind.emptyRecord(open.form)
        state = open.form.state(lines, after: kept)
      }
      do throws(SystemError) {
        try Self.truncate(open.descriptor, to: kept)
        file?.text = kept
        try writeAll(Array(state.utf8), to: open.descriptor, "write")
        try retryingInterrupts("fsync") { fsync(open.descriptor) }
        file?.text = kept + state
        return nil
      } catch {
        try? Self.truncate(open.descriptor, to: kept)
        return error
      }
    }
  }

  /// Keeps the record of a transfer that was interrupted and cannot be continued, without its state. As after a kill
  /// before the first state, a later process begins with the first byte, whether or not it is to resume.
  func reset() {
    _ = createIfMissing()
    file.withLock { file in
      // If this fails, the later process discards the state.
      guard let open = file, isUnchanged(open) else { return }
      let text = kind.emptyRecord(open.form)
      guard (try? Self.truncate(open.descriptor, to: text)) != nil else { return }
      file?.text = text
      fsync(open.descriptor)
    }
  }

  private static func truncate(_ descriptor: Int32, to text: String) throws(SystemError) {
    try retryingInterrupts("ftruncate") { ftruncate(descriptor, off_t(text.utf8.count)) }
  }

  /// Reads the complete states. Nil if another program has changed the record: the digest after the last state is not
  /// that of the bytes before it.
  private func states(_ text: String, _ form: Form) -> States? {
    let lines = text.split(separator: "\n", omittingEmptySubsequences: false)
    // The last line feed is followed by nothing, or by a line that was not written completely.
    guard let end = lines.dropLast().lastIndex(where: { $0.hasPrefix(Form.endMark) }) else {
      return States(text: kind.emptyRecord(form))
    }
    // Its digest includes the earlier states.
    guard lines[end] == form.endLine(after: text[..<lines[end].startIndex]) else { return nil }
    let begin = lines[1..<end].lastIndex { $0.hasPrefix(Form.endMark) }.map { $0 + 1 } ?? 1
    return States(text: String(text[..<lines[end].endIndex]) + "\n", last: lines[begin..<end].map(String.init))
  }

  /// Creates the record if that was impossible before. A full disk may have space by now.
  ///
  /// - Returns: the reason why there is still none, or nil.
  private func createIfMissing() -> SystemError? {
    guard obstacle.withLock({ $0 != nil }) else { return nil }
    guard create() else { return SystemError(operation: "open", code: EEXIST) }
    return obstacle.withLock { $0 }
  }

  /// Creates the record with the line that identifies it, and locks it.
  ///
  /// - Returns: false if another file has the path by now.
  private func create() -> Bool {
    let text = kind.emptyRecord(.current)
    do throws(SystemError) {
      let new = try LockedFile.create(path, text)
      ReplacedFile.syncDirectory(of: path)
      file.withLock { $0 = OpenFile(descriptor: new, text: text, isNew: true) }
      obstacle.withLock { $0 = nil }
    } catch {
      if error.code == EEXIST { return false }
      // The transfer does not require a record.
      obstacle.withLock { $0 = error }
    }
    return true
  }

  // MARK: Ownership

  /// Whether the file under the path still has the content that this process last wrote.
  private func isUnchanged(_ file: OpenFile) -> Bool {
    guard LockedFile.isNamed(file.descriptor, path), let bytes = Self.bytes(file.descriptor) else { return false }
    return bytes.elementsEqual(file.text.utf8)
  }

  /// Reads at most the size limit of a record. Nil if the file cannot be read.
  private static func bytes(_ descriptor: Int32) -> ArraySlice<UInt8>? {
    var bytes = [UInt8](repeating: 0, count: limit + 1)
    let count = try? retryingInterrupts("read") {
      bytes.withUnsafeMutableBytes { pread(descriptor, $0.baseAddress, $0.count, 0) }
    }
    return count.map { bytes[..<$0] }
  }

  /// Returns false if the file has another name or none by now. The caller then looks again.
  private func lock(_ descriptor: Int32) throws(CommandError) -> Bool {
    do throws(SystemError) {
      try retryingInterrupts("flock") { flock(descriptor, LOCK_EX | LOCK_NB) }
    } catch {
      // A file system without locks works without them.
      if error.code == EWOULDBLOCK { throw busy }
    }
    return LockedFile.isNamed(descriptor, path)
  }

  /// Closes the file. A child that another thread has just forked keeps the descriptor, and with it the lock, until it
  /// executes its program.
  private static func unlock(_ descriptor: Int32) {
    flock(descriptor, LOCK_UN)
    close(descriptor)
  }

  private func contents(_ descriptor: Int32) throws(CommandError) -> String {
    guard let bytes = Self.bytes(descriptor) else { throw notARecord(String(cString: strerror(errno))) }
    guard let text = String(validating: bytes, as: UTF8.self) else { throw notARecord("it contains other data") }
    return text
  }

  /// Reads a record. The lines are those of its last state, or nil if its transfer has not begun.
  private func parse(_ text: String, _ descriptor: Int32) throws(CommandError) -> (form: Form, lines: [String]?) {
    let first = text.prefix { $0 != "\n" }
    guard let form = Form.allCases.first(where: { first == kind.firstLine($0) }) else {
      throw notARecord(first.hasPrefix(kind.magic) ? "another version of sluice wrote it" : "it contains other data")
    }
    var status = stat()
    // A record of another user would send this user's file to a server that the other user chose.
    guard fstat(descriptor, &status) == 0, status.st_uid == geteuid() else { throw notARecord("another user owns it") }
    guard text != kind.emptyRecord(form) else { return (form, nil) }
    // Another program may have truncated it, or a power failure its first state. It may still contain the URL.
    guard let state = states(text, form)?.last else { throw damaged }
    return (form, state)
  }

  /// The error for a record with contradictory content.
  var damaged: CommandError {
    notARecord("it is damaged, or another program has changed it", remedy: ", or \(kind.newBeginning)")
  }

  private var busy: CommandError {
    CommandError(
      .inputOutput,
      "\(shown) is in use: \(kind.user) this file. Wait until it ends, or choose another record with --resume-file PATH."
    )
  }

  /// - Parameter remedy: what helps besides another path.
  private func notARecord(_ reason: String, remedy: String = "") -> CommandError {
    CommandError(
      .badData,
      "\(shown) cannot be used as the record of the \(kind.rawValue): \(reason). It is left unchanged. Choose another path with --resume-file PATH\(remedy)."
    )
  }

  private var shown: String { path.shellQuoted }
}
