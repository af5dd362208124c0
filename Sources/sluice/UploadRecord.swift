// The data that `put` stores about an unfinished upload: its URL and the state of its file.

internal import EventLoops
internal import Glibc
internal import LiveStreaming
internal import ResumableUploads
internal import UploadClient

/// The record of one upload.
final class UploadRecord: Sendable {
  /// The state that an earlier process left.
  struct Unfinished: Equatable {
    var data: ResumeData
    /// The version of the file, as ``FileVersion`` describes it.
    var version: String
  }

  private let record: TransferRecord
  private let version: String

  /// - Parameter version: the version of the uploaded file.
  init(path: String, version: FileVersion) {
    record = TransferRecord(.upload, path: path)
    self.version = "\(version)"
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
  /// - Returns: the content of the existing record. Nil if there was none, or if none could be created.
  /// - Throws: ``CommandError`` when the file is not a record, or another process uses it.
  func claim() throws(CommandError) -> Unfinished? {
    guard let lines = try record.claim() else { return nil }
    guard lines.count == 2, let data = ResumeData(lines[0]), data.base == 0 else {
      // The upload of a file begins at its first byte.
      record.release()
      throw record.damaged
    }
    return Unfinished(data: data, version: lines[1])
  }

  /// Records the upload. Returns nil on success, and the error otherwise.
  func write(_ data: ResumeData) -> SystemError? {
    guard let text = data.text else { return SystemError(operation: "write", code: EILSEQ) }
    return record.write([text, version])
  }

  /// Keeps the record of an interrupted upload that cannot be continued. `--resume` then begins with the first byte.
  func reset() { record.reset() }

  /// Removes the record, unless another process has replaced it or written to it.
  func remove() { record.remove() }

  /// Removes the record if this process has created it. An earlier one is kept, and its lock is released.
  func withdraw() { record.withdraw() }

  /// Releases the lock and keeps the record.
  func release() { record.release() }
}
