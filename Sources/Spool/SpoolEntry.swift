// The stretches below a path that a user specifies.

internal import CLinux
internal import EventLoops
internal import Glibc

/// A stretch in a spool directory.
package struct SpoolEntry: Equatable, Sendable {
  /// The spool directory.
  package var directory: String
  /// The stream's name.
  package var stream: String
  /// The stretch's file.
  package var path: String

  /// The stream's folder.
  package var folder: String { "\(directory)/\(stream)" }

  package init(directory: String, stream: String, path: String) {
    (self.directory, self.stream, self.path) = (directory, stream, path)
  }

  /// The folder of a stream itself, in place of its stretches.
  package init(folder: String) {
    self.init(directory: SpoolFolder.folder(of: folder), stream: Self.lastPart(folder), path: folder)
  }

  /// The stretches of a spool directory or of a stream's folder in one, or the stretch itself. Sorted by stream, oldest
  /// first.
  ///
  /// - Parameters:
  ///   - path: an existing file or folder. A relative path is relative to the current folder.
  ///   - unreadable: called for each stream whose folder cannot be read. If it is nil, this is an error.
  package static func all(
    at path: String, disk: any SpoolDisk = .system, unreadable: ((SpoolError) -> Void)? = nil
  ) throws(SpoolError) -> [SpoolEntry] {
    var path = path
    while path.count > 1, path.hasSuffix("/") { path.removeLast() }
    if Stretch(lastPart(path)) != nil {
      let folder = SpoolFolder.folder(of: path)
      return [SpoolEntry(directory: SpoolFolder.folder(of: folder), stream: lastPart(folder), path: path)]
    }
    let streams = try SpoolFolder.streams(in: path, disk: disk)
    if streams.isEmpty, SpoolFolder.isValid(stream: lastPart(path)) {
      return try entries(SpoolFolder.folder(of: path), lastPart(path), disk)
    }
    var all: [SpoolEntry] = []
    for stream in streams {
      do throws(SpoolError) {
        all += try entries(path, stream, disk)
      } catch {
        guard let unreadable else { throw error }
        unreadable(error)
      }
    }
    return all
  }

  /// The folders of streams at a path that a user specifies: all in a spool directory, or one.
  ///
  /// - Parameter path: like ``all(at:disk:)``.
  package static func folders(at path: String, disk: any SpoolDisk = .system) throws(SpoolError) -> [String] {
    let streams = try? SpoolFolder.streams(in: path, disk: disk)
    if let streams, !streams.isEmpty { return streams.map { "\(path)/\($0)" } }
    return try all(at: path, disk: disk).reduce(into: []) { if $0.last != $1.folder { $0.append($1.folder) } }
  }

  /// Removes the stretch's file from its folder, durably, whatever it contains. The caller must have the folder's lock.
  ///
  /// - Parameter unlinked: called when the file has lost its name, before this is durable.
  /// - Throws: ``SpoolError``, with ``SpoolError/Cause/inUse(_:)`` if an object can write to it despite the lock, and
  ///   with ``SpoolError/Cause/notARegularFile`` if Sluice cannot have made it. Both leave it unchanged.
  package func remove(disk: any SpoolDisk = .system, unlinked: () -> Void = {}) throws(SpoolError) {
    // Shows its kind even to a user who may not read it.
    _ = try SpoolDescriptor(path, flags: SLUICE_O_PATH | O_NOFOLLOW, disk: disk)
    if SpoolFolder.isInUse(path, disk: disk) { throw SpoolError(.inUse(nil), path: path) }
    try disk.retrying(path) { () throws(SystemError) in try disk.unlink(path) }
    unlinked()
    try disk.retrying(folder) { () throws(SystemError) in try disk.synchronizeFolder(folder) }
  }

  private static func entries(
    _ directory: String, _ stream: String, _ disk: any SpoolDisk
  ) throws(SpoolError) -> [SpoolEntry] {
    try SpoolFolder.stretches(in: "\(directory)/\(stream)", disk: disk)
      .map { SpoolEntry(directory: directory, stream: stream, path: $0) }
  }

  private static func lastPart(_ path: String) -> String {
    path.split(separator: "/").last.map(String.init) ?? ""
  }
}
