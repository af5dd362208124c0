// sluice collect, and uploads that the servers have ended because nobody continued them.

import BrokerTesting
import Glibc
import JetStream
import NetworkTesting
import Testing
import UploadServer

@Suite("sluice collect of expired uploads")
struct CollectExpiryTests {
  private static func collect(_ broker: TestBroker, _ directory: TemporaryDirectory) throws -> TestProcess {
    let process = try sluice(["collect", broker.url, "--directory", directory.path])
    try process.lines.first("the collector to begin") { $0.text.hasPrefix("collecting ") }
    return process
  }

  private static func stop(_ collector: TestProcess) throws {
    collector.signal(SIGTERM)
    #expect(try collector.wait() == 0, "\(collector.errors)")
  }

  private static func checkpoint(in directory: TemporaryDirectory) throws -> String {
    String(decoding: try directory.contents(".collected"), as: UTF8.self)
  }

  /// The sequence of the broker's last message.
  private static func newestMessage(_ broker: TestBroker) throws -> UInt64 {
    try BrokerLoop(.init(servers: [broker.url])).open("sluice").lastMessage(of: "*")?.sequence ?? 0
  }

  /// Waits until the checkpoint includes a message.
  private static func waitUntilCollected(_ message: UInt64, in directory: TemporaryDirectory) throws {
    try waitUntil("all messages are collected") {
      try checkpoint(in: directory).firstMatch(of: /sequence=([0-9]+)/).flatMap { UInt64($0.1) } ?? 0 >= message
    }
  }

  /// Makes the log of a stream a link to itself, which nobody can read.
  private static func makeUnreadable(_ base: String, in directory: TemporaryDirectory) throws {
    let log = "\(directory.path)/.parts/\(base)"
    if mkdir("\(directory.path)/.parts", 0o700) != 0 { #expect(errno == EEXIST) }
    #expect(symlink(base, log) == 0)
    try directory.write("\(base).part", "")
  }

  /// Undoes this. A power failure has destroyed the content of the log, and the stream has an empty recording.
  private static func makeReadable(_ base: String, in directory: TemporaryDirectory) throws {
    #expect(unlink("\(directory.path)/.parts/\(base)") == 0)
    try directory.write(".parts/\(base)", "")
  }

  /// - Parameter age: the age at which an upload without new bytes ends.
  private static func server(
    _ broker: TestBroker, _ events: EventLog<ServerEvent>, age: Duration = .seconds(1)
  ) throws -> UploadServer {
    var configuration = UploadServer.Configuration(
      listen: [try ListenAddress("127.0.0.1:0")],
      storage: .brokers(UploadServer.Brokers(BrokerOptions(servers: [broker.url])))
    ) { events.append($0) }
    (configuration.finishAfter, configuration.uploads.maximumAge) = (age, age)
    let server = try UploadServer(configuration: configuration)
    try server.start()
    return server
  }

  @Test(
    "the recording of a live stream is closed, and that of an upload of known length is removed",
    arguments: [false, true])
  func ends(_ beginsLater: Bool) throws {
    let (broker, directory, events) = (try TestBroker(), try TemporaryDirectory(), try EventLog<ServerEvent>())
    let server = try Self.server(broker, events)
    defer {
      server.shutdown(grace: .zero)
      server.waitUntilEnded()
    }
    var collector = beginsLater ? nil : try Self.collect(broker, directory)
    let client = try RawClient(server.localAddresses[0])
    for (id, lines, text) in [("live", [], "live "), ("sized", ["Upload-Length: 99"], "sized")] {
      try client.request("POST", "/x", ["Upload-Complete: ?0", "Stream-ID: \(id)"] + lines, body: text)
      #expect(try client.final().answer.status == 201)
    }
    for id in ["live", "sized"] {
      try events.first("the end of \(id)") { $0.stream == id && ($0.kind == .closed || $0.kind == .expired) }
    }
    // The client continues its stream in another upload.
    try client.request("POST", "/x", ["Upload-Complete: ?1", "Stream-ID: live", "Stream-Offset: 5"], body: "goes on")
    #expect(try client.final().answer.status == 201)
    let running = try collector ?? Self.collect(broker, directory)
    collector = running
    try running.lines.first("the end of the second part") { $0.text.contains("\"event\":\"ended\"") }
    if !beginsLater {
      try running.lines.first("the end of the upload") { $0.text.contains("\"event\":\"expired\"") }
    }
    let closed = try running.lines.first("the end of the first part") { $0.text.contains("\"event\":\"closed\"") }
    // The collector itself would have waited for an hour.
    #expect(closed.text.contains("interrupted: the server has closed the stream"), "\(closed.text)")
    try Self.stop(running)
    #expect(
      directory.names.filter { $0.hasPrefix("x-") }
        == ["x-live.bin", "x-live.gaps", "x-live~2.bin", "x-live~2.gaps"])
    #expect(try directory.contents("x-live.bin") == Array("live ".utf8))
    #expect(try directory.contents("x-live~2.bin") == Array("goes on".utf8))
  }

