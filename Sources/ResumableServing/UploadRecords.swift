// The seam between an upload resource and what of it outlives the server: files beside the streams, or nothing.

package import DiskFiles
package import EventLoops
internal import Glibc
package import ResumableUploads
internal import StreamServing

/// Where the records of upload resources are, and the bytes of those whose handlers keep none. Only on the loop's
/// thread.
package protocol UploadRecords: AnyObject {
  /// Writes a record. With ``Durability/always`` the disk has it when `completion` is called, on the loop's thread;
  /// otherwise it is called before this returns.
  ///
  /// - Parameter syncing: whether the disk must have the record in any case before `completion` is called.
  func write(
    _ record: UploadRecord, _ token: String, syncing: Bool, _ completion: @escaping (SystemError?) -> Void)
  /// Notes that the upload is alive, for a server that comes after this one.
  func touch(_ token: String)
  func remove(_ token: String)
  /// Writes down how long uploads have been left alone, for a server that comes after this one.
  func noteAges(_ idle: [(token: String, idle: Duration)])
  /// The next tokens of records that an earlier server has left; nil when all were named. After an error it begins anew.
  func nextTokens() throws(SystemError) -> [String]?
  /// What an earlier server has left of an upload; nil if it has left nothing.
  func read(_ token: String) throws(SystemError) -> StoredUpload?
  /// Where an operator finds the record of an upload, relative to the directory.
  func recordName(_ token: String) -> String
  /// Calls `action` when the disk has every record: now, or when it does.
  func whenIdle(_ action: @escaping () -> Void)

  /// Opens the file of an upload's bytes. Returns also how many it holds.
  func openBody(_ token: String, creating: Bool) throws(SystemError) -> (file: OpenFile, count: UInt64)
  /// How many bytes are there, without keeping the file open.
  func measureBody(_ token: String) throws(SystemError) -> UInt64
  /// Has the disk take them, likewise; `completion` is called on the loop's thread.
  func synchronizeBody(of token: String, _ completion: @escaping (SystemError?) -> Void)
  /// Has the disk take the bytes of such a file. `completion` is called on the loop's thread.
  func synchronizeBody(_ file: OpenFile, _ completion: @escaping (SystemError?) -> Void)
  func removeBody(_ token: String)
  /// Where an operator finds the bytes, relative to the directory; nil where there are none.
  func bodyName(_ token: String) -> String?
}

/// An upload that an earlier server has left.
package struct StoredUpload {
  package var token: String
  /// nil if it is none that can be understood.
  package var record: UploadRecord?
  /// How long servers have seen it left alone.
  package var age: Duration
  /// How long the record is, in bytes.
  package var size = 0
}

/// Of a server that keeps nothing: its uploads are in memory and end with it.
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

  /// A handler that does not keep its bytes needs somebody who does.
  package func openBody(_ token: String, creating: Bool) throws(SystemError) -> (file: OpenFile, count: UInt64) {
    throw SystemError(operation: "store the bytes of an upload in a server that discards them", code: ENOTSUP)
  }
  package func measureBody(_ token: String) throws(SystemError) -> UInt64 {
    throw SystemError(operation: "measure the bytes of an upload in a server that discards them", code: ENOENT)
  }
  package func synchronizeBody(of token: String, _ completion: @escaping (SystemError?) -> Void) { completion(nil) }
  package func synchronizeBody(_ file: OpenFile, _ completion: @escaping (SystemError?) -> Void) { completion(nil) }
  package func removeBody(_ token: String) {}
  package func bodyName(_ token: String) -> String? { nil }
}
