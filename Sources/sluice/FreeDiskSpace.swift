// The free space on the disk of the recordings.

internal import EventLoops
internal import Glibc
internal import Metrics

/// Queries the file system of a directory on a separate thread. If the file system does not answer, as with a network
/// share, the next pages lack these figures, and nothing else is delayed.
final class FreeDiskSpace: Sendable {
  private let directory: String
  private let isAsking = Lock(false)

  init(directory: String) { self.directory = directory }

  /// Passes the page to `answer` with the figures, or without them while an earlier query is unanswered.
  func add(to page: MetricsText, _ answer: @escaping @Sendable (MetricsText) -> Void) {
    let isFirst = isAsking.withLock { isAsking in
      defer { isAsking = true }
      return !isAsking
    }
    guard isFirst,
      let thread = try? NamedThread(
        "sluice-disk",
        { [self] in
          var page = page
          var status = statvfs()
          if statvfs(directory, &status) == 0 {
            let size = Double(status.f_frsize)
            page.gauge(
              "sluice_server_disk_free_bytes", "Free space for recordings, on the disk of --directory.",
              Double(status.f_bavail) * size)
            page.gauge("sluice_server_disk_size_bytes", "Size of that disk.", Double(status.f_blocks) * size)
          }
          isAsking.withLock { $0 = false }
          answer(page)
        })
    else {
      if isFirst { isAsking.withLock { $0 = false } }
      return answer(page)
    }
    thread.detach()
  }
}
