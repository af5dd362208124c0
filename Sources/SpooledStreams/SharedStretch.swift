// What of a stretch survives the end of its process without having been written to a disk: files in a file system in memory.

internal import EventLoops
internal import Glibc
internal import Spool
internal import StreamBuffers

/// The files of one stretch in `/dev/shm`: the circular buffer, and how to go on with the stream. A reboot takes them.
struct SharedStretch: Sendable {
  /// Where the circular buffer is.
  let bufferPath: String
  private let resumptionPath: String

  /// - Parameter id: the stretch's.
  init(id: [UInt8]) {
    let digits = id.map { String(UInt16($0) + 0x100, radix: 16).dropFirst() }.joined()
    bufferPath = "/dev/shm/sluice-\(digits)"
    resumptionPath = bufferPath + ".resumption"
  }

  /// Replaces what another process would continue with, all at once. Where that fails nothing is left: the spool has what
  /// was committed.
  func write(_ resumption: SpooledStretch.Resumption) {
    let new = resumptionPath + ".new"
    let text = "\(resumption.pausedByteCount) \(resumption.passedPauses)\n\(resumption.text)"
    let file = open(new, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0o600)
    var bytes = Array(text.utf8)[...]
    while file >= 0, !bytes.isEmpty {
      let count = bytes.withUnsafeBytes { Glibc.write(file, $0.baseAddress, $0.count) }
      if count < 0, errno == EINTR { continue }
      if count <= 0 { break }
      bytes = bytes.dropFirst(count)
    }
    if file >= 0 { close(file) }
    if file < 0 || !bytes.isEmpty || rename(new, resumptionPath) != 0 {
      unlink(new)
      unlink(resumptionPath)
    }
  }

  private func readResumption() -> SpooledStretch.Resumption? {
    let file = open(resumptionPath, O_RDONLY | O_CLOEXEC | O_NOFOLLOW)
    guard file >= 0 else { return nil }
    defer { close(file) }
    var bytes = [UInt8](repeating: 0, count: 16 << 10)
    let count = bytes.withUnsafeMutableBytes { read(file, $0.baseAddress, $0.count) }
    guard count > 0, let end = bytes[..<count].firstIndex(of: UInt8(ascii: "\n")) else { return nil }
    let numbers = String(decoding: bytes[..<end], as: UTF8.self).split(separator: " ")
    guard numbers.count == 2, let paused = UInt64(numbers[0]), let passed = Int(numbers[1]) else { return nil }
    var resumption = SpooledStretch.Resumption()
    resumption.text = String(decoding: bytes[(end + 1)..<count], as: UTF8.self)
    (resumption.pausedByteCount, resumption.passedPauses) = (paused, passed)
    return resumption
  }

  /// Writes what only these files have into the stretch's file, so that they are no longer needed.
  ///
  /// - Returns: how to go on with the stream, and the pauses ahead.
  func merge(
    into file: SpoolFile
  ) throws(SpoolError) -> (resumption: SpooledStretch.Resumption, pauses: [CircularBuffer.Pause]) {
    let committed = file.checkpoint
    var resumption = SpooledStretch.Resumption()
    (resumption.text, resumption.pausedByteCount) = (committed.state, committed.pausedByteCount)
    var pauses = committed.pauses.map { CircularBuffer.Pause(position: $0.position, length: $0.length) }
    if let newer = readResumption() { resumption = newer }
    if let remains = (try? CircularBuffer.Remains(path: bufferPath)) ?? nil, !committed.isFinished {
      pauses = remains.pauses.filter { $0.number >= resumption.passedPauses }.map(\.pause)
      try append(remains, to: file)
    }
    try file.commit(
      state: resumption.text, pausedByteCount: resumption.pausedByteCount,
      pauses: pauses.map { SpoolPause(position: $0.position, length: $0.length) }, isFinished: true, sync: true)
    return (resumption, pauses)
  }

  private func append(_ remains: CircularBuffer.Remains, to file: SpoolFile) throws(SpoolError) {
    let buffer = UnsafeMutableRawBufferPointer.allocate(byteCount: 1 << 20, alignment: 4096)
    defer { buffer.deallocate() }
    var position = max(file.head, remains.oldest)
    file.acceptRemains()
    while position < remains.head {
      let count = remains.copy(at: position, into: buffer)
      guard count > 0 else { return }
      let bytes = UnsafeRawBufferPointer(rebasing: buffer.prefix(count))
      do throws(SpoolError) {
        try file.append(bytes, at: position, time: WallClock.now.sinceEpoch)
      } catch {
        guard case .full = error.cause else { throw error }
        // The newest bytes are worth more than the oldest.
        file.evict(upTo: SpoolFile.nextBlock(after: file.oldest + UInt64(count)))
        try file.append(bytes, at: position, time: WallClock.now.sinceEpoch)
      }
      position += UInt64(count)
    }
  }

  /// Everything is in the stretch's file, or is not needed.
  func remove() {
    unlink(bufferPath)
    unlink(resumptionPath)
    unlink(resumptionPath + ".new")
  }
}

extension SpoolFile {
  /// How many bytes the process that captured this stretch has left in memory only, because it was killed.
  package var byteCountInMemory: UInt64 {
    guard !checkpoint.isFinished,
      let remains = (try? CircularBuffer.Remains(path: SharedStretch(id: id).bufferPath)) ?? nil
    else { return 0 }
    return remains.head - min(remains.head, max(head, remains.oldest))
  }

  /// Removes what the process that captured this stretch has left in memory.
  package func removeFromMemory() { SharedStretch(id: id).remove() }
}
