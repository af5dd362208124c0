// The messages that systemd expects from a service: ready, alive, and stopping.
//
// libsystemd has sd_notify(3), but every process would have to load it for one datagram. The manual page describes the
// protocol and permits other implementations.

internal import EventLoops
internal import Glibc

/// The service manager that started this process, if it requested notifications (`Type=notify`). Otherwise, all calls
/// do nothing. No call waits. Any thread.
struct ServiceManager: Sendable {
  static let current = ServiceManager { name in getenv(name).map { String(cString: $0) } }

  /// A path, or a name in the abstract namespace that begins with `@`. Nil without a manager.
  private let address: String?
  /// The interval of the watchdog messages. Nil if the manager does not watch this process (`WatchdogSec=`).
  let watchdogInterval: Duration?

  init(_ variable: (String) -> String?) {
    address = variable("NOTIFY_SOCKET").flatMap { $0.hasPrefix("/") || $0.hasPrefix("@") ? $0 : nil }
    let isWatched = variable("WATCHDOG_PID").map { Int32($0) == getpid() } ?? true
    if address != nil, isWatched, let limit = variable("WATCHDOG_USEC").flatMap({ Int64($0) }),
      (1...Int64.max / 1000).contains(limit)
    {
      // Half of it, as sd_watchdog_enabled(3) advises.
      watchdogInterval = .microseconds(max(1000, limit / 2))
    } else {
      watchdogInterval = nil
    }
  }

  func isReady(_ status: String) { send("READY=1\nSTATUS=\(status.escaped)") }

  func isAlive() { send("WATCHDOG=1") }

  func isStopping() { send("STOPPING=1\nSTATUS=finishing") }

  /// The remaining work at the end may take this long from now on, also beyond `TimeoutStopSec=`.
  func extendTimeout(by time: Duration) { send("EXTEND_TIMEOUT_USEC=\(time.nanoseconds / 1000)") }

  private func send(_ text: String) {
    guard let address else { return }
    var name = sockaddr_un()
    name.sun_family = sa_family_t(AF_UNIX)
    let bytes = Array(address.utf8)
    let isTooLong = withUnsafeMutableBytes(of: &name.sun_path) { path in
      guard bytes.count < path.count else { return true }
      path.copyBytes(from: bytes)
      if bytes[0] == UInt8(ascii: "@") { path[0] = 0 }
      return false
    }
    guard !isTooLong else { return }
    let descriptor = socket(AF_UNIX, Int32(SOCK_DGRAM.rawValue | SOCK_CLOEXEC.rawValue), 0)
    guard descriptor >= 0 else { return }
    defer { close(descriptor) }
    let length = socklen_t(MemoryLayout<sa_family_t>.size + bytes.count)
    withUnsafePointer(to: &name) { pointer in
      pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) { pointer in
        _ = try? retryingInterrupts("sendto") {
          sendto(descriptor, text, text.utf8.count, Int32(MSG_DONTWAIT) | Int32(MSG_NOSIGNAL), pointer, length)
        }
      }
    }
  }
}

extension ServiceManager {
  /// Sends watchdog messages from the loop, as long as it runs.
  func watch(_ loop: EventLoop) {
    guard let interval = watchdogInterval else { return }
    isAlive()
    loop.schedule(after: interval) { watch(loop) }
  }

  /// Requests more time from a loop that ends its work, until it has ended.
  func keepExtending(on loop: EventLoop) {
    guard address != nil else { return }
    extendTimeout(by: .seconds(30))
    loop.schedule(after: .seconds(10)) { keepExtending(on: loop) }
  }
}
