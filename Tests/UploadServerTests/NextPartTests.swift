// Tests where the next part of a stream begins, and what it contains before the first byte that it receives.

import Glibc
import NetworkTesting
import Testing
import UploadServer

@Suite("The beginning of a next part")
struct NextPartTests {
  /// Stereo of 16 bits without a zero byte.
  private static let wav = ClosedRecordingTests.header + (0..<300).map { UInt8($0 % 250 + 1) }

  /// What the closed parts have of the frame in whose middle the client returns, which is that of the offset 147.
  enum Frame: CaseIterable, Sendable {
    case whole, inHole, movedAway, cutShort, unreadableGaps, inTwoParts

    /// Closes one or two parts.
    func close(_ test: TestServer) throws {
      let path = test.directory.path
      func send(_ range: Range<Int>) throws {
        try test.plain(
          "/k.wav", id: "a", offset: range.lowerBound, type: "audio/wav", Array(NextPartTests.wav[range]))
      }
      switch self {
      case .inHole:
        // The first request is in progress until the second one takes over, so no pause closes the recording.
        let first = try test.connect()
        try first.send(TestServer.head("/k.wav", type: "audio/wav"))
        try first.sendChunk(Array(NextPartTests.wav[0..<60]))
        // TCP acknowledges the bytes before the server reads them, and another thread may serve the second request.
        try waitUntil("all is stored") { (try? test.directory.contents("k-a.part").count) == 60 }
        try send(200..<201)
      case .inTwoParts:
        try send(0..<150)
        try test.events.wait(.closed)
        try send(142..<145)
      default: try send(0..<147)
      }
      try test.events.wait(.closed, count: self == .inTwoParts ? 2 : 1)
      switch self {
      case .movedAway: rename(path + "/k-a.wav", path + "/moved.wav")
      case .cutShort: truncate(path + "/k-a.wav", 145)
      case .unreadableGaps:
        unlink(path + "/k-a.gaps")
        symlink("/dev/null", path + "/k-a.gaps")
      default: break
      }
    }

    /// How many bytes before the frame are missing.
    var missingBefore: Int { self == .inHole ? 144 - 60 : 0 }

    /// The offsets of the frame's bytes before the client's that are missing.
    var missing: Range<Int> {
      switch self {
      case .whole, .inTwoParts: 147..<147
      case .inHole, .movedAway, .unreadableGaps: 144..<147
      case .cutShort: 145..<147
      }
    }
  }

  @Test(
    "the bytes of a begun frame are copied from the closed parts, and those that are not there are a gap",
    arguments: Frame.allCases)
  func frame(_ frame: Frame) throws {
    let test = try TestServer { $0.finishAfter = .milliseconds(300) }
    try frame.close(test)
    let client = try test.connect()
    try client.send(TestServer.head("/k.wav", offset: 147, type: "audio/wav"))
    try client.sendChunk(Array(Self.wav[147...]))
    try client.send("0\r\n\r\n")
    let answer = try client.answer()
    let missing = frame.missing
    #expect(answer.status == 201 && answer["stream-missing"] == "\(frame.missingBefore + missing.count)", "\(answer)")
    let base = frame == .inTwoParts ? "k-a~3" : "k-a~2"
    var expected = Array(Self.wav[144...])
    for offset in missing { expected[offset - 144] = 0 }
    #expect(Array(try test.directory.contents(base + ".wav").dropFirst(44)) == expected)
    var gaps = ["{\"offset\":144,\"length\":0,\"cause\":\"next-part\"}"]
    if !missing.isEmpty {
      gaps.append("{\"offset\":\(missing.lowerBound),\"length\":\(missing.count),\"cause\":\"not-received\"}")
    }
    #expect(try test.directory.text(base + ".gaps").split(separator: "\n").map(String.init) == gaps)
    try waitUntil("the sidecar is written") { test.directory.exists(base + ".sidecar") }
    #expect(try test.directory.text(base + ".sidecar").contains("\"missing\": \(missing.count)"))
  }

  /// A client that returns twice, the first time without sending a byte.
  struct Return: Sendable {
    var isWAV: Bool
    var isResumable: Bool
    /// The offset of the first request, and that of the second.
    var first: Int
    var second: Int

    /// The first part ends at 147.
    static let all = [false, true].flatMap { isWAV in
      [false, true].flatMap { isResumable in
        [(60, 100), (61, 147), (61, 146), (147, 160), (60, 61)].map { first, second in
          Return(isWAV: isWAV, isResumable: isResumable, first: first, second: second)
        }
      }
    }
  }

