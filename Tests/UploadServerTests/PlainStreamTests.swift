// Plain streams, which a client without the protocol of resumable uploads continues by `Stream-ID` and `Stream-Offset`:
// the same claims for each storage.

import Digests
import NetworkTesting
import Testing
import UploadServer

@Suite("Plain streams that are continued")
struct PlainStreamTests {
  /// Has a server store these bytes of the stream `a`, in a request that breaks off.
  private static func interrupted(
    _ server: TestServer, offset: Int? = nil, with lines: [String] = [], _ text: String
  ) throws {
    let count = server.events.all.count { $0.kind == .interrupted }
    let client = try RawClient.plain(server, offset: offset, with: lines)
    try client.sendChunk(text)
    client.disconnect()
    _ = try server.events.wait(.interrupted, count: count + 1)
  }

  private static func digest(_ text: String) -> String {
    "sha-256=:\(Digest(.sha256, of: Array(text.utf8).span.bytes).base64):"
  }

  @Test("the next server continues a stream, and the one after that completes it", arguments: Bed.all)
  func continued(_ storage: Bed.Storage) throws {
    let bed = try Bed(storage)
    let first = try bed.server()
    try Self.interrupted(first, "hello")
    #expect(try first.events.wait(.begun).offset == 0)
    let second = try bed.server()
    try Self.interrupted(second, offset: 5, " wor")
    #expect(try second.events.wait(.continued).offset == 5)
    #expect(try bed.stored("a") == "hello wor")
    let third = try bed.server()
    let answer = try RawClient.sendPlain(third, offset: 9, "ld")
    #expect(answer.status == 200 && answer["stream-id"] == "a")
    #expect(answer["stream-offset"] == "11" && answer["stream-missing"] == "0")
    let ended = try third.events.wait(.ended)
    #expect(ended.bytes == 11 && ended.missing == 0)
    #expect(try bed.stored("a") == "hello world")
  }

  @Test("a stream in one request is new, and its response is 201", arguments: Bed.all)
  func oneRequest(_ storage: Bed.Storage) throws {
    let bed = try Bed(storage)
    let server = try bed.server()
    for id in ["a", nil] {
      let answer = try RawClient.sendPlain(server, id: id, "hello")
      #expect(answer.status == 201 && answer["stream-offset"] == "5" && answer["stream-missing"] == "0")
      #expect(answer["stream-id"] == id || id == nil && answer["stream-id"]?.utf8.count == 32)
    }
    #expect(try bed.stored("a") == "hello")
  }

  @Test("repeated bytes are compared and not stored twice", arguments: Bed.all)
  func repeated(_ storage: Bed.Storage) throws {
    let bed = try Bed(storage)
    try Self.interrupted(try bed.server(), "he")
    try Self.interrupted(try bed.server(), offset: 2, "llo wor")
    let server = try bed.server()
    let client = try server.connect()
    try client.send(TestServer.head(offset: 1) + "2\r\nel\r\n4\r\nlo w\r\n4\r\norld\r\n0\r\n\r\n")
    #expect(try client.answer()["stream-offset"] == "11")
    #expect(try bed.stored("a") == "hello world")
  }

  @Test("a stream is complete although its last request ends within the stored bytes", arguments: Bed.all)
  func inside(_ storage: Bed.Storage) throws {
    let bed = try Bed(storage)
    try Self.interrupted(try bed.server(), "hello world")
    let answer = try RawClient.sendPlain(try bed.server(), offset: 2, "llo")
    #expect(answer.status == 200 && answer["stream-offset"] == "11")
    #expect(try bed.stored("a") == "hello world")
  }

  @Test("bytes that differ from the stored ones are refused, and nothing changes", arguments: Bed.all)
  func different(_ storage: Bed.Storage) throws {
    let bed = try Bed(storage)
    try Self.interrupted(try bed.server(), "hello")
    let server = try bed.server()
    let answer = try RawClient.sendPlain(server, offset: 2, "lL world!")
    #expect(answer.status == 409 && answer["stream-offset"] == "5")
    #expect(try server.events.wait(.refused).status == 409)
    #expect(try bed.stored("a") == "hello")
    #expect(try RawClient.sendPlain(server, offset: 5, " world").status == 200)
    #expect(try bed.stored("a") == "hello world")
  }

