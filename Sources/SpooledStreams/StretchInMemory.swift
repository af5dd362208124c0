// The stretches that have no file, as a user sees them.

internal import Glibc
package import Spool
internal import StreamBuffers

/// A stretch that is only in memory, because the disk has had no space for its file. Any thread.
package struct StretchInMemory: Sendable {
  /// The part of a stretch that is in memory.
  package enum Content: Equatable, Sendable {
    /// What the server has not acknowledged.
    case remains(StretchRemains)
    /// The data is gone, or is not what its process left there. Bytes may be lost.
    case lost
    /// The data cannot be read now, for this reason.
    case unreadable(SpoolError)
  }

  /// The stream, and the path of the future file.
  package let entry: SpoolEntry
  /// Wall clock in milliseconds since 1970.
  package let created: Int64
  /// The user of its stream.
  package let user: SpoolFolder.User
  private let shared: SharedStretch

  /// Those of a spool directory or of a stream's folder, oldest first, or the one with this file. Nothing is changed.
  ///
  /// - Parameter path: a resolved path, at which nothing need exist.
  package static func all(at path: String) -> [StretchInMemory] {
    let streams = ((try? SystemSpoolDisk().names(in: path)) ?? []).filter { SpoolFolder.isValid(stream: $0) }
    let folders = Set(streams.map { "\(path)/\($0)" } + [path, SpoolFolder.folder(of: path)])
    let files = folders.flatMap { (try? SpoolFolder.stretches(in: $0)) ?? [] }
    let fileNames = Set(files.compactMap { $0.split(separator: "/").last.map(String.init) })
    return SharedStretch.all(searching: folders, besides: fileNames).compactMap { description -> StretchInMemory? in
      let folder = description.folder
      var entry = SpoolEntry(folder: folder)
      entry.path = "\(folder)/\(description.identity.fileName)"
      guard [folder, SpoolFolder.folder(of: folder), entry.path].contains(path) else { return nil }
      let shared = SharedStretch(id: description.identity.id)
      // Without both, its process has captured nothing.
      guard shared.isThere || description.hasBuffer else { return nil }
      // The folder itself may be missing.
      let user = (try? SpoolFolder.user(of: folder)) ?? .nobody
      let stretch = StretchInMemory(entry: entry, created: description.identity.created, user: user, shared: shared)
      return stretch.hasFile ? nil : stretch
    }
  }

  /// Whether it has a file by now.
  package var hasFile: Bool { access(entry.path, F_OK) == 0 }

  /// What is in memory now. A process that uses the stream changes it.
  package func content() -> Content {
    do throws(SpoolError) {
      guard let remains = try shared.remains() else { return .lost }
      return .remains(StretchRemains(remains, after: 0))
    } catch {
      if case .system = error.cause { return .unreadable(error) }
      return .lost
    }
  }

  /// Removes it from memory, whatever it contains. The caller must have the folder's lock.
  package func remove() { shared.remove() }
}
