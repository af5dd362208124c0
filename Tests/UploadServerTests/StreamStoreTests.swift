import CLinux
import Glibc
import NetworkTesting
import Testing
import UploadServer

@Suite("Stored streams", .serialized)
struct StreamStoreTests {
  @Test("a stream is a growing .part until it ends, then a file with its own name, and both are reported")
  func lifeOfAStream() throws {
    let test = try TestServer()
    let client = try test.connect()
    try client.send(TestServer.head("/rooms/kitchen.wav", id: "k1", type: "audio/wav"))
    let begun = try test.events.wait(.begun)
    #expect(begun.stream == "k1" && begun.file == "kitchen-k1.part" && begun.offset == 0)
    try client.sendChunk("RIFF")
    #expect(test.directory.names == ["kitchen-k1.part"])
    try client.sendChunk("data")
    try client.send("0\r\n\r\n")
    let answer = try client.answer()
    #expect(answer.status == 201)
    #expect(answer["stream-id"] == "k1" && answer["stream-offset"] == "8" && answer["stream-missing"] == "0")
    #expect(answer.body == "{\"event\":\"stored\",\"name\":\"kitchen-k1.wav\",\"bytes\":8,\"missing\":0}\n")
    #expect(test.directory.names == ["kitchen-k1.wav"])
    #expect(try test.directory.text("kitchen-k1.wav") == "RIFFdata")
    let ended = try test.events.wait(.ended)
    #expect(ended.file == "kitchen-k1.wav" && ended.bytes == 8 && ended.missing == 0)
  }

  @Test("each byte is in the file as soon as it arrives, before the stream ends")
  func storedAsItComes() throws {
    let test = try TestServer()
    let client = try test.connect()
    try client.send(TestServer.head() + "3\r\nabc\r\n")
    client.disconnect()
    let interrupted = try test.events.wait(.interrupted)
    #expect(interrupted.offset == 3 && interrupted.bytes == 3)
    #expect(try test.directory.text("t-a.part") == "abc")
  }

  @Test("a stream without Stream-ID receives its own")
  func madeUpID() throws {
    let test = try TestServer()
    let client = try test.connect()
    var ids: Set<String> = []
    for _ in 0..<3 {
      try client.send(TestServer.head(id: nil, framing: "Content-Length: 1") + "x")
      let id = try #require(try client.answer()["stream-id"])
      #expect(id.utf8.count == 32)
      ids.insert(id)
    }
    #expect(ids.count == 3)
  }

  @Test("a request that continues an interrupted stream is joined, even by a restarted server")
  func continuedAfterRestart() throws {
    let directory = TemporaryDirectory()
    do {
      let first = try TestServer(in: directory)
      let client = try first.connect()
      try client.send(TestServer.head() + "5\r\nhello\r\n")
      client.reset()
      #expect(try first.events.wait(.interrupted).offset == 5)
      first.stop()
    }
    let second = try TestServer(in: directory)
    let client = try second.connect()
    try client.send(TestServer.head(offset: 5) + "6\r\n world\r\n0\r\n\r\n")
    let answer = try client.answer()
    #expect(answer.status == 200 && answer["stream-offset"] == "11")
    #expect(try second.events.wait(.continued).offset == 5)
    #expect(try directory.text("t-a.txt") == "hello world")
  }

  @Test("repeated bytes are compared and not stored twice")
  func overlapVerified() throws {
    let test = try TestServer()
    try interrupted(test, "hello")
    let client = try test.connect()
    try client.send(TestServer.head(offset: 2) + "2\r\nll\r\n4\r\no wo\r\n3\r\nrld\r\n0\r\n\r\n")
    #expect(try client.answer()["stream-offset"] == "11")
    #expect(try test.directory.text("t-a.txt") == "hello world")
  }

  @Test("bytes that differ from the stored ones are refused, and the file is not changed")
  func overlapDiffers() throws {
    let test = try TestServer()
    try interrupted(test, "hello")
    let client = try test.connect()
    try client.send(TestServer.head(offset: 2) + "9\r\nlL world!\r\n0\r\n\r\n")
    let answer = try client.answer()
    #expect(answer.status == 409 && answer["stream-offset"] == "5")
    #expect(try test.events.wait(.refused).status == 409)
    #expect(try test.directory.text("t-a.part") == "hello")
  }

