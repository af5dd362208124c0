// Removes files in slices: a disk needs time to free the blocks of a large one.

package import EventLoops
internal import Glibc

package enum FileRemoval {
  /// How many bytes are freed in one slice.
  package static let slice: Int64 = 1 << 30

  /// Whether a file takes more than one slice, and is shortened before it is removed.
  package static func isLong(_ name: String, in directory: Int32, slice: Int64 = FileRemoval.slice) -> Bool {
    shorterLength(name, in: directory, slice) != nil
  }

  /// Removes a file, or shortens one that is large. A missing file counts as removed. A file that has another name is
  /// never shortened, because that would destroy an operator's copy: `ln`, `cp -al`.
  ///
  /// - Returns: false if the file was shortened, and the caller continues later.
  package static func remove(
    _ name: String, in directory: Int32, slice: Int64 = FileRemoval.slice
  ) throws(SystemError) -> Bool {
    if let length = shorterLength(name, in: directory, slice), shorten(name, in: directory, to: length) {
      return false
    }
    do throws(SystemError) {
      try retryingInterrupts("remove \(name)") { unlinkat(directory, name, 0) }
    } catch {
      if !error.isMissing { throw error }
    }
    return true
  }

  /// The length of a large file without its last slice; nil for other files.
  private static func shorterLength(_ name: String, in directory: Int32, _ slice: Int64) -> Int64? {
    var status = stat()
    // Holes take no blocks, which have 512 bytes: stat(2).
    guard fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) == 0, status.st_mode & S_IFMT == S_IFREG,
      status.st_nlink == 1, status.st_blocks > slice / 512
    else { return nil }
    let length = Int64(status.st_size)
    return length > slice ? length - slice : nil
  }

  /// False if that is not possible.
  private static func shorten(_ name: String, in directory: Int32, to length: Int64) -> Bool {
    let descriptor = openat(directory, name, O_WRONLY | RegularFile.flags)
    guard descriptor >= 0 else { return false }
    defer { close(descriptor) }
    // It may have been replaced or linked since.
    var status = stat()
    guard fstat(descriptor, &status) == 0, status.st_mode & S_IFMT == S_IFREG, status.st_nlink == 1,
      status.st_size > length
    else { return false }
    return ftruncate(descriptor, off_t(length)) == 0
  }
}
