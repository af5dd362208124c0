// Compares the metrics, as read by a client that may not upload, with what really happened.

import EventLoops
import Glibc
import Metrics
import NetworkTesting
import Testing
import UploadServer

/// Passes a page of metrics between threads.
final class FigureBox: Sendable {
  private let text = Lock<String?>(nil)

  func set(_ page: String) { text.withLock { $0 = page } }

  func wait() throws -> String {
    try waitUntil("the figures are there") { text.withLock { $0 != nil } }
    return text.withLock { $0 ?? "" }
  }
}

@Suite("Metrics of the server")
struct MetricsListenerTests {
  private func listener(_ server: UploadServer) throws -> (MetricsListener, ListenAddress) {
    let listener = try MetricsListener(listen: try ListenAddress("127.0.0.1:0")) { server.figures($0) }
    try listener.start()
    return (listener, listener.localAddresses[0])
  }

  private func get(_ address: ListenAddress, _ request: String = "GET /metrics") throws -> RawClient.Answer {
    let client = try RawClient(address)
    try client.send("\(request) HTTP/1.1\r\nHost: h\r\n\r\n")
    return try client.answer(withBody: !request.hasPrefix("HEAD"))
  }

  @Test("they have the server's activity, on a separate port, with one thread and with two", arguments: [1, 2])
  func figures(threads: Int) throws {
    let test = try TestServer { $0.threads = threads }
    let (listener, address) = try listener(test.server)
    defer { listener.stop() }
    let location = try test.create()
    let first = try test.connect()
    try first.patch(location, at: 0, chunked: true)
    try first.sendChunk("abc")
    try first.awaitProgress(3)
    first.reset()
    _ = try test.events.wait(.interrupted)
    let second = try test.connect()
    try second.patch(location, at: 3, completes: true, body: "def")
    #expect(try second.final().answer.status == 201)
    try second.send("NONSENSE\r\n\r\n")
    #expect(try second.final().answer.status == 400)
    let unfinished = try test.create()
    #expect(!unfinished.isEmpty)

    let answer = try get(address)
    #expect(answer.status == 200 && answer["content-type"] == "text/plain; version=0.0.4; charset=utf-8")
    let lines = Set(answer.body.split(separator: "\n").map(String.init))
    for line in [
      "sluice_server_connections_accepted_total 4", "sluice_server_uploads_open 1",
      "sluice_server_requests_total{method=\"POST\",status=\"2xx\"} 2",
      "sluice_server_requests_total{method=\"PATCH\",status=\"2xx\"} 1",
      "sluice_server_stream_events_total{event=\"begun\"} 1",
      "sluice_server_stream_events_total{event=\"continued\"} 1",
      "sluice_server_stream_events_total{event=\"interrupted\"} 1",
      "sluice_server_stream_events_total{event=\"ended\"} 1", "sluice_server_received_bytes_total 6",
      "sluice_server_stored_bytes_total 6", "sluice_server_acknowledged_bytes_total 6",
      "sluice_server_acknowledgement_delay_seconds_count 2", "sluice_server_errors_total{class=\"malformed\"} 1",
      "sluice_server_errors_total{class=\"connection_lost\"} 1", "sluice_server_errors_total{class=\"storage\"} 0",
      "sluice_server_downloads_open 0", "sluice_server_downloaded_bytes_total 0",
    ] { #expect(lines.contains(line), "\(line) in \(answer.body)") }
    #expect(lines.contains { $0.hasPrefix("process_resident_memory_bytes ") && !$0.hasSuffix(" 0") })
    let lags = lines.filter { $0.hasPrefix("sluice_server_event_loop_lag_seconds{") }
    #expect(lags.count == threads && lags.contains { $0.contains("{loop=\"\(threads - 1)\"} ") }, "\(lags)")
  }

  @Test("while a server stops, and afterwards, the metrics include those of the threads that have ended")
  func stopping() throws {
    let test = try TestServer { $0.threads = 2 }
    let (listener, address) = try listener(test.server)
    defer { listener.stop() }
    let client = try test.connect()
    try client.send(TestServer.head(framing: "Content-Length: 6") + "abc")
    _ = try test.events.wait(.begun)
    // Both threads have accepted some of these connections.
    let idle = try (0..<4).map { _ in
      let client = try test.connect()
      try client.request("GET", "/", version: nil)
      _ = try client.answer()
      return client
    }
    test.server.drain(within: .seconds(600))
    for client in idle { #expect(client.isClosedByServer()) }
    // The thread without a request ends during these requests. From then on, its lag stays that of its end.
    var pages: [Set<Substring>] = []
    try waitUntil("the thread without a request has ended") {
      let answer = try get(address)
      try #require(answer.status == 200 && answer.body.contains("\nsluice_server_connections_accepted_total 5\n"))
      let lags = answer.body.split(separator: "\n").filter { $0.hasPrefix("sluice_server_event_loop_lag_seconds{") }
      try #require(lags.count == 2, "\(answer)")
      pages.append(Set(lags.compactMap { $0.split(separator: " ").last }))
      let common = pages.suffix(4).reduce(pages[pages.count - 1]) { $0.intersection($1) }
      return pages.count >= 4 && !common.isEmpty
    }
    try client.send("def")
    #expect(try (200..<300).contains(client.answer().status))
    client.disconnect()
    test.server.waitUntilEnded()
    let last = try get(address)
    #expect(last.status == 200 && last.body.contains("\nsluice_server_connections_open 0\n"))
    #expect(last.body.contains("\nsluice_server_stored_bytes_total 6\n"), "\(last)")
  }

  @Test("the port serves only /metrics and accepts no upload, and the upload port has no metrics")
  func otherRequests() throws {
    let test = try TestServer()
    let (listener, address) = try listener(test.server)
    defer { listener.stop() }
    #expect(try get(address, "GET /").status == 404)
    #expect(try get(address, "DELETE /metrics").status == 405)
    #expect(try get(address, "HEAD /metrics").status == 200)
    let client = try RawClient(address)
    try client.send("POST /metrics HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello")
    #expect(try client.answer().status == 413)
    #expect(try get(test.address).status == 404)
  }

  @Test(
    "idle connections, slow heads and clients that read nothing do not block the metrics",
    arguments: [
      "", "GET /metrics HTTP/1.1\r\nHost: h\r\n", "GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n", "NONSENSE\r\n\r\n",
    ])
  func idleConnections(_ sent: String) throws {
    let test = try TestServer()
    let (listener, address) = try listener(test.server)
    defer { listener.stop() }
    let idle = try (0..<40).map { _ in
      let client = try RawClient(address)
      try client.send(sent)
      return client
    }
    // Sixteen requests are the maximum at one time.
    try waitUntil("the figures are there again") { (try? get(address).status) == 200 }
    for _ in 0..<3 { #expect(try get(address).status == 200) }
    withExtendedLifetime(idle) {}
  }
}
