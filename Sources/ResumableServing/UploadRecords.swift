// The interface between an upload resource and the part of it that outlives the server: files beside the streams, or
// none.

package import DiskFiles
package import EventLoops
internal import Glibc
package import ResumableUploads
internal import StreamServing

/// Stores the records of upload resources, and the bytes of those whose handlers do not keep them. Only on the loop's
/// thread.
package protocol UploadRecords: AnyObject {
  /// Writes a record. With ``Durability/always``, `completion` is called on the loop's thread when the disk has the
  /// record. Otherwise it is called before this returns.
  ///
  /// - Parameter syncing: whether the disk must in any case have the record before `completion` is called.
  func write(
    _ record: UploadRecord, _ token: String, syncing: Bool, _ completion: @escaping (SystemError?) -> Void)
  /// Notes that the upload is alive, for a later server.
  func touch(_ token: String)
  func remove(_ token: String)
  /// Writes how long uploads have been idle, for a later server.
  func noteAges(_ idle: [(token: String, idle: Duration)])
  /// The next tokens of records that an earlier server has left; nil after the last. After an error, the listing starts
  /// again.
  func nextTokens() throws(SystemError) -> [String]?
  /// The stored part of an upload from an earlier server; nil if there is none.
  func read(_ token: String) throws(SystemError) -> StoredUpload?
  /// Where an operator finds the record of an upload, relative to the directory.
  func recordName(_ token: String) -> String
  /// Calls `action` when the disk has every record, now or later.
  func whenIdle(_ action: @escaping () -> Void)

  /// Opens the file of an upload's bytes. Also returns its length.
  func openBody(_ token: String, creating: Bool) throws(SystemError) -> (file: OpenFile, count: UInt64)
  /// The number of bytes there, without keeping the file open; nil if the file lacks bytes that were synced.
  func measureBody(_ token: String) throws(SystemError) -> UInt64?
  /// Syncs these bytes, and need not keep the file open. `completion` is called on the loop's thread.
  func synchronizeBody(of token: String, _ completion: @escaping (SystemError?) -> Void)
  /// Syncs the bytes of such a file. `completion` is called on the loop's thread.
  func synchronizeBody(_ file: OpenFile, _ completion: @escaping (SystemError?) -> Void)
  func removeBody(_ token: String)
  /// Where an operator finds the bytes, relative to the directory; nil if there are none.
  func bodyName(_ token: String) -> String?
}

/// An upload that an earlier server has left.
package struct StoredUpload {
  package var token: String
  /// nil if the record is invalid.
  package var record: UploadRecord?
  /// How long servers have seen it idle.
  package var age: Duration
  /// The length of the record in bytes.
  package var size = 0
}

/// For a server that keeps nothing. Its uploads are in memory and end with it.
package final class UnwrittenUploadRecords: UploadRecords {
  package init() {}

  package func write(
    _ record: UploadRecord, _ token: String, syncing: Bool, _ completion: @escaping (SystemError?) -> Void
  ) { completion(nil) }
  package func touch(_ token: String) {}
  package func remove(_ token: String) {}
  package func noteAges(_ idle: [(token: String, idle: Duration)]) {}
  package func nextTokens() -> [String]? { nil }
  package func read(_ token: String) -> StoredUpload? { nil }
  package func recordName(_ token: String) -> String { token }
  package func whenIdle(_ action: @escaping () -> Void) { action() }

  /// A handler that does not keep its bytes needs a store that does.
  package func openBody(_ token: String, creating: Bool) throws(SystemError) -> (file: OpenFile, count: UInt64) {
    throw SystemError(operation: "store the bytes of an upload in a server that discards them", code: ENOTSUP)
  }
  package func measureBody(_ token: String) throws(SystemError) -> UInt64? {
    throw SystemError(operation: "measure the bytes of an upload in a server that discards them", code: ENOENT)
  }
  package func synchronizeBody(of token: String, _ completion: @escaping (SystemError?) -> Void) { completion(nil) }
  package func synchronizeBody(_ file: OpenFile, _ completion: @escaping (SystemError?) -> Void) { completion(nil) }
  package func removeBody(_ token: String) {}
  package func bodyName(_ token: String) -> String? { nil }
}
