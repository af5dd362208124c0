// The stretches that have no file, as a user sees them.

internal import Glibc
package import Spool
internal import StreamBuffers

/// A stretch that is only in memory, because the disk has had no space for its file.
package struct StretchInMemory: Sendable {
  /// The stream, and the path of the future file.
  package let entry: SpoolEntry
  /// Wall clock in milliseconds since 1970.
  package let created: Int64
  /// The user of its stream.
  package let user: SpoolFolder.User
  /// How many bytes the server has not acknowledged. Nil while a process uses the stream.
  package let byteCount: UInt64?

  /// Those of a spool directory, or of a stream's folder, oldest first. Nothing is changed.
  ///
  /// - Parameter path: a resolved path.
  package static func all(at path: String) -> [StretchInMemory] {
    SharedStretch.allDescriptions().compactMap { description -> StretchInMemory? in
      let folder = description.folder
      let file = "\(folder)/\(description.identity.fileName)"
      let shared = SharedStretch(id: description.identity.id)
      guard folder == path || SpoolFolder.folder(of: folder) == path, shared.isThere, access(file, F_OK) != 0 else {
        return nil
      }
      // The folder itself may be missing.
      let user = (try? SpoolFolder.user(of: folder)) ?? .nobody
      let remains = user == .nobody ? (try? shared.remains()) ?? nil : nil
      var entry = SpoolEntry(folder: folder)
      entry.path = file
      return StretchInMemory(
        entry: entry, created: description.identity.created, user: user,
        byteCount: remains.map { $0.head - min($0.head, max($0.oldest, $0.passed)) })
    }
    .sorted { ($0.created, $0.entry.path) < ($1.created, $1.entry.path) }
  }
}