  @Test(
    "a part without a byte begins where its first byte arrives, and lists only bytes that no part has as a gap",
    arguments: Return.all)
  func withoutByte(_ cell: Return) throws {
    let (path, type) = cell.isWAV ? ("/k.wav", "audio/wav") : ("/k.txt", "text/plain")
    let test = try Self.closed(path, type)
    try interrupt(test, path, type, at: cell.first)
    let rest = Array(Self.wav[cell.second...])
    let missing = 147..<max(147, cell.second)
    if cell.isResumable {
      let location = try test.create(
        path, ["Stream-ID: a", "Stream-Offset: \(cell.second)", "Content-Type: \(type)"])
      try test.append(location, at: 0, Array(rest.prefix(3)))
      // The upload finds its bytes again without the request that moved the beginning.
      try waitUntil("the file is closed") { !holdsPart(test) }
      #expect(try test.connect().head(location)["upload-offset"] == "3")
      try test.append(location, at: 3, completes: true, Array(rest.dropFirst(3)))
    } else {
      let client = try test.connect()
      try client.send(TestServer.head(path, offset: cell.second, type: type))
      try client.sendChunk(rest)
      try client.send("0\r\n\r\n")
      let answer = try client.answer()
      #expect([200, 201].contains(answer.status), "\(answer)")
      #expect(answer["stream-missing"] == "\(missing.count)", "\(answer)")
    }
    let start = cell.isWAV ? cell.second - (cell.second - 44) % 4 : cell.second
    let stored = try test.directory.contents(cell.isWAV ? "k-a~2.wav" : "k-a~2.txt").dropFirst(cell.isWAV ? 44 : 0)
    #expect(Array(stored) == Array(Self.wav[start...]))
    var gaps = ["{\"offset\":\(start),\"length\":0,\"cause\":\"next-part\"}"]
    if !missing.isEmpty {
      gaps.append("{\"offset\":147,\"length\":\(missing.count),\"cause\":\"not-received\"}")
    }
    #expect(try test.directory.text("k-a~2.gaps").split(separator: "\n").map(String.init) == gaps)
  }

  @Test("a part that began later for bytes that were dropped again accepts the bytes before them", arguments: [1, 5])
  func droppedBytes(_ rounds: Int) throws {
    let test = try Self.closed("/k.txt", "text/plain")
    try interrupt(test, "/k.txt", "text/plain", at: 60)
    let log = test.directory.path + "/.parts/k-a"
    let size = try fileContents(log).count
    for _ in 0..<rounds {
      let client = try test.connect()
      let digest = "Content-Digest: sha-256=:\(String(repeating: "A", count: 43))=:\r\n"
      try client.send(TestServer.head("/k.txt", offset: 100, more: digest))
      try client.sendChunk("abc")
      try client.send("0\r\n\r\n")
      #expect(try client.answer().status == 400)
    }
    // A request of which nothing stays does not make the log longer.
    #expect(try fileContents(log).count <= size)
    let client = try test.connect()
    try client.send(TestServer.head("/k.txt", offset: 60))
    try client.sendChunk(Array(Self.wav[60...]))
    try client.send("0\r\n\r\n")
    let answer = try client.answer()
    #expect([200, 201].contains(answer.status) && answer["stream-missing"] == "0", "\(answer)")
    #expect(try test.directory.contents("k-a~2.txt") == Array(Self.wav[60...]))
    #expect(try test.directory.text("k-a~2.gaps") == "{\"offset\":60,\"length\":0,\"cause\":\"next-part\"}\n")
  }

  /// A server that closes no recording, in the directory of one that has closed the first part of a stream.
  private static func closed(_ path: String, _ type: String) throws -> TestServer {
    let directory = TemporaryDirectory()
    let test = try TestServer(in: directory) { $0.finishAfter = .milliseconds(300) }
    try test.plain(path, id: "a", type: type, Array(wav[0..<147]))
    try test.events.wait(.closed)
    test.stop()
    return try TestServer(in: directory) { $0.uploads.parkDelay = .milliseconds(1) }
  }

  /// Whether the server has the file of a growing recording open.
  private func holdsPart(_ test: TestServer) -> Bool {
    guard let paths = try? openPaths() else { return true }
    return paths.contains { path in
      path.hasPrefix(test.directory.path) && path.hasSuffix(".part")
    }
  }

  /// A request that loses its connection before its first byte.
  private func interrupt(_ test: TestServer, _ path: String, _ type: String, at offset: Int) throws {
    try test.plain(path, id: "a", offset: offset, type: type, [])
    try waitUntil("the part exists") { test.directory.exists("k-a~2.part") }
  }
}