  @Test("a request that begins later leaves a hole of zeros, which is counted", arguments: Bed.all)
  func hole(_ storage: Bed.Storage) throws {
    let bed = try Bed(storage)
    try Self.interrupted(try bed.server(), "hello")
    try Self.interrupted(try bed.server(), offset: 8, "xyz")
    #expect(try bed.stored("a") == "hello\0\0\0xyz")
    // Zeros are what the hole reads as.
    let third = try bed.server()
    #expect(try RawClient.sendPlain(third, offset: 6, "\0!").status == 409)
    let answer = try RawClient.sendPlain(third, offset: 4, "o\0\0\0xyz!")
    #expect(answer.status == 200 && answer["stream-offset"] == "12" && answer["stream-missing"] == "3")
    #expect(try bed.stored("a") == "hello\0\0\0xyz!")
    #expect(try third.events.wait(.ended).missing == 3)
  }

  @Test("a stream without its beginning begins with a hole", arguments: Bed.all)
  func beganLate(_ storage: Bed.Storage) throws {
    let bed = try Bed(storage)
    let client = try RawClient.plain(try bed.server(), offset: 4)
    try client.send("1\r\nx\r\n0\r\n\r\n")
    let answer = try client.answer()
    #expect(answer.status == 201 && answer["stream-offset"] == "5" && answer["stream-missing"] == "4")
    #expect(try bed.stored("a") == "\0\0\0\0x")
  }

  @Test("a hole beyond the limit is refused", arguments: Bed.all)
  func largeHole(_ storage: Bed.Storage) throws {
    let bed = try Bed(storage)
    let server = try bed.server { $0.maximumHoleLength = 100 }
    try Self.interrupted(server, "hello")
    for offset in ["106", "1000000000000000", "18446744073709551615"] {
      let answer = try RawClient.sendPlain(server, with: ["Stream-Offset: \(offset)"], "x")
      #expect(answer.status == 409 && answer["stream-offset"] == "5", "\(offset)")
    }
    #expect(try bed.stored("a") == "hello")
  }

  @Test("a complete stream repeats a lost response, and accepts no new bytes", arguments: Bed.all)
  func complete(_ storage: Bed.Storage) throws {
    let bed = try Bed(storage)
    #expect(try RawClient.sendPlain(try bed.server(), "hello").status == 201)
    let server = try bed.server()
    for (offset, body) in [(0, "hello"), (0, "hel"), (3, "lo"), (5, "")] {
      let answer = try RawClient.sendPlain(server, offset: offset, body)
      #expect(answer.status == 200 && answer["stream-offset"] == "5", "\(offset) \(body)")
    }
    for (offset, body) in [(0, "HELLO"), (3, "LO"), (5, "!"), (4, "o!"), (6, "!"), (0, "hello!")] {
      let answer = try RawClient.sendPlain(server, offset: offset, body)
      #expect(answer.status == 409 && answer["stream-offset"] == "5", "\(offset) \(body)")
    }
    #expect(try bed.stored("a") == "hello")
  }

  @Test(
    "a newer request takes over from one that hangs, and the older one is disconnected, even if it sends nothing more",
    arguments: Bed.all, [true, false])
  func takeOver(_ storage: Bed.Storage, sendsMore: Bool) throws {
    let bed = try Bed(storage)
    let first = try bed.server()
    // A directory has one server.
    let second = storage == .log ? try bed.server() : first
    let older = try RawClient.plain(first)
    try older.sendChunk("hello")
    try waitUntil("the bytes are stored") { try bed.stored("a") == "hello" }
    let newer = try RawClient.plain(second, offset: 5)
    // Whatever of it is stored, it is not behind what the newer one stores.
    if sendsMore { try? older.sendChunk("older") }
    #expect(older.isClosedByServer())
    try newer.send("6\r\n newer\r\n0\r\n\r\n")
    #expect(try newer.answer()["stream-offset"] == "11")
    #expect(try bed.stored("a") == "hello newer")
  }

