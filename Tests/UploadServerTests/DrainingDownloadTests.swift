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
    let server = try Self.server(threads)
    let (steady, stalled) = (try Self.begin(server), try Self.begin(server))
    let begin = MonotonicInstant.now
    server.server.drain(within: .seconds(8))
    var count = Self.read(steady, atMost: 4096, pause: 1) {
      server.events.all.contains { $0.kind == .downloadInterrupted }
    }
    // A quarter of the time limit for reading an answer.
    #expect(MonotonicInstant.now - begin >= .seconds(2))
    #expect(count < Self.size)
    count += Self.read(steady, atMost: 1 << 18) { server.events.all.contains { $0.kind == .downloaded } }
    server.server.waitUntilEnded()
    #expect(MonotonicInstant.now - begin < .seconds(6))
    count += Self.read(steady, atMost: 1 << 18)
    #expect(count > Self.size)
    withExtendedLifetime(stalled) {}
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
