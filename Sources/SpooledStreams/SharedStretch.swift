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
  /// Follows the time in the description of a stretch whose buffer exists.
  private static let withBuffer = " buffer"

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
    /// Whether its buffer existed, so that bytes may be lost if it is gone.
    var hasBuffer = false
  }

  /// Makes a stretch without a file visible to the next process.
  func write(_ description: Description) throws(SystemError) {
    let created = "\(description.identity.created)\(description.hasBuffer ? Self.withBuffer : "")"
    let text = "\(created)\n\(description.folder)\n\(description.text)"
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

  /// The stretches that killed processes have left without a file, oldest first. One whose description is gone has an
  /// empty text.
  ///
  /// - Parameters:
  ///   - folder: the folder of the stream.
  ///   - fileNames: the names of the files of its other stretches.
  static func withoutFile(in folder: String, besides fileNames: Set<String> = []) -> [Description] {
    let folder = SpoolFolder.resolved(folder)
    return all(searching: [folder], besides: fileNames)
      .filter { $0.folder == folder && !fileNames.contains($0.identity.fileName) && isLeft($0) }
  }

  /// All described stretches, in any folder, and those of some folders whose descriptions are gone, oldest first. Those
  /// of running processes are among them. Nothing is changed.
  ///
  /// - Parameters:
  ///   - folders: resolved paths. Without a description, a buffer shows only whether it belongs to a given folder.
  ///   - fileNames: the names of the files of other stretches in these folders.
  static func all(searching folders: Set<String>, besides fileNames: Set<String>) -> [Description] {
    let names = (try? SystemSpoolDisk().names(in: folder)) ?? []
    let described = names.filter { $0.hasPrefix(prefix) && $0.hasSuffix(suffix) }.compactMap { read($0) }
    let identifiers = Set(described.map(\.identity.id))
    // A file's name ends with half of the digits in the buffer's name.
    let others = Set(fileNames.map { $0.dropLast(".spool".count).suffix(16) })
    let sums = Dictionary(folders.map { (SpoolFolder.sum(of: $0), $0) }) { first, _ in first }
    let undescribed = names.filter { !others.contains($0.dropFirst(prefix.count).prefix(16)) }
      .compactMap { identifier($0) }.filter { !identifiers.contains($0) }
      .compactMap { withoutDescription($0, sums) }
    return (described + undescribed)
      .sorted { ($0.identity.created, $0.identity.fileName) < ($1.identity.created, $1.identity.fileName) }
  }

  /// Whether the process of a stretch has captured anything. If not, its description is removed.
  private static func isLeft(_ description: Description) -> Bool {
    let shared = SharedStretch(id: description.identity.id)
    if shared.isThere || description.hasBuffer { return true }
    shared.removeDescription()
    return false
  }

  /// The stretch of a buffer that belongs to one of these folders and still has bytes; nil for any other buffer.
  ///
  /// - Parameter folders: resolved paths, by their ``Spool/SpoolFolder/sum(of:)``.
  private static func withoutDescription(_ id: [UInt8], _ folders: [UInt64: String]) -> Description? {
    guard let remains = (try? SharedStretch(id: id).remains()) ?? nil, remains.oldest < remains.head,
      let folder = folders[remains.label.second]
    else { return nil }
    let created = Int64(clamping: remains.label.first)
    guard remains.label == label(created: created, folder: folder),
      let identity = StretchIdentity(id: id, created: created)
    else { return nil }
    return Description(identity: identity, folder: folder, text: "", hasBuffer: true)
  }

  /// Shows which stretch a buffer belongs to, as long as the stretch has no file.
  ///
  /// - Parameter folder: the folder of the stream, as a resolved path.
  static func label(created: Int64, folder: String) -> CircularBuffer.Label {
    CircularBuffer.Label(UInt64(clamping: created), SpoolFolder.sum(of: folder))
  }

  /// The identifier in the name of a buffer; nil for any other name.
  private static func identifier(_ name: String) -> [UInt8]? {
    let digits = Array(name.utf8.dropFirst(prefix.utf8.count))
    guard name.hasPrefix(prefix), digits.count == 32 else { return nil }
    let id = stride(from: 0, to: 32, by: 2).compactMap {
      UInt8(String(decoding: digits[$0..<$0 + 2], as: UTF8.self), radix: 16)
    }
    return id.count == 16 ? id : nil
  }

  private static func read(_ name: String) -> Description? {
    guard let id = identifier(String(name.dropLast(suffix.count))) else { return nil }
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
    guard lines.count == 3 else { return nil }
    let hasBuffer = lines[0].hasSuffix(withBuffer)
    guard let created = Int64(hasBuffer ? lines[0].dropLast(withBuffer.count) : lines[0]),
      let identity = StretchIdentity(id: id, created: created)
    else { return nil }
    return Description(
      identity: identity, folder: String(lines[1]), text: String(lines[2]), hasBuffer: hasBuffer)
  }
}