  @Test(
    "a collector that is killed at any event of a stream that ended before its start stores each byte once",
    arguments: ["begun", "closed"], [1, 3])
  func killed(at event: String, uploads count: Int) throws {
    let (broker, directory, events) = (try TestBroker(), try TemporaryDirectory(), try EventLog<ServerEvent>())
    let server = try Self.server(broker, events)
    defer {
      server.shutdown(grace: .zero)
      server.waitUntilEnded()
    }
    let client = try RawClient(server.localAddresses[0])
    for number in 0..<count {
      // Each continues the stream after the one before it was closed.
      let fields = ["Upload-Complete: ?0", "Stream-ID: live", "Stream-Offset: \(number * 5)"]
      try client.request("POST", "/x", fields, body: "live\(number)")
      #expect(try client.final().answer.status == 201)
      try events.wait("the end of upload \(number)") { $0.count { $0.kind == .closed } > number ? true : nil }
    }
    for _ in 0..<3 {
      let collector = try Self.collect(broker, directory)
      // After an earlier kill, there may be no such event.
      _ = try? collector.lines.wait("the event", within: .seconds(3)) { lines in
        lines.contains { $0.text.contains("\"event\":\"\(event)\"") } ? true : nil
      }
      collector.signal(SIGKILL)
      _ = try collector.wait()
    }
    let last = try Self.collect(broker, directory)
    try Self.waitUntilCollected(try Self.newestMessage(broker), in: directory)
    try Self.stop(last)
    let names = directory.names.filter { $0.hasPrefix("x-") && $0.hasSuffix(".bin") }
    #expect(names == (0..<count).map { $0 == 0 ? "x-live.bin" : "x-live~\($0 + 1).bin" })
    for (number, name) in names.enumerated() {
      #expect(try directory.contents(name) == Array("live\(number)".utf8), "\(name)")
    }
  }

