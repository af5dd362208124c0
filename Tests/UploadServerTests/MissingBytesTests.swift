// Tests what a server reports of bytes that a stream does not contain: it counts those of all its recordings.

import NetworkTesting
import PropertyTesting
import Testing
import UploadServer

@Suite("Missing bytes of a stream")
struct MissingBytesTests {
  /// A stream, its server, and the bytes that it should have.
  private struct Run {
    private let directory = TemporaryDirectory()
    private var test: TestServer
    /// The stream offsets that some recording contains.
    private(set) var received: Set<Int> = []
    /// The end of the growing recording, or of the last one.
    private(set) var length = 0
    private(set) var isClosed = false

    init() throws { test = try Self.server(directory, finishAfter: .seconds(3600)) }

    private static func server(_ directory: TemporaryDirectory, finishAfter: Duration) throws -> TestServer {
      try TestServer(in: directory) {
        $0.finishAfter = finishAfter
        $0.durability = .always
      }
    }

    /// The end of all recordings.
    var end: Int { (received.max() ?? -1) + 1 }
    var missing: Int { end - received.count }

    mutating func send(_ count: Int, at offset: Int) throws {
      try test.plain(id: "a", offset: offset, [UInt8](repeating: 0x78, count: count))
      received.formUnion(offset..<(offset + count))
      length = offset + count
      isClosed = false
    }

    mutating func restart() throws {
      test.stop()
      test = try Self.server(directory, finishAfter: .seconds(3600))
    }

    /// A server closes the recording, because it is silent for longer than permitted.
    mutating func close() throws {
      test.stop()
      test = try Self.server(directory, finishAfter: .milliseconds(1))
      _ = try test.events.wait(.closed)
      try restart()
      isClosed = true
    }

    /// Ends the stream. Returns what the response reports as missing.
    mutating func finish() throws -> String? {
      let client = try test.connect()
      try client.send(TestServer.head(id: "a", offset: length))
      try client.sendChunk("x")
      try client.send("0\r\n\r\n")
      received.insert(length)
      let answer = try client.answer()
      try #require(200...201 ~= answer.status)
      return answer["stream-missing"]
    }
  }

  @Test(
    "all recordings of a stream count, whatever closed them, and whichever bytes were sent again",
    arguments: Seed.several(12))
  func recordings(_ seed: Seed) throws {
    var random = seed.generator
    var run = try Run()
    var steps: [String] = []
    func note(_ step: String) { steps.append(step) }
    for _ in 0..<8 {
      // A hole only where no recording has bytes: a client leaves one for bytes that it does not have any more.
      let mayLeaveHole = run.length >= run.end
      let hole = mayLeaveHole && Bool.random(using: &random) ? Int.random(in: 1...5, using: &random) : 0
      // The next recording may begin at any offset, for example because the client knew of fewer bytes.
      let again = run.isClosed && hole == 0 ? Int.random(in: 0...min(4, run.length), using: &random) : 0
      let offset = run.length + hole - again
      let count = Int.random(in: 1...6, using: &random)
      note("\(count) bytes at \(offset)")
      try run.send(count, at: offset)
      switch Int.random(in: 0..<4, using: &random) {
      case 0, 1:
        note("closed")
        try run.close()
      case 2:
        note("restart")
        try run.restart()
      default: break
      }
    }
    // The end is sent where the growing recording ends, and the next one begins behind all bytes.
    if run.length < run.end { try run.send(run.end - run.length, at: run.length) }
    let reported = try run.finish()
    #expect(reported == "\(run.missing)", "seed \(seed): \(steps)")
  }

  @Test("a hole of a recording that was closed counts until the stream ends")
  func closedHole() throws {
    var run = try Run()
    try run.send(3, at: 0)
    try run.send(3, at: 5)
    try run.close()
    try run.send(3, at: 8)
    try run.close()
    try run.send(3, at: 15)
    #expect(run.missing == 6)
    #expect(try run.finish() == "6")
  }
}
