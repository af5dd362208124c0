// Tests a server with several loops: the loop of the stream or upload serves each request, whatever its connection.

import Glibc
import Metrics
import NetworkTesting
import PropertyTesting
import Testing

@testable import DiskFiles
@testable import ResumableServing
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

@Suite("Several threads")
struct ThreadsTests {
  private func server(
    in directory: TemporaryDirectory = TemporaryDirectory(), threads: Int = 2,
    _ change: (inout UploadServer.Configuration) -> Void = { _ in }
  ) throws -> TestServer {
    try TestServer(in: directory) {
      $0.threads = threads
      change(&$0)
    }
  }

  @Test("an upload continues over connections that other loops accepted", arguments: [2, 3])
  func uploads(threads: Int) throws {
    let test = try server(threads: threads)
    for _ in 0..<6 {
      let location = try test.create("/t.txt")
      // The loops take new connections in rotation. With two connections for each loop, both cases occur.
      for offset in 0..<(2 * threads) {
        let client = try test.connect()
        try client.patch(location, at: offset, chunked: true)
        try client.sendChunk("\(offset)")
        try client.awaitProgress(offset + 1)
        client.reset()
      }
      let last = try test.connect()
      #expect(try last.head(location)["upload-offset"] == "\(2 * threads)")
      try last.patch(location, at: 2 * threads, completes: true, body: "!")
      let answer = try last.final().answer
      #expect(answer.status == 201)
      let name = try #require(test.directory.names.first { $0.hasSuffix(".txt") })
      #expect(try test.directory.text(name) == (0..<(2 * threads)).map(String.init).joined() + "!")
      unlink(test.directory.path + "/" + name)
    }
    #expect(try figure("sluice_server_connections_handed_over_total", of: test.server) > 0)
  }

  @Test("a stream continues over any connection, and a newer request on another loop takes it over")
  func takenOver() throws {
    let test = try server()
    var continued = 0
    for (number, id) in ["a", "b", "c", "d"].enumerated() {
      var former: RawClient?
      for offset in 0..<5 {
        let client = try test.connect()
        try client.send(TestServer.head(id: id, offset: offset))
        try client.sendChunk("\(offset)")
        if let former {
          continued += 1
          _ = try test.events.wait(.continued, count: continued)
          #expect(former.isClosedByServer(), "the older request is ended")
        } else {
          _ = try test.events.wait(.begun, count: number + 1)
        }
        former = client
      }
      try former?.send("0\r\n\r\n")
      #expect(try former?.answer().status == 200)
      #expect(try test.directory.text("t-\(id).txt") == "01234")
    }
  }

