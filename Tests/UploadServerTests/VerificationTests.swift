// Tests `RecordingVerification` with recordings that a server has stored: it accepts all of them, and finds each kind
// of damage.

import Glibc
import NetworkTesting
import Recordings
import SyncGate
import Testing
import UploadServer

@Suite("Verification of recordings")
struct VerificationTests {
  /// How a server stores a recording.
  enum Recording: CaseIterable, Sendable {
    case live, wav, closedWAV, file, empty, nextPart, withHole

    /// Stores a recording with its sidecar, and returns the name of its file.
    func store(in directory: TemporaryDirectory) throws -> String {
      let test = try TestServer(in: directory) {
        if [.closedWAV, .nextPart].contains(self) { $0.finishAfter = .milliseconds(100) }
      }
      let wav = StreamedHead.all[0].bytes + [UInt8](repeating: 3, count: 4000)
      func send(_ path: String, _ bytes: [UInt8], offset: Int = 0, framing: String = "Transfer-Encoding: chunked")
        throws
      {
        let client = try test.connect()
        try client.send(TestServer.head(path, offset: offset, type: "", framing: framing))
        if framing.hasPrefix("Content") {
          try client.send(bytes)
        } else {
          if !bytes.isEmpty { try client.sendChunk(bytes) }
          try client.send("0\r\n\r\n")
        }
        #expect([200, 201].contains(try client.answer().status))
      }
      let file: String
      switch self {
      case .live:
        try send("/k.txt", Array("abcdefgh".utf8))
        file = "k-a.txt"
      case .wav:
        try send("/k.wav", wav)
        file = "k-a.wav"
      case .closedWAV:
        try test.plain("/k.wav", id: "a", type: "audio/wav", wav)
        _ = try test.events.wait(.closed)
        file = "k-a.wav"
      case .file:
        try send("/k.bin", wav, framing: "Content-Length: \(wav.count)")
        file = "k-a.bin"
      case .empty:
        try send("/k.txt", [])
        file = "k-a.txt"
      case .nextPart:
        try test.plain("/k.wav", id: "a", type: "audio/wav", wav)
        _ = try test.events.wait(.closed)
        try test.plain("/k.wav", id: "a", offset: wav.count, type: "audio/wav", [1, 2, 3, 4])
        _ = try test.events.wait(.closed, count: 2)
        file = "k-a~2.wav"
      case .withHole:
        try send("/k.txt", Array("abcdefgh".utf8), offset: 1 << 20)
        file = "k-a.txt"
      }
      let sidecars = self == .nextPart ? ["k-a.sidecar", "k-a~2.sidecar"] : ["k-a.sidecar"]
      // The hidden sidecar is removed last.
      for name in sidecars {
        try waitUntil("\(name) is written") { directory.exists(name) && !directory.exists("." + name) }
      }
      return file
    }
  }

  enum Damage: CaseIterable, Sendable {
    case none, changedByte, cutShort, extended, removed, sidecarRemoved, sidecarCut, sidecarRenamed, sidecarPending
    case recordingRenamed, unreadable

    /// Returns nil if the damage cannot be done to that file.
    func perform(_ file: String, _ directory: String) throws -> [RecordingVerification.Kind]? {
      let path = "\(directory)/\(file)"
      let base = String(file.prefix { $0 != "." })
      let sidecar = "\(directory)/\(base).sidecar"
      var status = stat()
      guard stat(path, &status) == 0 else { throw TestFailure("no \(path)") }
      let size = status.st_size
      func change(_ path: String, _ body: (Int32) -> Void) {
        let descriptor = open(path, O_RDWR)
        body(descriptor)
        close(descriptor)
      }
      switch self {
      case .none: return []
      case .changedByte:
        guard size > 0 else { return nil }
        change(path) { descriptor in
          var byte: UInt8 = 0
          pread(descriptor, &byte, 1, size - 1)
          byte ^= 0x20
          pwrite(descriptor, &byte, 1, size - 1)
        }
        return [.wrongDigest]
      case .cutShort:
        guard size > 0 else { return nil }
        truncate(path, size - 1)
        return [.wrongLength]
      case .extended:
        truncate(path, size + 1)
        return [.wrongLength]
      case .removed:
        unlink(path)
        return [.missingRecording]
      case .sidecarRemoved:
        unlink(sidecar)
        return [.missingSidecar]
      case .sidecarCut:
        truncate(sidecar, 40)
        return [.invalidSidecar]
      case .sidecarRenamed:
        rename(sidecar, "\(directory)/other.sidecar")
        return [.missingSidecar, .invalidSidecar]
      case .sidecarPending:
        rename(sidecar, "\(directory)/.\(base).sidecar")
        return [.pending]
      case .recordingRenamed:
        rename(path, path + "x")
        return [.missingSidecar, .missingRecording]
      case .unreadable:
        unlink(path)
        symlink("/dev/null", path)
        return [.missingRecording]
      }
    }
  }

  private func findings(_ directory: TemporaryDirectory) throws -> (
    summary: RecordingVerification.Summary, findings: [RecordingVerification.Finding]
  ) {
    var findings: [RecordingVerification.Finding] = []
    let summary = try RecordingVerification(directory: directory.path).run { findings.append($0) }
    return (summary, findings)
  }

