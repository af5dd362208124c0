// Tests downloads from a server that stops: it gives time to clients that read, and waits for no client that does not.

import EventLoops
import Glibc
import NetworkTesting
import Recordings
import Testing
import UploadServer

@Suite("Downloads while a server stops")
struct DrainingDownloadTests {
  private static let size = 24 << 20

  private static func server(_ threads: Int) throws -> TestServer {
    let directory = TemporaryDirectory()
    try directory.write("big-a.bin", [UInt8](repeating: 7, count: size))
    var sidecar = RecordingSidecar(file: "big-a.bin")
    sidecar.stored = .init(bytes: UInt64(size))
    try directory.write("big-a.sidecar", Array(sidecar.text.utf8))
    return try TestServer(in: directory) { ($0.allowsDownloads, $0.threads) = (true, threads) }
  }

  /// A client that has received the head. Also returns how much of the content it has read.
  private static func begin(_ server: TestServer) throws -> RawClient {
    let client = try server.connect()
    try client.send("GET /big-a.bin HTTP/1.1\r\nHost: h\r\n\r\n")
    var first = [UInt8](repeating: 0, count: 12)
    try require(recv(client.descriptor, &first, 12, Int32(MSG_PEEK)) == 12, "an answer")
    return client
  }

  /// How many bytes have arrived when the connection ends or `isEnough` returns true.
  private static func read(
    _ client: RawClient, atMost limit: Int, pause: Int32 = 0, until isEnough: () -> Bool = { false }
  ) -> Int {
    var buffer = [UInt8](repeating: 0, count: limit)
    var count = 0
    while !isEnough() {
      let got = recv(client.descriptor, &buffer, limit, 0)
      if got <= 0 { break }
      count += got
      poll(nil, 0, pause)
    }
    return count
  }

  @Test(
    "a download that its client reads is completed and ends the wait, and a stalled one does not extend it",
    arguments: [1, 2])
  func steady(_ threads: Int) throws {
    var troubles: [[String]] = []
    // A busy machine may stop the client for as long as it may read nothing.
    for seconds in [8, 32, 128] {
      let trouble = try readsSteadily(threads, limit: seconds)
      if trouble.isEmpty { return }
      troubles.append(trouble)
    }
    Issue.record("\(troubles)")
  }

  /// Lets a server stop within this many seconds while one client reads and another does not. Returns what is wrong.
  private func readsSteadily(_ threads: Int, limit: Int) throws -> [String] {
    let server = try Self.server(threads)
    let (steady, stalled) = (try Self.begin(server), try Self.begin(server))
    let begin = MonotonicInstant.now
    server.server.drain(within: .seconds(limit))
    var trouble: [String] = []
    var count = Self.read(steady, atMost: 4096, pause: Int32(limit / 8)) {
      server.events.all.contains { $0.kind == .downloadInterrupted }
    }
    // A quarter of the time limit for reading an answer.
    let isEarly = MonotonicInstant.now - begin < Duration.seconds(limit) / 4
    if isEarly { trouble.append("the stalled client is interrupted early") }
    if count >= Self.size { trouble.append("the stalled client is interrupted too late") }
    count += Self.read(steady, atMost: 1 << 18) { server.events.all.contains { $0.kind == .downloaded } }
    server.server.waitUntilEnded()
    let isLate = MonotonicInstant.now - begin >= Duration.seconds(limit) * 3 / 4
    if isLate { trouble.append("the server ends late") }
    count += Self.read(steady, atMost: 1 << 18)
    if count <= Self.size { trouble.append("the client that reads has \(count) bytes") }
    withExtendedLifetime(stalled) {}
    return trouble
  }

  @Test("a longer download is disconnected before the time ends")
  func long() throws {
    let server = try Self.server(1)
    let client = try Self.begin(server)
    let begin = MonotonicInstant.now
    server.server.drain(within: .seconds(2))
    // Bytes that the kernel already has still arrive.
    let count = Self.read(client, atMost: 4096, pause: 5) {
      server.events.all.contains { $0.kind == .downloadInterrupted }
    }
    let time = MonotonicInstant.now - begin
    server.server.waitUntilEnded()
    #expect(time > .milliseconds(1500))
    #expect(count < Self.size)
    #expect(try server.events.wait(.downloadInterrupted).reason?.contains("stopped") == true)
  }
}
