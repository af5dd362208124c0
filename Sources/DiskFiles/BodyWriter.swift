// Writes body bytes to a file, or compares them with a file, in as few system calls as possible.

package import EventLoops
internal import Glibc

package enum BodyWriter {
  /// The maximum number of vectors per call; `UIO_MAXIOV`.
  private static let maximumVectors = 1024

  /// Writes the bytes of `pieces`, without the first `skipped`, in sequence at `offset`; pwritev(2).
  ///
  /// - Returns: how many were written, and the error if some were not.
  package static func write(
    _ descriptor: Int32, _ bytes: Span<UInt8>, _ pieces: [Range<Int>], skipping skipped: Int, at offset: UInt64
  ) -> (written: Int, error: SystemError?) {
    bytes.withUnsafeBytes { base in
      var skipped = skipped
      var written = 0
      var index = 0
      while index < pieces.count {
        let result = withUnsafeTemporaryAllocation(of: iovec.self, capacity: min(maximumVectors, pieces.count - index))
        {
          vectors in
          var used = 0
          var length = 0
          var left = skipped
          var next = index
          while next < pieces.count, used < vectors.count {
            var range = pieces[next]
            next += 1
            let cut = min(left, range.count)
            left -= cut
            range = (range.lowerBound + cut)..<range.upperBound
            if range.isEmpty { continue }
            // pwritev only reads, but iovec is not const because preadv shares it.
            vectors.initializeElement(
              at: used,
              to: iovec(
                iov_base: UnsafeMutableRawPointer(mutating: base.baseAddress?.advanced(by: range.lowerBound)),
                iov_len: range.count))
            used += 1
            length += range.count
          }
          if used == 0 { return (next: next, left: left, length: 0, count: 0) }
          let place = off_t(offset) + written
          let count =
            used == 1
            ? pwrite(descriptor, vectors[0].iov_base, vectors[0].iov_len, place)
            : pwritev(descriptor, vectors.baseAddress, Int32(used), place)
          return (next: next, left: left, length: length, count: count)
        }
        if result.count < 0 {
          if errno == EINTR { continue }
          return (written, .last("write"))
        }
        written += result.count
        if result.count == result.length {
          index = result.next
          skipped = result.left
        } else {
          // A short write means that the disk is filling up. The next attempt, with the rest, reports why.
          guard result.count > 0 else { return (written, SystemError(operation: "write", code: ENOSPC)) }
          skipped += result.count
          while index < pieces.count, skipped >= pieces[index].count {
            skipped -= pieces[index].count
            index += 1
          }
        }
      }
      return (written, nil)
    }
  }

  /// Whether the first `count` bytes of `pieces` equal the received bytes in the file at `offset`; pread(2).
  package static func matches(
    _ descriptor: Int32, _ bytes: Span<UInt8>, _ pieces: [Range<Int>], count: Int, at offset: UInt64,
    of file: OpenFile? = nil
  ) throws(SystemError) -> Bool {
    var compared = 0
    var stored = [UInt8](repeating: 0, count: min(count, 64 * 1024))
    for piece in pieces {
      var start = piece.lowerBound
      let end = min(piece.upperBound, piece.lowerBound + count - compared)
      while start < end {
        let wanted = min(end - start, stored.count)
        let got = try retryingInterrupts("read") {
          stored.withUnsafeMutableBytes { pread(descriptor, $0.baseAddress, wanted, off_t(offset) + compared) }
        }
        // Shorter than it was, so another process has changed the file.
        guard got > 0 else { return false }
        stored.withUnsafeMutableBytes {
          file?.restoreReceived(UnsafeMutableRawBufferPointer(rebasing: $0[..<got]), at: offset + UInt64(compared))
        }
        let isEqual = bytes.withUnsafeBytes { base in
          stored.withUnsafeBytes { memcmp($0.baseAddress!, base.baseAddress! + start, got) == 0 }  // neither is empty
        }
        if !isEqual { return false }
        start += got
        compared += got
      }
      if compared == count { break }
    }
    return true
  }
}
