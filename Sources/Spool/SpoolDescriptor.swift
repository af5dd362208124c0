// An open file of a spool. Reads and writes are complete despite signals, and each error contains the path.

internal import EventLoops
internal import Glibc

/// Closes itself when dropped. One thread at a time.
final class SpoolDescriptor {
  /// The path at which it was opened, or to which it was renamed.
  var path: String
  let disk: any SpoolDisk
  private var number: Int32?

  init(_ path: String, flags: Int32, mode: UInt32 = 0o600, disk: any SpoolDisk) throws(SpoolError) {
    self.path = path
    self.disk = disk
    do throws(SpoolError) {
      number = try disk.retrying(path) { () throws(SystemError) in try disk.open(path, flags: flags, mode: mode) }
    } catch {
      let isLink = error.code == ELOOP && flags & O_NOFOLLOW != 0
      guard error.code == EISDIR || error.code == ENXIO || isLink else { throw error }
      throw SpoolError(.notARegularFile, path: path)
    }
  }

  deinit { close() }

  func close() {
    if let number { disk.close(number) }
    number = nil
  }

  /// After ``close()``, the errno of a closed descriptor.
  private func descriptor() throws(SpoolError) -> Int32 {
    guard let number else { throw SpoolError(.system(SystemError(operation: "use", code: EBADF)), path: path) }
    return number
  }

  /// Writes all of `pieces`, in sequence, in as many calls as necessary.
  func write(_ pieces: [UnsafeRawBufferPointer], at offset: UInt64) throws(SpoolError) {
    let number = try descriptor()
    var (remaining, position) = (pieces[...], offset)
    while !remaining.isEmpty {
      let (batch, place) = (Array(remaining), position)
      var written = try disk.retrying(path) { () throws(SystemError) in
        try disk.write(batch, to: number, at: place)
      }
      // A disk that writes nothing and reports no error would cause an endless loop.
      guard written > 0 else { throw SpoolError(.system(SystemError(operation: "pwritev", code: EIO)), path: path) }
      position += UInt64(written)
      while let piece = remaining.first, written >= piece.count {
        written -= piece.count
        remaining.removeFirst()
      }
      if written > 0, let piece = remaining.first {
        remaining[remaining.startIndex] = UnsafeRawBufferPointer(rebasing: piece[written...])
      }
    }
  }

  func write(_ bytes: [UInt8], at offset: UInt64) throws(SpoolError) {
    var failure: SpoolError?
    bytes.withUnsafeBytes { pointer in
      do throws(SpoolError) { try write([pointer], at: offset) } catch { failure = error }
    }
    if let failure { throw failure }
  }

  /// Reads until `buffer` is full or the file ends. Returns the number of bytes.
  func read(into buffer: UnsafeMutableRawBufferPointer, at offset: UInt64) throws(SpoolError) -> Int {
    let number = try descriptor()
    var count = 0
    while count < buffer.count {
      let (rest, place) = (UnsafeMutableRawBufferPointer(rebasing: buffer[count...]), offset + UInt64(count))
      let read = try disk.retrying(path) { () throws(SystemError) in
        try disk.read(number, into: rest, at: place)
      }
      if read <= 0 { break }
      count += min(read, rest.count)
    }
    return count
  }

  /// Up to `count` bytes at `offset`; fewer at the end of the file.
  func read(_ count: Int, at offset: UInt64) throws(SpoolError) -> [UInt8] {
    var failure: SpoolError?
    let bytes = [UInt8](unsafeUninitializedCapacity: count) { buffer, initialized in
      do throws(SpoolError) {
        initialized = try read(into: UnsafeMutableRawBufferPointer(buffer), at: offset)
      } catch { failure = error }
    }
    if let failure { throw failure }
    return bytes
  }

  /// Where the next data begins after a hole; nil if there is none. A disk without this information has data
  /// everywhere.
  func nextData(from offset: UInt64) throws(SpoolError) -> UInt64? {
    let number = try descriptor()
    do throws(SpoolError) {
      return try disk.retrying(path) { () throws(SystemError) in try disk.nextData(number, from: offset) }
    } catch {
      return offset
    }
  }

  /// Where the next hole begins, at the latest at `end`. A disk without this information has no holes.
  func nextHole(from offset: UInt64, before end: UInt64) throws(SpoolError) -> UInt64 {
    let number = try descriptor()
    do throws(SpoolError) {
      let found = try disk.retrying(path) { () throws(SystemError) in try disk.nextHole(number, from: offset) }
      return min(end, found ?? end)
    } catch {
      return end
    }
  }

  func synchronize() throws(SpoolError) {
    let number = try descriptor()
    try disk.retrying(path) { () throws(SystemError) in try disk.synchronizeData(number) }
  }

  func setSize(to byteCount: UInt64) throws(SpoolError) {
    let number = try descriptor()
    try disk.retrying(path) { () throws(SystemError) in try disk.setSize(number, to: byteCount) }
  }

  func punchHole(at offset: UInt64, byteCount: UInt64) throws(SpoolError) {
    let number = try descriptor()
    try disk.retrying(path) { () throws(SystemError) in
      try disk.punchHole(number, at: offset, byteCount: byteCount)
    }
  }

  func allocate(at offset: UInt64, byteCount: UInt64) throws(SpoolError) {
    let number = try descriptor()
    try disk.retrying(path) { () throws(SystemError) in
      try disk.allocate(number, at: offset, byteCount: byteCount)
    }
  }

  func status() throws(SpoolError) -> SpoolFileStatus {
    let number = try descriptor()
    return try disk.retrying(path) { () throws(SystemError) in try disk.status(number) }
  }

  func lock() throws(SpoolError) -> Bool {
    let number = try descriptor()
    return try disk.retrying(path) { () throws(SystemError) in try disk.lock(number) }
  }

  /// Locks the file of a stretch for this object.
  func lockStretch() throws(SpoolError) {
    guard try lock() else { throw SpoolError(.inUse(nil), path: path) }
  }

  func isLocked() throws(SpoolError) -> Bool {
    let number = try descriptor()
    return try disk.retrying(path) { () throws(SystemError) in try disk.isLocked(number) }
  }
}

extension SpoolDisk {
  /// Calls `body` until it is not interrupted by a signal. Adds the path to its error.
  func retrying<Result>(
    _ path: String, _ body: () throws(SystemError) -> Result
  ) throws(SpoolError) -> Result {
    while true {
      do throws(SystemError) {
        return try body()
      } catch {
        if error.code != EINTR { throw SpoolError(.system(error), path: path) }
      }
    }
  }
}
