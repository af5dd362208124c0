// Extended attributes of files (xattr(7)), which many file systems have and some do not.

internal import CLinux
package import EventLoops
internal import Glibc

/// An extended attribute of open files.
package struct FileAttribute: Sendable {
  /// A file has no attribute of that name, or can have none.
  private static let absence = [ENODATA, ENOTSUP, ENOSYS, EACCES, EPERM]

  private let name: String
  private let maximumLength: Int

  /// - Parameters:
  ///   - name: begins with `user.`.
  ///   - maximumLength: of a valid value, in bytes.
  package init(_ name: String, maximumLength: Int) { (self.name, self.maximumLength) = (name, maximumLength) }

  /// The value of an open file; nil if there is no valid one, or the file system has no attributes.
  package func value(of descriptor: Int32) throws(SystemError) -> [UInt8]? {
    var bytes = [UInt8](repeating: 0, count: maximumLength)
    do throws(SystemError) {
      let count = try retryingInterrupts("fgetxattr") { fgetxattr(descriptor, name, &bytes, maximumLength) }
      return Array(bytes.prefix(count))
    } catch {
      if error.code == ERANGE || Self.absence.contains(error.code) { return nil }
      throw error
    }
  }

  /// Gives an open file a value instead of an earlier one. Without space for it, or if the file system has no
  /// attributes, the file has no value.
  package func set(_ value: [UInt8], of descriptor: Int32) throws(SystemError) {
    do throws(SystemError) {
      try retryingInterrupts("fsetxattr") { fsetxattr(descriptor, name, value, value.count, 0) }
    } catch {
      // The earlier one no longer applies.
      try remove(from: descriptor)
    }
  }

  /// Removes the value of an open file, if there is one.
  package func remove(from descriptor: Int32) throws(SystemError) {
    do throws(SystemError) {
      try retryingInterrupts("fremovexattr") { fremovexattr(descriptor, name) }
    } catch {
      if !Self.absence.contains(error.code) { throw error }
    }
  }
}
