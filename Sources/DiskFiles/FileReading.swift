// A part of a file, read some at a time. What is known to be zero is not read: a hole costs no disk, only the time to
// hash it.

internal import CLinux
internal import Glibc

/// One pass over a range of a file. One thread at a time.
package final class FileReading: @unchecked Sendable {
  private static let bufferSize = 256 * 1024
  private static let zeros = [UInt8](repeating: 0, count: bufferSize)

  private let file: OpenFile
  private var position: UInt64
  private let end: UInt64
  /// Up to where the file is known to hold nothing, from ``position`` on.
  private var holeEnd: UInt64 = 0
  /// Up to where it is known to hold something.
  private var dataEnd: UInt64 = 0

  package var isAtEnd: Bool { position >= end }
  /// How many bytes are still to be read.
  package var remaining: UInt64 { end - min(end, position) }

  /// nil if the range is beyond what a file can have.
  package init?(_ file: OpenFile, from start: UInt64, to end: UInt64) {
    guard end <= UInt64(off_t.max) else { return nil }
    self.file = file
    (position, self.end) = (start, end)
  }

  /// Hands on the next `limit` bytes, or what there is up to the end; returns how many these were. nil if they cannot
  /// be read.
  package func next(_ limit: UInt64, _ take: (Span<UInt8>) -> Void) -> UInt64? {
    guard let descriptor = try? file.acquire() else { return nil }
    defer { file.release() }
    let goal = position + min(limit, end - min(end, position))
    var done: UInt64 = 0
    let buffer = UnsafeMutableBufferPointer<UInt8>.allocate(capacity: Self.bufferSize)
    defer { buffer.deallocate() }
    while position < goal {
      look(descriptor)
      let wanted = Int(min(UInt64(Self.bufferSize), goal - position))
      if position < holeEnd {
        let count = min(wanted, Int(clamping: holeEnd - position))
        take(Self.zeros.span.extracting(0..<count))
        position += UInt64(count)
        done += UInt64(count)
        continue
      }
      // Not beyond the data: behind it may be a hole.
      let count = pread(descriptor, buffer.baseAddress, min(wanted, Int(clamping: dataEnd - position)), off_t(position))
      if count < 0 && errno == EINTR { continue }
      guard count > 0 else { return nil }
      file.restoreReceived(
        UnsafeMutableRawBufferPointer(rebasing: UnsafeMutableRawBufferPointer(buffer)[..<count]), at: position)
      take(UnsafeBufferPointer(rebasing: buffer[..<count]).span)
      position += UInt64(count)
      done += UInt64(count)
    }
    return done
  }

  /// Finds out what comes next; lseek(2). Where the file system does not tell, all is data. The descriptor's position,
  /// which its copies share, is used by nobody else.
  private func look(_ descriptor: Int32) {
    guard position >= holeEnd, position >= dataEnd else { return }
    let data = lseek(descriptor, off_t(position), SLUICE_SEEK_DATA)
    if data > off_t(position) {
      holeEnd = min(UInt64(data), end)
    } else if data < 0 && errno == ENXIO, let length = length(descriptor), length > position {
      // Nothing but a hole up to the end of the file.
      holeEnd = min(length, end)
    } else {
      let hole = lseek(descriptor, off_t(position), SLUICE_SEEK_HOLE)
      dataEnd = hole > off_t(position) ? min(UInt64(hole), end) : end
    }
  }

  private func length(_ descriptor: Int32) -> UInt64? {
    var status = stat()
    return fstat(descriptor, &status) == 0 ? UInt64(clamping: status.st_size) : nil
  }
}
