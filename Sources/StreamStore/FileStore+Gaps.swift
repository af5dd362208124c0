// Records the missing bytes of a recording in a file beside it, before the recording gets a hole.

internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import StreamServing

extension FileStore {
  /// The size in bytes from which on the record of a collected recording gets no more holes. It stays readable with the
  /// lines about its end, and so does the sidecar, which contains all of it.
  ///
  /// Only a collector reaches it. A server closes a recording with far fewer lines, because its loop reads them for
  /// each request: ``GapRecord/mostLines``.
  static let largestGaps = RegularFile.maximumSize / 2

  func readGaps(
    _ name: StreamName, from first: UInt64 = 0, length: UInt64
  ) throws(SystemError) -> GapRecord.Summary {
    GapRecord.summary(of: try gapText(name) ?? [], from: first, length: length)
  }

  /// nil if there is no record of gaps. A record that cannot be read is an error, because missing bytes would count as
  /// received.
  func gapText(_ name: StreamName) throws(SystemError) -> [UInt8]? {
    do throws(SystemError) {
      return try files.contents(of: name.gaps, in: directory)
    } catch {
      if error.isMissing { return nil }
      throw error
    }
  }

  /// The part of a growing recording that counts.
  func remainder(of text: [UInt8], _ part: RecordingPart?, length: UInt64) -> GapRecord.Remainder {
    // The recording is not continued if the disk has refused bytes of it, so its length is unknown.
    if GapRecord.summary(of: text, length: 0).isDistrusted {
      return GapRecord.Remainder(count: text.count, length: length)
    }
    return GapRecord.remainder(of: text, from: part?.firstReceived ?? 0, length: length)
  }

  /// Removes lines that are no longer true.
  func trimGaps(_ stream: StreamName, to remainder: GapRecord.Remainder) throws(SystemError) {
    let name = stream.gaps
    let record: Int32
    do throws(SystemError) {
      record = try files.openRegular(name, in: directory, O_WRONLY)
    } catch {
      if error.isMissing { return }
      throw error
    }
    defer { close(record) }
    try retryingInterrupts("ftruncate \(name)") { ftruncate(record, off_t(remainder.count)) }
    // After a power failure, the lines must not describe bytes that arrived later.
    if durability != .none { try retryingInterrupts("fdatasync \(name)") { fdatasync(record) } }
    if remainder.count == 0 { unlinkat(directory, name, 0) }
  }

  /// Makes a hole at the end of the stream's file after recording it. So missing bytes are known even if the server
  /// dies in between.
  func makeHole(_ stream: StreamFile, length: UInt64) throws(SystemError) {
    try stream.stored.check(length: stream.position(of: stream.length))
    let descriptor = try stream.stored.acquire()
    defer { stream.stored.release() }
    let before = try note(
      GapRecord(offset: stream.length, length: length, cause: stream.length == 0 ? .beganLate : .notReceived),
      stream.name)
    do throws(SystemError) {
      try retryingInterrupts("ftruncate \(stream.name.partial)") {
        ftruncate(descriptor, off_t(stream.position(of: stream.length + length)))
      }
    } catch {
      // If this fails too, the rest of the line is removed when the stream is opened next.
      try? trimGaps(stream.name, to: GapRecord.Remainder(count: before, length: stream.length))
      throw error
    }
  }

  /// Adds a line to a recording's `.gaps`, and returns how many octets preceded it. If that fails, the record is
  /// unchanged.
  @discardableResult
  func note(_ gap: GapRecord, _ stream: StreamName) throws(SystemError) -> Int {
    let name = stream.gaps
    let record = try files.openRegular(name, in: directory, O_RDWR | O_APPEND | O_CREAT, mode: 0o644)
    defer { close(record) }
    guard GapRecord.isRecord(try beginning(of: record, name, count: 64)) else { throw RegularFile.foreign(name) }
    let before = try retryingInterrupts("lseek \(name)") { lseek(record, 0, SEEK_END) }
    if gap.cause == .notReceived, UInt64(clamping: before) >= Self.largestGaps {
      throw SystemError(operation: "add another gap to \(name)", code: EFBIG)
    }
    do throws(SystemError) {
      try writeAll(Array(gap.jsonLine.utf8), to: record, "write \(name)")
      // The end of a recording that is closed is synced with it.
      guard durability != .none, gap.cause != .interrupted, gap.cause != .notSynced else { return before }
      try retryingInterrupts("fdatasync \(name)") { fdatasync(record) }
      // The record may be new. Without its name it could not explain a hole that the disk already has.
      try retryingInterrupts("fsync of the directory") { fsync(directory) }
      return before
    } catch {
      // Neither an incomplete line nor a new empty file remains.
      if before > 0 { ftruncate(record, off_t(before)) } else { unlinkat(directory, name, 0) }
      throw error
    }
  }
}
