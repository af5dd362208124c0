// Tests a failing epoll_ctl(2): max_user_watches is reached, or the kernel has no memory.

import CommandTesting
import EventLoops
import Glibc
import NetworkTesting
import TestRigs
import Testing

@Suite("Refusals of epoll_ctl") struct WatchRefusalTests {
  /// So long that a stream which waits for these timeouts hangs.
  private static let limits = ["--response-timeout", "1h", "--connect-timeout", "1h", "--stall-timeout", "1h"]

  @Test(
    "a socket that cannot be watched at once delays a stream and does not block it", arguments: 1...14,
    ["ENOSPC", "ENOMEM"])
  func delayed(call: Int, error: String) throws {
    let stored = try TemporaryDirectory()
    let server = try ServeProcess(stored.path)
    let stream = try SluiceProcess(
      ["heartbeat", "http://\(server.address)/a.txt", "--interval", "1ms", "--progress", "json"]
        + ["--roll-over-after", "20ms"] + Self.limits,
      prefix: [
        "strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=epoll_ctl",
        "-e", "inject=epoll_ctl:error=\(error):when=\(call)",
      ])
    // The first call is for the loop's own event, without which it cannot work.
    guard call > 1 else {
      #expect(try stream.exitCode() == 74)
      return
    }
    // This takes at least ten requests.
    try stream.event("acknowledged") { $0.integer("offset") ?? 0 > 6_000 }
    stream.signal(SIGTERM)
    let code = try stream.exitCode()
    #expect(code == 0, "\(stream.output.events.last.debugDescription)")
  }
}
