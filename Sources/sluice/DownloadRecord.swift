// The data that `get` stores about an unfinished download: its source, the bytes that exist, and the validator for the
// request for the rest.

internal import Downloads
internal import EventLoops
internal import Glibc
internal import Synchronization
internal import UploadClient

/// The record of one download.
final class DownloadRecord: Sendable {
  /// The state that an earlier process left.
  struct Unfinished: Equatable {
    /// Without user and password.
    var url: String
    /// The state of the part. Its count is the file's length, because bytes are written in order.
    var data: DownloadResumeData

    /// Whether the file at this path is the complete download. This is so if a process was killed after it renamed the
    /// part and before it removed the record.
    ///
    /// A part that a user has renamed is shorter than the download. The time of birth is compared because another file
    /// could have the same inode number.
    func isComplete(at path: String) -> Bool {
      var status = stat()
      guard data.birth != nil, let length = data.length, lstat(path, &status) == 0 else { return false }
      return UInt64(clamping: status.st_size) == length && DownloadCheckpoint(data).isFile(path)
    }
  }

  private let record: TransferRecord
  private let url: String
  /// How many bytes of the part are certainly on the disk, also from earlier processes.
  private let synchronized = Mutex<UInt64>(0)

  /// - Parameter url: without user and password.
  init(path: String, url: String) {
    record = TransferRecord(.download, path: path)
    self.url = url
  }

  var path: String { record.path }
  /// Whether an earlier process has created the claimed record.
  var isInherited: Bool { record.isInherited }
  /// Whether there is a record for a later process.
  var isKept: Bool { record.isKept }

  /// How the user continues after an interruption.
  ///
  /// - Parameter command: the command that resumes the transfer.
  func advice(resumingWith command: String) -> String { record.advice(resumingWith: command) }

  /// Creates and locks the record, or locks the existing one.
  ///
  /// - Parameter part: the path of the part.
  /// - Returns: the content of the existing record. Nil if there was none, or if none could be created.
  /// - Throws: ``CommandError`` when the file is not a record, or another process uses it.
  func claim(part: String) throws(CommandError) -> Unfinished? {
    guard let lines = try record.claim() else { return nil }
    let place = lines.indices.contains(2) ? lines[2].split(separator: " ").map(String.init) : []
    guard lines.count == 6 || lines.count == 7, place.count == 2, let inode = UInt64(place[0]),
      let synchronized = UInt64(lines[4])
    else {
      record.release()
      throw record.damaged
    }
    var status = stat()
    let size = lstat(part, &status) == 0 ? UInt64(clamping: status.st_size) : 0
    var checkpoint = DownloadCheckpoint(
      DownloadResumeData(
        path: part, inode: inode, birth: Int64(place[1]), byteCount: synchronized, validator: lines[1],
        length: UInt64(lines[3]), digest: lines.count == 7 ? lines[6] : nil))
    checkpoint.boot = lines[5]
    checkpoint.data.byteCount = checkpoint.byteCount(ofFileSize: size)
    self.synchronized.withLock { $0 = min(synchronized, checkpoint.data.byteCount) }
    return Unfinished(url: lines[0], data: checkpoint.data)
  }

  /// Records the download. Returns nil on success, and the error otherwise.
  ///
  /// Bytes that were on the disk before still count, as far as the part keeps them.
  ///
  /// - Parameters:
  ///   - data: the part. Its byte count is the number of bytes that the part keeps.
  ///   - isSynchronized: whether all of them are on the disk.
  func write(_ data: DownloadResumeData, isSynchronized: Bool) -> SystemError? {
    // Even if the write fails, because the part loses the other bytes anyway.
    let synchronized = synchronized.withLock { count in
      count = isSynchronized ? data.byteCount : min(count, data.byteCount)
      return count
    }
    guard !data.validator.contains("\n"), data.digest?.contains("\n") != true else {
      return SystemError(operation: "write", code: EILSEQ)
    }
    return record.write(
      [
        url, data.validator, "\(data.inode) \(data.birth.map(String.init) ?? "-")", data.length.map(String.init) ?? "-",
        "\(synchronized)", BootIdentifier.current,
      ] + (data.digest.map { [$0] } ?? []))
  }

  /// Keeps the record of an interrupted download that cannot be continued. `--resume` then begins with the first byte.
  func reset() { record.reset() }

  /// Removes the record, unless another process has replaced it or written to it.
  func remove() { record.remove() }

  /// Removes the record if this process has created it. An earlier one is kept, and its lock is released.
  func withdraw() { record.withdraw() }

  /// Releases the lock and keeps the record.
  func release() { record.release() }
}
