// A part of a file as a request's content, read by the loop itself.

public import EventLoops
internal import Glibc

/// A range of bytes of an open file, sent with a `Content-Length`.
///
/// pread(2) reads it directly into libcurl's buffer on the session's thread, at most ``UploadRequest/uploadBufferSize``
/// bytes at a time. This call waits for the disk if the bytes are not in the page cache. The kernel is advised to read
/// ahead, so that the bytes of a local file are usually in the cache, and a read takes microseconds. Use it for one or
/// a few uploads of local files. For a file on a network or on a sleeping disk, or beside streams that must not be
/// delayed, write into a bound pair from another thread instead (``UploadBody/stream(_:)``).
public struct FileBody: Sendable {
  /// The owner of the descriptor. It is closed with the last copy.
  private final class OpenFile: Sendable {
    let descriptor: Int32
    init(_ descriptor: Int32) { self.descriptor = descriptor }
    deinit { close(descriptor) }
  }

  private let file: OpenFile
  /// The range of bytes, counted from the file's start.
  public let range: Range<UInt64>
  /// The name of the file in errors, such as its path.
  public let name: String
  /// The version that the file must keep while it is sent. Nil if it may change.
  public let version: FileVersion?
  /// Distinguishes a write from a change of permissions. Nil if every change counts.
  private let writes: FileWrites?

  /// The number of bytes in the range.
  public var byteCount: UInt64 { range.upperBound - range.lowerBound }

  /// Creates a body from a duplicate of `descriptor` (dup(2)). You may close or seek the original at any time.
  ///
  /// - Parameters:
  ///   - descriptor: a descriptor that pread(2) can read: a regular file or a block device, not a pipe.
  ///   - range: the bytes to send. If the file turns out to be shorter, the request fails with
  ///     ``UploadError/Kind/bodyFailed``, and the error names the file and the offset.
  ///   - name: the name of the file in errors.
  ///   - version: if given, the request fails if the file has another version after one of its bytes was read.
  /// - Throws: ``EventLoops/SystemError`` when the descriptor is invalid, or the process has no more descriptors.
  public init(
    descriptor: Int32, range: Range<UInt64>, name: String, version: FileVersion? = nil
  ) throws(SystemError) {
    try self.init(descriptor: descriptor, range: range, name: name, version: version, writes: nil)
  }

  /// - Parameter writes: if given, a change of the file's permissions, owner or links is not a change of its content.
  package init(
    descriptor: Int32, range: Range<UInt64>, name: String, version: FileVersion?, writes: FileWrites?
  ) throws(SystemError) {
    let own = try retryingInterrupts("duplicating the descriptor of \(name)") {
      fcntl(descriptor, F_DUPFD_CLOEXEC, 0)
    }
    file = OpenFile(own)
    self.range = range
    self.name = name
    self.version = version
    self.writes = writes
    // A hint. Reading works even if the kernel refuses it. It doubles the read-ahead, posix_fadvise(2).
    posix_fadvise(own, Int(clamping: range.lowerBound), Int(clamping: byteCount), POSIX_FADV_SEQUENTIAL)
  }

  /// Reads from `position`, counted from the range's start, as many bytes as fit and are available.
  func read(into buffer: UnsafeMutableRawBufferPointer, at position: UInt64) -> UploadBody.Filling {
    let offset = range.lowerBound + position
    guard offset < range.upperBound else { return .end }
    // No file contains bytes beyond the kernel's limit.
    guard let place = off_t(exactly: offset) else { return .failed("\(name) contains no byte \(offset)") }
    let wanted = Int(min(UInt64(buffer.count), range.upperBound - offset))
    let count: Int
    do throws(SystemError) {
      count = try retryingInterrupts("reading \(name) at byte \(offset)") {
        pread(file.descriptor, buffer.baseAddress, wanted, place)
      }
      // Afterwards, because a write sets the file's times before it changes the first byte.
      let now = try version.map { (_) throws(SystemError) in try FileVersion(descriptor: file.descriptor) }
      if let version, let now, let change = version.change(to: now, wasWritten: { writes?.any }) {
        return .failed("\(name) changed while it was being sent: \(change)")
      }
    } catch {
      return .unreadable(error)
    }
    guard count > 0 else {
      return .failed(
        "\(name) was shortened while it was being sent: it ended at byte \(offset) instead of \(range.upperBound)")
    }
    return .bytes(count, isLast: offset + UInt64(count) == range.upperBound)
  }
}
