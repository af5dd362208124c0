// Tests how `sluice serve` reacts to signals: it must end, and with the right exit code.

import BrokerTesting
import EventLoops
import Glibc
import HTTPServer
import NetworkTesting
import SyncGate
import Testing

@testable import sluice

@Suite("Signals to sluice serve")
struct DrainSignalTests {
  private let directory: TemporaryDirectory

  init() throws { directory = try TemporaryDirectory() }

  /// Where a server stores uploads.
  enum Store: CaseIterable { case directory, broker }

  /// Starts a server and returns its address.
  ///
  /// - Parameter broker: stores the uploads. With nil, they are stored in the directory.
  private func start(_ options: [String], _ broker: TestBroker? = nil) throws -> (TestProcess, ListenAddress) {
    let storage = broker.map { ["--store", $0.url] } ?? ["--directory", directory.path, "--durability", "always"]
    let server = try sluice(["serve", "--listen", "127.0.0.1:0"] + storage + options)
    let line = try server.lines.first("its address") { $0.text.hasPrefix("listening on ") }.text
    return (server, try ListenAddress(String(line.dropFirst("listening on ".count))))
  }

  /// Begins an append of unknown length, or of a length that it never reaches, and sends five bytes of it.
  private func beginUpload(at address: ListenAddress, isLive: Bool) throws -> (RawClient, location: String) {
    let creating = try RawClient(address)
    let lines = "Host: h\r\nUpload-Draft-Interop-Version: 8\r\nStream-ID: a\r\n"
    try creating.send("POST /t.txt HTTP/1.1\r\n\(lines)Upload-Complete: ?0\r\nContent-Length: 0\r\n\r\n")
    var answer = try creating.answer()
    while answer.status < 200 { answer = try creating.answer() }
    guard let location = answer["location"] else { throw TestFailure("no upload: \(answer)") }
    let client = try RawClient(address)
    try client.send(
      "PATCH \(location) HTTP/1.1\r\n\(lines)Content-Type: application/partial-upload\r\nUpload-Offset: 0\r\n"
        + "Upload-Complete: ?0\r\n" + (isLive ? "Transfer-Encoding: chunked\r\n\r\n" : "Content-Length: 10\r\n\r\n"))
    try client.send(isLive ? "5\r\nhello\r\n" : "hello")
    return (client, location)
  }

  /// How many bytes of the upload the server has stored.
  private func offset(of location: String, at address: ListenAddress) throws -> String? {
    let client = try RawClient(address)
    try client.send("HEAD \(location) HTTP/1.1\r\nHost: h\r\nUpload-Draft-Interop-Version: 8\r\n\r\n")
    return try client.answer(withBody: false)["upload-offset"]
  }

  private func awaitHello(_ client: RawClient) throws {
    while try client.answer()["upload-offset"] != "5" {}
  }

  @Test(
    "the first lets requests end, and the second ends the server at once with 130",
    arguments: [[SIGTERM, SIGINT], [SIGQUIT]])
  func second(_ signals: [Int32]) throws {
    let (server, address) = try start(["--drain-timeout", "1h"])
    let idle = try RawClient(address)
    try idle.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    _ = try idle.answer()
    let (client, location) = try beginUpload(at: address, isLive: false)
    try awaitHello(client)
    server.signal(signals[0])
    #expect(idle.isClosedByServer())
    for signal in signals.dropFirst() {
      // The test needs real time between the signals.
      usleep(600_000)
      server.signal(signal)
    }
    #expect(try server.wait() == 130)
    let (next, nextAddress) = try start([])
    #expect(try offset(of: location, at: nextAddress) == "5")
    next.signal(SIGTERM)
    #expect(try next.wait() == 0)
  }

  @Test(
    "a live stream receives its offset at once, and the server exits with 0 long before --drain-timeout",
    arguments: Store.allCases)
  func live(_ store: Store) throws {
    let broker = store == .broker ? try TestBroker() : nil
    let (server, address) = try start(["--drain-timeout", "1h"], broker)
    let (client, _) = try beginUpload(at: address, isLive: true)
    try awaitHello(client)
    server.signal(SIGTERM)
    let answer = try client.final().answer
    #expect(answer.status == 503 && answer["upload-offset"] == "5")
    client.disconnect()
    #expect(try server.wait() == 0)
  }

