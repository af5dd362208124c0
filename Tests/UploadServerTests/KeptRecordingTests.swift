// Tests each way in which a stream can be abandoned, combined with each way in which it can end, against a model that
// knows the acknowledged bytes: none of a live stream disappears, and nobody removes the bytes of another.

import Glibc
import NetworkTesting
import PropertyTesting
import Testing
import UploadServer

@Suite("Acknowledged bytes of a live stream are stored")
struct KeptRecordingTests {
  struct Cell: CustomTestStringConvertible, Sendable {
    var durability: Durability
    var threads: Int
    /// Whether the server is restarted while the streams are abandoned.
    var restarts: Bool
    var testDescription: String { "\(durability), \(threads) threads, \(restarts ? "restarted" : "one server")" }

    /// Contains each pair of choices.
    static let all = Durability.allCases.enumerated().flatMap { number, durability in
      [1, 2].map { Cell(durability: durability, threads: $0, restarts: ($0 + number) % 2 == 0) }
    }
  }

  private enum Transport: CaseIterable { case resumable, plain, wrapped }
  private enum Leaving: CaseIterable { case died, cut, silent, two, nextPart }
  private enum Ending: CaseIterable { case wait, delete, complete }

  /// One stream, and what the model knows of it.
  private final class Stream: CustomStringConvertible {
    enum Fate {
      case open, removed, closed, complete
      /// Its first upload cannot continue, because the second one has exceeded its announced length. After a restart of
      /// the server, the recording is closed, unless the first upload had expired before.
      case outgrown
    }

    let id: String
    let transport: Transport
    let leaving: Leaving
    let ending: Ending
    /// Whether each of its uploads is live.
    var lives: [Bool]
    var fate = Fate.open
    var bytes: [UInt8] = []
    var locations: [String] = []
    var client: RawClient?
    /// The bytes that a returning client has sent.
    var next: [UInt8] = []

    init(_ id: String, _ transport: Transport, _ leaving: Leaving, _ ending: Ending, lives: [Bool]) {
      (self.id, self.transport, self.leaving, self.ending, self.lives) = (id, transport, leaving, ending, lives)
    }

    var description: String { "\(id): \(transport) \(leaving) \(ending) live \(lives) \(fate), \(bytes.count) bytes" }
    var path: String { transport == .wrapped ? "/echo.txt" : "/t.txt" }
    var body: String { ".uploads/\(locations.last?.split(separator: "/").last ?? "").body" }
    /// The state of the recording after the maximum age.
    func outcome(restarts: Bool) -> Fate {
      if transport == .plain || lives.contains(true) { return .closed }
      return restarts && lives.count > 1 ? .outgrown : .removed
    }
  }

  @Test("they stay after every kind of departure and every kind of end", arguments: Cell.all, Seed.several(1))
  func product(_ cell: Cell, _ seed: Seed) throws {
    var random = seed.generator
    let directory = TemporaryDirectory()
    let log = WrappedHandlerTests.Log()
    func server() throws -> TestServer {
      try TestServer(in: directory) {
        ($0.durability, $0.threads) = (cell.durability, cell.threads)
        ($0.finishAfter, $0.uploads.maximumAge) = (.milliseconds(1200), .milliseconds(1200))
        $0.uploads.parkDelay = .milliseconds(random.chance(50) ? 1 : 60_000)
        $0.handler = { head in
          head.target.path == "/echo.txt" ? WrappedHandlerTests.Echo(head, log) { _ in nil } : nil
        }
      }
    }
    var test = try server()
    var streams: [Stream] = []
    for transport in Transport.allCases {
      for leaving in Leaving.allCases {
        for ending in Ending.allCases {
          for isLive in [true, false] {
            // A plain request has no DELETE, and two uploads cannot share a stream of a custom handler.
            if transport == .plain && ending == .delete
              || transport == .wrapped && (leaving == .two || leaving == .nextPart)
            {
              continue
            }
            let lives = leaving == .two ? [isLive, random.chance(50)] : [isLive]
            streams.append(Stream("s\(streams.count)", transport, leaving, ending, lives: lives))
          }
        }
      }
    }
    streams.shuffle(using: &random)
    for stream in streams {
      try begin(stream, test, &random)
      try end(stream, test, cell, &random)
    }
    if cell.restarts {
      for stream in streams { stream.client = nil }
      test.stop()
      test = try server()
    }
    for stream in streams where stream.fate == .open && stream.client == nil {
      stream.fate = stream.outcome(restarts: cell.restarts)
    }
    for stream in streams {
      try waitUntil("it is as it should be: \(stream); \(files(of: stream, directory))") {
        isSettled(stream, directory)
      }
    }
    for stream in streams where stream.fate == .outgrown {
      stream.fate = files(of: stream, directory).isEmpty ? .removed : .closed
    }
    // Silent streams that stayed connected are unchanged.
    for stream in streams where stream.client != nil { try complete(stream, &random) }
    for stream in streams where stream.leaving == .nextPart && stream.fate == .closed {
      try comeBack(stream, test, &random)
    }
    for stream in streams { try check(stream, directory) }
    test.stop()
  }

