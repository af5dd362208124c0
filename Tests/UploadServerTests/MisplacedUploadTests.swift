// Tests uploads of a stream whose last recording is closed: others continue the stream before one of them has any byte.

import NetworkTesting
import PropertyTesting
import Testing
import UploadServer

@Suite("Uploads that no longer fit their stream")
struct MisplacedUploadTests {
  /// How the client of an upload learns where to continue.
  private enum Asking: CaseIterable { case head, append, brokenAppend }

  /// A stream with a closed recording of three bytes, and the actions of two uploads after that.
  private struct Sequence: CustomStringConvertible {
    let version: Int
    let isBegun: Bool
    let offset: Int
    /// Where the other upload begins with its content; nil if there is no other upload.
    let other: Int?
    let asking: Asking
    var id: String { "\(version)-\(isBegun)-\(offset)-\(other ?? 0)-\(asking)" }
    var description: String { id }

    /// Whether the documented rules allow an append.
    var isContinued: Bool {
      guard let other else { return true }
      // A part that begins before this upload does not affect it, nor does one that leaves no hole before its start.
      return isBegun ? other <= offset + 1 : other <= offset
    }
  }

  private static let bytes = Array("0123456789abcdefghijklmnopqrstuvwxyz".utf8)

  private static let sequences = (3...8).flatMap { version in
    [false, true].flatMap { isBegun in
      [2, 3, 5].flatMap { offset in
        [nil, 3, 8].flatMap { other in
          Asking.allCases.map {
            Sequence(version: version, isBegun: isBegun, offset: offset, other: other, asking: $0)
          }
        }
      }
    }
  }

  private static let settings = Durability.allCases.flatMap { durability in [1, 2].map { (durability, $0) } }

  @Test(
    "after a closed recording, an upload continues at the reported offset, or gets 410, and is never complete",
    arguments: settings.indices)
  func announced(_ setting: Int) throws {
    let (durability, threads) = Self.settings[setting]
    let directory = TemporaryDirectory()
    // The first setting tests all sequences, each other setting a third of them.
    let sequences = Self.sequences.indices.filter { $0 % 3 == setting % 3 || setting == 0 }.map { Self.sequences[$0] }
    func server(finishAfter: Duration) throws -> TestServer {
      try TestServer(in: directory) {
        ($0.durability, $0.threads, $0.finishAfter) = (durability, threads, finishAfter)
      }
    }
    do {
      let test = try server(finishAfter: .milliseconds(100))
      for sequence in sequences { try test.plain(id: sequence.id, Array(Self.bytes[..<3])) }
      _ = try test.events.wait(.closed, count: sequences.count)
    }
    let test = try server(finishAfter: .seconds(3600))
    for sequence in sequences { try run(sequence, test) }
  }

  private func run(_ sequence: Sequence, _ test: TestServer) throws {
    let upload = PlacedUpload(test, version: sequence.version)
    try upload.create(["Stream-ID: \(sequence.id)", "Stream-Offset: \(sequence.offset)"])
    var told = 0
    func bytes(_ count: Int) -> [UInt8] { Array(Self.bytes[(sequence.offset + told)...].prefix(count)) }
    if sequence.isBegun {
      try require(try upload.append(at: 0, bytes(1)).status < 300, "\(sequence)")
      told = 1
    }
    if let other = sequence.other {
      let client = try test.connect()
      try client.request(
        "POST", "/t.txt", ["Upload-Complete: ?0", "Stream-ID: \(sequence.id)", "Stream-Offset: \(other)"],
        body: String(decoding: Self.bytes[other..<other + 6], as: UTF8.self))
      // The other upload cannot begin before the part that this upload has begun.
      let isRefused = sequence.isBegun && other < sequence.offset
      let status = try client.final().answer.status
      try require(status == (isRefused ? 409 : 201), "\(sequence): \(status)")
    }
    switch sequence.asking {
    case .append: break
    case .brokenAppend:
      try upload.appendPart(at: told, bytes(4), of: 9)
      fallthrough
    case .head:
      let standing = try upload.head()
      guard upload.isIncomplete(standing), sequence.isContinued else {
        try require(standing.status == upload.inactive && !sequence.isContinued, "\(sequence): \(standing)")
        return
      }
      told = Int(standing["upload-offset"] ?? "") ?? -1
    }
    try require(told >= 0, "\(sequence)")
    let answer = try upload.append(at: told, bytes(5))
    guard sequence.isContinued else {
      try require(answer.status == upload.inactive, "\(sequence): \(answer)")
      try require(try upload.head().status == upload.inactive, "\(sequence)")
      return
    }
    try require(answer.status < 300 && answer["upload-offset"] == "\(told + 5)", "\(sequence): \(answer)")
    try require(upload.isIncomplete(try upload.head()), "\(sequence)")
  }

  @Test(
    "the same while the other upload begins at the same time", arguments: settings.indices, Seed.several(1))
  func atTheSameTime(_ setting: Int, _ seed: Seed) throws {
    let (durability, threads) = Self.settings[setting]
    var random = seed.generator
    let directory = TemporaryDirectory()
    func server(finishAfter: Duration) throws -> TestServer {
      try TestServer(in: directory) {
        ($0.durability, $0.threads, $0.finishAfter) = (durability, threads, finishAfter)
      }
    }
    let rounds = 12
    do {
      let test = try server(finishAfter: .milliseconds(100))
      for round in 0..<rounds { try test.plain(id: "\(round)", Array(Self.bytes[..<3])) }
      _ = try test.events.wait(.closed, count: rounds)
    }
    let test = try server(finishAfter: .seconds(3600))
    for round in 0..<rounds {
      let one = PlacedUpload(test, version: Int.random(in: 3...8, using: &random))
      let two = PlacedUpload(test, version: 8)
      try one.create(["Stream-ID: \(round)", "Stream-Offset: 2"])
      try two.create(["Stream-ID: \(round)", "Stream-Offset: 8"])
      try concurrently(
        { _ = try? one.append(at: 0, Array(Self.bytes[2..<7])) },
        { _ = try? two.append(at: 0, Array(Self.bytes[8..<12])) })
      for upload in [one, two] {
        let standing = try upload.head()
        #expect(upload.isIncomplete(standing) || standing.status == upload.inactive, "\(round): \(standing)")
      }
    }
  }

  @Test("an upload that begins beyond the end of a stream that has since ended has ended", arguments: [false, true])
  func behindEnd(_ restarts: Bool) throws {
    let directory = TemporaryDirectory()
    var test = try TestServer(in: directory)
    let first = try test.create("/t.txt", ["Stream-ID: a"])
    let second = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: 5"])
    try test.append(first, at: 0, completes: true, "012")
    if restarts {
      test.stop()
      test = try TestServer(in: directory)
    }
    let client = try test.connect()
    try client.patch(second, at: 0, body: "x")
    #expect(try client.final().answer.status == 410)
    #expect(try test.connect().head(second).status == 410)
    let late = try test.connect()
    try late.request("POST", "/t.txt", ["Upload-Complete: ?0", "Stream-ID: a", "Stream-Offset: 5"], body: "")
    #expect(try late.final().answer.status == 409)
    #expect(try directory.text("t-a.txt") == "012")
  }
}
