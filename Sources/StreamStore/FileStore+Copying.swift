// Copies the beginning of a frame from closed recordings into the part that continues it.

internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import StreamServing

/// Bytes of a stream that were copied from its closed recordings.
struct CopiedBytes {
  /// Zeros in place of those that could not be copied.
  var bytes: [UInt8]
  /// The stream offsets of those that could not be copied.
  var missing: [Range<UInt64>]
}

extension FileStore {
  /// Bytes from the closed recordings of a stream, as far as one of these has received and still has them.
  ///
  /// - Parameter last: the recording that was closed last.
  /// - Throws: ``SystemError`` if this cannot be determined now, because descriptors or memory are short.
  func copy(
    _ range: Range<UInt64>, of name: StreamName, after last: RecordingPart
  ) throws(SystemError) -> CopiedBytes {
    guard !range.isEmpty else { return CopiedBytes(bytes: [], missing: []) }
    var copied = CopiedBytes(bytes: [UInt8](repeating: 0, count: range.count), missing: [range])
    var sources: [(part: RecordingPart, held: Range<UInt64>)] = []
    for part in try parts.lines(of: name.base).current.values.sorted(by: { $0.number > $1.number }) {
      if let end = part.end, part.start < end { sources.append((part, part.start..<end)) }
    }
    // An unreliable recording contains nothing according to the log. Its bytes are most likely on the disk.
    if let end = last.end, end <= last.start { sources.append((last, last.start..<UInt64.max)) }
    for (part, held) in sources where !copied.missing.isEmpty {
      let wanted = copied.missing.map { held.clamped(to: $0) }
      let recording = name.recording(part.number)
      let received = try copyReceived(wanted, of: part, recording, into: &copied.bytes, from: range.lowerBound)
      copied.missing = copied.missing.subtracting(received)
    }
    return copied
  }

  /// Reads bytes of a closed recording into `bytes`, which begin at the stream offset `first`. Returns the offsets of
  /// those that it has: not those in its holes, and none if an operator has moved it away.
  private func copyReceived(
    _ wanted: [Range<UInt64>], of part: RecordingPart, _ name: StreamName, into bytes: inout [UInt8],
    from first: UInt64
  ) throws(SystemError) -> [Range<UInt64>] {
    guard wanted.contains(where: { !$0.isEmpty }) else { return [] }
    var received: [Range<UInt64>] = []
    do throws(SystemError) {
      // The holes are read first, because a removal moves them before the recording.
      let holes = GapRecord.holes(in: try gapText(name) ?? [])
      guard let (file, size) = try openClosed(part, name) else { return [] }
      let descriptor = try file.acquire()
      defer { file.release() }
      for range in wanted.subtracting(holes) {
        var offset = range.lowerBound
        while offset < range.upperBound {
          let position = offset - part.start + part.headerLength
          let count = Int(min(range.upperBound - offset, size - min(size, position)))
          var piece = [UInt8](repeating: 0, count: count)
          let read = try retryingInterrupts("read \(part.file)") { pread(descriptor, &piece, count, off_t(position)) }
          guard read > 0 else { break }
          let index = Int(offset - first)
          bytes.replaceSubrange(index..<(index + read), with: piece.prefix(read))
          received.append(offset..<(offset + UInt64(read)))
          offset += UInt64(read)
        }
      }
    } catch {
      // A recording that the disk cannot read must not stop its stream.
      if error.isShortage { throw error }
    }
    return received
  }

  /// The file of a closed recording, and its size; nil if it was moved away.
  private func openClosed(
    _ part: RecordingPart, _ name: StreamName
  ) throws(SystemError) -> (file: OpenFile, length: UInt64)? {
    // A recording that was split off gets its final name on the worker, which may happen between any two of these.
    for file in [part.file, name.partial, part.file] {
      if let opened = try openExisting(file, O_RDONLY) { return opened }
    }
    return nil
  }
}