  // MARK: Steps

  private func some(_ random: inout SplitMix64) -> [UInt8] {
    (0..<Int.random(in: 1...3000, using: &random)).map { _ in UInt8.random(in: 1...255, using: &random) }
  }

  /// Sends bytes that are acknowledged, and abandons the stream.
  private func begin(_ stream: Stream, _ test: TestServer, _ random: inout SplitMix64) throws {
    for (number, isLive) in stream.lives.enumerated() {
      let bytes = some(&random)
      let client = try test.connect()
      let offset = stream.bytes.count
      if stream.transport == .plain {
        let framing = isLive ? "Transfer-Encoding: chunked" : "Content-Length: \(bytes.count + 1)"
        try client.send(TestServer.head(stream.path, id: stream.id, offset: offset, framing: framing))
        if isLive { try client.sendChunk(bytes) } else { try client.send(bytes) }
        // A reset discards bytes that the server has not read.
        let file = "\(test.directory.path)/t-\(stream.id).part"
        try waitUntil("\(file) has everything") {
          var status = stat()
          return stat(file, &status) == 0 && Int(status.st_size) == offset + bytes.count
        }
      } else {
        let length = isLive ? [] : ["Upload-Length: \(bytes.count + 1)"]
        let location = try test.create(stream.path, length + ["Stream-ID: \(stream.id)", "Stream-Offset: \(offset)"])
        stream.locations.append(location)
        try client.patch(location, at: 0, chunked: true)
        try client.sendChunk(bytes)
        try client.awaitProgress(bytes.count)
      }
      stream.bytes += bytes
      // The first of two clients disconnects, and the second resets its connection.
      if stream.leaving == .silent {
        stream.client = client
      } else if stream.leaving == .cut || number == 1 {
        client.disconnect()
      } else {
        client.reset()
      }
    }
  }

  private func end(_ stream: Stream, _ test: TestServer, _ cell: Cell, _ random: inout SplitMix64) throws {
    switch stream.ending {
    case .wait: break
    case .delete:
      let client = try test.connect()
      try client.request("DELETE", stream.locations[stream.locations.count - 1])
      guard try client.final().answer.status == 204 else { return }
      stream.client = nil
      // The first of two keeps its bytes. If those of the last exceed its announced length, it cannot continue.
      stream.fate = stream.lives.count == 1 ? .removed : stream.lives[0] ? .open : cell.restarts ? .outgrown : .removed
    case .complete:
      // A silent client that is still connected completes its stream later, if the server is not restarted.
      if stream.leaving == .silent && !cell.restarts { return }
      stream.client = nil
      let rest = stream.lives.last == true ? some(&random) : [7]
      let client = try test.connect()
      if stream.transport == .plain {
        try client.send(TestServer.head(stream.path, id: stream.id, offset: stream.bytes.count))
        try client.sendChunk(rest)
        try client.send("0\r\n\r\n")
        #expect([200, 201].contains(try client.answer().status), "\(stream)")
      } else {
        let location = stream.locations[stream.locations.count - 1]
        let offset = try client.head(location)["upload-offset"].flatMap { Int($0) }
        // Under load the upload may have expired already.
        guard let offset else { return }
        try client.patch(location, at: offset, completes: true, ["Content-Length: \(rest.count)"])
        try client.send(rest)
        #expect(try client.final().answer["upload-complete"] == "?1", "\(stream)")
      }
      stream.bytes += rest
      stream.fate = .complete
    }
  }

