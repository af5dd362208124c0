// How much room the disk has left for recordings.

internal import EventLoops
internal import Glibc
internal import Metrics

/// Asks the file system of a directory, on a thread of its own: one that does not answer (a network share) delays the
/// page's other figures by nothing but its absence from the next pages.
final class FreeDiskSpace: Sendable {
  private let directory: String
  private let isAsking = Lock(false)

  init(directory: String) { self.directory = directory }

  /// Gives the page with the figures to `answer`; without them while an earlier question is not answered.
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
