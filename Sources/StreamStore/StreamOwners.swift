// Records the owners of streams if the server requires tokens, so that a guessed ID does not give access to a stream.

internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import StreamServing

/// A small file for each stream in a separate directory. It identifies the credential that began the stream.
///
/// The file gets its name before the disk has its content, because the loop does not wait for the disk. A power failure
/// may then leave the name of a file that is empty, or whose last bytes are zeros. The content is therefore also in an
/// extended attribute, which reaches the journal of the file system before the name does. If there is one, it decides.
struct StreamOwners: Sendable {
  /// Begins with a dot, unlike the names of streams.
  static let directoryName = ".owners"
  /// This byte follows the credential in the record of a stream that the credential did not begin.
  private static let claim = UInt8(ascii: "c")
  private static let credentialLength = 32
  private static let attribute = FileAttribute("user.sluice.owner", maximumLength: credentialLength + 1)
  private let parent: Int32
  private let openFiles: OpenFiles

  /// - Parameter parent: the store's directory, which stays open for longer than this object.
  init(in parent: Int32, _ files: OpenFiles) {
    self.parent = parent
    openFiles = files
  }

  func path(_ name: StreamName) -> String { path(name.base) }
  private func path(_ stream: String) -> String { "\(Self.directoryName)/\(stream)" }
  /// The names of streams contain no tilde.
  private func temporaryPath(_ name: StreamName) -> String { path(name) + "~" }

  /// The owner of a stream. Nil if none is recorded.
  func owner(of name: StreamName) throws(SystemError) -> [UInt8]? { try owner(ofStream: name.base) }

  /// - Parameter stream: the name without extension.
  func owner(ofStream stream: String) throws(SystemError) -> [UInt8]? { try record(ofStream: stream)?.owner }

  /// The credential that began a stream. Nil if none is recorded, or only one that continued the stream.
  func beginner(ofStream stream: String) throws(SystemError) -> [UInt8]? {
    try record(ofStream: stream).flatMap { $0.isBeginner ? $0.owner : nil }
  }

  /// The owner of a stream, and whether it began the stream. If not, the stream contains bytes of others. Nil if no
  /// owner is recorded.
  func record(of name: StreamName) throws(SystemError) -> (owner: [UInt8], isBeginner: Bool)? {
    try record(ofStream: name.base)
  }

  private func record(ofStream stream: String) throws(SystemError) -> (owner: [UInt8], isBeginner: Bool)? {
    let operation = "read the owner's record of a stream"
    let descriptor: Int32
    do throws(SystemError) {
      descriptor = try openFiles.openRegular(path(stream), in: parent, O_RDONLY)
    } catch {
      if error.isMissing { return nil }
      throw error
    }
    defer { close(descriptor) }
    // If it cannot be read, the owner is unknown: the content alone may be destroyed, which would admit every token.
    if let record = try Self.attribute.value(of: descriptor).flatMap({ Self.parsed($0[...]) }) { return record }
    var bytes = [UInt8](repeating: 0, count: 256)
    let count = try retryingInterrupts(operation) { read(descriptor, &bytes, bytes.count) }
    return Self.parsed(bytes.prefix(count))
  }

  /// nil if this is not the content of a record.
  private static func parsed(_ bytes: ArraySlice<UInt8>) -> (owner: [UInt8], isBeginner: Bool)? {
    let isClaim = bytes.count == credentialLength + 1 && bytes.last == claim
    let owner = Array(bytes.prefix(credentialLength))
    // No token has a credential of zeros.
    guard isClaim || bytes.count == credentialLength, owner.contains(where: { $0 != 0 }) else { return nil }
    return (owner, !isClaim)
  }

  func record(_ credential: [UInt8], of name: StreamName, isBeginner: Bool) throws(SystemError) {
    let record = isBeginner ? credential : credential + [Self.claim]
    try makeDirectory(Self.directoryName, in: parent)
    // The record is replaced atomically, because an incomplete one would exclude the owner.
    let temporary = temporaryPath(name)
    let descriptor = try openFiles.openRegular(temporary, in: parent, O_WRONLY | O_CREAT | O_TRUNC)
    defer { close(descriptor) }
    do throws(SystemError) {
      try writeAll(record, to: descriptor, "write the owner's record of a stream")
      try Self.attribute.set(record, of: descriptor)
      try retryingInterrupts("rename the owner's record of a stream") {
        renameat(parent, temporary, parent, path(name))
      }
    } catch {
      unlinkat(parent, temporary, 0)
      throw error
    }
  }

  /// The files of the records. Nil if there are none.
  func files() throws(SystemError) -> DirectoryNames? { try .ifThere(Self.directoryName, in: parent) }

  /// The stream to which the file of a record belongs. Remove the file only on that stream's loop.
  static func stream(ofFile file: String) -> String { file.hasSuffix("~") ? String(file.dropLast()) : file }

  func forget(_ name: StreamName) {
    unlinkat(parent, path(name), 0)
    unlinkat(parent, temporaryPath(name), 0)
  }
}
