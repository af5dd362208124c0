// Distinguishes what a server has left at the names of the files beside a recording from what others have put there.
//
// A killed server may leave a record of gaps without its recording, and an operator may move a recording away without
// its sidecar. Both are replaced when a recording of that name begins or ends. Anything else stays, and is an obstacle.

internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import Recordings
internal import StreamServing

extension FileStore {
  /// How many bytes of a file beside a recording are read, on the loop's thread, to recognise its maker.
  private static let companionLimit = 64 << 10

  /// Makes the names of the files beside a recording available before it begins.
  ///
  /// - Throws: ``SystemError``: ``SystemError/isObstacle`` if one of them belongs to something else, which stays.
  func clearCompanions(of name: StreamName) throws(SystemError) {
    try checkCompanions(of: name)
    // It may be left from files that were removed or moved away, or from an earlier attempt, and would declare bytes of
    // this recording as holes.
    unlinkat(directory, name.gaps, 0)
  }

  /// Checks the names of the files beside a recording that does not exist yet.
  ///
  /// - Throws: as ``clearCompanions(of:)``.
  func checkCompanions(of name: StreamName) throws(SystemError) {
    try checkGaps(name.gaps)
    try checkSidecar(of: name)
  }

  /// Removes the record of gaps of a recording that was removed, and nothing else that has its name.
  func removeGaps(of name: StreamName) throws(SystemError) {
    guard try areOwnGaps(name.gaps) else { return }
    _ = try FileRemoval.remove(name.gaps, in: directory)
  }

  /// Whether nothing but a record of gaps may have that name.
  func areOwnGaps(_ file: String) throws(SystemError) -> Bool {
    do throws(SystemError) {
      try checkGaps(file)
      return true
    } catch {
      if error.isSpecialFile || error.isForeignFile { return false }
      throw error
    }
  }

  private func checkGaps(_ file: String) throws(SystemError) {
    if let text = try companion(file), !GapRecord.isRecord(text) { throw RegularFile.foreign(file) }
  }

  /// Checks that the name of a recording's sidecar is free, or belongs to a sidecar for a recording of that name.
  ///
  /// - Throws: as ``clearCompanions(of:)``.
  func checkSidecar(of name: StreamName) throws(SystemError) {
    guard hasSidecars, let text = try companion(name.sidecar) else { return }
    // A power failure may leave zeros.
    if text.allSatisfy({ $0 == 0 }) { return }
    if let sidecar = try? RecordingSidecar(parsing: text), RecordingSidecar.name(for: sidecar.file) == name.sidecar {
      return
    }
    // A power failure may have left only the beginning of it, and a long one is not read to its end. The third line
    // names the file.
    let lines = RecordingSidecar(file: name.fileBase).text.split(separator: "\n").prefix(3)
    guard text.starts(with: lines.joined(separator: "\n").dropLast("\",".count).utf8) else {
      throw RegularFile.foreign(name.sidecar)
    }
  }

  /// Gives a sidecar that was written under its temporary name its own name.
  ///
  /// - Throws: as ``clearCompanions(of:)``.
  func nameNewSidecar(of name: StreamName) throws(SystemError) {
    try checkSidecar(of: name)
    try retryingInterrupts("rename \(name.newSidecar)") {
      renameat(directory, name.newSidecar, directory, name.sidecar)
    }
  }

  /// The beginning of a file beside a recording; nil if there is none.
  private func companion(_ file: String) throws(SystemError) -> [UInt8]? {
    guard try exists(file) else { return nil }
    let descriptor: Int32
    do throws(SystemError) {
      descriptor = try files.openRegular(file, in: directory, O_RDONLY)
    } catch {
      if error.isMissing { return nil }
      throw error
    }
    defer { close(descriptor) }
    let bytes = try beginning(of: descriptor, file, count: Self.companionLimit)
    // A power failure leaves no file of so many zeros, because no server writes as much at once.
    if bytes.count == Self.companionLimit, bytes.allSatisfy({ $0 == 0 }) { throw RegularFile.foreign(file) }
    return bytes
  }

  /// The first bytes of an open file, from which its maker is recognised.
  func beginning(of file: Int32, _ name: String, count: Int) throws(SystemError) -> [UInt8] {
    var bytes = [UInt8](repeating: 0, count: count)
    var filled = 0
    while filled < count {
      let more = try retryingInterrupts("read \(name)") {
        bytes.withUnsafeMutableBytes { pread(file, $0.baseAddress! + filled, count - filled, off_t(filled)) }
      }
      guard more > 0 else { break }
      filled += more
    }
    return Array(bytes[..<filled])
  }
}
