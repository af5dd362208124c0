// Tests a file that is damaged while it grows: its sidecar must not certify the damaged bytes as the received ones.

import Digests
import Glibc
import NetworkTesting
import PropertyTesting
import Recordings
import Testing
import UploadServer

@Suite("Recordings that are damaged before their end")
struct DamagedUploadTests {
  /// How a client sends a stream whose digest the server knows at its end.
  enum Sending: CaseIterable, Sendable {
    /// Two requests. The creation announces the digest.
    case announced
    /// Two requests. The creation requests the digest.
    case wanted
    /// One request, which announces the digest.
    case oneRequest
    case plain
    /// Two requests, with a WAV header whose sizes the server corrects.
    case live

    var path: String { self == .live ? "/k.wav" : "/k.bin" }
    var file: String { self == .live ? "k-a.wav" : "k-a.bin" }
    var content: [UInt8] {
      let pattern = OffsetPattern(seed: 3)
      let bytes = (0..<UInt64(100_000)).map { pattern[$0] }
      return self == .live ? StreamedHead.all[0].bytes + bytes : bytes
    }
  }

  /// Overwrites 10 bytes. The length of the file stays.
  private static func damage(_ path: String) throws {
    let descriptor = open(path, O_WRONLY | O_CLOEXEC)
    guard descriptor >= 0, pwrite(descriptor, "0123456789", 10, 1000) == 10 else { throw TestFailure("cannot damage") }
    close(descriptor)
  }

  private static func sha256(_ bytes: [UInt8]) -> Digest { Digest(.sha256, of: bytes.span.bytes) }

  /// Sends the content, and calls `pause` when the server has stored the first half. Returns the final response.
  private static func send(
    _ sending: Sending, to test: TestServer, _ pause: (_ path: String) throws -> Void
  ) throws -> RawClient.Answer {
    let content = sending.content
    let (first, rest) = (Array(content[..<50_000]), Array(content[50_000...]))
    let field = "sha-256=:\(sha256(content).base64):"
    func stored() throws {
      try waitUntil("the first half is stored") { (try? test.directory.contents("k-a.part").count) == first.count }
      try pause(test.directory.path + "/k-a.part")
    }
    switch sending {
    case .plain, .oneRequest:
      let client = try test.connect()
      if sending == .plain {
        let framing = "Content-Length: \(content.count)"
        try client.send(
          TestServer.head(sending.path, type: "", framing: framing, more: "Content-Digest: \(field)\r\n"))
      } else {
        try client.request(
          "POST", sending.path,
          ["Upload-Complete: ?1", "Stream-ID: a", "Content-Length: \(content.count)", "Repr-Digest: \(field)"])
      }
      try client.send(first)
      try stored()
      try client.send(rest)
      return try client.final().answer
    case .announced, .wanted, .live:
      var lines = ["Stream-ID: a", "Want-Repr-Digest: sha-256=1"]
      if sending == .announced { lines.append("Repr-Digest: \(field)") }
      lines.append(sending == .live ? "Content-Type: audio/wav" : "Upload-Length: \(content.count)")
      let location = try test.create(sending.path, lines)
      try test.append(location, at: 0, first)
      try stored()
      let client = try test.connect()
      try client.patch(location, at: first.count, completes: true, ["Content-Length: \(rest.count)"])
      try client.send(rest)
      let answer = try client.final().answer
      #expect(answer["repr-digest"] == field, "\(answer)")
      return answer
    }
  }

  private static func sidecar(_ directory: TemporaryDirectory) throws -> RecordingSidecar {
    try waitUntil("the sidecar is written") { directory.exists("k-a.sidecar") && !directory.exists(".k-a.sidecar") }
    return try RecordingSidecar(parsing: try directory.contents("k-a.sidecar"))
  }

  private static func findings(_ directory: TemporaryDirectory) throws -> [RecordingVerification.Finding] {
    var findings: [RecordingVerification.Finding] = []
    _ = try RecordingVerification(directory: directory.path).run { findings.append($0) }
    return findings
  }

