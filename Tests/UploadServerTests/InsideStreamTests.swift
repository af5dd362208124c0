// Tests uploads that end before the bytes that others have stored of their stream.

import NetworkTesting
import PropertyTesting
import Testing
import UploadServer

@Suite("An upload that ends inside its stream")
struct InsideStreamTests {
  private static let bytes = Array("0123456789".utf8)

  @Test(
    "a live one is complete, no byte of the stream is lost, and the stream continues", arguments: Durability.allCases,
    [BegunStream.plain, .upload, .closed])
  func live(_ durability: Durability, _ begun: BegunStream) throws {
    for restarts in [false, true] {
      for range in [0..<0, 0..<4, 3..<3, 3..<9, 9..<9] {
        let directory = TemporaryDirectory()
        func server() throws -> TestServer { try BegunStream.server(directory, durability) }
        let isClosed = begun == .closed
        var test = try BegunStream.server(
          directory, durability, finishAfter: isClosed ? .milliseconds(100) : .seconds(3600))
        try begun.begin(test, Self.bytes)
        if isClosed {
          test.stop()
          test = try server()
        }
        let location = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: \(range.lowerBound)"])
        try test.append(location, at: 0, Array(Self.bytes[range]))
        if restarts {
          test.stop()
          test = try server()
        }
        let count = range.count
        let answer = try test.complete(location, at: count)
        #expect(answer.status == 200 && answer["stream-offset"] == "10", "\(range): \(answer)")
        #expect(answer["upload-offset"] ?? "\(count)" == "\(count)" && answer["upload-complete"] != "?0", "\(answer)")
        try waitUntil("the event") { test.events.all.contains { $0.reason?.contains("stays open") == true } }
        if isClosed {
          // The part that repeats bytes of the closed recording does not stay open.
          try waitUntil("the part is closed") { !directory.names.contains { $0.hasSuffix(".part") } }
        }
        if restarts {
          test.stop()
          test = try server()
        }
        let told = try test.connect().head(location)
        #expect(told["upload-complete"] == "?1" && told["upload-offset"] == "\(count)", "\(range): \(told)")
        // The answer is the same if the client asks for it again.
        #expect(try test.complete(location, at: count).status == 200)
        if isClosed {
          #expect(try directory.text("t-a.txt") == "0123456789", "\(range)")
          #expect(directory.exists("t-a~2.txt") == !range.isEmpty, "\(range): \(directory.names)")
          if !range.isEmpty { #expect(try directory.contents("t-a~2.txt") == Array(Self.bytes[range])) }
        } else {
          #expect(try directory.text("t-a.part") == "0123456789" && !directory.exists("t-a.txt"))
        }
        let next = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: 10"])
        try test.append(next, at: 0, Array("abc".utf8))
        let last = try test.complete(next, at: 3)
        #expect((200...201).contains(last.status))
        #expect(last["stream-offset"] == "13" && last["stream-missing"] == "0", "\(range): \(last)")
        if isClosed {
          #expect(try directory.text(range.isEmpty ? "t-a~2.txt" : "t-a~3.txt") == "abc", "\(range)")
        } else {
          #expect(try directory.text("t-a.txt") == "0123456789abc")
        }
      }
    }
  }

  @Test(
    "its recording is closed with every byte if nobody continues the stream", arguments: [BegunStream.plain, .upload])
  func closed(_ begun: BegunStream) throws {
    let test = try TestServer { $0.finishAfter = .milliseconds(300) }
    try begun.begin(test, Self.bytes)
    let location = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: 2"])
    try test.append(location, at: 0, Array(Self.bytes[2..<5]))
    let status = try test.complete(location, at: 3).status
    // The silence may have closed it before, and the upload with it.
    #expect(status == 200 || status == 410)
    #expect(try test.events.wait(.closed).bytes == 10)
    #expect(try test.directory.text("t-a.txt") == "0123456789")
  }

  @Test(
    "one of an announced length is refused: the stored file is not its content",
    arguments: [BegunStream.plain, .upload])
  func announced(_ begun: BegunStream) throws {
    let test = try TestServer()
    try begun.begin(test, Self.bytes)
    let location = try test.create("/t.txt", ["Stream-ID: a", "Upload-Length: 4"])
    let client = try test.connect()
    try client.patch(location, at: 0, completes: true, body: "0123")
    #expect(try client.final().answer.status == 410)
    #expect(try test.connect().head(location).status == 410)
    #expect(try test.directory.text("t-a.part") == "0123456789")
  }
}