  @Test(
    "each kind of damage is found in each kind of recording, and nothing else is reported",
    arguments: Recording.allCases)
  func damage(_ recording: Recording) throws {
    for damage in Damage.allCases {
      let directory = TemporaryDirectory()
      let file = try recording.store(in: directory)
      let before = try findings(directory)
      #expect(before.findings == [] && before.summary.problems == 0, "\(before.findings)")
      #expect(before.summary.verified == before.summary.recordings && before.summary.verified >= 1)
      guard let expected = try damage.perform(file, directory.path) else { continue }
      let after = try findings(directory)
      #expect(Set(after.findings.map(\.kind)) == Set(expected), "\(damage): \(after.findings)")
      #expect(after.summary.problems == expected.filter(\.isProblem).count, "\(damage): \(after.findings)")
      #expect(after.findings.allSatisfy { !$0.detail.isEmpty && !$0.path.hasPrefix("/") })
    }
  }

  @Test("a .part is torn if no server runs and no upload's record names it, and unfinished otherwise")
  func parts() throws {
    let directory = TemporaryDirectory()
    do {
      let test = try TestServer(in: directory)
      try test.plain(id: "plain", Array("abc".utf8))
      let location = try test.create("/t.txt", ["Stream-ID: upload"])
      try test.append(location, at: 0, "abc")
      let served = try findings(directory)
      #expect(served.findings.map(\.kind) == [.unfinished, .unfinished], "\(served.findings)")
    }
    let left = try findings(directory)
    #expect(
      left.findings.map { "\($0.kind) \($0.path)" } == ["torn t-plain.part", "unfinished t-upload.part"],
      "\(left.findings)")
    #expect(left.summary.problems == 1)
  }

  @Test("recordings in subdirectories are compared, too, and hidden files, links and FIFOs are skipped")
  func directories() throws {
    let directory = TemporaryDirectory()
    let file = try Recording.live.store(in: directory)
    mkdir(directory.path + "/2026", 0o755)
    mkdir(directory.path + "/2026/11", 0o755)
    for name in [file, "k-a.sidecar"] { rename("\(directory.path)/\(name)", "\(directory.path)/2026/11/\(name)") }
    symlink("..", directory.path + "/2026/up")
    mkfifo(directory.path + "/fifo", 0o600)
    #expect(try findings(directory).summary == .init(recordings: 1, verified: 1, bytes: 8, problems: 0))
    truncate("\(directory.path)/2026/11/\(file)", 3)
    let found = try findings(directory)
    #expect(found.findings.map(\.path) == ["2026/11/\(file)"])
  }

  @Test("a directory whose names cannot all be read is a problem, and everything else is still compared")
  func brokenOff() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      try Command.run("sh", ["-c", "mkdir \"$0/in\" && touch \"$0/in/a.wav\" \"$0/z.wav\"", directory.path])
      for (ending, expected) in [
        ("/in", ["missing-sidecar z.wav", "unreadable in"]), (directory.path, ["unreadable ."]),
      ] {
        list_gate_fail(EIO, ending, 0)
        var found: [String] = []
        let summary = try RecordingVerification(directory: directory.path).run {
          found.append("\($0.kind.rawValue) \($0.path)")
        }
        try require(found == expected && summary.problems == expected.count, "\(found)")
      }
    }
  }

  @Test("a directory that cannot be entered is one problem, and everything else is still compared")
  func notEntered() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let files = "mkdir \"$0/in\" && touch \"$0/in/a.wav\" \"$0/in/b.wav\" \"$0/z.txt\""
      try Command.run("sh", ["-c", files, directory.path])
      status_gate_fail(EACCES, ".wav")
      var found: [String] = []
      let summary = try RecordingVerification(directory: directory.path).run {
        found.append("\($0.kind.rawValue) \($0.path)")
      }
      try require(found == ["missing-sidecar z.txt", "unreadable in"] && summary.problems == 2, "\(found)")
    }
  }

  @Test("if the records of uploads cannot be read, they are a problem, and no .part is torn")
  func unknownUploads() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let files = "mkdir \"$0/.uploads\" && touch \"$0/.uploads/0.upload\" \"$0/x-y.part\""
      try Command.run("sh", ["-c", files, directory.path])
      func check(_ expected: [String]) throws {
        var found: [String] = []
        let summary = try RecordingVerification(directory: directory.path).run {
          found.append("\($0.kind.rawValue) \($0.path)")
        }
        try require(found == expected && summary.problems == 1, "\(found)")
      }
      try check(["torn x-y.part"])
      list_gate_fail(EACCES, "/.uploads", 0)
      try check(["unreadable .uploads", "unfinished x-y.part"])
      list_gate_fail(0, "", 0)
      open_gate_fail(EACCES, ".upload")
      try check(["unreadable .uploads/0.upload", "unfinished x-y.part"])
    }
  }

  @Test("a missing directory and an empty path are errors", arguments: ["/nonexistent", ""])
  func missing(_ path: String) {
    #expect(throws: (any Error).self) { try RecordingVerification(directory: path).run { _ in } }
  }
}
