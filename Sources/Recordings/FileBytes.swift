// Reads a file from its beginning to its end.

internal import DiskFiles
internal import EventLoops
internal import Glibc

/// A file that is read from beginning to end.
struct FileBytes: ~Copyable {
  private let descriptor: Int32

  init(_ path: String) throws(SystemError) {
    let opened = try RegularFile.open(path, O_RDONLY)
    descriptor = opened
    posix_fadvise(descriptor, 0, 0, POSIX_FADV_SEQUENTIAL)
  }

  deinit { close(descriptor) }

  func size() throws(SystemError) -> UInt64 {
    let descriptor = descriptor
    var status = stat()
    try retryingInterrupts("fstat") { fstat(descriptor, &status) }
    return UInt64(max(0, status.st_size))
  }

  /// Passes all bytes to `take` in pieces.
  func read(_ take: (RawSpan) -> Void) throws(SystemError) {
    let descriptor = descriptor
    let buffer = UnsafeMutableRawBufferPointer.allocate(byteCount: 1 << 20, alignment: 16)
    defer { buffer.deallocate() }
    while true {
      let count = try retryingInterrupts("read") { Glibc.read(descriptor, buffer.baseAddress, buffer.count) }
      guard count > 0 else { return }
      take(UnsafeRawBufferPointer(rebasing: buffer[..<count]).bytes)
    }
  }
}
