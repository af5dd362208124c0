// The part of a stretch that survives the end of its process without having been written to a disk: files in a file
// system in memory.

internal import EventLoops
internal import Glibc
package import Spool
internal import StreamBuffers

/// The files of one stretch in `/dev/shm`: the circular buffer, and the stretch's description while it has no file on
/// disk. A reboot removes them.
struct SharedStretch: Sendable {
  private static let folder = "/dev/shm"
  private static let prefix = "sluice-"
  private static let suffix = ".stretch"

  /// The path of the circular buffer.
  let bufferPath: String
  private let stretchPath: String

  /// - Parameter id: the identifier of the stretch.
  init(id: [UInt8]) {
    let digits = id.map { String(UInt16($0) + 0x100, radix: 16).dropFirst() }.joined()
    bufferPath = "\(Self.folder)/\(Self.prefix)\(digits)"
    stretchPath = bufferPath + Self.suffix
  }

  /// The remains of the buffer; nil if there are none.
  ///
  /// - Throws: ``SpoolError`` if they exist but cannot be used.
  func remains() throws(SpoolError) -> CircularBuffer.Remains? {
    do throws(SystemError) {
      if let remains = try CircularBuffer.Remains(path: bufferPath) { return remains }
    } catch {
      if error.code == ENOENT { return nil }
      if error.code == ENODATA { throw SpoolError(.truncated, path: bufferPath) }
      throw SpoolError(.system(error), path: bufferPath)
    }
    // Written by another version.
    throw SpoolError(.notASpool, path: bufferPath)
  }

  /// Whether there is a buffer.
  var isThere: Bool { access(bufferPath, F_OK) == 0 }

  /// Everything is in the stretch's file, or is no longer needed.
  func remove() {
    unlink(bufferPath)
    unlink(stretchPath)
  }

  // MARK: A stretch without a file

  /// The description of a stretch without a file on disk.
  struct Description: Equatable, Sendable {
    var identity: StretchIdentity
    /// The folder of the stream, as a resolved path.
    var folder: String
    var text: String
  }

  /// Makes a stretch without a file visible to the next process.
  func write(_ description: Description) throws(SystemError) {
    let text = "\(description.identity.created)\n\(description.folder)\n\(description.text)"
    let new = stretchPath + ".new"
    let writing = "writing \(stretchPath)"
    do throws(SystemError) {
      let file = try retryingInterrupts(writing) {
        open(new, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0o600)
      }
      defer { close(file) }
      try writeAll(Array(text.utf8), to: file, writing)
      try retryingInterrupts(writing) { rename(new, stretchPath) }
    } catch {
      unlink(new)
      throw error
    }
  }

  /// The stretch has a file now.
  func removeDescription() { unlink(stretchPath) }

  /// The stretches that killed processes have left without a file, oldest first.
  ///
  /// - Parameter folder: the folder of the stream.
  static func withoutFile(in folder: String) -> [Description] {
    let folder = SpoolFolder.resolved(folder)
    return allWithoutFile().filter { $0.folder == folder }
      .filter { description in
        let shared = SharedStretch(id: description.identity.id)
        // Its process was killed before it captured anything.
        if !shared.isThere { shared.removeDescription() }
        return shared.isThere
      }
      .sorted { ($0.identity.created, $0.identity.fileName) < ($1.identity.created, $1.identity.fileName) }
  }

  /// Those of all folders, including those of running processes.
  static func allWithoutFile() -> [Description] {
    guard let names = try? SystemSpoolDisk().names(in: folder) else { return [] }
    return names.filter { $0.hasPrefix(prefix) && $0.hasSuffix(suffix) }.sorted().compactMap { read($0) }
  }

  private static func read(_ name: String) -> Description? {
    let digits = Array(name.utf8.dropFirst(prefix.utf8.count).dropLast(suffix.utf8.count))
    guard digits.count == 32 else { return nil }
    let id = stride(from: 0, to: 32, by: 2).compactMap {
      UInt8(String(decoding: digits[$0..<$0 + 2], as: UTF8.self), radix: 16)
    }
    // Any user may write into this folder, and a FIFO must not block the start.
    let file = open("\(Self.folder)/\(name)", O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY)
    guard file >= 0 else { return nil }
    defer { close(file) }
    var status = stat()
    guard fstat(file, &status) == 0, status.st_uid == geteuid(), status.st_mode & S_IFMT == S_IFREG else { return nil }
    var bytes = [UInt8](repeating: 0, count: 32 << 10)
    let count = bytes.withUnsafeMutableBytes { Glibc.read(file, $0.baseAddress, $0.count) }
    guard count > 0 else { return nil }
    let lines = String(decoding: bytes[..<count], as: UTF8.self).split(
      separator: "\n", maxSplits: 2, omittingEmptySubsequences: false)
    guard lines.count == 3, let created = Int64(lines[0]), let identity = StretchIdentity(id: id, created: created)
    else {
      return nil
    }
    return Description(identity: identity, folder: String(lines[1]), text: String(lines[2]))
  }
}

extension SpoolFile {
  /// How many bytes exist only in memory, because the process that captured this stretch was killed.
  package var byteCountInMemory: UInt64 {
    guard !checkpoint.isFinished, let remains = (try? SharedStretch(id: id).remains()) ?? nil else { return 0 }
    return remains.head - min(remains.head, max(head, remains.oldest))
  }

  /// If the process that captured this stretch was killed, its memory shows which bytes the file lacks.
  ///
  /// - Throws: ``Spool/SpoolError`` if the memory cannot be read now.
  package func settleDoubt() throws(SpoolError) {
    guard mayLackBytes else { return }
    do throws(SpoolError) {
      if try SharedStretch(id: id).remains() != nil { forgetDoubt() }
    } catch {
      if error.mayPass { throw error }
    }
  }

  /// Removes what the process that captured this stretch has left in memory.
  package func removeFromMemory() { SharedStretch(id: id).remove() }
}