  @Test("a request that begins later leaves a hole of zeros, which is recorded and counted, even after a restart")
  func hole() throws {
    let directory = TemporaryDirectory()
    do {
      let first = try TestServer(in: directory)
      try interrupted(first, "hello")
      let client = try first.connect()
      try client.send(TestServer.head(offset: 8) + "3\r\nxyz\r\n")
      #expect(try first.events.wait(.continued).missing == 3)
      client.disconnect()
      #expect(try first.events.wait(.interrupted, count: 2).offset == 11)
      #expect(try directory.text("t-a.gaps") == "{\"offset\":5,\"length\":3,\"cause\":\"not-received\"}\n")
      first.stop()
    }
    let second = try TestServer(in: directory)
    let client = try second.connect()
    try client.send(TestServer.head(offset: 12) + "1\r\n!\r\n0\r\n\r\n")
    let answer = try client.answer()
    #expect(answer["stream-offset"] == "13" && answer["stream-missing"] == "4")
    #expect(try directory.contents("t-a.txt") == Array("hello\0\0\0xyz\0!".utf8))
    #expect(directory.names == ["t-a.gaps", "t-a.txt"])
  }

  @Test("a stream without its beginning begins with a hole")
  func beganLate() throws {
    let test = try TestServer()
    let client = try test.connect()
    try client.send(TestServer.head(offset: 4) + "1\r\nx\r\n0\r\n\r\n")
    #expect(try client.answer()["stream-missing"] == "4")
    #expect(try test.directory.text("t-a.gaps") == "{\"offset\":0,\"length\":4,\"cause\":\"began-late\"}\n")
  }

  @Test("a hole beyond the limit is refused")
  func holeTooLarge() throws {
    let test = try TestServer { $0.maximumHoleLength = 100 }
    try interrupted(test, "hello")
    for offset in ["106", "18446744073709551615"] {
      let client = try test.connect()
      try client.send(TestServer.head(more: "Stream-Offset: \(offset)\r\n"))
      let answer = try client.answer()
      #expect(answer.status == 409 && answer["stream-offset"] == "5")
    }
    #expect(try test.directory.text("t-a.part") == "hello")
  }

  @Test("a complete stream repeats a lost response, and accepts no new bytes")
  func complete() throws {
    let test = try TestServer()
    let client = try test.connect()
    try client.send(TestServer.head() + "5\r\nhello\r\n0\r\n\r\n")
    #expect(try client.answer().status == 201)
    try client.send(TestServer.head(offset: 5) + "0\r\n\r\n")
    let again = try client.answer()
    #expect(again.status == 200 && again["stream-offset"] == "5")
    try client.send(TestServer.head(offset: 3) + "2\r\nlo\r\n0\r\n\r\n")
    #expect(try client.answer().status == 200)
    for (offset, body) in [(3, "2\r\nLO\r\n"), (5, "1\r\n!\r\n"), (4, "2\r\no!\r\n"), (6, "1\r\n!\r\n")] {
      let other = try test.connect()
      try other.send(TestServer.head(offset: offset) + body + "0\r\n\r\n")
      let answer = try other.answer()
      #expect(answer.status == 409 && answer["stream-offset"] == "5", "\(offset) \(body)")
    }
    #expect(try test.directory.text("t-a.txt") == "hello")
    #expect(test.directory.names == ["t-a.txt"])
  }

  @Test("a newer request takes over after all bytes that TCP acknowledged to the older one are stored")
  func takeOver() throws {
    let gate = eventfd(0, Int32(EFD_CLOEXEC))
    defer { close(gate) }
    let test = try TestServer { configuration in
      let log = configuration.onEvent
      configuration.onEvent = { event in
        log(event)
        // Holds the server's thread, so that both clients' bytes wait in the kernel.
        if event.stream == "gate" && event.kind == .begun {
          var value: eventfd_t = 0
          eventfd_read(gate, &value)
        }
      }
    }
    // Must also run if an expectation fails: the server cannot end while its thread is blocked.
    defer { eventfd_write(gate, 1) }
    let older = try test.connect()
    try older.send(TestServer.head() + "3\r\nabc\r\n")
    _ = try test.events.wait(.begun)
    let newer = try test.connect()
    try newer.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    #expect(try newer.answer().status == 200)

    let keeper = try test.connect()
    try keeper.send(TestServer.head(id: "gate"))
    _ = try test.events.wait(.begun, count: 2)
    // The newer request is first in the queue. Without draining, the older one's bytes would come too late.
    try newer.send(TestServer.head(offset: 40_003) + "1\r\n!\r\n0\r\n\r\n")
    let block = (0..<40_000).map { UInt8(truncatingIfNeeded: $0 &* 7) }
    try older.sendChunk(block)
    while older.unacknowledged > 0 { sched_yield() }
    eventfd_write(gate, 1)

    let answer = try newer.answer()
    #expect(answer["stream-offset"] == "40004" && answer["stream-missing"] == "0")
    #expect(try test.directory.contents("t-a.txt") == Array("abc".utf8) + block + [33])
    let interrupted = try test.events.wait(.interrupted)
    #expect(interrupted.offset == 40_003 && interrupted.reason == "a newer request continues the stream")
    #expect(older.isClosedByServer())
  }

