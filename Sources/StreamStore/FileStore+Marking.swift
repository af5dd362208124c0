// Syncs growing files whose marks count fewer bytes than they have, if nobody else does it.
//
// A server that is killed may leave bytes that it has acknowledged and not synced. The kernel writes them, but the mark
// does not count them: in another boot of the machine, they would be removed (`SyncedMark`). Their client may never
// return, so the next server syncs them.

internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import StreamServing
internal import Synchronization

extension FileStore {
  /// How many files are examined and synced at once. All other work of the worker comes between two slices.
  private static let markedAtOnce = 100

  /// Called with a growing file that may have bytes after its mark. Any thread.
  func markLater(_ name: StreamName) {
    // A collector removes what grew since its checkpoint, and syncs the rest before the next one.
    guard durability != .none, !isCollected else { return }
    unmarked.withLock { _ = $0.insert(name.partial) }
  }

  /// Syncs the growing files with bytes after their marks, in slices. Those that cannot be opened now are tried again
  /// at the next call, so call it in each round of maintenance. Any thread.
  package func markUnmarked() {
    let files = unmarked.withLock { files in
      let taken = Array(files)
      files = []
      return taken
    }
    for start in stride(from: 0, to: files.count, by: Self.markedAtOnce) {
      let slice = files[start..<min(start + Self.markedAtOnce, files.count)]
      worker.executeSlice { [self] in
        // The next server does this, too.
        guard !isEnded.load(ordering: .acquiring) else { return }
        for name in slice.compactMap({ StreamName(partialFile: $0) }) { mark(name) }
      }
    }
  }

  private func mark(_ name: StreamName) {
    do throws(SystemError) {
      guard let (file, length) = try openExisting(name.partial, O_RDONLY), try disk.hasUnmarked(file, length: length)
      else { return }
    } catch {
      if error.isShortage { markLater(name) }
      return
    }
    let partial = DiskSync.File.named(name.partial, in: directory)
    disk.sync(partial, "fdatasync \(name.partial)", in: directory, growth: .continues) { [self] error in
      guard let error, !error.isObstacle else { return }
      if error.isShortage { return markLater(name) }
      // Perhaps no request asks for the file before the next boot of the machine.
      refusals.add(error, name)
      unlessEnded { _ = try? noteDistrusted(name) }
    }
  }
}