/// What the memory of an ended process shows about a stretch.
package struct StretchRemains: Equatable, Sendable {
  /// How many bytes exist only there.
  package let byteCount: UInt64
  /// Positions whose bytes are lost: the memory was full before the disk took them. The server has not acknowledged
  /// them.
  package let lost: Range<UInt64>
  /// How many bytes are lost.
  package var lostByteCount: UInt64 { lost.upperBound - lost.lowerBound }

  /// - Parameter head: the position before which the stretch's file has bytes; 0 without a file.
  init(_ remains: CircularBuffer.Remains, after head: UInt64) {
    byteCount = remains.head - min(remains.head, max(head, remains.oldest, remains.passed))
    // An earlier version does not distinguish them from acknowledged ones.
    let start = max(head, remains.passed, remains.consumed ?? remains.oldest)
    lost = min(start, remains.oldest)..<remains.oldest
  }
}

extension SpoolFile {
  /// What the process that captured this stretch has left in memory; nil if it has left nothing.
  package var remainsInMemory: StretchRemains? {
    guard !checkpoint.isFinished, let remains = (try? SharedStretch(id: id).remains()) ?? nil else { return nil }
    return StretchRemains(remains, after: head)
  }

  /// How many bytes exist only in memory, because the process that captured this stretch was killed.
  package var byteCountInMemory: UInt64 { remainsInMemory?.byteCount ?? 0 }

  /// If the process that captured this stretch was killed, its memory shows which bytes the file lacks. If that memory
  /// is gone, or its content is not what the process left there, bytes may be lost.
  ///
  /// - Parameter isInUse: whether a process uses the stream. Then it reports this itself.
  /// - Throws: ``Spool/SpoolError`` if the memory cannot be read now.
  package func settleDoubt(isInUse: Bool = false) throws(SpoolError) {
    guard mayLackBytes || needsMemory else { return }
    do throws(SpoolError) {
      if let remains = try SharedStretch(id: id).remains() {
        if !needsMemory { return forgetDoubt() }
        if try agrees(with: remains) { return forgetDoubt() }
      }
    } catch {
      if error.mayPass { throw error }
      // It exists, and another user may be able to read it.
      if case .system = error.cause { return }
    }
    if needsMemory, !isInUse { noteLostMemory() }
  }

  /// Whether the newest bytes of the file are also in the memory, as far as it still has them.
  private func agrees(with remains: CircularBuffer.Remains) throws(SpoolError) -> Bool {
    guard remains.head >= head else { return false }
    let size = 64 << 10
    let buffer = UnsafeMutableRawBufferPointer.allocate(byteCount: 2 * size, alignment: 16)
    defer { buffer.deallocate() }
    let here = UnsafeMutableRawBufferPointer(rebasing: buffer[..<size])
    let there = UnsafeMutableRawBufferPointer(rebasing: buffer[size...])
    var position = max(oldest, remains.oldest, head - min(head, UInt64(size)))
    while position < head {
      switch try read(at: position, into: here) {
      case .bytes(let count):
        let found = remains.copy(at: position, into: UnsafeMutableRawBufferPointer(rebasing: there[..<count]))
        guard count > 0, found == count, here[..<count].elementsEqual(there[..<count]) else { return false }
        position += UInt64(count)
      case .missing(let next), .unreadable(let next, _): position = max(next, position + 1)
      case .end: return true
      }
    }
    return true
  }

  /// Removes what the process that captured this stretch has left in memory.
  package func removeFromMemory() { SharedStretch(id: id).remove() }
}
