// The directory of the upload records, which the loops of a server share. An operator may remove or move it while the
// server runs.

internal import DiskFiles
internal import EventLoops
internal import Glibc

/// The directory `.uploads` of a store, and which directory that was when a loop last opened it. Any thread.
package final class RecordsDirectory: Sendable {
  /// A descriptor, which belongs to the caller.
  struct Opened: Sendable {
    var descriptor: Int32
    var place: FilePlace
    /// Whether a loop has opened another directory of that name before. Only one caller learns this.
    var isReplacement: Bool
  }

  /// Begins with a dot, unlike any stream's name.
  static let name = ".uploads"

  let parent: Int32
  /// nil until a loop has opened it.
  private let last = Lock<FilePlace?>(nil)

  /// - Parameter parent: the directory that contains it. It must stay open longer than this.
  package init(in parent: Int32) { self.parent = parent }

  /// Opens the directory.
  ///
  /// - Parameter makesIt: whether to make it if it is missing.
  func open(makesIt: Bool) throws(SystemError) -> Opened {
    // Within the lock, so that no loop reports the directory that another loop has just made.
    try last.withLock { (last) throws(SystemError) in
      // Only the server may use the files in it, because their names protect the uploads.
      if makesIt { try makeDirectory(Self.name, in: parent) }
      let descriptor = try retryingInterrupts("open \(Self.name)") {
        openat(parent, Self.name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
      }
      var status = stat()
      do throws(SystemError) {
        try retryingInterrupts("open \(Self.name)") { fstat(descriptor, &status) }
      } catch {
        close(descriptor)
        throw error
      }
      let place = FilePlace(directory: parent, name: Self.name, status)
      let isReplacement = last != nil && last != place
      last = place
      return Opened(descriptor: descriptor, place: place, isReplacement: isReplacement)
    }
  }
}