  @Test("a newer request after the arrival of the older one's end finds the stream complete")
  func takeOverOfTheEnd() throws {
    let test = try TestServer()
    for round in 0..<20 {
      let older = try test.connect()
      let newer = try test.connect()
      let id = "r\(round)"
      try older.send(TestServer.head(id: id) + "3\r\nabc\r\n")
      _ = try test.events.wait(.begun, count: round + 1)
      try newer.send(TestServer.head(id: id, offset: 3) + "0\r\n\r\n")
      // The first of the two to be served completes the stream. The other gets the same answer or a closed connection.
      try? older.send("0\r\n\r\n")
      #expect(try newer.answer()["stream-offset"] == "3")
      #expect(try test.directory.text("t-\(id).txt") == "abc")
    }
  }

  @Test(
    "malformed Stream fields are refused",
    arguments: [
      "Stream-ID: .a", "Stream-ID: a/b", "Stream-ID:", "Stream-ID: a b", "Stream-ID: \u{e4}",
      "Stream-ID: a\r\nStream-ID: a", "Stream-ID: a\r\nStream-Offset: -1", "Stream-ID: a\r\nStream-Offset: x",
      "Stream-ID: a\r\nStream-Offset: 18446744073709551616", "Stream-Offset: 5",
      "Stream-ID: \(String(repeating: "a", count: 65))",
    ])
  func malformedFields(_ fields: String) throws {
    let test = try TestServer()
    let client = try test.connect()
    try client.send(TestServer.head(id: nil, more: fields + "\r\n") + "0\r\n\r\n")
    #expect(try client.answer().status == 400)
    #expect(test.directory.names == [])
  }

  @Test("a stream without framing receives a request for its length")
  func noLength() throws {
    let test = try TestServer()
    let client = try test.connect()
    try client.send("POST /a HTTP/1.1\r\nHost: h\r\n\r\n")
    #expect(try client.answer().status == 411)
  }

  @Test(
    "no path leads outside the directory",
    arguments: [
      ("/../../etc/passwd", "passwd-a.bin"), ("/%2e%2e%2f%2e%2e%2fetc%2fx", "x-a.bin"), ("//", "stream-a.bin"),
      ("/..", "stream-a.bin"), ("/.", "stream-a.bin"), ("/%2e%2e", "stream-a.bin"), ("/a/%2e", "stream-a.bin"),
      ("/.hidden", "hidden-a.bin"), ("/a%5c..%5cb", "a_.._b-a.bin"), ("/%c3%bcbung.flac", "_bung-a.flac"),
      ("/a%0d%0ab", "a_b-a.bin"), ("/x.part", "x-a.bin"), ("/x.gaps", "x-a.bin"), ("/x.tar.gz", "x.tar-a.gz"),
      ("/" + String(repeating: "n", count: 4000), String(repeating: "n", count: 100) + "-a.bin"),
      ("/?../../x", "stream-a.bin"), ("/-rf", "rf-a.bin"), ("/--", "stream-a.bin"), ("/.-.-x", "x-a.bin"),
      ("/%2dx", "x-a.bin"), ("/-.wav", "wav-a.bin"),
    ])
  func paths(_ path: String, _ name: String) throws {
    let test = try TestServer()
    let client = try test.connect()
    try client.send(TestServer.head(path, type: "application/octet-stream", framing: "Content-Length: 1") + "x")
    #expect(try client.answer().status == 201)
    #expect(test.directory.names == [name])
  }

  @Test("a symbolic link or a FIFO in place of a stream's file is not followed")
  func links() throws {
    let test = try TestServer()
    let outside = TemporaryDirectory()
    symlink(outside.path + "/target", test.directory.path + "/t-a.part")
    mkfifo(test.directory.path + "/t-b.part", 0o600)
    for id in ["a", "b"] {
      let client = try test.connect()
      try client.send(TestServer.head(id: id, framing: "Content-Length: 1") + "x")
      #expect(try client.answer().status == 500)
    }
    #expect(outside.names == [])
  }

  /// Leaves a `.part` file of the stream `a` with these bytes.
  private func interrupted(_ test: TestServer, _ text: String) throws {
    let client = try test.connect()
    try client.send(TestServer.head())
    try client.sendChunk(text)
    client.disconnect()
    _ = try test.events.wait(.interrupted)
  }
}