  /// Ends a request that is still open.
  private func complete(_ stream: Stream, _ random: inout SplitMix64) throws {
    guard let client = stream.client else { return }
    let isSized = stream.transport == .plain && stream.lives == [false]
    let rest = stream.lives == [true] ? some(&random) : [7]
    if isSized { try client.send(rest) } else { try client.sendChunk(rest) }
    if !isSized { try client.send("0\r\n\r\n") }
    let answer = try client.final().answer
    stream.bytes += rest
    if stream.transport == .plain {
      #expect(answer.status == 201, "\(stream)")
      stream.fate = .complete
    } else {
      #expect(answer["upload-offset"] == "\(stream.bytes.count)", "\(stream)")
      let offset = stream.bytes.count
      try client.patch(stream.locations[0], at: offset, completes: true, body: "")
      #expect(try client.final().answer["upload-complete"] == "?1", "\(stream)")
      stream.fate = .complete
    }
  }

  /// Continues a closed stream in a next part and ends it.
  private func comeBack(_ stream: Stream, _ test: TestServer, _ random: inout SplitMix64) throws {
    stream.next = some(&random)
    let offset = stream.bytes.count
    if stream.transport == .plain {
      let client = try test.connect()
      try client.send(TestServer.head(stream.path, id: stream.id, offset: offset))
      try client.sendChunk(stream.next)
      try client.send("0\r\n\r\n")
      #expect(try client.answer().status == 201, "\(stream)")
    } else {
      let location = try test.create(stream.path, ["Stream-ID: \(stream.id)", "Stream-Offset: \(offset)"])
      try test.append(location, at: 0, completes: true, stream.next)
    }
  }

  // MARK: Judgement

  private func files(of stream: Stream, _ directory: TemporaryDirectory) -> [String] {
    let names = directory.names.filter { $0.hasPrefix("t-\(stream.id).") || $0.hasPrefix("t-\(stream.id)~") }
    return names + (stream.transport == .wrapped && directory.exists(stream.body) ? [stream.body] : [])
  }

  private func expected(_ stream: Stream) -> [String] {
    switch (stream.fate, stream.transport) {
    case (.open, .wrapped), (.closed, .wrapped): return [stream.body]
    case (.open, _): return ["t-\(stream.id).part"]
    case (.removed, _), (.outgrown, _), (.complete, .wrapped): return []
    case (.complete, _): return ["t-\(stream.id).txt"]
    case (.closed, _):
      return closed(stream) + (stream.next.isEmpty ? [] : ["t-\(stream.id)~2.gaps", "t-\(stream.id)~2.txt"])
    }
  }

  private func closed(_ stream: Stream) -> [String] { ["t-\(stream.id).gaps", "t-\(stream.id).txt"] }

  private func isSettled(_ stream: Stream, _ directory: TemporaryDirectory) -> Bool {
    let files = files(of: stream, directory)
    if stream.fate == .outgrown { return files.isEmpty || files == closed(stream) }
    return files == expected(stream)
  }

  private func check(_ stream: Stream, _ directory: TemporaryDirectory) throws {
    #expect(files(of: stream, directory) == expected(stream), "\(stream)")
    for file in expected(stream) where !file.hasSuffix(".gaps") {
      let bytes = file.contains("~2") ? stream.next : stream.bytes
      #expect(try directory.contents(file) == bytes, "\(file) of \(stream)")
    }
    guard stream.fate == .closed, stream.transport != .wrapped else { return }
    #expect(
      try directory.text("t-\(stream.id).gaps")
        == "{\"offset\":\(stream.bytes.count),\"length\":0,\"cause\":\"interrupted\"}\n", "\(stream)")
  }
}
