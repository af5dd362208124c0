// Possible changes to a file during its upload.

internal import Glibc
internal import NetworkTesting

package enum FileChange: CaseIterable, Sendable {
  // The content changes, or may change.
  case shortened, grown, written, writtenWithOldTime, touched, replaced, replacedWithOldTime, moved
  // The content stays the same.
  case permissions, owner, link, linkAndUnlink

  /// The changes after which the file is no longer reliable.
  package static let harmful: [FileChange] = [
    .shortened, .grown, .written, .writtenWithOldTime, .touched, .replaced, .replacedWithOldTime, .moved,
  ]
  package static let harmless: [FileChange] = allCases.filter { !harmful.contains($0) }

  package func perform(on path: String) throws {
    var status = stat()
    guard stat(path, &status) == 0 else { throw TestFailure("stat") }
    let oldTimes = [status.st_atim, status.st_mtim]
    var result: Int32 = 0
    switch self {
    case .shortened: result = truncate(path, off_t(status.st_size / 2))
    case .grown: try write("more", at: off_t(status.st_size), path)
    case .written: try write("other", at: 7, path)
    case .writtenWithOldTime:
      try write("other", at: 7, path)
      result = utimensat(AT_FDCWD, path, oldTimes, 0)
    case .touched: result = utimensat(AT_FDCWD, path, nil, 0)
    case .replaced, .replacedWithOldTime:
      let other = open(path + ".other", O_WRONLY | O_CREAT | O_CLOEXEC, 0o600)
      ftruncate(other, off_t(status.st_size))
      close(other)
      if self == .replacedWithOldTime { utimensat(AT_FDCWD, path + ".other", oldTimes, 0) }
      result = rename(path + ".other", path)
    case .moved: result = rename(path, path + ".elsewhere")
    case .permissions: result = chmod(path, status.st_mode & 0o777 ^ 0o044)
    case .owner: result = chown(path, geteuid(), getegid())
    case .link: result = Glibc.link(path, path + ".link")
    case .linkAndUnlink:
      result = Glibc.link(path, path + ".link")
      unlink(path + ".link")
    }
    guard result == 0 else { throw TestFailure("\(self): errno \(errno)") }
  }

  private func write(_ text: String, at offset: off_t, _ path: String) throws {
    let descriptor = open(path, O_WRONLY | O_CLOEXEC)
    defer { close(descriptor) }
    let bytes = Array(text.utf8)
    guard pwrite(descriptor, bytes, bytes.count, offset) == bytes.count else { throw TestFailure("pwrite") }
  }
}