  @Test(
    "its sidecar and its download state the digest of the received bytes, and the server reports the damage",
    arguments: Sending.allCases, [Durability.none, .interval])
  func damaged(_ sending: Sending, _ durability: Durability) throws {
    let test = try TestServer { ($0.durability, $0.allowsDownloads) = (durability, true) }
    let answer = try Self.send(sending, to: test) { try Self.damage($0) }
    #expect(answer.status == 201, "\(answer)")
    let warning = try test.events.wait(.warning)
    #expect(warning.file == sending.file && warning.reason?.contains("differ from the received ones") == true)
    let sidecar = try Self.sidecar(test.directory)
    let digest = Self.sha256(sending.content).hexadecimal
    #expect(sidecar.isDamaged && sidecar.received?.sha256 == digest)
    #expect(sidecar.stored?.sha256 == (sending == .live ? nil : digest))
    #expect(sidecar.receivedHead.isEmpty == (sending != .live))
    let found = try Self.findings(test.directory)
    #expect(found.map(\.kind) == [.wrongDigest] && found.first?.path == sending.file, "\(found)")
    // A client that downloads the damaged bytes compares them with it.
    let client = try test.connect()
    try client.send("HEAD /\(sending.file) HTTP/1.1\r\nHost: h\r\n\r\n")
    let download = try client.answer(withBody: false)
    #expect(download["repr-digest"] == "sha-256=:\(Self.sha256(sending.content).base64):", "\(download)")
    // The received bytes match, even without the corrected header.
    try test.directory.write(sending.file, sending.content)
    let restored = try Self.findings(test.directory)
    #expect(restored == [], "\(restored)")
  }

  @Test("a header that was damaged before its correction matches when it is repaired, and not when it is zeros")
  func damagedHead() throws {
    let test = try TestServer()
    // The rate.
    let position = 60
    let answer = try Self.send(.live, to: test) { path in
      let descriptor = open(path, O_WRONLY | O_CLOEXEC)
      defer { close(descriptor) }
      try #require(descriptor >= 0 && pwrite(descriptor, "x", 1, off_t(position)) == 1)
    }
    #expect(answer.status == 201, "\(answer)")
    #expect(try Self.sidecar(test.directory).isDamaged)
    #expect(try Self.findings(test.directory).map(\.kind) == [.wrongDigest])
    var file = try test.directory.contents("k-a.wav")
    file[position] = Sending.live.content[position]
    try test.directory.write("k-a.wav", file)
    let repaired = try Self.findings(test.directory)
    #expect(repaired == [], "\(repaired)")
    let length = StreamedHead.all[0].bytes.count
    try test.directory.write("k-a.wav", [UInt8](repeating: 0, count: length) + file[length...])
    #expect(try Self.findings(test.directory).map(\.kind) == [.wrongDigest])
  }

  @Test(
    "an undamaged recording has the same sidecar as one whose digest was not known",
    arguments: Sending.allCases, [Durability.none, .interval])
  func undamaged(_ sending: Sending, _ durability: Durability) throws {
    let test = try TestServer { $0.durability = durability }
    let answer = try Self.send(sending, to: test) { _ in }
    #expect(answer.status == 201, "\(answer)")
    var sidecar = try Self.sidecar(test.directory)
    let other = try TestServer { $0.durability = durability }
    let length = sending == .live ? "Content-Type: audio/wav" : "Upload-Length: \(sending.content.count)"
    let location = try other.create(sending.path, ["Stream-ID: a", length])
    try other.append(location, at: 0, completes: true, sending.content)
    let expected = try Self.sidecar(other.directory)
    (sidecar.started, sidecar.ended, sidecar.link) = (expected.started, expected.ended, expected.link)
    #expect(sidecar == expected)
    let found = try Self.findings(test.directory)
    #expect(found == [], "\(found)")
    #expect(!test.events.all.contains { $0.kind == .warning }, "\(test.events.all)")
  }

  @Test("the digest of an upload is not compared with a recording that contains more than the upload")
  func partial() throws {
    let test = try TestServer()
    let content = Sending.announced.content
    try test.plain("/k.bin", id: "a", type: "", Array(content[..<50_000]))
    let rest = Array(content[50_000...])
    let field = "Repr-Digest: sha-256=:\(Self.sha256(rest).base64):"
    let location = try test.create("/k.bin", ["Stream-ID: a", "Stream-Offset: 50000", field])
    try test.append(location, at: 0, completes: true, rest)
    let sidecar = try Self.sidecar(test.directory)
    #expect(!sidecar.isDamaged && sidecar.received?.sha256 == Self.sha256(content).hexadecimal)
    #expect(!test.events.all.contains { $0.kind == .warning }, "\(test.events.all)")
  }

  @Test("the next server compares the recording if the one before it was killed before it computed the digests")
  func killed() throws {
    let directory = TemporaryDirectory()
    try directory.write("k-a.bin", Array("stored".utf8))
    var pending = RecordingSidecar(file: "k-a.bin")
    pending.stored = .init(bytes: 6)
    let digest = Self.sha256(Array("sent  ".utf8)).hexadecimal
    pending.received = .init(bytes: 6, sha256: digest)
    try directory.write(".k-a.sidecar", Array(pending.text.utf8))
    let test = try TestServer(in: directory)
    #expect(try test.events.wait(.warning).file == "k-a.bin")
    let sidecar = try Self.sidecar(directory)
    #expect(sidecar.isDamaged && sidecar.stored?.sha256 == digest)
  }
}