  @Test("a stream belongs to the token that began it", arguments: Bed.all)
  func owner(_ storage: Bed.Storage) throws {
    let bed = try Bed(storage)
    let tokens = try Tokens()
    let server = try bed.server { $0.tokenFile = tokens.path }
    try Self.interrupted(server, with: ["Authorization: Bearer alice"], "hello")
    let next = try bed.server { $0.tokenFile = tokens.path }
    for (name, status) in [("bob", 403), ("eve", 401), ("alice", 200), ("bob", 403)] {
      let answer = try RawClient.sendPlain(next, offset: 5, with: ["Authorization: Bearer \(name)"], "!")
      #expect(answer.status == status, "\(name)")
      #expect(status == 200 || answer["stream-offset"] == nil, "\(name)")
    }
    #expect(try bed.stored("a") == "hello!")
  }

  @Test("content that does not match its digest is not stored", arguments: Bed.all)
  func digests(_ storage: Bed.Storage) throws {
    let bed = try Bed(storage)
    let server = try bed.server()
    for field in ["Content-Digest", "Repr-Digest"] {
      let answer = try RawClient.sendPlain(server, with: ["\(field): \(Self.digest("hello"))"], "hallo")
      #expect(answer.status == 400)
      #expect(try bed.stored("a") == "")
    }
    try Self.interrupted(server, "hel")
    let next = try bed.server()
    // It covers what is repeated.
    let field = "Content-Digest: \(Self.digest("llo"))"
    #expect(try RawClient.sendPlain(next, offset: 2, with: [field], "lloo").status == 400)
    #expect(try bed.stored("a") == "hel")
    let answer = try RawClient.sendPlain(next, offset: 2, with: [field], "llo")
    #expect(answer.status == 200 && answer["stream-offset"] == "5")
    #expect(try bed.stored("a") == "hello")
  }

  @Test("a stream is not longer than the server accepts, holes included", arguments: Bed.all)
  func limit(_ storage: Bed.Storage) throws {
    let bed = try Bed(storage)
    let server = try bed.server { $0.uploads.maximumSize = 10 }
    try Self.interrupted(server, "hello")
    #expect(try RawClient.sendPlain(server, offset: 5, "123456").status == 413)
    let client = try RawClient.plain(server, offset: 8)
    try client.sendChunk("123")
    let answer = try client.answer()
    #expect(answer.status == 413 && answer["stream-offset"] == "10")
    #expect(try bed.stored("a") == "hello\0\0\012")
  }

  @Test("a server that stops reports its offset, and the next one continues there", arguments: Bed.all)
  func stops(_ storage: Bed.Storage) throws {
    let bed = try Bed(storage)
    let server = try bed.server()
    let client = try RawClient.plain(server)
    try client.sendChunk("hello")
    try waitUntil("the bytes are stored") { try bed.stored("a") == "hello" }
    server.server.drain(within: .seconds(20))
    let answer = try client.answer()
    #expect(answer.status == 503 && answer["stream-offset"] == "5")
    server.server.waitUntilEnded()
    #expect(try RawClient.sendPlain(try bed.server(), offset: 5, "!").status == 200)
  }

  @Test(
    "malformed fields are refused, and so is a request without a length", arguments: Bed.all,
    ["Stream-ID: .a", "Stream-ID: a\r\nStream-ID: a", "Stream-ID: a\r\nStream-Offset: -1", "Stream-Offset: 5"])
  func malformed(_ storage: Bed.Storage, _ fields: String) throws {
    let server = try Bed(storage).server()
    let client = try server.connect()
    try client.send(TestServer.head(id: nil, more: fields + "\r\n") + "0\r\n\r\n")
    #expect(try client.answer().status == 400)
    let other = try server.connect()
    try other.send("POST /a HTTP/1.1\r\nHost: h\r\n\r\n")
    #expect(try other.answer().status == 411)
  }
}

/// A file with the tokens "alice" and "bob".
final class Tokens {
  private let directory = TemporaryDirectory()
  var path: String { directory.path + "/tokens" }

  init() throws {
    // Their SHA-256.
    try directory.write(
      "tokens",
      Array(
        """
        2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90 alice
        81b637d8fcd2c6da6359e6963113a1170de795e4b725b84d1e0b4cfd9ec58ce9 bob

        """.utf8))
  }
}
