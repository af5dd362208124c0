// The file with the checkpoint of a directory. It is replaced atomically.

internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import StreamStore

/// `.collected` in the directory of the recordings. Any thread.
struct CheckpointFile: Sendable {
  static let name = FileStore.checkpointName
  private static let newName = ".collected~"
  private let directory: Int32

  /// - Parameter directory: must stay open longer than this object.
  init(in directory: Int32) { self.directory = directory }

  /// Nil if there is none.
  ///
  /// - Throws: ``SystemError``, `EBADMSG` if the file is not a checkpoint.
  func read() throws(SystemError) -> CollectorCheckpoint? {
    let descriptor: Int32
    do throws(SystemError) {
      descriptor = try RegularFile.open(Self.name, in: directory, O_RDONLY)
    } catch {
      if error.isMissing { return nil }
      throw error
    }
    defer { close(descriptor) }
    let text = try RegularFile.contents(of: descriptor, Self.name, limit: RegularFile.maximumLogSize)
    guard let checkpoint = CollectorCheckpoint(parsing: String(decoding: text, as: UTF8.self)) else {
      throw SystemError(operation: "read \(Self.name)", code: EBADMSG)
    }
    return checkpoint
  }

  /// Returns when it is synced.
  func write(_ checkpoint: CollectorCheckpoint) throws(SystemError) {
    let descriptor = try prepare(checkpoint)
    defer { close(descriptor) }
    try replace(by: descriptor)
  }

  /// Writes a checkpoint into a new file, which does not count yet. So an error has no effect.
  ///
  /// - Returns: the descriptor for ``replace(by:)``. The caller closes it.
  func prepare(_ checkpoint: CollectorCheckpoint) throws(SystemError) -> Int32 {
    guard let text = checkpoint.text.map({ Array($0.utf8) }) else {
      throw SystemError(operation: "write \(Self.name)", code: EOVERFLOW)
    }
    let descriptor = try RegularFile.open(Self.newName, in: directory, O_WRONLY | O_CREAT | O_TRUNC)
    do throws(SystemError) {
      try writeAll(text, to: descriptor, "write \(Self.newName)")
    } catch {
      close(descriptor)
      throw error
    }
    return descriptor
  }

  /// Syncs the new file, and replaces the last checkpoint by it.
  func replace(by descriptor: Int32) throws(SystemError) {
    try retryingInterrupts("fdatasync \(Self.newName)") { fdatasync(descriptor) }
    try retryingInterrupts("rename \(Self.newName)") { renameat(directory, Self.newName, directory, Self.name) }
    try retryingInterrupts("fsync of the directory") { fsync(directory) }
  }
}
