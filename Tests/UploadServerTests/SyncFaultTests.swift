// A disk that refuses one sync, whichever it is, and is well before and after: a client that does what it is told loses
// nothing, and nothing takes the place of anything else.

import Glibc
import NetworkTesting
import PropertyTesting
import Recordings
import SyncGate
import Testing

@testable import DiskFiles
@testable import ResumableServing
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

@Suite("A disk that refuses one sync", .serialized)
struct SyncFaultTests {
  struct Cell: CustomTestStringConvertible, Sendable {
    var durability: Durability
    var isSplit: Bool
    /// Whether the server is restarted when its disk has refused something.
    var restarts: Bool
    var testDescription: String { "\(durability)\(isSplit ? ", split" : "")\(restarts ? ", restarted" : "")" }

    static let all = [Durability.always, .interval].flatMap { durability in
      [false, true].flatMap { isSplit in
        [false, true].map { Cell(durability: durability, isSplit: isSplit, restarts: $0) }
      }
    }
  }

  @Test("whichever sync it is, each acknowledged byte is stored in its place", arguments: Cell.all)
  func product(_ cell: Cell) async {
    let (durability, isSplit, restarts) = (cell.durability.rawValue, cell.isSplit, cell.restarts)
    await #expect(processExitsWith: .success) {
      [
        durability = durability as String, isSplit = isSplit as Bool, restarts = restarts as Bool
      ] in
      let cell = Cell(durability: Durability(rawValue: durability) ?? .none, isSplit: isSplit, restarts: restarts)
      for number in 0..<14 { try SyncFaultTests.run(cell, number, [8, 5][number / 2 % 2]) }
    }
  }

  /// A client of the protocol that sends `stream` with pauses, asks where to continue after each refusal, and begins a
  /// next part when its upload is gone.
  private final class Client {
    var test: TestServer
    let stream: [UInt8]
    let version: Int
    var location: String?
    /// The stream offset at which the upload begins, and what is acknowledged.
    var (base, acknowledged) = (0, 0)
    var isComplete = false
    var trace: [String] = []

    init(_ test: TestServer, _ stream: [UInt8], _ version: Int) {
      (self.test, self.stream, self.version) = (test, stream, version)
    }

    private func note(_ text: String) { trace.append(text) }

    func attempt() throws {
      guard let location else { return try create() }
      let client = try test.connect()
      try client.request("HEAD", location, version: version)
      let answer = try client.final(withBody: false).answer
      note("HEAD \(answer.status) \(answer["upload-offset"] ?? "-")")
      if [404, 410].contains(answer.status) {
        self.location = nil
        return
      }
      guard let offset = answer["upload-offset"].flatMap({ Int($0) }), answer.status < 300 else { return }
      try require(base + offset >= acknowledged, "HEAD takes back what was acknowledged: \(trace)")
      acknowledged = base + offset
      try append(location, offset, client)
    }

    private func create() throws {
      base = acknowledged
      let client = try test.connect()
      try client.request(
        "POST", "/k.wav", version: version,
        ["Upload-Complete: ?0", "Stream-ID: a", "Stream-Offset: \(base)", "Content-Type: audio/wav"], body: "")
      let answer = try client.final().answer
      note("POST at \(base): \(answer.status)")
      location = answer.status == 201 ? answer["location"] : nil
    }

    private func append(_ location: String, _ offset: Int, _ client: RawClient) throws {
      let start = base + offset
      let end = min(stream.count, start + 900)
      let completes = end == stream.count
      try client.request(
        "PATCH", location, version: version,
        [
          "Content-Type: application/partial-upload", "Upload-Offset: \(offset)",
          "Upload-Complete: ?\(completes ? 1 : 0)",
        ],
        chunked: true)
      // The disk is asked for each piece.
      for piece in stride(from: start, to: end, by: 150) {
        try? client.sendChunk(Array(stream[piece..<min(piece + 150, end)]))
        poll(nil, 0, 2)
      }
      try? client.send("0\r\n\r\n")
      guard let (answer, interim) = try? client.final() else { return note("PATCH \(offset): closed") }
      note("PATCH \(offset): \(interim.compactMap { $0["upload-offset"] }) \(answer.status)")
      for told in interim.compactMap({ $0["upload-offset"] }).compactMap({ Int($0) }) {
        acknowledged = max(acknowledged, base + told)
      }
      guard answer.status < 300 else { return }
      if let told = answer["upload-offset"] {
        try require(told == "\(end - base)", "a 2xx for less than was sent: \(answer) \(trace)")
      }
      acknowledged = end
      isComplete = completes
    }
  }

  private static func run(_ cell: Cell, _ number: Int, _ version: Int) throws {
    let head = StreamedHead.all[0]
    let stream = head.bytes + (0..<3000).map { UInt8(truncatingIfNeeded: ($0 &* 2_654_435_761) >> 11) }
    let directory = TemporaryDirectory()
    func server() throws -> TestServer {
      try TestServer(in: directory) {
        $0.durability = cell.durability
        guard cell.isSplit else { return }
        $0.split = RecordingSplit(size: UInt64(head.bytes.count) + 400)
        $0.split?.leastLength = 0
      }
    }
    let client = Client(try server(), stream, version)
    sync_gate_fail_once(EIO, UInt(number))
    var hasRestarted = false
    for _ in 0..<200 where !client.isComplete {
      try client.attempt()
      // At once, or when more has been acknowledged since.
      if cell.restarts, !hasRestarted, sync_gate_has_failed() != 0, number % 2 == 0 || client.acknowledged > 1800 {
        hasRestarted = true
        client.test.stop()
        client.test = try server()
      }
      poll(nil, 0, 5)
    }
    sync_gate_fail_once(0, 0)
    let context = "\(cell.testDescription), sync \(number), version \(version): \(client.trace)"
    try require(client.isComplete, "it never ends: \(context)")
    client.test.stop()
    // What the next server finishes is finished then.
    let last = try server()
    try waitUntil("all is finished: \(context)") {
      directory.names.filter { $0.hasPrefix("k-a") && ($0.hasSuffix(".wav") || $0.hasSuffix(".part")) }
        .allSatisfy { $0.hasSuffix(".wav") && directory.exists(String($0.dropLast(4)) + ".sidecar") }
    }
    last.stop()
    var stored = [Bool](repeating: false, count: stream.count)
    for name in directory.names where name.hasPrefix("k-a") && name.hasSuffix(".wav") {
      let sidecar = try RecordingSidecar(parsing: try directory.contents(String(name.dropLast(4)) + ".sidecar"))
      let bytes = try directory.contents(name)
      let start = max(Int(sidecar.offset), head.bytes.count)
      let samples = bytes.count - min(bytes.count, head.bytes.count)
      for index in stored.indices.prefix(head.bytes.count) { stored[index] = true }
      try require(start + samples <= stream.count, "\(name) is too long: \(context)")
      let isSame = bytes.dropFirst(head.bytes.count).elementsEqual(stream[start..<(start + samples)])
      try require(isSame, "\(name) holds something else: \(context)")
      for index in start..<(start + samples) { stored[index] = true }
    }
    try require(stored.allSatisfy(\.self), "bytes from \(stored.firstIndex(of: false) ?? 0) are not stored: \(context)")
  }
}
