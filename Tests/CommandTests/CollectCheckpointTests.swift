// The checkpoint of sluice collect. It lists only recordings that exist, so it does not grow with ended uploads.

import BrokerTesting
import Glibc
import JetStream
import LogCollecting
import NetworkTesting
import Testing
import UploadServer

@Suite("The checkpoint of sluice collect")
struct CollectCheckpointTests {
  /// The recordings that the checkpoint lists as growing.
  private static func listed(_ directory: TemporaryDirectory) throws -> [String] {
    let text = String(decoding: try directory.contents(".collected"), as: UTF8.self)
    return text.matches(of: /file="([^"]+)"/).map { String($0.1) }
  }

  @Test("a checkpoint lists no recording of a cancelled upload, even after a restart", arguments: [SIGTERM, SIGKILL])
  func cancelled(_ signal: Int32) throws {
    let rig = try CollectRig(collectors: 1)
    let directory = rig.directories[0]
    var locations: [String] = []
    for number in 0..<20 {
      let lines = ["Upload-Complete: ?0", "Stream-ID: c\(number)"]
      let answer = try rig.send(.log, "POST", "/x", owner: "alice", lines, Array("hello".utf8))
      locations.append(try #require(answer.location))
    }
    try waitUntil("the checkpoint lists all recordings") { try Self.listed(directory).count == locations.count }
    for location in locations { #expect(try rig.send(.log, "DELETE", location, owner: "alice", []).status == 204) }
    try waitUntil("the checkpoint lists none") { try Self.listed(directory).isEmpty }
    try rig.restart(0, signal)
    try rig.finish()
    #expect(try Self.listed(directory).isEmpty)
    #expect(!directory.names.contains { $0.hasSuffix(".part") })
  }

  @Test("a checkpoint does not list the recording of a refused upload after it was closed")
  func refused() throws {
    let rig = try CollectRig(collectors: 1, ["--finish-after", "1s"])
    func create(_ id: String, completes: Bool) throws -> String {
      let lines = ["Upload-Complete: ?\(completes ? 1 : 0)", "Stream-ID: \(id)"]
      return try rig.send(.log, "POST", "/x", owner: "alice", lines, Array("hello".utf8)).location ?? ""
    }
    let token = String(try create("a", completes: false).dropFirst("/.uploads/".count))
    let stream = try BrokerLoop(.init(servers: [rig.broker.url])).open("sluice")
    let last = try #require(try stream.lastMessage(of: token))
    _ = try stream.publish(.init(headers: [.init("A", "b")], payload: [0]), to: token, after: last.sequence).get()
    try rig.collectors[0].lines.first("the refusal") { $0.text.contains("is damaged") }
    try rig.collectors[0].lines.first("the end of the recording") { $0.text.contains("\"event\":\"closed\"") }
    // Without messages, there is no checkpoint.
    _ = try create("b", completes: true)
    try waitUntil("the checkpoint lists none") { try Self.listed(rig.directories[0]).isEmpty }
    #expect(try rig.directories[0].contents("x-a.bin") == Array("hello".utf8))
  }

  @Test("verify accepts the recording of an open upload after its collector has stopped, if the checkpoint is whole")
  func verified() throws {
    let rig = try CollectRig(collectors: 1)
    let directory = rig.directories[0]
    let lines = ["Upload-Complete: ?0", "Stream-ID: a"]
    #expect(try rig.send(.log, "POST", "/x", owner: "alice", lines, Array("hello".utf8)).status == 201)
    try rig.finish()
    let verification = try sluice(["verify", directory.path])
    #expect(try verification.wait() == 0)
    #expect(
      verification.output.count == 1 && verification.output[0].contains("x-a.part\": unfinished"),
      "\(verification.output)")
    _ = try directory.write(".collected", "nonsense\n")
    let damaged = try sluice(["verify", directory.path])
    #expect(try damaged.wait() == 4)
    let isReported = damaged.output.contains { $0.contains(".collected\": unreadable") }
    #expect(isReported && damaged.output.allSatisfy { !$0.contains("torn") }, "\(damaged.output)")
  }

  @Test("a collector forgets the recordings of its checkpoint that do not exist when it starts")
  func missing() throws {
    let (broker, directory) = (try TestBroker(), try TemporaryDirectory())
    _ = try BrokerLoop(.init(servers: [broker.url])).open("sluice")
    func collect() throws {
      let process = try sluice(["collect", broker.url, "--directory", directory.path])
      try process.lines.first("the collector to begin") { $0.text.hasPrefix("collecting ") }
      process.signal(SIGTERM)
      #expect(try process.wait() == 0, "\(process.errors)")
    }
    try collect()
    let text = String(decoding: try directory.contents(".collected"), as: UTF8.self)
    var lines = text.split(separator: "\n").dropLast().map { String($0) }
    lines += (0..<1000).map { "file=\"x-\($0)\", part=1, length=5" }
    lines.append("end=\(lines.count)")
    _ = try directory.write(".collected", lines.joined(separator: "\n") + "\n")
    #expect(try Self.listed(directory).count == 1000)
    try collect()
    #expect(try Self.listed(directory).isEmpty)
  }

  @Test("a collector that has stopped after its last checkpoint has closed the recordings that grow")
  func closedAtEnd() throws {
    let (rig, directory) = (try CollectRig(collectors: 0), try TemporaryDirectory())
    let lines = ["Upload-Complete: ?0", "Stream-ID: a"]
    #expect(try rig.send(.log, "POST", "/x", owner: "alice", lines, Array("hello".utf8)).status == 201)
    let events = try EventLog<ServerEvent>()
    let (collector, ended) = try CollectFaultTests.collect(from: rig.broker, into: directory, events)
    let file = "\(directory.path.split(separator: "/").last ?? "")/x-a.part"
    try waitUntil("the recording is open") { try openPaths().contains { $0.hasSuffix(file) } }
    collector.stop()
    #expect(try ended.wait("the end", { $0.first }) == "stopped")
    #expect(try openPaths().allSatisfy { !$0.hasSuffix(file) })
    withExtendedLifetime(collector) {}
  }

  @Test("a collector does not wait for messages after the last one of an upload whose beginning is missing")
  func lastOfSkipped() throws {
    let rig = try CollectRig(collectors: 1)
    let stream = try BrokerLoop(.init(servers: [rig.broker.url])).open("sluice")
    let token = String(repeating: "0", count: 32)
    var sequence: UInt64 = 0
    for number in 2...3 {
      // 0xD202EF8D is the checksum of one byte 0.
      let headers: [MessageContent.Header] = [
        .init("Stream-ID", "a"), .init("Stream-Offset", "5"), .init("Upload-Offset", "5"),
        .init("Sluice-CRC32", "d202ef8d"), .init("Sluice-Publisher", "p.\(number)"),
        .init("Sluice-Number", "\(number)"), .init("Sluice-Chain", "0"), .init("Sluice-Ended", "misplaced"),
      ]
      sequence = try stream.publish(.init(headers: headers, payload: [0]), to: token, after: sequence).get()
    }
    // A message of a skipped upload would be ignored without a warning.
    try rig.collectors[0].lines.wait("both warnings") { lines in
      lines.count { $0.text.contains("whose beginning is no longer in the log") } == 2 ? true : nil
    }
  }
}