  @Test("many ends of one stream wait for the same checkpoint, and delay no other stream")
  func manyEnds() throws {
    let (broker, directory, events) = (try TestBroker(), try TemporaryDirectory(), try EventLog<ServerEvent>())
    // All uploads must begin before the first one ends.
    let server = try Self.server(broker, events, age: .seconds(8))
    defer {
      server.shutdown(grace: .zero)
      server.waitUntilEnded()
    }
    let client = try RawClient(server.localAddresses[0])
    for number in 0..<200 {
      let fields = ["Upload-Complete: ?0", "Stream-ID: live", "Stream-Offset: \(number)"]
      try client.request("POST", "/x", fields, body: "x")
      #expect(try client.final().answer.status == 201)
    }
    try events.wait("all ends") { $0.count { $0.stream == "live" && $0.kind == .closed } == 200 ? true : nil }
    try client.request("POST", "/x", ["Upload-Complete: ?1", "Stream-ID: other"], body: "other")
    #expect(try client.final().answer.status == 201)
    let scratch = try TemporaryDirectory()
    let collector = try TestProcess(
      "strace",
      [
        "-D", "-f", "-qq", "-o", "\(scratch.path)/trace", "-e", "trace=renameat,renameat2", try sluicePath(), "collect",
        broker.url, "--directory", directory.path,
      ])
    try collector.lines.first("the collector to begin") { $0.text.hasPrefix("collecting ") }
    func checkpointCount() throws -> Int {
      let trace = String(decoding: try scratch.contents("trace"), as: UTF8.self)
      return trace.split(separator: "\n").count { $0.contains(".collected~") }
    }
    try waitUntil("the other stream is stored") { access("\(directory.path)/x-other.bin", F_OK) == 0 }
    #expect(try checkpointCount() <= 5)
    try Self.waitUntilCollected(try Self.newestMessage(broker), in: directory)
    #expect(try checkpointCount() <= 10)
    try Self.stop(collector)
    #expect(try directory.contents("x-live.bin") == Array(repeating: UInt8(ascii: "x"), count: 200))
  }

  @Test(
    "a recording that is closed while another stream cannot be collected is not stored again later",
    arguments: [false, true])
  func closedBesideUnreadable(hasHole: Bool) throws {
    let (broker, directory, events) = (try TestBroker(), try TemporaryDirectory(), try EventLog<ServerEvent>())
    // The second upload of the stream must come before the first one ends.
    let server = try Self.server(broker, events, age: hasHole ? .seconds(4) : .seconds(1))
    defer {
      server.shutdown(grace: .zero)
      server.waitUntilEnded()
    }
    // The first collector of a directory needs all records.
    try Self.stop(try Self.collect(broker, directory))
    try Self.makeUnreadable("x-other", in: directory)
    let collector = try Self.collect(broker, directory)
    let client = try RawClient(server.localAddresses[0])
    for id in ["other", "live"] {
      try client.request("POST", "/x", ["Upload-Complete: ?0", "Stream-ID: \(id)"], body: id)
      #expect(try client.final().answer.status == 201)
    }
    if hasHole {
      // It leaves a hole, so the first upload loses its place in the recording.
      let fields = ["Upload-Complete: ?0", "Stream-ID: live", "Stream-Offset: 6"]
      try client.request("POST", "/x", fields, body: "later")
      #expect(try client.final().answer.status == 201)
    }
    try waitUntil("the recording is closed") { directory.names.contains("x-live.bin") }
    try events.first("the end of the other upload") { $0.stream == "other" && $0.kind == .closed }
    let newest = try Self.newestMessage(broker)
    try Self.stop(collector)
    #expect(directory.names.filter { $0.hasSuffix(".bin") } == ["x-live.bin"])
    try Self.makeReadable("x-other", in: directory)
    let last = try Self.collect(broker, directory)
    try Self.waitUntilCollected(newest, in: directory)
    try Self.stop(last)
    #expect(directory.names.filter { $0.hasPrefix("x-") && !$0.hasSuffix(".gaps") } == ["x-live.bin", "x-other.bin"])
    #expect(try directory.contents("x-live.bin") == Array((hasHole ? "live\0\0later" : "live").utf8))
    #expect(try directory.contents("x-other.bin") == Array("other".utf8))
  }

