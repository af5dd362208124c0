// Tests a server that gets no thread, the time that it gives to clients when it stops, and threads that are late.

import CallCounter
import EventLoops
import Glibc
import NetworkTesting
import Testing

@testable import ResumableServing
@testable import StreamServing
@testable import UploadServer

@Suite("The threads of a server")
struct ServerThreadTests {
  private static func isShortage(_ error: (any Error)?) -> Bool {
    if case .resources? = error as? UploadServerError { true } else { false }
  }

  @Test("a server without a thread reports this to its caller, and can be started later")
  func noThread() async throws {
    guard call_counter_works() else { return }
    let directory = TemporaryDirectory()
    let server = try UploadServer(listen: "127.0.0.1:0", directory: directory.path)
    // If a thread is created in spite of this, the server ends at once.
    server.shutdown(grace: .zero)
    refuse_next_thread_of_this_thread()
    var failure: (any Error)?
    do { try await server.run() } catch { failure = error }
    #expect(Self.isShortage(failure))
    failure = nil
    refuse_next_thread_of_this_thread()
    do { try server.start() } catch { failure = error }
    #expect(Self.isShortage(failure))
    try await server.run()
  }

  @Test("a server that gets only one of its two threads says so and ends")
  func oneThread() throws {
    guard call_counter_works() else { return }
    let events = try EventLog<ServerEvent>()
    // This storage needs no threads of its own.
    var configuration = UploadServer.Configuration(listen: [try ListenAddress("127.0.0.1:0")], storage: .discarding) {
      events.append($0)
    }
    configuration.threads = 2
    let server = try UploadServer(configuration: configuration)
    let ends = try EventLog<Bool>()
    try NamedThread("test server") {
      refuse_next_thread_of_this_thread()
      server.serveOnThisThread()
      ends.append(true)
    }.detach()
    try ends.first("the end") { _ in true }
    server.waitUntilEnded()
    let event = try #require(events.all.first)
    #expect(events.all.count == 1 && event.kind == .warning, "\(events.all)")
    #expect(event.reason?.hasPrefix("the server stops, because it cannot start a thread: ") == true, "\(event)")
  }

  @Test("a server that drains gives requests half of the time, and ends before all of it has passed")
  func half() throws {
    let limit = Duration.milliseconds(400)
    // On a busy machine, an attempt may take longer.
    for _ in 0..<5 {
      let test = try TestServer()
      let location = try test.create("/t.txt", ["Stream-ID: a"])
      let client = try test.connect()
      try client.patch(location, at: 0, ["Content-Length: 5"])
      try client.awaitProgress(0)
      let start = MonotonicInstant.now
      test.server.drain(within: limit)
      let answer = try client.final().answer
      let time = MonotonicInstant.now - start
      #expect(answer.status == 503 && time >= limit / 2, "\(answer) after \(time)")
      test.server.waitUntilEnded()
      if time < limit { return }
    }
    Issue.record("each request had more than the limit")
  }

  @Test("a HEAD waits for an append that has arrived for another thread, which has not read it yet")
  func gathered() throws {
    let (blocked, released) = (try EventLog<Bool>(), try EventLog<Bool>())
    let test = try TestServer {
      $0.threads = 2
      $0.handler = { head in
        switch head.target.path {
        case "/thread": return FixedResponseHandler(Response(200, body: "\(pthread_self())"))
        case "/block":
          blocked.append(true)
          _ = try? released.first("the end of the pause") { _ in true }
          return FixedResponseHandler(Response(200))
        default: return nil
        }
      }
    }
    func thread(of client: RawClient) throws -> String {
      try client.request("GET", "/thread", version: nil)
      return try client.final().answer.body
    }
    // The first connection belongs to the first loop.
    let asking = try test.connect()
    let first = try thread(of: asking)
    var others: [RawClient] = []
    while others.count < 2 {
      let client = try test.connect()
      if try thread(of: client) != first { others.append(client) }
    }
    let (blocking, appending) = (others[0], others[1])
    // An upload of the first loop.
    var location = ""
    let firstLoop = LoopAssignment(index: 0, count: 2)
    repeat {
      location = try test.create("/t.txt")
    } while !firstLoop.owns(String(location.split(separator: "/").last ?? ""))
    try blocking.request("GET", "/block", version: nil)
    try blocked.first("the second thread is busy") { _ in true }
    try appending.patch(location, at: 0, body: "hello")
    try waitUntil("the append has arrived") { appending.unacknowledged == 0 }
    try asking.request("HEAD", location)
    // Only a server that does not wait for the other thread answers in this time.
    poll(nil, 0, 100)
    #expect(!asking.hasAnswer)
    released.append(true)
    #expect(try asking.final(withBody: false).answer["upload-offset"] == "5")
    #expect(try appending.final().answer.status == 204)
  }
}
