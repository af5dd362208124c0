// Tests the records that the server writes about uploads: how many, for whom, without secrets, and that reading them
// again delays no client.

import EventLoops
import Glibc
import HTTPMessages
import NetworkTesting
import PropertyTesting
import Testing

@testable import DiskFiles
@testable import ResumableServing
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

@Suite("Records of uploads", .serialized)
struct UploadRecordTests {
  @Test(
    "the stored records fit the limits, in total and per owner, and the newest stays",
    arguments: Seed.several(2))
  func accounts(_ seed: Seed) {
    var random = seed.generator
    for _ in 0..<200 {
      let limits = FinishedUploads.Limits(
        count: .random(in: 2...30, using: &random), countPerClient: .random(in: 1...20, using: &random),
        bytes: .random(in: 200...3000, using: &random), bytesPerClient: .random(in: 100...2000, using: &random))
      var finished = FinishedUploads(limits)
      var model: [String: (owner: Int, bytes: Int)] = [:]
      for number in 0..<200 {
        if random.chance(10), let token = model.keys.sorted().randomElement(using: &random) {
          finished.remove(token)
          model[token] = nil
          continue
        }
        let owner = Int.random(in: 0..<3, using: &random)
        let bytes = Int.random(in: 0...100, using: &random)
        let forgotten = finished.add(
          "\(number)", of: UploadOwner(credential: nil, address: "\(owner)"), bytes: bytes,
          since: MonotonicInstant(nanoseconds: Int64(number)))
        model["\(number)"] = (owner, bytes)
        for token in forgotten { #expect(model.removeValue(forKey: token) != nil) }
        #expect(model["\(number)"] != nil)
        #expect(finished.count == model.count && finished.bytes == model.values.reduce(0) { $0 + $1.bytes })
        #expect(finished.count <= limits.count && finished.bytes <= max(limits.bytes, bytes))
        let own = model.values.filter { $0.owner == owner }
        #expect(own.count <= limits.countPerClient)
        #expect(own.reduce(0) { $0 + $1.bytes } <= max(limits.bytesPerClient, bytes))
      }
    }
  }

  @Test("an unreadable record is answered with 503, and with its contents once it is readable", arguments: [1, 2])
  func unreadable(_ threads: Int) throws {
    let directory = TemporaryDirectory()
    let tokens = directory.path + "/tokens"
    let alpha = "Authorization: Bearer alpha"
    // `printf %s alpha | sha256sum`
    try write("8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8\n", tokens)
    func server() throws -> TestServer {
      try TestServer(in: directory) { ($0.threads, $0.tokenFile) = (threads, tokens) }
    }
    var test = try server()
    var client = try test.connect()
    try client.request(
      "POST", "/t.txt", ["Upload-Complete: ?0", "Stream-ID: a", alpha, "Content-Type: text/plain"], body: "abc")
    let location = try #require(try client.final().answer["location"])
    // A directory in place of the file stands for any reason why the server cannot read it.
    let files = [".uploads/" + location.split(separator: "/")[1] + ".upload", "t-a.part", ".owners/t-a"]
    for (index, file) in files.enumerated() {
      let path = directory.path + "/" + file
      client.disconnect()
      test.stop()
      try Command.run("mv", [path, path + ".kept"])
      try Command.run("mkdir", [path])
      test = try server()
      client = try test.connect()
      func head() throws -> RawClient.Answer {
        try client.request("HEAD", location, [alpha])
        return try client.final(withBody: false).answer
      }
      let answer = try head()
      #expect(answer.status == 503 && answer["retry-after"] != nil, "\(file): \(answer)")
      if index == 2 {
        // No client gets 403 for a stream that may be its own.
        let other = try test.connect()
        try other.request("POST", "/t.txt", version: nil, ["Stream-ID: a", alpha], body: "abc")
        #expect(try other.final().answer.status == 503)
      }
      try Command.run("rmdir", [path])
      try Command.run("mv", [path + ".kept", path])
      let after = try head()
      #expect(after.status == 204 && after["upload-offset"] == "3", "\(file): \(after)")
    }
  }

  @Test("a record that cannot be parsed is reported without a request for it, and left unchanged", arguments: [1, 2])
  func unparsable(_ threads: Int) throws {
    let directory = TemporaryDirectory()
    let first = try TestServer(in: directory) { $0.threads = threads }
    let record: String = try first.create().dropFirst() + ".upload"
    first.stop()
    let text = "not a record\n"
    try directory.write(record, Array(text.utf8))
    let test = try TestServer(in: directory) { $0.threads = threads }
    let report = try test.events.wait("a report of the record") { events in
      events.first { $0.reason?.contains("cannot parse the record of an upload in .uploads") == true }
    }
    #expect(report.kind == .warning)
    test.stop()
    #expect(try directory.text(record) == text)
  }

  private func write(_ text: String, _ path: String) throws {
    guard let file = fopen(path, "w") else { throw TestFailure("cannot write \(path)") }
    fputs(text, file)
    fclose(file)
  }

  @Test("a full account removes a few records at a time, the oldest first, for any number")
  func fewAtATime() {
    var finished = FinishedUploads(.init(count: 20_000, countPerClient: 10_000))
    var last = -1
    for number in 0..<60_000 {
      let forgotten = finished.add(
        "\(number)", of: UploadOwner(credential: nil, address: "a"), bytes: 1,
        since: MonotonicInstant(nanoseconds: Int64(number)))
      #expect(forgotten.count <= 64)
      for token in forgotten {
        #expect(Int(token) == last + 1)
        last += 1
      }
    }
    #expect(finished.count <= 10_000 && finished.count > 9_900)
  }

  @Test("expired records leave nothing, for any number of one owner")
  func expiredPlaces() {
    var finished = FinishedUploads(.init(count: 20_000, countPerClient: 10_000))
    for number in 0..<50_000 {
      let forgotten = finished.add(
        "\(number)", of: UploadOwner(credential: nil, address: "a"), bytes: 1,
        since: MonotonicInstant(nanoseconds: Int64(number)))
      #expect(forgotten == [])
      if number >= 100 { finished.remove("\(number - 100)") }
      #expect(finished.placeCount <= 300)
    }
    #expect(finished.count == 100)
  }

  @Test("the oldest remaining records are removed first, even after others have expired and some have returned")
  func leftPlaces() {
    func owner(_ address: String) -> UploadOwner { UploadOwner(credential: nil, address: address) }
    func moment(_ number: Int) -> MonotonicInstant { MonotonicInstant(nanoseconds: Int64(number)) }
    var finished = FinishedUploads(.init(count: 20_000, countPerClient: 400))
    for number in 0..<200 { _ = finished.add("\(number)", of: owner("a"), bytes: 1, since: moment(number)) }
    // One upload gets another owner at the same moment, and one is used again.
    _ = finished.add("10", of: owner("b"), bytes: 1, since: moment(10))
    _ = finished.add("11", of: owner("a"), bytes: 1, since: moment(1000))
    for number in 20..<200 { finished.remove("\(number)") }
    // More places are unused than used, so the unused ones are removed.
    _ = finished.add("new", of: owner("a"), bytes: 1, since: moment(1001))
    #expect(finished.count == 21 && finished.placeCount == 21)
    var forgotten: [String] = []
    for number in 0..<400 {
      forgotten += finished.add("later\(number)", of: owner("a"), bytes: 1, since: moment(2000 + number))
    }
    let left = (0..<20).filter { $0 != 10 && $0 != 11 }.map { "\($0)" }
    #expect(forgotten.starts(with: left + ["11", "new"]), "\(forgotten)")
  }

  private func records(_ directory: TemporaryDirectory) -> [String] {
    guard let stream = opendir(directory.path + "/.uploads") else { return [] }
    defer { closedir(stream) }
    var names: [String] = []
    while let entry = readdir(stream) {
      let name = withUnsafeBytes(of: &entry.pointee.d_name) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) }
      if name.hasSuffix(".upload") { names.append(name) }
    }
    return names.sorted()
  }

  @Test(
    "finished uploads leave at most the maximum number of records, even after a restart with a lower limit",
    arguments: [1, 2])
  func bounded(_ threads: Int) throws {
    let directory = TemporaryDirectory()
    do {
      let test = try TestServer(in: directory) {
        $0.threads = threads
        $0.uploads.maximumFinishedCount = 20
      }
      let client = try test.connect()
      for _ in 0..<100 {
        try client.request("POST", "/t.txt", ["Upload-Complete: ?1"], body: "abc")
        #expect(try client.final().answer.status == 201)
      }
      #expect((1...20).contains(records(directory).count))
      client.disconnect()
      test.stop()
    }
    #expect((1...20).contains(records(directory).count))
    let test = try TestServer(in: directory) {
      $0.threads = threads
      $0.uploads.maximumFinishedCount = 5
      $0.uploads.loadPatience = .zero
    }
    try waitUntil("the records were read") { records(directory).count <= 5 }
    // The bytes of the recordings must not be removed.
    #expect(directory.names.filter { $0.hasSuffix(".txt") }.count == 100)
    test.stop()
  }

  @Test("a server answers for every upload of the previous one before it has read all records", arguments: [1, 2])
  func lazily(_ threads: Int) throws {
    // By default the server waits for them so briefly that it answers within a second of its start.
    #expect(UploadLimitsConfiguration().loadPatience <= .milliseconds(250))
    let directory = TemporaryDirectory()
    var uploads: [(location: String, offset: Int)] = []
    do {
      let test = try TestServer(in: directory) { $0.threads = threads }
      let client = try test.connect()
      for index in 0..<300 {
        let body = String(repeating: "x", count: index % 7)
        try client.request("POST", "/t.txt", ["Upload-Complete: ?0"], body: body)
        let answer = try client.final().answer
        uploads.append((try #require(answer["location"]), body.utf8.count))
      }
      client.disconnect()
      test.stop()
    }
    let test = try TestServer(in: directory) {
      $0.threads = threads
      $0.uploads.loadPatience = .zero
    }
    let client = try test.connect()
    for upload in uploads.reversed() {
      let answer = try client.head(upload.location)
      #expect(answer.status == 204 && answer["upload-offset"] == "\(upload.offset)", "\(answer)")
    }
    // An invalid token must not be used as a path.
    for name in ["../tokens", "..%2f..%2fetc", "record-0", String(repeating: "g", count: 32)] {
      try client.request("HEAD", "/.uploads/\(name)")
      #expect(try client.final(withBody: false).answer.status == 404)
    }
    try client.patch(uploads[3].location, at: uploads[3].offset, completes: true, body: "y")
    #expect([200, 201].contains(try client.final().answer.status))
  }

  // MARK: Secrets

  private static let secretLines = [
    "Cookie: hidden1", "X-Api-Key: hidden2", "Proxy-Authorization: Basic hidden3", "X-Auth-Token: hidden4",
    "Private-Token: hidden5", "X-Session-Id: hidden6", "X-Hub-Signature-256: hidden7",
  ]

  /// Records the fields of its request.
  private final class Seen: RequestHandler, @unchecked Sendable {
    let fields: Lock<[HeaderFields]>
    private let head: RequestHead
    private var exchange: (any Exchange)?
    init(_ head: RequestHead, _ log: SeenLog) {
      self.head = head
      fields = Lock([])
      log.add(head.fields)
    }
    func begin(_ exchange: any Exchange) {
      self.exchange = exchange
      exchange.acceptBody()
    }
    func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) {}
    func end() { exchange?.respond(Response(200, ["set-cookie": "hidden8"], body: "done\n")) }
    func aborted(_ reason: AbortReason) { exchange = nil }
    func serverStops() {}
  }

  private final class SeenLog: Sendable {
    private let all = Lock<[HeaderFields]>([])
    func add(_ fields: HeaderFields) { all.withLock { $0.append(fields) } }
    var last: HeaderFields? { all.withLock { $0.last } }
  }

  @Test("no record contains a credential of the request, its target, or the response", arguments: [true, false])
  func secrets(_ isStore: Bool) throws {
    let directory = TemporaryDirectory()
    let log = SeenLog()
    func server() throws -> TestServer {
      try TestServer(in: directory) { if !isStore { $0.handler = { Seen($0, log) } } }
    }
    let test = try server()
    let lines = Self.secretLines + ["X-Plain: shown"]
    let target = isStore ? "/t.txt?key=hidden0" : "/t.txt"
    let location = try test.create(target, lines)
    let client = try test.connect()
    try client.patch(location, at: 0, Self.secretLines, body: "abc")
    #expect(try client.final().answer["upload-offset"] == "3")
    // Within the process, the handler sees the fields of its request.
    if !isStore { #expect(log.last?.single("cookie") == "hidden1" && log.last?.single("x-plain") == "shown") }
    #expect(try Command.run("grep", ["-rqe", "hidden", directory.path]) == 1)
    client.disconnect()
    test.stop()
    #expect(try Command.run("grep", ["-rqe", "hidden", directory.path]) == 1)
    let second = try server()
    let next = try second.connect()
    try next.patch(location, at: 3, completes: true, body: "def")
    #expect([200, 201].contains(try next.final().answer.status))
    if !isStore { #expect(log.last?.single("cookie") == nil && log.last?.single("x-plain") == "shown") }
    second.stop()
    #expect(try Command.run("grep", ["-rqe", "hidden", directory.path]) == 1)
  }

  @Test("records with credentials of earlier versions are cleaned", arguments: Durability.allCases)
  func cleaned(_ durability: Durability) throws {
    let directory = TemporaryDirectory()
    let test = try TestServer(in: directory) { $0.durability = durability }
    let location = try test.create("/t.txt")
    let client = try test.connect()
    try client.patch(location, at: 0, body: "abc")
    _ = try client.final()
    client.disconnect()
    test.stop()
    let record = "\(directory.path)/.uploads/\(try #require(records(directory).first))"
    try Command.run("sed", ["-i", "0,/^Field/s/^Field/Field: %\"hidden\";name=%\"cookie\"\\nField/", record])
    #expect(try Command.run("grep", ["-rqe", "hidden", directory.path]) == 0)
    let second = try TestServer(in: directory) { $0.durability = durability }
    #expect(try second.connect().head(location)["upload-offset"] == "3")
    try waitUntil("the record is cleaned") {
      (try? Command.run("grep", ["-rqe", "hidden", directory.path])) == 1
    }
    second.stop()
    let third = try TestServer(in: directory)
    #expect(try third.connect().head(location)["upload-offset"] == "3")
  }

  // MARK: Expiry

  @Test(
    "uploads that expired while the server was stopped delay no request, and all are removed", arguments: [1, 2])
  func expireTogether(_ threads: Int) throws {
    // The client of a busy machine may not run while uploads are removed.
    var attempts = 1
    while try answersDuringExpiry(threads) == 0 {
      attempts += 1
      try #require(attempts <= 10, "an upload is requested while others are removed")
    }
  }

  /// Removes many expired uploads, and returns the number of requests that are answered meanwhile.
  private func answersDuringExpiry(_ threads: Int) throws -> Int {
    let (directory, count) = (TemporaryDirectory(), 300)
    var kept = ""
    do {
      let test = try TestServer(in: directory)
      let client = try test.connect()
      for _ in 0..<count {
        try client.request("POST", "/t.txt", ["Upload-Complete: ?0", "Upload-Length: 4"], body: "abc")
        _ = try client.final()
      }
      try client.request("POST", "/live.txt", ["Upload-Complete: ?0"], body: "abc")
      kept = try #require(try client.final().answer["location"])
      test.stop()
    }
    let test = try TestServer(in: directory) {
      $0.threads = threads
      $0.uploads.maximumAge = .milliseconds(1)
    }
    let client = try test.connect()
    var (answersMeanwhile, gone) = (0, 0)
    while gone < count {
      #expect(try client.head(kept)["upload-offset"] == "3")
      gone = test.events.all.count { $0.kind == .expired }
      if (1..<count).contains(gone) { answersMeanwhile += 1 }
    }
    #expect(test.directory.names.filter { $0.hasSuffix(".part") }.count == 1, "age deletes no live stream")
    return answersMeanwhile
  }
}
