// The events that libcurl requests for its sockets, and the watches of epoll.

internal import EventLoops
internal import Glibc

/// Indexed by descriptor, because descriptors are small numbers, libcurl asks several times per message, and no two
/// handles of a session share one. Owned by the loop's thread, and unchecked for that reason.
final class SocketTable: @unchecked Sendable {
  struct Entry {
    var wanted: EventLoop.Interest
    /// The last watch of epoll. Nil before the first one.
    var watched: EventLoop.Interest?
    /// The number of consecutive writability events without a write. libcurl 7.88 may request them without end.
    var idleWrites = 0
    var isRestrained = false
    var effective: EventLoop.Interest { isRestrained ? wanted.subtracting(.writable) : wanted }
  }

  private var entries: [Entry?] = []

  subscript(_ socket: Int32) -> Entry? {
    get { entries.indices.contains(Int(socket)) ? entries[Int(socket)] : nil }
    set {
      while entries.count <= Int(socket) { entries.append(nil) }
      entries[Int(socket)] = newValue
    }
  }
}
