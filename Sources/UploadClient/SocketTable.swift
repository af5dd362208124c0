// What libcurl wants to know of its sockets, and what epoll was told.

internal import EventLoops
internal import Glibc

/// By descriptor: these are small numbers, libcurl asks several times for each message, and no two handles of a session
/// have the same. Owned by the loop's thread; unchecked for that reason.
final class SocketTable: @unchecked Sendable {
  struct Entry {
    var wanted: EventLoop.Interest
    /// What epoll was last told; nil before the first time.
    var watched: EventLoop.Interest?
    /// How often in a row it was writable and nobody wrote: libcurl 7.88 may want to know that without end.
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