  @Test(
    "while a stream cannot be collected, the checkpoint keeps no ended upload, and no recording is stored again, even if it was moved away"
  )
  func endedBesideUnreadable() throws {
    let (broker, directory, events) = (try TestBroker(), try TemporaryDirectory(), try EventLog<ServerEvent>())
    let server = try Self.server(broker, events)
    defer {
      server.shutdown(grace: .zero)
      server.waitUntilEnded()
    }
    let client = try RawClient(server.localAddresses[0])
    func send(_ id: String, completes: Bool) throws {
      try client.request("POST", "/x", ["Upload-Complete: ?\(completes ? 1 : 0)", "Stream-ID: \(id)"], body: id)
      #expect(try client.final().answer.status == 201)
    }
    // The first collector of a directory needs all records.
    try Self.stop(try Self.collect(broker, directory))
    try Self.makeUnreadable("x-other", in: directory)
    try send("other", completes: false)
    // The second collector reads the messages again that the first one has applied.
    for number in 0..<2 {
      let collector = try Self.collect(broker, directory)
      try send("live\(number)", completes: false)
      try send("whole\(number)", completes: true)
      try waitUntil("the recordings of collector \(number) are complete") {
        ["x-live\(number).sidecar", "x-whole\(number).sidecar"].allSatisfy {
          access("\(directory.path)/\($0)", F_OK) == 0
        }
      }
      try Self.stop(collector)
      let text = try Self.checkpoint(in: directory)
      let endedIDs = ["live\(number)", "whole\(number)"]
      #expect(text.contains("omitted=\"x-other\"") && endedIDs.allSatisfy { !text.contains($0) }, "\(text)")
      for ending in ["bin", "sidecar"] { #expect(unlink("\(directory.path)/x-whole\(number).\(ending)") == 0) }
    }
    try events.first("the end of the other upload") { $0.stream == "other" && $0.kind == .closed }
    let newest = try Self.newestMessage(broker)
    try Self.makeReadable("x-other", in: directory)
    let last = try Self.collect(broker, directory)
    try Self.waitUntilCollected(newest, in: directory)
    try Self.stop(last)
    #expect(try !Self.checkpoint(in: directory).contains("omitted"))
    let names = directory.names.filter { $0.hasPrefix("x-") && ($0.hasSuffix(".bin") || $0.hasSuffix(".part")) }
    #expect(names == ["x-live0.bin", "x-live1.bin", "x-other.bin"])
    for id in ["live0", "live1", "other"] { #expect(try directory.contents("x-\(id).bin") == Array(id.utf8)) }
  }

  @Test("a recording that was completed and moved away after the checkpoint is not called removed by another program")
  func movedAfterCheckpoint() throws {
    let (broker, directory, events) = (try TestBroker(), try TemporaryDirectory(), try EventLog<ServerEvent>())
    let server = try Self.server(broker, events, age: .seconds(600))
    defer {
      server.shutdown(grace: .zero)
      server.waitUntilEnded()
    }
    let client = try RawClient(server.localAddresses[0])
    try client.request("POST", "/x", ["Upload-Complete: ?0", "Stream-ID: a"], body: "first ")
    let created = try client.final().answer
    #expect(created.status == 201)
    let first = try Self.collect(broker, directory)
    try Self.waitUntilCollected(try Self.newestMessage(broker), in: directory)
    try Self.stop(first)
    // What a collector leaves behind that is killed after it has completed the recording.
    let checkpoint = try directory.contents(".collected")
    try client.request(
      "PATCH", try #require(created["location"]),
      [
        "Content-Type: application/partial-upload", "Upload-Offset: 6", "Upload-Complete: ?1",
      ], body: "last")
    #expect(try client.final().answer.status == 201)
    let second = try Self.collect(broker, directory)
    try waitUntil("the recording is complete") { access("\(directory.path)/x-a.sidecar", F_OK) == 0 }
    try Self.stop(second)
    try directory.write(".collected", checkpoint)
    for ending in ["bin", "sidecar"] { #expect(unlink("\(directory.path)/x-a.\(ending)") == 0) }
    let third = try Self.collect(broker, directory)
    let refused = try third.lines.first("the report") { $0.text.contains("\"event\":\"refused\"") }
    #expect(refused.text.contains("or it was complete and was moved away"), "\(refused.text)")
    try Self.stop(third)
    #expect(directory.names.filter { $0.hasPrefix("x-") } == [])
  }
}
