// The pages of a metrics listener, with different page makers.

import EventLoops
import HTTPServer
import Metrics
import NetworkTesting
import Testing

@Suite("The metrics listener")
struct PageMakerTests {
  @Test("the listener waits for a slow page maker on another thread, and limits the number of connections")
  func limits() throws {
    let waiting = Lock<[@Sendable (MetricsText) -> Void]>([])
    let listener = try MetricsListener(listen: try ListenAddress("127.0.0.1:0")) { answer in
      waiting.withLock { $0.append(answer) }
    }
    try listener.start()
    defer { listener.stop() }
    let clients = try (0..<16).map { _ in try RawClient(listener.localAddresses[0]) }
    for client in clients { try client.send("GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n") }
    try waitUntil("all have asked") { waiting.withLock { $0.count == 16 } }
    #expect(try RawClient(listener.localAddresses[0]).isClosedByServer(), "one too many")
    var page = MetricsText()
    page.gauge("late", "Late.", 1)
    // Removed first, because each of them retains the listener's loop, and the listener retains the list.
    let answers = waiting.withLock { waiting in
      defer { waiting = [] }
      return waiting
    }
    for answer in answers { answer(page) }
    for client in clients { #expect(try client.answer().body.contains("\nlate 1\n")) }
  }

  @Test("a page maker that has no page causes a 503 instead of a wait")
  func withoutPage() throws {
    let listener = try MetricsListener(listen: try ListenAddress("127.0.0.1:0")) { _ in }
    try listener.start()
    defer { listener.stop() }
    let client = try RawClient(listener.localAddresses[0])
    for _ in 0..<2 {
      try client.send("GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n")
      #expect(try client.answer().status == 503)
    }
  }
}
