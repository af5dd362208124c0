// What `put` remembers of an unfinished upload: where it goes, and which state of which file it is of.

internal import EventLoops
internal import Glibc
internal import LiveStreaming
internal import ResumableUploads
internal import UploadClient

/// The record of one upload.
final class UploadRecord: Sendable {
  /// What an earlier process left.
  struct Unfinished: Equatable {
    var data: ResumeData
    /// The state of the file that it is of, as ``FileVersion`` describes it.
    var version: String
  }

  private let record: TransferRecord
  private let version: String

  /// - Parameter version: the state of the file that is uploaded.
  init(path: String, version: FileVersion) {
    record = TransferRecord(.upload, path: path)
    self.version = "\(version)"
  }

  var path: String { record.path }
  /// Whether there is something to continue later.
  var isKept: Bool { record.isKept }

  /// Makes the record and locks it, or locks the one that is there.
  ///
  /// - Returns: what that one remembers; nil if there was none, or none could be made.
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

  /// Remembers the upload; nil when it does, or why it cannot.
  func write(_ data: ResumeData) -> SystemError? {
    guard let text = data.text else { return SystemError(operation: "write", code: EILSEQ) }
    return record.write([text, version])
  }

  /// Removes the record, unless somebody else has put another file into its place or written into it.
  func remove() { record.remove() }

  /// Gives the lock up and leaves the record.
  func release() { record.release() }
}
