// Reads parts of files in batches. Holes are not read, so they cost only the time to hash zeros.

internal import CLinux
package import EventLoops
internal import Glibc

/// A range of a file, in bytes.
package struct FileStretch {
  package var file: OpenFile
  package var range: Range<UInt64>

  package init(_ file: OpenFile, _ range: Range<UInt64>) { (self.file, self.range) = (file, range) }
}

/// One pass over stretches of files, in sequence. One thread at a time.
package final class FileReading: @unchecked Sendable {
  private static let bufferSize = 256 * 1024
  private static let zeros = [UInt8](repeating: 0, count: bufferSize)

  /// The stretches still to be read.
  private var stretches: ArraySlice<FileStretch>
  /// The end of a known hole in the first file, from the next byte on.
  private var holeEnd: UInt64 = 0
  /// The end of known data.
  private var dataEnd: UInt64 = 0

  package var isAtEnd: Bool { stretches.isEmpty }
  /// How many bytes are still to be read.
  package var remaining: UInt64 { stretches.reduce(0) { $0 + UInt64($1.range.count) } }

  /// nil if a stretch exceeds the range of a file.
  package init?(_ stretches: [FileStretch]) {
    guard stretches.allSatisfy({ $0.range.upperBound <= UInt64(off_t.max) }) else { return nil }
    self.stretches = stretches.filter { !$0.range.isEmpty }[...]
  }

  /// Passes on the next `limit` bytes, or as many as there are up to the end. Returns their number.
  ///
  /// - Throws: ``SystemError`` if they cannot be read; `ESTALE` if a file is shorter than it was, or was replaced.
  package func next(_ limit: UInt64, _ take: (Span<UInt8>) -> Void) throws(SystemError) -> UInt64 {
    let buffer = UnsafeMutableBufferPointer<UInt8>.allocate(capacity: Self.bufferSize)
    defer { buffer.deallocate() }
    var done: UInt64 = 0
    while done < limit, let stretch = stretches.first {
      done += try read(stretch, limit - done, buffer, take)
      guard stretches[stretches.startIndex].range.isEmpty else { continue }
      stretches.removeFirst()
      (holeEnd, dataEnd) = (0, 0)
    }
    return done
  }

  /// Passes on the next bytes of the first file.
  private func read(
    _ stretch: FileStretch, _ limit: UInt64, _ buffer: UnsafeMutableBufferPointer<UInt8>, _ take: (Span<UInt8>) -> Void
  ) throws(SystemError) -> UInt64 {
    let descriptor = try stretch.file.acquire()
    defer { stretch.file.release() }
    let end = stretch.range.upperBound
    var position = stretch.range.lowerBound
    defer { stretches[stretches.startIndex].range = position..<end }
    let goal = position + min(limit, end - position)
    while position < goal {
      look(descriptor, from: position, upTo: end)
      let wanted = Int(min(UInt64(Self.bufferSize), goal - position))
      if position < holeEnd {
        let count = min(wanted, Int(clamping: holeEnd - position))
        take(Self.zeros.span.extracting(0..<count))
        position += UInt64(count)
        continue
      }
      // Not beyond the data, because a hole may follow.
      let length = min(wanted, Int(clamping: dataEnd - position))
      let count = try retryingInterrupts("read what is stored") {
        pread(descriptor, buffer.baseAddress, length, off_t(position))
      }
      guard count > 0 else {
        throw SystemError(operation: "read what is stored: the file is shorter than it was", code: ESTALE)
      }
      stretch.file.restoreReceived(
        UnsafeMutableRawBufferPointer(rebasing: UnsafeMutableRawBufferPointer(buffer)[..<count]), at: position)
      take(UnsafeBufferPointer(rebasing: buffer[..<count]).span)
      position += UInt64(count)
    }
    return position - stretch.range.lowerBound
  }

  /// Finds out whether a hole or data comes next; lseek(2). If the file system does not support this, everything counts
  /// as data. Nothing else uses the descriptor's position, which duplicates share.
  private func look(_ descriptor: Int32, from position: UInt64, upTo end: UInt64) {
    guard position >= holeEnd, position >= dataEnd else { return }
    let data = lseek(descriptor, off_t(position), SLUICE_SEEK_DATA)
    if data > off_t(position) {
      holeEnd = min(UInt64(data), end)
    } else if data < 0 && errno == ENXIO, let length = length(descriptor), length > position {
      // Only a hole up to the end of the file.
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
