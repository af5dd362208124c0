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
    try checkGaps(of: name)
    try checkSidecar(of: name)
  }

  /// Removes the record of gaps of a recording that was removed, and nothing else that has its name.
  func removeGaps(of name: StreamName) throws(SystemError) {
    do throws(SystemError) {
      try checkGaps(of: name)
    } catch {
      if error.isSpecialFile || error.isForeignFile { return }
      throw error
    }
    _ = try FileRemoval.remove(name.gaps, in: directory)
  }

  private func checkGaps(of name: StreamName) throws(SystemError) {
    if let text = try companion(name.gaps), !GapRecord.isRecord(text) { throw RegularFile.foreign(name.gaps) }
  }

  /// Checks that the name of a recording's sidecar is free, or belongs to a sidecar for a recording of that name.
  ///
  /// - Throws: as ``clearCompanions(of:)``.
  func checkSidecar(of name: StreamName) throws(SystemError) {
    guard hasSidecars, let text = try companion(name.sidecar) else { return }
    // A power failure may leave zeros.
    if text.allSatisfy({ $0 == 0 }) { return }
    guard let sidecar = try? RecordingSidecar(parsing: text), RecordingSidecar.name(for: sidecar.file) == name.sidecar
    else { throw RegularFile.foreign(name.sidecar) }
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

  /// The content of a file beside a recording; nil if there is none.
  private func companion(_ file: String) throws(SystemError) -> [UInt8]? {
    guard try exists(file) else { return nil }
    do throws(SystemError) {
      return try files.contents(of: file, in: directory)
    } catch {
      if error.isMissing { return nil }
      // No server writes as much.
      throw error.code == EOVERFLOW ? RegularFile.foreign(file) : error
    }
  }
}
