// Removes files in slices: a disk needs time to free the blocks of a large one.

package import EventLoops
internal import Glibc

package enum FileRemoval {
  /// How many bytes are freed in one slice.
  private static let slice: Int64 = 1 << 30

  /// Whether a file takes more than one slice, and is shortened before it is removed.
  package static func isLong(_ name: String, in directory: Int32) -> Bool { shorterLength(name, in: directory) != nil }

  /// Removes a file, or shortens one that is large. A missing file counts as removed.
  ///
  /// - Returns: false if the file was shortened, and the caller continues later.
  package static func remove(_ name: String, in directory: Int32) throws(SystemError) -> Bool {
    if let length = shorterLength(name, in: directory), shorten(name, in: directory, to: length) { return false }
    do throws(SystemError) {
      try retryingInterrupts("remove \(name)") { unlinkat(directory, name, 0) }
    } catch {
      if !error.isMissing { throw error }
    }
    return true
  }

  /// The length of a large file without its last slice; nil for other files.
  private static func shorterLength(_ name: String, in directory: Int32) -> Int64? {
    var status = stat()
    // Holes take no blocks, which have 512 bytes: stat(2).
    guard fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) == 0, status.st_mode & S_IFMT == S_IFREG,
      status.st_blocks > slice / 512
    else { return nil }
    let length = Int64(status.st_size)
    return length > slice ? length - slice : nil
  }

  /// False if that is not possible.
  private static func shorten(_ name: String, in directory: Int32, to length: Int64) -> Bool {
    let descriptor = openat(directory, name, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
    guard descriptor >= 0 else { return false }
    defer { close(descriptor) }
    return ftruncate(descriptor, off_t(length)) == 0
  }
}
