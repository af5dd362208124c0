// Tests uploads that end before the bytes that others have stored of their stream.

import NetworkTesting
import PropertyTesting
import Testing
import UploadServer

@Suite("An upload that ends inside its stream")
struct InsideStreamTests {
  private static let bytes = Array("0123456789".utf8)

  /// A stream of 10 bytes that nobody has completed.
  private func begin(_ test: TestServer, isPlain: Bool) throws {
    if isPlain {
      try test.plain(id: "a", Self.bytes)
    } else {
      try test.append(try test.create("/t.txt", ["Stream-ID: a"]), at: 0, Self.bytes)
    }
  }

  private func complete(_ test: TestServer, _ location: String, at offset: Int) throws -> RawClient.Answer {
    let client = try test.connect()
    try client.patch(location, at: offset, completes: true, body: "")
    return try client.final().answer
  }

  @Test(
    "a live one is complete, no byte of the stream is lost, and the stream continues", arguments: Durability.allCases,
    [false, true])
  func live(_ durability: Durability, _ isPlain: Bool) throws {
    for restarts in [false, true] {
      for range in [0..<0, 0..<4, 3..<3, 3..<9, 9..<9] {
        let directory = TemporaryDirectory()
        func server() throws -> TestServer {
          try TestServer(in: directory) {
            $0.durability = durability
            $0.uploads.parkDelay = .milliseconds(1)
          }
        }
        var test = try server()
        try begin(test, isPlain: isPlain)
        let location = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: \(range.lowerBound)"])
        try test.append(location, at: 0, Array(Self.bytes[range]))
        if restarts {
          test.stop()
          test = try server()
        }
        let count = range.count
        let answer = try complete(test, location, at: count)
        #expect(answer.status == 200 && answer["stream-offset"] == "10", "\(range): \(answer)")
        #expect(answer["upload-offset"] ?? "\(count)" == "\(count)" && answer["upload-complete"] != "?0", "\(answer)")
        try waitUntil("the event") { test.events.all.contains { $0.reason?.contains("stays open") == true } }
        if restarts {
          test.stop()
          test = try server()
        }
        let told = try test.connect().head(location)
        #expect(told["upload-complete"] == "?1" && told["upload-offset"] == "\(count)", "\(range): \(told)")
        // The answer is the same if the client asks for it again.
        #expect(try complete(test, location, at: count).status == 200)
        #expect(try directory.text("t-a.part") == "0123456789" && !directory.exists("t-a.txt"))
        let next = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: 10"])
        try test.append(next, at: 0, Array("abc".utf8))
        #expect((200...201).contains(try complete(test, next, at: 3).status))
        #expect(try directory.text("t-a.txt") == "0123456789abc")
      }
    }
  }

  @Test("its recording is closed with every byte if nobody continues the stream", arguments: [false, true])
  func closed(isPlain: Bool) throws {
    let test = try TestServer { $0.finishAfter = .milliseconds(300) }
    try begin(test, isPlain: isPlain)
    let location = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: 2"])
    try test.append(location, at: 0, Array(Self.bytes[2..<5]))
    let status = try complete(test, location, at: 3).status
    // The silence may have closed it before, and the upload with it.
    #expect(status == 200 || status == 410)
    #expect(try test.events.wait(.closed).bytes == 10)
    #expect(try test.directory.text("t-a.txt") == "0123456789")
  }

  @Test("one of an announced length is refused: the stored file is not its content", arguments: [false, true])
  func announced(isPlain: Bool) throws {
    let test = try TestServer()
    try begin(test, isPlain: isPlain)
    let location = try test.create("/t.txt", ["Stream-ID: a", "Upload-Length: 4"])
    let client = try test.connect()
    try client.patch(location, at: 0, completes: true, body: "0123")
    #expect(try client.final().answer.status == 410)
    #expect(try test.connect().head(location).status == 410)
    #expect(try test.directory.text("t-a.part") == "0123456789")
  }
}
