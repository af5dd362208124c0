// Which files of the directory a client may download, and what is known of their bytes. On a worker's thread.

internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import HTTPMessages
internal import Recordings
internal import StreamServing

/// A complete recording as it was found: what is read later is checked against it.
struct FoundRecording: Sendable {
  /// The name of its file.
  let name: String
  /// The `Stream-ID`.
  let stream: String?
  /// In bytes.
  let length: UInt64
  let validators: Validators
  /// Of its bytes; nil while it is computed, or if somebody has changed the file since.
  let sha256: [UInt8]?
  fileprivate let file: OpenFile
  fileprivate let modified: ModificationTime

  /// The next bytes, at most `count`; never fewer before the end.
  ///
  /// - Throws: ``SystemError`` if they cannot be read, or are not those of the recording that was found: it was removed,
  ///   or changed.
  func read(_ count: Int, at offset: UInt64) throws(SystemError) -> [UInt8] {
    let descriptor = try file.acquire()
    defer { letGo(of: file) }
    var failure: SystemError?
    let bytes = [UInt8](unsafeUninitializedCapacity: count) { buffer, filled in
      while filled < count {
        let got = pread(descriptor, buffer.baseAddress?.advanced(by: filled), count - filled, off_t(offset) + filled)
        if got < 0, errno == EINTR { continue }
        guard got > 0 else {
          failure = got < 0 ? .last("read \(name)") : Self.changed(name)
          return
        }
        filled += got
      }
    }
    if let failure { throw failure }
    // Afterwards: these bytes were read from the recording that was found, or they are not sent.
    try file.check(length: length)
    var status = stat()
    guard fstat(descriptor, &status) == 0, ModificationTime(status) == modified else { throw Self.changed(name) }
    return bytes
  }

  private static func changed(_ name: String) -> SystemError {
    SystemError(operation: "read \(name), which was removed or changed", code: ESTALE)
  }
}

/// Releases a file, and closes it: the disk gets the room of a recording that is removed while its client is slow.
private func letGo(of file: OpenFile) {
  file.release()
  file.closeIfIdle()
}

/// When a file was written last, as finely as the file system knows.
private struct ModificationTime: Equatable {
  var seconds: Int64
  var nanoseconds: Int64

  init(_ status: stat) {
    (seconds, nanoseconds) = (Int64(status.st_mtim.tv_sec), Int64(status.st_mtim.tv_nsec))
  }

  func isLater(than other: ModificationTime) -> Bool {
    (seconds, nanoseconds) > (other.seconds, other.nanoseconds)
  }
}

extension FileStore {
  /// The complete recording that a path names, if it belongs to that credential: to nobody where it is nil.
  ///
  /// A recording has a sidecar, finished or hidden while its digest is computed, that names the file and its length. No
  /// other file is one: not what an operator has put there, and nothing of the server's own.
  ///
  /// - Throws: ``SystemError`` if nobody can tell at this moment.
  func findRecording(_ path: String, for credential: [UInt8]?) throws(SystemError) -> FoundRecording? {
    guard let (file, name) = StreamName.recording(path: path), try isOwner(credential, of: name),
      let sidecar = try completedSidecar(name), sidecar.file == file, let stored = sidecar.stored,
      let (open, length) = try openRecording(file), length == stored.bytes,
      // Again: the file may be that of another stream of that name, begun between the two.
      try isOwner(credential, of: name)
    else { return nil }
    let descriptor = try open.acquire()
    defer { letGo(of: open) }
    var status = stat()
    try retryingInterrupts("fstat \(file)") { fstat(descriptor, &status) }
    let modified = ModificationTime(status)
    // Nothing writes into a recording that has its name, so that these change when its bytes do. The digest is not part of
    // the tag: a download that begins while it is computed goes on afterwards.
    let tag = [
      UInt64(status.st_ino), UInt64(bitPattern: modified.seconds), UInt64(bitPattern: modified.nanoseconds), length,
    ]
    .map { String($0, radix: 16) }.joined(separator: "-")
    // A clock that was wrong must not make a date that is yet to come (RFC 9110, section 8.8.2.1).
    let lastModified = min(modified.seconds, WallClock.now.seconds)
    return FoundRecording(
      name: file, stream: sidecar.stream, length: length,
      validators: Validators(tag: EntityTag(tag), lastModified: lastModified),
      sha256: isOlder(modified, than: name.sidecar) ? stored.sha256.flatMap(Self.bytes(ofHexadecimal:)) : nil,
      file: open, modified: modified)
  }

  /// Whether that credential began the stream; nil where none did.
  private func isOwner(_ credential: [UInt8]?, of name: StreamName) throws(SystemError) -> Bool {
    guard let record = try owners.record(of: name) else { return credential == nil }
    return record.isBeginner && record.owner == credential
  }

  /// The finished sidecar, or else the hidden one of a recording whose digest is being computed.
  private func completedSidecar(_ name: StreamName) throws(SystemError) -> RecordingSidecar? {
    // It may be finished between two looks.
    for file in [name.sidecar, name.pendingSidecar, name.sidecar] {
      if let sidecar = try readSidecar(file, in: directory), sidecar.stored != nil { return sidecar }
    }
    return nil
  }

  private func openRecording(_ file: String) throws(SystemError) -> (file: OpenFile, length: UInt64)? {
    do throws(SystemError) {
      return try openExisting(file, O_RDONLY)
    } catch {
      if error.isShortage { throw error }
      // A link, or no regular file.
      return nil
    }
  }

  /// Whether a recording was written before its sidecar was.
  private func isOlder(_ modified: ModificationTime, than sidecar: String) -> Bool {
    var status = stat()
    guard fstatat(directory, sidecar, &status, AT_SYMLINK_NOFOLLOW) == 0 else { return false }
    return !modified.isLater(than: ModificationTime(status))
  }

  private static func bytes(ofHexadecimal text: String) -> [UInt8]? {
    let digits = text.utf8.compactMap(Octet.hexValue)
    guard digits.count == text.utf8.count, digits.count == 64 else { return nil }
    return stride(from: 0, to: digits.count, by: 2).map { digits[$0] << 4 | digits[$0 + 1] }
  }
}
