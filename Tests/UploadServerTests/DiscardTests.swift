// Tests that a server which keeps nothing behaves towards its clients like one that keeps everything.

import Glibc
import NetworkTesting
import Testing
import UploadServer

@Suite("A server that discards")
struct DiscardTests {
  private func server(_ change: (inout UploadServer.Configuration) -> Void = { _ in }) throws -> TestServer {
    try TestServer {
      $0.storage = .discarding
      change(&$0)
    }
  }

  @Test("an upload whose digest cannot be computed, because others have sent some of its bytes, is complete without it")
  func unknownDigest() throws {
    let test = try server()
    let digest = "Repr-Digest: sha-256=:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=:"
    let one = try test.create("/t.txt", ["Stream-ID: a", digest])
    try test.append(one, at: 0, "a")
    let two = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: 1"])
    try test.append(two, at: 0, "b")
    let client = try test.connect()
    #expect(try client.head(one)["upload-offset"] == "2")
    try client.patch(one, at: 2, completes: true, body: "c")
    let answer = try client.final().answer
    #expect((200...201).contains(answer.status) && answer["repr-digest"] == nil, "\(answer)")
    let warning = try test.events.wait(.warning)
    #expect(warning.reason?.contains("Repr-Digest") == true, "\(warning)")
  }

  @Test("a stream is acknowledged like a stored one, and leaves no file")
  func plain() throws {
    let test = try server()
    let client = try test.connect()
    try client.send(TestServer.head(id: "a"))
    try client.sendChunk("hello")
    try client.send("0\r\n\r\n")
    let answer = try client.answer()
    #expect(answer.status == 201 && answer["stream-offset"] == "5" && answer["stream-missing"] == "0")
    #expect(answer.body == "{\"event\":\"discarded\",\"bytes\":5,\"missing\":0}\n")
    #expect(test.directory.names.isEmpty)
    #expect(try test.events.wait(.ended).bytes == 5)
  }

  @Test("an interrupted stream continues at its offset, and skipped bytes are reported as missing")
  func resumed() throws {
    let test = try server()
    let first = try test.connect()
    try first.send(TestServer.head(id: "a"))
    try first.sendChunk("hello")
    try waitUntil("all has arrived") { first.unacknowledged == 0 }
    first.disconnect()
    #expect(try test.events.wait(.interrupted).offset == 5)
    let second = try test.connect()
    try second.send(TestServer.head(id: "a", offset: 3))
    try second.sendChunk("lo!")
    try second.send("0\r\n\r\n")
    #expect(try second.answer()["stream-offset"] == "6")
    let third = try test.connect()
    try third.send(TestServer.head(id: "b", offset: 10))
    try third.sendChunk("x")
    try third.send("0\r\n\r\n")
    let answer = try third.answer()
    #expect(answer["stream-offset"] == "11" && answer["stream-missing"] == "10")
  }

  @Test("an upload is created, queried, interrupted, resumed and completed with progress, as with stored files")
  func resumable() throws {
    let test = try server()
    let location = try test.create()
    let first = try test.connect()
    try first.patch(location, at: 0, chunked: true)
    try first.sendChunk("abc")
    try first.awaitProgress(3)
    first.reset()
    let second = try test.connect()
    #expect(try second.head(location)["upload-offset"] == "3")
    try second.patch(location, at: 3, body: "def")
    #expect(try second.final().answer["upload-offset"] == "6")
    try second.patch(location, at: 5, body: "x")
    #expect(try second.final().answer.status == 409)
    let third = try test.connect()
    try third.patch(location, at: 6, completes: true, body: "g")
    let answer = try third.final().answer
    #expect(answer.status == 201 && answer["upload-offset"] == "7" && answer["upload-complete"] == "?1")
    // A client that missed the answer asks for it.
    #expect(try third.head(location)["upload-complete"] == "?1")
    #expect(test.directory.names.isEmpty)
  }

  @Test("memory is bounded: finished uploads are forgotten, and the number of unfinished ones is limited")
  func bounded() throws {
    let test = try server { $0.uploads.maximumCount = 20 }
    let client = try test.connect()
    var locations: [String] = []
    for _ in 0..<1_010 {
      try client.request("POST", "/t", ["Upload-Complete: ?1"], body: "abc")
      let (answer, interim) = try client.final()
      #expect(answer.status == 201)
      locations.append(try #require(interim.first?["location"]))
    }
    #expect(try client.head(locations[0]).status == 404, "the oldest is forgotten")
    #expect(try client.head(locations[1_009])["upload-complete"] == "?1", "the newest is not")
    for _ in 0..<20 { _ = try test.create() }
    try client.request("POST", "/t", ["Upload-Complete: ?0"], body: "")
    #expect(try client.final().answer.status == 503)
  }

  @Test("idle streams are forgotten when others need the space, and running ones never")
  func streamsBounded() throws {
    let test = try server { $0.uploads.maximumCount = 8 }
    let staying = try test.connect()
    try staying.send(TestServer.head(id: "staying"))
    try staying.sendChunk("abc")
    _ = try test.events.wait(.begun)
    for number in 0..<30 {
      let client = try test.connect()
      try client.send(TestServer.head(id: "left-\(number)"))
      try client.sendChunk("abc")
      try waitUntil("all has arrived") { client.unacknowledged == 0 }
      client.disconnect()
      _ = try test.events.wait(.interrupted, count: number + 1)
    }
    let again = try test.connect()
    try again.send(TestServer.head(id: "left-0", offset: 3))
    try again.send("0\r\n\r\n")
    #expect(try again.answer()["stream-missing"] == "3", "it is not known any more")
    try staying.send("0\r\n\r\n")
    #expect(try staying.answer()["stream-offset"] == "3")
  }
}
