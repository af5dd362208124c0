// Which files of the directory a client may download, and the metadata of their bytes. On a worker's thread.

internal import Digests
internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import HTTPMessages
internal import Recordings
internal import StreamServing

/// A complete recording as it was found. Bytes that are read later are checked against it.
struct FoundRecording: Sendable {
  /// The name of the recording's file.
  let name: String
  /// The `Stream-ID`.
  let stream: String?
  /// The length in bytes.
  let length: UInt64
  let validators: Validators
  /// The SHA-256 of its bytes, or of the received ones if they are damaged, so that a client notices the damage. Nil
  /// while it is computed, or if another program has changed the file since.
  let sha256: [UInt8]?
  fileprivate let file: OpenFile
  fileprivate let modified: ModificationTime

  /// Reads the next bytes, at most `count`, and fewer only at the end.
  ///
  /// - Throws: ``SystemError`` if they cannot be read, or if the recording was removed or changed after it was found.
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
    // Checks after the read that the bytes are those of the recording that was found. Otherwise they are not sent.
    try file.check(length: length)
    var status = stat()
    guard fstat(descriptor, &status) == 0, ModificationTime(status) == modified else { throw Self.changed(name) }
    return bytes
  }

  private static func changed(_ name: String) -> SystemError {
    SystemError(operation: "read \(name), which was removed or changed", code: ESTALE)
  }
}

/// Releases a file and closes it. If a recording is removed while its client is slow, the disk gets its space back.
private func letGo(of file: OpenFile) {
  file.release()
  file.closeWhenIdle()
}

/// The time of the last write to a file, as precisely as the file system provides it.
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
  /// The complete recording at a path, if it belongs to that credential. Nil stands for recordings without an owner.
  ///
  /// A recording has a sidecar with its file name and its length. The sidecar may still be hidden while its digest is
  /// computed. Other files are not recordings: neither those of an operator, nor the server's own.
  ///
  /// - Throws: ``SystemError`` if this cannot be determined at the moment.
  func findRecording(_ path: String, for credential: [UInt8]?) throws(SystemError) -> FoundRecording? {
    guard let (file, name) = StreamName.recording(path: path), try isOwner(credential, of: name),
      let sidecar = try completedSidecar(name), sidecar.file == file, let stored = sidecar.stored,
      let (open, length) = try openRecording(file), length == stored.bytes,
      // Check again, because the file may belong to another stream of that name that began in between.
      try isOwner(credential, of: name)
    else { return nil }
    let descriptor = try open.acquire()
    defer { letGo(of: open) }
    var status = stat()
    try retryingInterrupts("fstat \(file)") { fstat(descriptor, &status) }
    let modified = ModificationTime(status)
    // No server writes into a recording that has its final name, so these values change whenever its bytes do. The
    // digest is not part of the tag, so that a download that begins before the digest is known can continue afterwards.
    let tag = [
      UInt64(status.st_ino), UInt64(bitPattern: modified.seconds), UInt64(bitPattern: modified.nanoseconds), length,
    ]
    .map { String($0, radix: 16) }.joined(separator: "-")
    // The sidecar of a damaged recording with a corrected header states only the digest of the received form.
    let statedSHA256 = sidecar.isDamaged ? sidecar.received?.sha256 : stored.sha256
    // If the clock was wrong, the date must not be in the future (RFC 9110, section 8.8.2.1).
    let lastModified = min(modified.seconds, WallClock.now.seconds)
    return FoundRecording(
      name: file, stream: sidecar.stream, length: length,
      validators: Validators(tag: EntityTag(tag), lastModified: lastModified),
      sha256: isOlder(modified, than: name.sidecar) ? Self.digest(statedSHA256)?.bytes : nil,
      file: open, modified: modified)
  }

  /// Whether that credential began the stream. Nil stands for a stream without a credential.
  private func isOwner(_ credential: [UInt8]?, of name: StreamName) throws(SystemError) -> Bool {
    guard let record = try owners.record(of: name) else { return credential == nil }
    return record.isBeginner && record.owner == credential
  }

  /// The finished sidecar, or else the hidden one of a recording whose digest is being computed.
  private func completedSidecar(_ name: StreamName) throws(SystemError) -> RecordingSidecar? {
    // The sidecar may be finished between two attempts to read it.
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
      // It is a link, or not a regular file.
      return nil
    }
  }

  /// Whether a recording was written before its sidecar.
  private func isOlder(_ modified: ModificationTime, than sidecar: String) -> Bool {
    var status = stat()
    guard fstatat(directory, sidecar, &status, AT_SYMLINK_NOFOLLOW) == 0 else { return false }
    return !modified.isLater(than: ModificationTime(status))
  }

  private static func digest(_ text: String?) -> Digest? {
    text.flatMap { Hexadecimal.bytes($0.utf8) }.flatMap { Digest(.sha256, bytes: $0) }
  }
}
