// A part of a file as a request's content, read by the loop itself.

public import EventLoops
internal import Glibc

/// A range of bytes of an open file, sent with a `Content-Length`.
///
/// It is read with pread(2) straight into libcurl's buffer, on the session's thread, at most
/// ``UploadRequest/uploadBufferSize`` bytes at a time. That is no blocking call as `epoll` sees it, but it waits for
/// the disk when the page cache does not have the bytes; the kernel is told to read ahead, so that on a local disk it
/// has them as a rule, and one read costs microseconds. It is meant for one upload of a local file, or a few. For a
/// file on a network, on a disk that sleeps, or beside streams that must not stutter, let a thread of its own write
/// into a bound pair (``UploadBody/stream(_:)``) instead.
public struct FileBody: Sendable {
  /// The descriptor's owner: closed with the last copy.
  private final class OpenFile: Sendable {
    let descriptor: Int32
    init(_ descriptor: Int32) { self.descriptor = descriptor }
    deinit { close(descriptor) }
  }

  private let file: OpenFile
  /// Which bytes of the file, counted from its start.
  public let range: Range<UInt64>
  /// What to call it in an error; its path, for one.
  public let name: String
  /// The state that the file must keep while it is sent; nil for one that may change.
  public let version: FileVersion?
  /// Tells a write from a change of permissions; nil if every change counts.
  private let writes: FileWrites?

  /// How many bytes that is.
  public var byteCount: UInt64 { range.upperBound - range.lowerBound }

  /// Takes a duplicate of `descriptor`, dup(2): the caller's own may be closed or moved at any time.
  ///
  /// - Parameters:
  ///   - descriptor: of something that pread(2) can read: a regular file or a block device, no pipe.
  ///   - range: the bytes to be sent; they should be there. A file that turns out shorter fails the request with
  ///     ``UploadError/Kind/bodyFailed``, and an error that names the file and the offset.
  ///   - name: what errors call the file.
  ///   - version: if given, a file that is in another state after one of its bytes was read fails the request.
  /// - Throws: ``EventLoops/SystemError`` when the descriptor is none, or the process has no more.
  public init(
    descriptor: Int32, range: Range<UInt64>, name: String, version: FileVersion? = nil
  ) throws(SystemError) {
    try self.init(descriptor: descriptor, range: range, name: name, version: version, writes: nil)
  }

  /// - Parameter writes: if given, a change of the file's permissions, owner or links is none of its content.
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
    // A hint: what refuses it is read as well. Twice the read-ahead, posix_fadvise(2).
    posix_fadvise(own, Int(clamping: range.lowerBound), Int(clamping: byteCount), POSIX_FADV_SEQUENTIAL)
  }

  /// Reads from `position`, counted from the range's start, as much as fits and is there.
  func read(into buffer: UnsafeMutableRawBufferPointer, at position: UInt64) -> UploadBody.Filling {
    let offset = range.lowerBound + position
    guard offset < range.upperBound else { return .end }
    // Beyond what the kernel can count no file has a byte.
    guard let place = off_t(exactly: offset) else { return .failed("\(name) has no byte \(offset)") }
    let wanted = Int(min(UInt64(buffer.count), range.upperBound - offset))
    let count: Int
    do throws(SystemError) {
      count = try retryingInterrupts("reading \(name) at byte \(offset)") {
        pread(file.descriptor, buffer.baseAddress, wanted, place)
      }
      // Afterwards: a write sets the file's times before it changes the first byte.
      let now = try version.map { (_) throws(SystemError) in try FileVersion(descriptor: file.descriptor) }
      if let version, let now, let change = version.change(to: now, wasWritten: { writes?.any ?? true }) {
        return .failed("\(name) changed while it was being sent: \(change)")
      }
    } catch {
      return .failed(error.description)
    }
    guard count > 0 else {
      return .failed(
        "\(name) ended at byte \(offset) and should have \(range.upperBound): it was shortened while it was being sent")
    }
    return .bytes(count, isLast: offset + UInt64(count) == range.upperBound)
  }
}
