// Notices when this machine gains or loses an address or a route, after which a failed attempt is worth repeating.

internal import CLinux
internal import EventLoops
internal import Glibc

/// The kernel's notifications about addresses and routes (rtnetlink(7)), for the thread of one loop.
final class NetworkChanges {
  let descriptor: Int32

  /// - Throws: ``SystemError`` if the kernel does not permit it, as in some sandboxes.
  init() throws(SystemError) {
    descriptor = try retryingInterrupts("socket") {
      socket(AF_NETLINK, Int32(SOCK_RAW.rawValue | SOCK_CLOEXEC.rawValue | SOCK_NONBLOCK.rawValue), NETLINK_ROUTE)
    }
    var address = sockaddr_nl()
    address.nl_family = sa_family_t(AF_NETLINK)
    address.nl_groups = UInt32(RTMGRP_IPV4_IFADDR | RTMGRP_IPV4_ROUTE | RTMGRP_IPV6_IFADDR | RTMGRP_IPV6_ROUTE)
    let result = withUnsafePointer(to: &address) { pointer in
      pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) {
        bind(descriptor, $0, socklen_t(MemoryLayout<sockaddr_nl>.size))
      }
    }
    guard result == 0 else {
      let error = SystemError.last("bind")
      close(descriptor)
      throw error
    }
  }

  deinit { close(descriptor) }

  /// Whether there was any change.
  func hasChanged() -> Bool {
    var buffer = [UInt8](repeating: 0, count: 1 << 16)
    var isNew = false
    while case let count = recv(descriptor, &buffer, buffer.count, 0), count > 0 || (count < 0 && errno == ENOBUFS) {
      isNew = true
    }
    return isNew
  }
}
