// Tests that an append may follow each offset that the server announces, whatever else happens at the same time.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Testing
import UploadServer

@Suite("Announced offsets", .serialized)
struct AnnouncedOffsetTests {
  struct Setting: CustomTestStringConvertible, Sendable {
    let durability: Durability
    let threads: Int
    /// Whether the store keeps the bytes. Otherwise they are spooled for a handler.
    let isStored: Bool
    var testDescription: String { "\(durability), \(threads) threads, \(isStored ? "stored" : "spooled")" }
  }

  static let settings = Durability.allCases.flatMap { durability in
    [1, 2].flatMap { threads in
      [true, false].map { Setting(durability: durability, threads: threads, isStored: $0) }
    }
  }

  /// What other clients do to the same upload meanwhile.
  enum Disturbance: CaseIterable { case none, otherUploads, questions, strays }

  @Test(
    "an append may follow at each announced offset, with any concurrent requests", arguments: settings,
    Seed.several(1))
  func followed(_ setting: Setting, _ seed: Seed) throws {
    var random = seed.generator
    let received = Lock<[UInt8]>([])
    let test = try TestServer {
      $0.durability = setting.durability
      $0.threads = setting.threads
      if !setting.isStored { $0.handler = { _ in Gatherer { bytes in received.withLock { $0 = bytes } } } }
    }
    for disturbance in Disturbance.allCases {
      for round in 0..<2 {
        let size = Int.random(in: 1...150_000, using: &random)
        let id = "\(disturbance)\(round)"
        let upload = GrowingUpload(test, id, size: size, isDisturbed: disturbance != .none)
        try upload.create(&random)
        let isOver = Lock(false)
        let seed = random.next()
        let failure = Lock<(any Error)?>(nil)
        try concurrently(
          {
            var random = SplitMix64(state: seed)
            do { try upload.complete(&random) } catch { failure.withLock { $0 = error } }
            isOver.withLock { $0 = true }
          },
          {
            var random = SplitMix64(state: seed &+ 1)
            while !isOver.withLock({ $0 }) { try? upload.disturb(disturbance, &random) }
          })
        if let failure = failure.withLock({ $0 }) { throw failure }
        let stored = setting.isStored ? try test.directory.contents("t-\(id).bin") : received.withLock { $0 }
        #expect(stored == upload.bytes)
      }
    }
  }

  @Test("after a restart, an append creates as many handlers as HEAD to determine the offset of its upload")
  func handlersAfterRestart() throws {
    let directory = TemporaryDirectory()
    let count = Lock(0)
    func server() throws -> TestServer {
      try TestServer(in: directory) {
        $0.handler = { _ in
          count.withLock { $0 += 1 }
          return nil
        }
      }
    }
    var test = try server()
    let location = try test.create("/t.bin", ["Stream-ID: a"])
    try test.append(location, at: 0, [1, 2, 3])
    test.stop()
    test = try server()
    /// How many handlers the server made for a request.
    func made(_ ask: (RawClient) throws -> Void) throws -> Int {
      let before = count.withLock { $0 }
      try ask(try test.connect())
      return count.withLock { $0 } - before
    }
    // The first request makes the server read the upload's record.
    _ = try made { _ = try $0.head(location) }
    let asked = try made { _ = try $0.head(location) }
    for offset in [1, 7, 2] {
      let appended = try made {
        try $0.patch(location, at: offset, body: "x")
        #expect(try $0.final().answer.status == 409)
      }
      // The server judges a mismatched append again after all bytes that were sent before it have arrived.
      #expect(appended == 2 * asked)
    }
  }

  @Test(
    "HEAD counts the earlier bytes of another connection, on any threads", arguments: [1, 2, 3],
    [Durability.none, .always])
  func orderOfConnections(threads: Int, durability: Durability) throws {
    let test = try TestServer {
      $0.threads = threads
      $0.durability = durability
    }
    let location = try test.create()
    // This connection exists already, so its request does not wait for the listener.
    let waiting = try test.connect()
    _ = try waiting.head(location)
    for round in 0..<120 {
      let offset = round * 7
      let older = try test.connect()
      try older.patch(location, at: offset, chunked: true)
      try older.sendChunk("1234567")
      try waitUntil("all has arrived") { older.unacknowledged == 0 }
      let newer = round % 3 == 0 ? waiting : try test.connect()
      let told = try newer.head(location)["upload-offset"]
      try require(told == "\(offset + 7)", "round \(round): \(told ?? "nothing") instead of \(offset + 7)")
    }
  }

  @Test("so does the response to a wrong offset, and an append that was sent after another one follows it")
  func orderOfAppends() throws {
    let test = try TestServer { $0.threads = 2 }
    for round in 0..<100 {
      let location = try test.create()
      let older = try test.connect()
      try older.patch(location, at: 0, chunked: true)
      try older.sendChunk("1234567")
      try waitUntil("all has arrived") { older.unacknowledged == 0 }
      let newer = try test.connect()
      if round % 2 == 0 {
        try newer.patch(location, at: 3, body: "x")
        let refused = try newer.final().answer
        try require(refused.status == 409 && refused["upload-offset"] == "7", "\(refused)")
      } else {
        try newer.patch(location, at: 7, body: "89")
        let answer = try newer.final().answer
        try require(answer.status == 204 && answer["upload-offset"] == "9", "\(answer)")
      }
    }
  }
}

/// One upload as its client sees it: the bytes that it has sent, and the announced offsets.
private final class GrowingUpload: @unchecked Sendable {
  let bytes: [UInt8]
  private let test: TestServer
  private let id: String
  private let isDisturbed: Bool
  private var location = ""
  /// The offset that was announced last.
  private var announced = 0
  /// The most bytes that the server can have.
  private var sent = 0
  /// A request that has neither ended nor completed the upload, and whether the server's TCP has received all of it.
  private var hanging: (client: RawClient, hasArrived: Bool)?
  private var isComplete = false

