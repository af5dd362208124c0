// The data that a program stores about a running download, so that it survives a kill and a power failure.

internal import EventLoops
internal import Glibc
internal import JSONLines

/// The part of an unfinished download at one moment, and how to determine its present state.
///
/// Bytes are written in order. So after a kill, the part has as many bytes as the file. After a power failure, the file
/// can have its full length and lack bytes that were never synced, so only the synced ones count.
package struct DownloadCheckpoint: Equatable, Sendable {
  /// The part. Its byte count is the number of bytes that are certainly on the disk.
  package var data: DownloadResumeData
  /// The boot of the machine during which this was true.
  package var boot = BootIdentifier.current

  /// - Parameter data: the part, with the number of bytes on the disk.
  package init(_ data: DownloadResumeData) { self.data = data }

  /// The part to continue with.
  ///
  /// - Returns: the part with the number of bytes that are reliable; nil if it is gone, if another file has taken its
  ///   place, if it has a second name, or if none of it can be continued.
  package var found: DownloadResumeData? {
    var status = stat()
    guard !data.validator.isEmpty, isFile(data.path), lstat(data.path, &status) == 0,
      status.st_uid == geteuid(), status.st_nlink == 1
    else { return nil }
    var found = data
    found.byteCount = byteCount(ofFileSize: UInt64(clamping: status.st_size))
    return found.byteCount > 0 ? found : nil
  }

  /// How many bytes of a part are reliable.
  package func byteCount(ofFileSize size: UInt64) -> UInt64 {
    boot == BootIdentifier.current ? size : min(size, data.byteCount)
  }

  /// Whether the file at a path is the part, possibly under another name.
  package func isFile(_ path: String) -> Bool {
    var status = stat()
    return lstat(path, &status) == 0 && status.st_mode & S_IFMT == S_IFREG && UInt64(status.st_ino) == data.inode
      && (data.birth == nil || data.birth == WallClock(birthOf: path, in: AT_FDCWD)?.sinceEpoch)
  }

  // MARK: As text

  /// One line, as secret as the data.
  package var text: String {
    var line = JSONLine(event: "part")
    line.add("path", data.path)
    line.add("inode", data.inode)
    line.add("birth", data.birth)
    line.add("bytes", data.byteCount)
    line.add("validator", data.validator)
    line.add("length", data.length)
    line.add("digest", data.digest)
    line.add("boot", boot)
    return line.line
  }

  /// Nil if the text is not of that form.
  package init?(_ text: String) {
    guard let line = FlatJSON(text.utf8), line.string("event") == "part", let path = line.string("path"),
      let inode = line.integer("inode", as: UInt64.self), let count = line.integer("bytes", as: UInt64.self),
      let validator = line.string("validator"), let boot = line.string("boot")
    else { return nil }
    data = DownloadResumeData(
      path: path, inode: inode, birth: line.integer("birth"), byteCount: count, validator: validator,
      length: line.integer("length"), digest: line.string("digest"))
    self.boot = boot
  }
}