  @Test("requests in one piece are answered in order, for any loops")
  func pipelined() throws {
    let test = try server(threads: 3)
    let client = try test.connect()
    let ids = (0..<40).map { "p\($0)" }
    try client.send(
      ids.map { TestServer.head(id: $0, framing: "Content-Length: \($0.utf8.count)") + $0 }.joined())
    for id in ids {
      let answer = try client.answer()
      #expect(answer.status == 201 && answer["stream-id"] == id)
    }
    for id in ids { #expect(try test.directory.text("t-\(id).txt") == id) }
  }

  @Test("a server with another number of threads finds uploads and their streams")
  func restarted() throws {
    let directory = TemporaryDirectory()
    var locations: [String] = []
    do {
      let test = try server(in: directory, threads: 3)
      for number in 0..<12 {
        locations.append(try test.create("/t.txt", ["Stream-ID: s\(number)"]))
        let client = try test.connect()
        try client.patch(locations[number], at: 0, body: "ab")
        #expect(try client.final().answer.status == 204)
      }
      test.stop()
    }
    for (step, threads) in [2, 1, 4].enumerated() {
      let test = try server(in: directory, threads: threads)
      for (number, location) in locations.enumerated() {
        let client = try test.connect()
        #expect(try client.head(location)["upload-offset"] == "\(2 + step)")
        try client.patch(location, at: 2 + step, completes: step == 2, body: "\(step)")
        let answer = try client.final().answer
        #expect(answer.status == (step == 2 ? 201 : 204), "\(answer)")
        if step == 2 { #expect(try directory.text("t-s\(number).txt") == "ab012") }
      }
      test.stop()
    }
  }

  @Test("limits apply to the server, and not to each of its threads")
  func limits() throws {
    let test = try server { $0.uploads.maximumCount = 5 }
    for _ in 0..<5 { _ = try test.create() }
    for _ in 0..<2 {
      let client = try test.connect()
      try client.request("POST", "/t", ["Upload-Complete: ?0"], body: "")
      #expect(try client.final().answer.status == 503)
    }
  }

  @Test("when the server stops, each sender receives its offset, on every thread")
  func stops() throws {
    let test = try server()
    var clients: [RawClient] = []
    for number in 0..<8 {
      let client = try test.connect()
      try client.send(TestServer.head(id: "s\(number)"))
      try client.sendChunk("abc")
      clients.append(client)
    }
    _ = try test.events.wait(.begun, count: 8)
    test.server.shutdown(grace: .zero)
    for client in clients {
      let answer = try client.answer()
      #expect(answer.status == 503 && answer["stream-offset"] == "3")
      client.disconnect()
    }
    test.server.waitUntilEnded()
  }

  @Test("many concurrent streams over changing connections are each stored completely", arguments: Seed.several(2))
  func manyAtOnce(seed: Seed) throws {
    var random = seed.generator
    let test = try server(threads: 3) { $0.durability = .none }
    var uploads: [(location: String, kept: Int)] = []
    for number in 0..<30 { uploads.append((try test.create("/t.txt", ["Stream-ID: m\(number)"]), 0)) }
    for _ in 0..<300 {
      let number = Int.random(in: 0..<30, using: &random)
      let client = try test.connect()
      // Another request of the protocol on the same connection, possibly for another loop.
      let other = Int.random(in: 0..<30, using: &random)
      #expect(try client.head(uploads[other].location)["upload-offset"] == "\(uploads[other].kept)")
      try client.patch(uploads[number].location, at: uploads[number].kept, chunked: true)
      try client.sendChunk("\(uploads[number].kept % 10)")
      uploads[number].kept += 1
      try client.awaitProgress(uploads[number].kept)
      if Bool.random(using: &random) { client.reset() } else { client.disconnect() }
    }
    for (number, upload) in uploads.enumerated() {
      let client = try test.connect()
      try client.patch(upload.location, at: upload.kept, completes: true, body: "")
      #expect(try client.final().answer.status == 201)
      #expect(try test.directory.text("t-m\(number).txt") == (0..<upload.kept).map { "\($0 % 10)" }.joined())
    }
  }

  @Test("identifiers of a loop belong to it, and a token stays with its stream for any number of loops")
  func assignment() throws {
    for count in 1...8 {
      for index in 0..<count {
        let assignment = LoopAssignment(index: index, count: count)
        for _ in 0..<20 {
          #expect(assignment.owns(assignment.newToken(for: nil)))
          let id = assignment.newStreamID(path: "/a/mic")
          let name = StreamName(path: "/a/mic", streamID: id, mediaType: nil)
          let token = assignment.newToken(for: name)
          #expect(assignment.owns(token) && token.utf8.count == 32)
          for others in 2...8 {
            let there = LoopAssignment(index: 0, count: others)
            var head = try Self.head("POST /a/mic HTTP/1.1\r\nHost: h\r\nStream-ID: \(id)\r\n\r\n")
            #expect(ResumableUploadHandler.owner(of: head, among: there) == there.owner(ofToken: token[...]))
            head = try Self.head("PATCH /.uploads/\(token) HTTP/1.1\r\nHost: h\r\n\r\n")
            #expect(ResumableUploadHandler.owner(of: head, among: there) == there.owner(ofToken: token[...]))
          }
        }
      }
    }
  }

  private static func head(_ text: String) throws -> RequestHead {
    var parser = RequestParser()
    var position = 0
    guard case .head(let head) = parser.next(Array(text.utf8).span, &position) else { throw TestFailure("no head") }
    return head
  }
}

/// The value of a server's sample without labels.
func figure(_ name: String, of server: UploadServer) throws -> Double {
  let box = FigureBox()
  server.figures { box.set($0.text) }
  let line = try box.wait().split(separator: "\n").first { $0.hasPrefix(name + " ") }
  return line.flatMap { Double($0.dropFirst(name.utf8.count + 1)) } ?? .nan
}
