// Reads the names in a directory in batches, because it may have a million, and the reader has other work.

package import EventLoops
internal import Glibc

/// Makes a directory that only the server uses, unless it is there.
package func makeDirectory(_ name: String, in parent: Int32) throws(SystemError) {
  do throws(SystemError) {
    try retryingInterrupts("make \(name)") { mkdirat(parent, name, 0o700) }
  } catch {
    if error.code != EEXIST { throw error }
  }
}

/// Reads a directory piece by piece; readdir(3). One thread at a time.
///
/// An unreadable directory is an error, and never an empty list, because a missing name would count as free.
package final class DirectoryNames: @unchecked Sendable {
  private let stream: OpaquePointer

  /// Reads from the beginning of a directory. The descriptor still belongs to the caller.
  package init(of directory: Int32) throws(SystemError) {
    // A separate descriptor, because duplicates share their position.
    let copy = try retryingInterrupts("open a directory") {
      openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    }
    guard let stream = fdopendir(copy) else {
      let error = SystemError.last("list a directory")
      close(copy)
      throw error
    }
    self.stream = stream
  }

  /// Reads a directory inside another.
  package convenience init(of name: String, in parent: Int32) throws(SystemError) {
    let directory = try retryingInterrupts("open \(name)") {
      openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
    }
    defer { close(directory) }
    try self.init(of: directory)
  }

  deinit { closedir(stream) }

  /// The next names, without `.` and `..`; none at the end. After an error, names that were read before it are lost.
  package func next(_ count: Int) throws(SystemError) -> [String] {
    var names: [String] = []
    while names.count < count {
      errno = 0
      guard let entry = readdir(stream) else {
        // The position is unchanged then.
        if errno == EINTR { continue }
        if errno != 0 { throw .last("list a directory") }
        break
      }
      let name = withUnsafeBytes(of: &entry.pointee.d_name) {
        String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self)
      }
      if name != "." && name != ".." { names.append(name) }
    }
    return names
  }

  /// Like ``init(of:in:)``; nil if there is no such directory.
  package static func ifThere(_ name: String, in parent: Int32) throws(SystemError) -> DirectoryNames? {
    do throws(SystemError) {
      return try DirectoryNames(of: name, in: parent)
    } catch {
      if error.isMissing { return nil }
      throw error
    }
  }
}
