// Files of other programs in the directory of sluice collect whose names are of the form of its growing recordings.

import BrokerTesting
import Glibc
import JetStream
import NetworkTesting
import Testing

@Suite("sluice collect and unfinished files of other programs")
struct CollectStrangerTests {
  private static let names = ["film.mkv.part", "notes.part", "x-q~2.part"]

  private static func writeAll(_ directory: TemporaryDirectory) throws {
    for name in names { try directory.write(name, "stranger") }
  }

  /// Waits until a collector has reported all of them.
  private static func waitForReports(_ collector: TestProcess) throws {
    for name in names {
      try collector.lines.first("the report of \(name)") {
        $0.text.contains("no record of the collector names \(name). ")
      }
    }
  }

  private static func checkAll(_ directory: TemporaryDirectory) throws {
    for name in names { #expect(try directory.contents(name) == Array("stranger".utf8)) }
  }

  @Test("a collector that continues reports them, and leaves them as they are")
  func atLaterStart() throws {
    let rig = try CollectRig(collectors: 1)
    try Self.writeAll(rig.directories[0])
    try rig.restart(0, SIGTERM)
    try Self.waitForReports(rig.collectors[0])
    try rig.finish()
    try Self.checkAll(rig.directories[0])
  }

  @Test("the first collector of a directory reports them, and its checkpoint does not contain them")
  func atFirstStart() throws {
    let (broker, directory) = (try TestBroker(), try TemporaryDirectory())
    _ = try BrokerLoop(.init(servers: [broker.url])).open("sluice")
    try Self.writeAll(directory)
    let collector = try sluice(["collect", broker.url, "--directory", directory.path])
    try Self.waitForReports(collector)
    collector.signal(SIGTERM)
    #expect(try collector.wait() == 0, "\(collector.errors)")
    let checkpoint = String(decoding: try directory.contents(".collected"), as: UTF8.self)
    #expect(!checkpoint.contains("file="), "\(checkpoint)")
    try Self.checkAll(directory)
  }

  @Test("a stream waits while such a file has the name of its growing recording, even if the collector is restarted")
  func inThePlace() throws {
    let rig = try CollectRig(collectors: 1)
    let directory = rig.directories[0]
    let stranger = try directory.write("x-f.part", "stranger")
    let content = Array("hello".utf8)
    let lines = ["Upload-Complete: ?1", "Stream-ID: f"]
    #expect(try rig.send(.log, "POST", "/x", owner: "alice", lines, content).status == 201)
    for start in 0..<2 {
      if start > 0 { try rig.restart(0, SIGTERM) }
      try rig.collectors[0].lines.first("the report of collector \(start)") {
        $0.text.contains("x-f.part waits: open x-f.part, which no record of the collector names")
      }
    }
    #expect(try directory.contents("x-f.part") == Array("stranger".utf8))
    #expect(unlink(stranger) == 0)
    try rig.finish()
    #expect(try directory.contents("x-f.bin") == content)
    #expect(rig.output.allSatisfy { !$0.contains("\"event\":\"refused\"") }, "\(rig.output)")
  }

  @Test("a file that has the name under which a complete recording grew is reported, and left as it is")
  func besideComplete() throws {
    let rig = try CollectRig(collectors: 1)
    let directory = rig.directories[0]
    let lines = ["Upload-Complete: ?1", "Stream-ID: a"]
    #expect(try rig.send(.log, "POST", "/x", owner: "alice", lines, Array("hello".utf8)).status == 201)
    try waitUntil("the recording is complete") { access("\(directory.path)/x-a.sidecar", F_OK) == 0 }
    try directory.write("x-a.part", "stranger")
    try rig.restart(0, SIGTERM)
    try rig.collectors[0].lines.first("the report") { $0.text.contains("no record of the collector names x-a.part. ") }
    try rig.finish()
    #expect(try directory.contents("x-a.part") == Array("stranger".utf8))
    #expect(try directory.contents("x-a.bin") == Array("hello".utf8))
  }

  @Test("a recording that a checkpoint of an earlier version describes grows on, although no log names it")
  func earlierVersion() throws {
    try growsOn { directory in
      for file in [".parts/x-a", ".owners/x-a"] { #expect(unlink("\(directory.path)/\(file)") == 0) }
    }
  }

  @Test("so does one that an earlier version has begun to split since its checkpoint")
  func earlierSplit() throws {
    try growsOn { directory in
      let line = String(decoding: try directory.contents(".parts/x-a"), as: UTF8.self).filter { $0 != "\n" }
      #expect(line.contains("part=1") && line.contains("x-a.bin") && line.contains("start=0, first=0"), "\(line)")
      let next = line.replacing("part=1", with: "part=2").replacing("x-a.bin", with: "x-a~2.bin")
        .replacing("start=0, first=0", with: "start=5, first=5")
      // The line of the recording's beginning is missing.
      try directory.write(".parts/x-a", "\(line), end=5, split\n\(next), series=0, holes=0\n")
      try directory.write("x-a~2.part", "")
      #expect(unlink("\(directory.path)/.owners/x-a") == 0)
    }
  }

  /// A collector is killed after its checkpoint has an unfinished recording, and the next one continues that.
  ///
  /// - Parameter change: makes the directory one of an earlier version.
  private func growsOn(_ change: (TemporaryDirectory) throws -> Void) throws {
    let rig = try CollectRig(collectors: 1)
    let directory = rig.directories[0]
    let lines = ["Upload-Complete: ?0", "Stream-ID: a"]
    let answer = try rig.send(.log, "POST", "/x", owner: "alice", lines, Array("hello".utf8))
    let location = try #require(answer.location)
    try waitUntil("the checkpoint has the recording") {
      String(decoding: try directory.contents(".collected"), as: UTF8.self)
        .contains("file=\"x-a\", part=1, length=5")
    }
    try change(directory)
    try rig.restart(0, SIGKILL)
    let more = ["Upload-Complete: ?1", "Upload-Offset: 5", "Content-Type: application/partial-upload"]
    #expect(try rig.send(.log, "PATCH", location, owner: "alice", more, Array(" world".utf8)).status == 201)
    try rig.finish()
    #expect(try directory.contents("x-a.bin") == Array("hello world".utf8))
    #expect(rig.output.allSatisfy { !$0.contains("\"event\":\"refused\"") }, "\(rig.output)")
  }
}