  @Test("if the broker is dead, the server ends within --drain-timeout, and acknowledges nothing more")
  func deadBroker() throws {
    // Less than the time for which a server tries to store a message, unless a busy machine stops the server.
    for _ in 0..<3 {
      if try timeToEndWithoutBroker() < .seconds(7) { return }
    }
    Issue.record("the server continues to store bytes after --drain-timeout")
  }

  private func timeToEndWithoutBroker() throws -> Duration {
    let broker = try TestBroker()
    let (server, address) = try start(["--drain-timeout", "2s"], broker)
    let (client, _) = try beginUpload(at: address, isLive: true)
    try awaitHello(client)
    try broker.kill()
    try client.sendChunk("world")
    let began = MonotonicInstant.now
    server.signal(SIGTERM)
    // 74 if the server was still trying to store the bytes.
    let code = try server.wait()
    #expect(code == 0 || code == 74, "\(server.errors)")
    let time = MonotonicInstant.now - began
    // Interim responses acknowledge bytes, too.
    while let answer = try? client.answer() { #expect(answer["upload-offset"] != "10") }
    return time
  }

  @Test(
    "the server waits for a hanging disk until --drain-timeout, or for a second after the second signal",
    arguments: [1, 2])
  func hungDisk(_ signals: Int) async {
    // A separate process, whose disk hangs.
    await #expect(processExitsWith: .exitCode(signals == 1 ? 74 : 130)) { [signals] in
      let directory = try TemporaryDirectory()
      let address = "unix:\(directory.path)/socket"
      var arguments = ["--listen", address, "--directory", "\(directory.path)/d", "--durability", "always"]
      if signals == 1 { arguments += ["--drain-timeout", "1s"] }
      // Another thread of the tests could receive a signal to the process.
      let server = pthread_self()
      try NamedThread("test client") {
        do {
          sync_gate_close()
          let target = try ListenAddress(address)
          var client: RawClient?
          // The socket file exists before the server listens.
          try waitUntil("the server listens") {
            client = try? RawClient(target)
            return client != nil
          }
          try client?.send(
            "POST /t HTTP/1.1\r\nHost: h\r\nUpload-Draft-Interop-Version: 8\r\nUpload-Complete: ?1\r\n"
              + "Content-Length: 5\r\n\r\nhello")
          try waitUntil("the disk is asked") { sync_gate_calls() > 0 }
          // A signal that is still pending is not sent again.
          for signal in [SIGTERM, SIGQUIT].prefix(signals) { pthread_kill(server, signal) }
          // Waits until the process ends.
          while true { pause() }
        } catch {
          exit(1)
        }
      }.detach()
      do throws(CommandError) {
        exit(try Serve.run(try Serve.syntax.parse(arguments[...])).rawValue)
      } catch {
        exit(error.message.contains("--drain-timeout 1.00 s") ? error.code.rawValue : 1)
      }
    }
  }
}

@Suite("Signals that count")
struct SignalCountTests {
  @Test("a signal counts as the second half a second after the first, and SIGQUIT at once")
  func signalCount() {
    func counts(_ signals: [(Int32, Int64)]) -> [Int?] {
      var count = SignalCount()
      return signals.map { count.note($0, at: MonotonicInstant(nanoseconds: $1 * 1_000_000)) }
    }
    #expect(counts([(SIGINT, 7), (SIGTERM, 7), (SIGINT, 506), (SIGINT, 507), (SIGINT, 508)]) == [1, nil, nil, 2, 3])
    #expect(counts([(SIGTERM, 0), (SIGQUIT, 0), (SIGTERM, 0)]) == [1, 2, 3])
    #expect(counts([(SIGQUIT, 0), (SIGTERM, 1)]) == [2, 3])
  }
}
