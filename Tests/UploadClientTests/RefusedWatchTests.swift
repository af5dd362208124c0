// Sockets that epoll does not watch for a moment, because the user has too many watches (epoll(7)).

import CLinux
import CallCounter
import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Testing

@testable import UploadClient

@Suite("A socket that cannot be watched", .enabled(if: call_counter_works()), .serialized)
struct RefusedWatchTests {
  @Test("its request continues when the kernel accepts the watch, and no timeout must pass before")
  func refused() throws {
    let seen = try EventLog<SeenRequest>()
    // A response that is there when libcurl first looks for it would need no watch.
    let mayAnswer = try EventCounter()
    let server = try obligingServer(seen) { _, _ in
      guard waitUntilReadable(mayAnswer.descriptor, limit: .seconds(120)) else { throw TestFailure("nobody asked") }
    }
    try withSession { session in
      // Not the name of other tests' threads.
      let name = "refused-watches"
      _ = try onThread(of: session) { pthread_setname_np(pthread_self(), name) }
      let before = refused_watches()
      refuse_watches(name, ENOSPC)
      defer { refuse_watches("", 0) }
      var request = UploadRequest("GET", server.url)
      request.limits.connect = .seconds(3600)
      request.limits.response = .seconds(3600)
      let running = try RunningRequest(session, request)
      try eventually("several attempts") { refused_watches() >= before + 5 }
      // One timer is enough for all attempts.
      let isDue = try onThread(of: session) {
        Mirror(reflecting: session.lanes[0]).descendant("retriesWatches") as? Bool
      }
      #expect(isDue == true)
      mayAnswer.signal()
      refuse_watches("", 0)
      #expect(try running.response().status == 200)
    }
  }
}
