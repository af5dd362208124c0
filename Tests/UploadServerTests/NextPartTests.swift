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
        try waitUntil("all has arrived") { first.unacknowledged == 0 }
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
    #expect(answer.status == 201 && answer["stream-missing"] == "\(missing.count)", "\(answer)")
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
}
