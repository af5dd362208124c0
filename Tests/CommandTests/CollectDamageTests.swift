// Tests sluice collect with recordings that are damaged while they grow. The log then has the only copy of their bytes.

import BrokerTesting
import Digests
import Glibc
import JetStream
import NetworkTesting
import PropertyTesting
import Recordings
import Testing

@Suite("Recordings that are damaged while sluice collect writes them")
struct CollectDamageTests {
  private static let content: [UInt8] = {
    let pattern = OffsetPattern(seed: 5)
    return (0..<UInt64(100_000)).map { pattern[$0] }
  }()

  /// Stores an upload of two requests in the log, and calls `pause` when the collector has written the first one.
  ///
  /// - Returns: its token.
  private static func upload(
    _ id: String, _ lines: [String], to rig: CollectRig, _ pause: (_ path: String) throws -> Void = { _ in }
  ) throws -> String {
    let creation = ["Upload-Complete: ?0", "Stream-ID: \(id)"] + lines
    let first = Array(content[..<50_000])
    let location = try #require(try rig.send(.log, "POST", "/x", owner: "alice", creation, first).location)
    try waitUntil("the first half is written") {
      (try? rig.directories[0].contents("x-\(id).part").count) == first.count
    }
    try pause("\(rig.directories[0].path)/x-\(id).part")
    let more = ["Upload-Complete: ?1", "Upload-Offset: \(first.count)", "Content-Type: application/partial-upload"]
    let answer = try rig.send(.log, "PATCH", location, owner: "alice", more, Array(content[first.count...]))
    #expect(answer.status == 201)
    return String(location.dropFirst("/.uploads/".count))
  }

  @Test(
    "its messages stay in the log, even for the next collector, and verify finds the damage",
    arguments: [false, true])
  func damaged(_ isLive: Bool) throws {
    let rig = try CollectRig(collectors: 1, ["--after-collect", "purge"])
    let digest = Digest(.sha256, of: Self.content.span.bytes)
    let known = [
      isLive ? "Want-Repr-Digest: sha-256=1" : "Repr-Digest: sha-256=:\(digest.base64):",
      isLive ? "Content-Type: audio/basic" : "Upload-Length: \(Self.content.count)",
    ]
    let stream = try BrokerLoop(.init(servers: [rig.broker.url])).open("sluice")
    let damaged = try Self.upload("a", known, to: rig) { path in
      let descriptor = open(path, O_WRONLY | O_CLOEXEC)
      #expect(pwrite(descriptor, "0123456789", 10, 1000) == 10)
      close(descriptor)
    }
    let count = try stream.messages(of: damaged).count
    #expect(count > 1)
    let lines = rig.collectors[0].lines
    _ = try lines.first("the damage") { $0.text.contains("\"event\":\"warning\"") && $0.text.contains("is damaged") }
    _ = try lines.first("the reason") { $0.text.contains("the messages of x-a stay in the log") }
    // The purges of later recordings show that no other purge is due.
    func purgesOther(_ id: String, _ lines: [String]) throws {
      let other = try Self.upload(id, lines, to: rig)
      try waitUntil("the messages of \(id) are removed") { try stream.messages(of: other).count == 1 }
    }
    try purgesOther("b", known)
    try rig.restart(0, SIGKILL)
    try purgesOther("c", known)
    try purgesOther("d", [])
    #expect(try stream.messages(of: damaged).count == count)
    // Without a digest, the purge does not wait for the sidecar.
    try waitUntil("the last sidecar is written") {
      (try? rig.directories[0].contents("x-d.sidecar")) != nil
    }
    let sidecars = try ["a", "b", "c", "d"].map { id in
      try RecordingSidecar(parsing: try rig.directories[0].contents("x-\(id).sidecar"))
    }
    #expect(sidecars.map(\.isDamaged) == [true, false, false, false])
    #expect(sidecars.allSatisfy { $0.received?.sha256 == digest.hexadecimal })
    let verification = try sluice(["verify", rig.directories[0].path])
    #expect(try verification.wait() == 4)
    #expect(verification.output.count == 1 && verification.output[0].contains("wrong-digest"), "\(verification.output)")
  }

  /// What a collector finds in the place of the sidecar of a recording that an earlier one has completed.
  enum LostSidecar: CaseIterable {
    case missing
    case illegible
    /// It is missing, and the collector writes none either.
    case unwanted
  }

  @Test(
    "the messages of a recording stay in the log if it is completed again without its sidecar, unless none is written",
    arguments: LostSidecar.allCases, [false, true])
  func completedAgain(_ sidecar: LostSidecar, hasDigest: Bool) throws {
    let rig = try CollectRig(collectors: 1)
    let directory = rig.directories[0]
    let beginning = try directory.contents(".collected")
    let digest = Digest(.sha256, of: Self.content.span.bytes)
    let known = ["Repr-Digest: sha-256=:\(digest.base64):", "Upload-Length: \(Self.content.count)"]
    let token = try Self.upload("a", hasDigest ? known : [], to: rig)
    try waitUntil("the sidecar is written") { access("\(directory.path)/x-a.sidecar", F_OK) == 0 }
    rig.collectors[0].signal(SIGKILL)
    try rig.collectors[0].wait()
    // As after a kill between the end of the recording and the checkpoint that follows it.
    try directory.write(".collected", beginning)
    unlink("\(directory.path)/.x-a.sidecar")
    #expect(unlink("\(directory.path)/x-a.sidecar") == 0)
    if sidecar == .illegible { try directory.write("x-a.sidecar", "nonsense\n") }
    let stream = try BrokerLoop(.init(servers: [rig.broker.url])).open("sluice")
    let count = try stream.messages(of: token).count
    #expect(count > 1)
    let arguments = ["collect", rig.broker.url, "--directory", directory.path, "--partition", "1/1"]
    let options = sidecar == .unwanted ? ["--no-sidecars"] : []
    let collector = try sluice(arguments + ["--after-collect", "purge"] + options)
    if sidecar == .unwanted {
      try waitUntil("the messages are removed") { try stream.messages(of: token).count == 1 }
    } else {
      try collector.lines.first("the reason") {
        $0.text.contains("the messages of x-a stay in the log, because its sidecar is missing")
      }
      // The purge of a later recording shows that no other purge is due.
      let other = try Self.upload("b", [], to: rig)
      try waitUntil("the messages of b are removed") { try stream.messages(of: other).count == 1 }
      #expect(try stream.messages(of: token).count == count)
    }
    #expect(try directory.contents("x-a.bin") == Self.content)
    collector.signal(SIGTERM)
    #expect(try collector.wait() == 0, "\(collector.errors)")
  }
}
