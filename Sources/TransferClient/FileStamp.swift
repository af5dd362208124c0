// Identifies the file at a path, because a program and the agent look at different moments.

internal import Glibc

package enum FileStamp {
  /// Device, inode, size and time of the last write, as text to compare and print; nil if no file is visible.
  package static func of(_ path: String) -> String? {
    var status = stat()
    guard stat(path, &status) == 0 else { return nil }
    let time = status.st_mtim
    return "device \(status.st_dev), inode \(status.st_ino), \(status.st_size) bytes, "
      + "written at \(time.tv_sec).\(String(1_000_000_000 + time.tv_nsec).dropFirst())"
  }
}
