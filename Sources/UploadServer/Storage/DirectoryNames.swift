// The names in a directory, some at a time: a directory may hold a million, and whoever reads them has other work.

internal import Glibc

/// Reads a directory piece by piece; readdir(3). One thread at a time.
final class DirectoryNames: @unchecked Sendable {
  private let stream: OpaquePointer

  /// Reads from the beginning of a directory whose descriptor stays the caller's; nil if it cannot be read.
  init?(of directory: Int32) {
    // One of its own: copies of a descriptor share their position.
    let copy = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    guard copy >= 0 else { return nil }
    guard let stream = fdopendir(copy) else {
      close(copy)
      return nil
    }
    self.stream = stream
  }

  /// Reads a directory within another; nil if it cannot be read.
  convenience init?(of name: String, in parent: Int32) {
    let directory = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
    guard directory >= 0 else { return nil }
    defer { close(directory) }
    self.init(of: directory)
  }

  deinit { closedir(stream) }

  /// The next names, without `.` and `..`; none at the end.
  func next(_ count: Int) -> [String] {
    var names: [String] = []
    while names.count < count, let entry = readdir(stream) {
      let name = withUnsafeBytes(of: &entry.pointee.d_name) {
        String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self)
      }
      if name != "." && name != ".." { names.append(name) }
    }
    return names
  }
}