  init(_ test: TestServer, _ id: String, size: Int, isDisturbed: Bool) {
    self.test = test
    self.id = id
    self.isDisturbed = isDisturbed
    bytes = (0..<size).map { UInt8(truncatingIfNeeded: ($0 &* 2_654_435_761) >> 13) }
  }

  func create(_ random: inout SplitMix64) throws {
    let client = try test.connect()
    let count = random.chance(50) ? 0 : Int.random(in: 0...bytes.count, using: &random)
    let lines = ["Stream-ID: \(id)", "Content-Length: \(count)", "Upload-Complete: ?0"]
    try client.request("POST", "/t.bin", lines)
    try client.send(Array(bytes[..<count]))
    sent = count
    let answer = try client.final().answer
    location = answer["location"] ?? ""
    try told(answer, [201], exactly: count)
  }

  /// Completes the upload in random steps.
  func complete(_ random: inout SplitMix64) throws {
    while !isComplete {
      do {
        try step(&random)
      } catch let error as Refused {
        throw error
      } catch {
        // Another client's request has cut it off, which is the purpose of the disturbance.
        if !isDisturbed || (error as? TestFailure)?.isTimeout == true { throw error }
        hanging = nil
        try ask()
      }
    }
  }

  private func step(_ random: inout SplitMix64) throws {
    // Only the client knows whether it was complete already.
    if announced == bytes.count { return try end() }
    let count = Int.random(in: 0...(bytes.count - announced), using: &random)
    switch Int.random(in: 0..<10, using: &random) {
    case 0...2: try append(count)
    case 3...4: try begin(count, arrives: random.chance(70))
    case 5: try ask()
    case 6...7: try provoke(&random)
    default: if random.chance(40) { try end() }
    }
  }

  private func append(_ count: Int) throws {
    let client = try test.connect()
    hanging = nil
    try client.patch(location, at: announced, ["Content-Length: \(count)"])
    sent = max(sent, announced + count)
    try client.send(Array(bytes[announced..<(announced + count)]))
    try told(try client.final().answer, [204], exactly: announced + count)
  }

  private func begin(_ count: Int, arrives: Bool) throws {
    guard count > 0 else { return }
    let client = try test.connect()
    try client.patch(location, at: announced, chunked: true)
    sent = max(sent, announced + count)
    try client.sendChunk(Array(bytes[announced..<(announced + count)]))
    if arrives { try waitUntil("all has arrived") { client.unacknowledged == 0 } }
    hanging = (client, arrives && announced + count == sent)
    // The server reports the offset only to a client that asks.
    try ask()
  }

  private func ask() throws {
    let answer = try test.connect().head(location)
    let all = hanging?.hasArrived == true && !isDisturbed ? sent : nil
    hanging = nil
    try told(answer, [204], exactly: all)
  }

  /// Sends a request at a wrong offset, possibly while another request is in progress.
  private func provoke(_ random: inout SplitMix64) throws {
    var client: RawClient?
    let count = Int.random(in: 0...(bytes.count - announced), using: &random)
    if count > 0, random.chance(60) {
      let new = try test.connect()
      try new.patch(location, at: announced, chunked: true)
      sent = max(sent, announced + count)
      try new.sendChunk(Array(bytes[announced..<(announced + count)]))
      try waitUntil("all has arrived") { new.unacknowledged == 0 }
      client = new
    }
    let stray = try test.connect()
    try stray.patch(location, at: bytes.count + 5, chunked: true)
    let refused = try stray.final().answer
    try told(refused, [409], exactly: isDisturbed ? nil : max(announced, client == nil ? announced : sent))
    guard refused.body.contains("\"expected-offset\":\(announced),") else {
      throw Refused("the two differ: \(refused)")
    }
    guard let client, random.chance(50) else { return }
    // The request in progress is not affected.
    try client.send("0\r\n\r\n")
    try told(try client.final().answer, [204], exactly: isDisturbed ? nil : sent)
  }

  private func end() throws {
    let client = try test.connect()
    try client.patch(location, at: announced, completes: true, ["Content-Length: \(bytes.count - announced)"])
    sent = bytes.count
    try client.send(Array(bytes[announced...]))
    try told(try client.final().answer, [200, 201], exactly: bytes.count)
  }

  private func told(_ answer: RawClient.Answer, _ statuses: [Int], exactly offset: Int?) throws {
    guard let told = answer["upload-offset"].flatMap({ Int($0) }), statuses.contains(answer.status),
      told >= announced, told <= sent, offset == nil || told == offset
    else {
      throw Refused("announced before: \(announced), sent: \(sent), to be announced: \(offset ?? -1); but \(answer)")
    }
    announced = told
    isComplete = answer["upload-complete"] == "?1"
  }

  func disturb(_ disturbance: AnnouncedOffsetTests.Disturbance, _ random: inout SplitMix64) throws {
    switch disturbance {
    case .none: poll(nil, 0, 1)
    case .otherUploads:
      let other = try test.connect()
      try other.request("POST", "/u.bin", ["Upload-Complete: ?0"], body: String(repeating: "x", count: 50_000))
      guard let location = try other.final().answer["location"] else { return }
      try other.request("DELETE", location)
      _ = try other.final()
    case .questions:
      _ = try test.connect().head(location)
      poll(nil, 0, Int32.random(in: 0...3, using: &random))
    case .strays:
      let stray = try test.connect()
      try stray.patch(location, at: bytes.count + 9, chunked: true)
      _ = try stray.final()
    }
  }

  private struct Refused: Error, CustomStringConvertible {
    let description: String
    init(_ description: String) { self.description = description }
  }
}
