// A directory with every kind of file, and the result of its verification.

import Digests
import Glibc
import Testing

@testable import Recordings

@Suite("The verification of a directory")
struct VerificationTests {
  private final class Directory {
    let path: String

    init() throws {
      var template = Array("/tmp/sluice-recordings.XXXXXX".utf8CString)
      try #require(mkdtemp(&template) != nil)
      path = String(decoding: template.dropLast().map(UInt8.init(bitPattern:)), as: UTF8.self)
    }

    deinit {
      var files: [String] = []
      for line in Self.names(path) { files.append(line) }
      for file in files.reversed() where unlink(file) != 0 { rmdir(file) }
      rmdir(path)
    }

    /// Each path before those inside it.
    private static func names(_ path: String) -> [String] {
      guard let stream = opendir(path) else { return [] }
      defer { closedir(stream) }
      var found: [String] = []
      while let item = readdir(stream) {
        let name = withUnsafeBytes(of: &item.pointee.d_name) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) }
        if name == "." || name == ".." { continue }
        found.append(path + "/" + name)
        found += names(path + "/" + name)
      }
      return found
    }

    func write(_ name: String, _ bytes: [UInt8] = [1]) throws {
      let file = open(path + "/" + name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0o600)
      try #require(file >= 0 && Glibc.write(file, bytes, bytes.count) == bytes.count)
      close(file)
    }

    /// Writes a sidecar that a server has not finished.
    func leave(_ name: String, of file: String, bytes count: UInt64?) throws {
      try write(name, Array(VerificationTests.unfinished(file, bytes: count).utf8))
    }

    func make(_ name: String) { #expect(mkdir(path + "/" + name, 0o700) == 0) }

    /// Writes a recording, and a sidecar that describes these bytes.
    func record(_ name: String, _ bytes: [UInt8], described: [UInt8]? = nil) throws {
      try write(name, bytes)
      let described = described ?? bytes
      var digest = RunningDigest(.sha256)
      digest.update(described.span.bytes)
      var sidecar = RecordingSidecar(file: String(name.split(separator: "/").last ?? ""))
      sidecar.stored = .init(bytes: UInt64(described.count), sha256: digest.value().hexadecimal)
      try write(String(name[..<(name.lastIndex(of: ".") ?? name.endIndex)]) + ".sidecar", Array(sidecar.text.utf8))
    }

    /// Returns the kinds by path, the summary, and the last progress.
    func verify() throws -> (
      found: [String: RecordingVerification.Kind], summary: RecordingVerification.Summary,
      progress: [RecordingVerification.Progress]
    ) {
      var found: [String: RecordingVerification.Kind] = [:]
      var progress: [RecordingVerification.Progress] = []
      let open = Self.openFiles(path)
      let summary = try RecordingVerification(directory: path).run(
        progress: { progress.append($0) }, { found[$0.path] = $0.kind })
      #expect(Self.openFiles(path) == open)
      return (found, summary, progress)
    }

    /// The files of a directory that this process has open.
    private static func openFiles(_ path: String) -> [String] {
      (0..<1024).compactMap { descriptor in
        var target = [CChar](repeating: 0, count: 4096)
        let count = readlink("/proc/self/fd/\(descriptor)", &target, target.count)
        let file = String(decoding: target.prefix(max(0, count)).map(UInt8.init(bitPattern:)), as: UTF8.self)
        return file.hasPrefix(path + "/") ? file : nil
      }
    }
  }

  /// The text of a sidecar without digests.
  private static func unfinished(_ file: String, bytes count: UInt64?) -> String {
    var sidecar = RecordingSidecar(file: file)
    sidecar.stored = count.map { RecordingSidecar.Content(bytes: $0) }
    return sidecar.text
  }

  @Test("each file is compared with the files beside it, in each directory, and all are counted")
  func everything() throws {
    let directory = try Directory()
    try directory.record("a.wav", [UInt8](repeating: 1, count: 1000))
    directory.make("in")
    directory.make("in/side")
    try directory.record("in/side/b.wav", [UInt8](repeating: 2, count: 500))
    try directory.record("in/digest.wav", [1, 2, 3], described: [1, 2, 4])
    try directory.record("in/length.wav", [1, 2, 3], described: [1, 2])
    try directory.write("none.wav")
    try directory.write("pending.wav")
    try directory.leave(".pending.sidecar", of: "pending.wav", bytes: 1)
    try directory.write("torn.part")
    try directory.write("stray.gaps")
    try directory.write("text.sidecar", Array("no sidecar".utf8))
    try directory.write(".hidden")
    #expect(symlink("a.wav", directory.path + "/link.wav") == 0)
    let (found, summary, progress) = try directory.verify()
    #expect(
      found == [
        "in/digest.wav": .wrongDigest, "in/length.wav": .wrongLength, "none.wav": .missingSidecar,
        "pending.wav": .pending, "torn.part": .torn, "stray.gaps": .strayGaps, "text.sidecar": .invalidSidecar,
      ])
    let problems = found.values.count { $0.isProblem }
    #expect(summary == .init(recordings: 6, verified: 2, bytes: 1500, problems: problems))
    for part in [
      "\"recordings\":6", "\"verified\":2", "\"bytes\":1500", "\"problems\":\(problems)", "\"verified\"",
    ] {
      #expect(summary.jsonLine.contains(part), "\(summary.jsonLine)")
    }
    // Two bytes without a sidecar follow the first recording, and three of a wrong length precede the last one.
    #expect(progress.map(\.read) == [1000, 1005, 1508] && progress.allSatisfy { $0.total == 1508 }, "\(progress)")
  }

  @Test("a sidecar that a server has not finished, or has moved, hides no damage", arguments: [".", ".removing/"])
  func hidden(_ place: String) throws {
    let directory = try Directory()
    directory.make(".removing")
    for base in ["whole", "cut", "longer", "growing", "other", "empty", "torn", "folder"] {
      try directory.write(base + ".wav", [1, 2, 3])
    }
    func leave(_ base: String, of file: String, bytes count: UInt64?) throws {
      try directory.leave(place + base + ".sidecar", of: file, bytes: count)
    }
    try leave("whole", of: "whole.wav", bytes: 3)
    try leave("cut", of: "cut.wav", bytes: 8_000_000_005)
    try leave("longer", of: "longer.wav", bytes: 2)
    try leave("growing", of: "growing.wav", bytes: nil)
    try leave("other", of: "other.txt", bytes: 3)
    try directory.write(place + "empty.sidecar", [])
    try directory.write(place + "torn.sidecar", Array(Self.unfinished("torn.wav", bytes: 3).utf8.dropLast(9)))
    directory.make(place + "folder.sidecar")
    let (found, summary, _) = try directory.verify()
    #expect(
      found == [
        "whole.wav": .pending, "cut.wav": .wrongLength, "longer.wav": .wrongLength, "growing.wav": .missingSidecar,
        "other.wav": .missingSidecar, place + "empty.sidecar": .invalidSidecar,
        place + "torn.sidecar": .invalidSidecar, place + "folder.sidecar": .unreadable,
      ])
    #expect(summary == .init(recordings: 8, verified: 0, bytes: 0, problems: 7))
  }

  /// The head of a WAV file whose sizes are open, and a frame.
  private static let received: [UInt8] = {
    var bytes = Array("RIFF".utf8)
    bytes += [255, 255, 255, 255]
    bytes += "WAVEfmt ".utf8
    bytes += [16, 0, 0, 0, 1, 0, 2, 0, 0x80, 0xBB, 0, 0, 0, 0xEE, 2, 0, 4, 0, 16, 0]
    bytes += "data".utf8
    bytes += [255, 255, 255, 255, 1, 2, 3, 4]
    return bytes
  }()
  private static let headLength = received.count - 4

  /// These bytes, with a corrected head.
  private static func corrected(_ received: [UInt8]) throws -> [UInt8] {
    let head = try #require(WAVHead(received)?.finished(fileLength: UInt64(received.count)))
    return head + received[headLength...]
  }

  /// Writes a recording, with the sidecar of a server that knows the digest of the received bytes.
  ///
  /// - Parameters:
  ///   - head: the received head, as the disk had it at the end of the recording; empty if it was not corrected.
  ///   - stored: the file when the server finished the sidecar.
  private func finish(_ directory: Directory, head: [UInt8], stored: [UInt8]) throws -> RecordingSidecar {
    let length = UInt64(stored.count)
    let digests = RecordingDigests(receivedHead: head, fileLength: length)
    // A piece may end within the head.
    for byte in stored {
      let piece = [byte]
      digests.update(piece.span.bytes)
    }
    var sidecar = RecordingSidecar(file: "a.wav")
    sidecar.stored = .init(bytes: length)
    sidecar.receivedHead = head
    let expected = Digest(.sha256, of: Self.received.span.bytes).hexadecimal
    sidecar.received = .init(bytes: length, sha256: expected)
    #expect(!sidecar.isFinished)
    sidecar.finish(digests.values())
    #expect(sidecar.isFinished && sidecar.received?.sha256 == expected)
    try directory.write("a.sidecar", Array(sidecar.text.utf8))
    try directory.write("a.wav", stored)
    return sidecar
  }

  @Test(
    "a sidecar with the digest of other received bytes does not match its file, and matches the received bytes",
    arguments: [false, true])
  func damagedBefore(isCorrected: Bool) throws {
    let directory = try Directory()
    let received = Self.received
    let right = try isCorrected ? Self.corrected(received) : received
    let sidecar = try finish(
      directory, head: isCorrected ? Array(received[..<Self.headLength]) : [], stored: Array(right.dropLast()) + [5])
    #expect(sidecar.isDamaged)
    #expect(sidecar.stored?.sha256 == (isCorrected ? nil : sidecar.received?.sha256))
    #expect(try directory.verify().found == ["a.wav": .wrongDigest])
    for restored in [right, received] {
      try directory.write("a.wav", restored)
      let result = try directory.verify()
      #expect(result.found == [:] && result.summary.verified == 1)
    }
    // The bytes after the head are restored, and the head is not.
    try directory.write("a.wav", [UInt8](repeating: 0, count: Self.headLength) + received[Self.headLength...])
    #expect(try directory.verify().found == ["a.wav": .wrongDigest])
    for position in 0..<Self.headLength {
      var wrong = right
      wrong[position] ^= 1
      try directory.write("a.wav", wrong)
      #expect(try directory.verify().found == ["a.wav": .wrongDigest], "\(position)")
    }
  }

  // The rate, the lower and the upper byte of the length of a frame, and the bits of a sample.
  @Test("a head that was damaged before its correction can be repaired", arguments: [24, 32, 33, 34])
  func damagedHead(_ position: Int) throws {
    let directory = try Directory()
    var damaged = Self.received
    damaged[position] ^= 2
    let sidecar = try finish(
      directory, head: Array(damaged[..<Self.headLength]), stored: try Self.corrected(damaged))
    #expect(sidecar.isDamaged && sidecar.stored?.sha256 == nil)
    #expect(try directory.verify().found == ["a.wav": .wrongDigest])
    for repaired in [try Self.corrected(Self.received), Self.received] {
      try directory.write("a.wav", repaired)
      let result = try directory.verify()
      #expect(result.found == [:] && result.summary.verified == 1)
    }
  }

  @Test("a head that is damaged after its correction is not certified")
  func damagedCorrection() throws {
    let directory = try Directory()
    let right = try Self.corrected(Self.received)
    var wrong = right
    wrong[24] ^= 2
    let sidecar = try finish(directory, head: Array(Self.received[..<Self.headLength]), stored: wrong)
    #expect(sidecar.isDamaged)
    #expect(try directory.verify().found == ["a.wav": .wrongDigest])
    try directory.write("a.wav", right)
    #expect(try directory.verify().found == [:])
  }

  @Test("the depth of the examined directories is the depth of a server's", arguments: [(16, 1), (17, 0)])
  func deep(_ depth: Int, _ count: Int) throws {
    let directory = try Directory()
    var path = ""
    for _ in 0..<depth {
      path += "d"
      directory.make(path)
      path += "/"
    }
    try directory.record(path + "a.wav", [1])
    let (_, summary, _) = try directory.verify()
    #expect(summary.recordings == count && summary.verified == count)
  }

  @Test("a subdirectory that cannot be read is reported with its path, and everything else is still compared")
  func unreadableDirectory() throws {
    let directory = try Directory()
    try directory.record("a.wav", [1])
    directory.make("z")
    try directory.record("z/b.wav", [2])
    // lstat(2) accepts the path of the innermost directory, and opendir(3) finds it too long with its slash.
    var path = ""
    var left = Int(PATH_MAX) - 1 - (directory.path.utf8.count + 1)
    while left > 256 {
      path += String(repeating: "d", count: 255)
      directory.make(path)
      path += "/"
      left -= 256
    }
    path += String(repeating: "d", count: left)
    directory.make(path)
    let (found, summary, _) = try directory.verify()
    #expect(found == [path: .unreadable])
    #expect(summary == .init(recordings: 2, verified: 2, bytes: 2, problems: 1))
  }

  @Test("a special file among the records of uploads is a problem, and is not read", arguments: [S_IFIFO, S_IFCHR])
  func specialRecord(_ kind: mode_t) throws {
    let directory = try Directory()
    directory.make(".uploads")
    // The numbers of /dev/zero. Only root may use them.
    guard mknod(directory.path + "/.uploads/0.upload", kind | 0o600, kind == S_IFCHR ? 0x105 : 0) == 0 else { return }
    try directory.write("x-y.part")
    #expect(try directory.verify().found == [".uploads/0.upload": .unreadable, "x-y.part": .unfinished])
  }

  /// The checkpoint of a collector with an open upload, a refused one, and a stream whose messages wait.
  private static let checkpoint = [
    "collect=1, stream=\"sluice\", created=\"\", partition=\"1/1\", sequence=9, mark=\"\"",
    "upload=\"0\", path=%\"/x\", stream=\"a-b\", start=0, live, from=0, offset=5, owns, phase=open",
    "upload=\"1\", path=%\"/x\", stream=\"refused\", start=0, live, from=0, offset=5, owns, phase=refused",
    "file=\"x-a-b\", part=1, length=5", "omitted=\"x-waits\", from=3", "end=5",
  ]

  @Test("a .part is unfinished if a collector's checkpoint has an open upload of its stream, or its messages wait")
  func collected() throws {
    let directory = try Directory()
    for name in ["x-a-b", "x-a-b~2", "x-b-a", "x-waits~3", "x-refused"] { try directory.write("\(name).part") }
    try directory.write(".collected", Array(Self.checkpoint.map { $0 + "\n" }.joined().utf8))
    #expect(
      try directory.verify().found == [
        "x-a-b.part": .unfinished, "x-a-b~2.part": .unfinished, "x-b-a.part": .torn, "x-waits~3.part": .unfinished,
        "x-refused.part": .torn,
      ])
  }

  @Test("a damaged checkpoint of a collector is a problem, and no .part is torn", arguments: 0...checkpoint.count)
  func damagedCheckpoint(_ missing: Int) throws {
    let directory = try Directory()
    var lines = Self.checkpoint
    if missing < lines.count { lines.remove(at: missing) } else { lines[1] = "\u{FFFD}" }
    try directory.write("x-a.part")
    try directory.write(".collected", Array(lines.map { $0 + "\n" }.joined().utf8))
    #expect(try directory.verify().found == [".collected": .unreadable, "x-a.part": .unfinished])
  }

  @Test(
    "a .part is unfinished if a server uses its own directory, and torn if one uses another", arguments: ["", "in/"])
  func served(_ served: String) throws {
    let directory = try Directory()
    directory.make("in")
    try directory.write("a.part")
    try directory.write("in/b.part")
    let lock = open(directory.path + "/\(served).sluice.lock", O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
    try #require(lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) == 0)
    defer { close(lock) }
    let found = try directory.verify().found
    #expect(
      found == ["a.part": served.isEmpty ? .unfinished : .torn, "in/b.part": served.isEmpty ? .torn : .unfinished])
  }

  /// What a server, or an operator, does to a recording after the verification has listed it.
  enum Removal: CaseIterable, Sendable {
    case complete, begun, recordingOnly, sidecarOnly
  }

  @Test(
    "a recording that a server removes during the verification is no problem, and one that loses one of its files is",
    arguments: Removal.allCases)
  func removed(_ removal: Removal) throws {
    let directory = try Directory()
    try directory.record("a.wav", [1])
    try directory.record("b.wav", [2])
    directory.make(".removing")
    var found: [String: RecordingVerification.Kind] = [:]
    let summary = try RecordingVerification(directory: directory.path).run(
      progress: { progress in
        guard progress.read == 1 else { return }
        let (recording, sidecar) = (directory.path + "/b.wav", directory.path + "/b.sidecar")
        if removal == .begun { rename(sidecar, directory.path + "/.removing/b.sidecar") }
        if removal == .complete || removal == .sidecarOnly { unlink(sidecar) }
        if removal == .complete || removal == .recordingOnly { unlink(recording) }
      }, { found[$0.path] = $0.kind })
    let expected: [String: RecordingVerification.Kind] =
      switch removal {
      case .complete: [:]
      case .begun: ["b.wav": .pending]
      case .recordingOnly: ["b.sidecar": .missingRecording]
      case .sidecarOnly: ["b.wav": .missingSidecar]
      }
    let problems = expected.values.count { $0.isProblem }
    #expect(found == expected)
    #expect(summary == .init(recordings: removal == .complete ? 1 : 2, verified: 1, bytes: 1, problems: problems))
  }

  /// What a server, or nobody, does for a record of gaps that was listed without its recording.
  enum Appearance: CaseIterable, Sendable {
    case none, growing, complete, removed

    func perform(in directory: String) {
      func make(_ name: String, _ text: String = "") {
        let file = open("\(directory)/\(name)", O_WRONLY | O_CREAT | O_CLOEXEC, 0o600)
        #expect(write(file, text, text.utf8.count) == text.utf8.count)
        close(file)
      }
      switch self {
      case .none: break
      case .growing: make("a.part")
      case .complete:
        make(".a.sidecar", VerificationTests.unfinished("a.txt", bytes: 0))
        make("a.txt")
      case .removed: unlink(directory + "/a.gaps")
      }
    }
  }

  @Test(
    "a record of gaps is a problem if a server that uses the directory does not make its recording soon",
    arguments: Appearance.allCases, [false, true])
  func appears(_ appearance: Appearance, isServed: Bool) throws {
    let directory = try Directory()
    for file in ["a.gaps", "b.gaps", "c.txt", "c.gaps"] { try directory.write(file) }
    try directory.leave(".c.sidecar", of: "c.txt", bytes: 1)
    let lock = open(directory.path + "/.sluice.lock", O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
    defer { close(lock) }
    if isServed { try #require(lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) == 0) }
    let path = directory.path
    var found: [String: RecordingVerification.Kind] = [:]
    let verification = RecordingVerification(directory: path) { time in
      // One of the later pauses.
      if time == 400 { appearance.perform(in: path) }
    }
    let summary = try verification.run { found[$0.path] = $0.kind }
    var expected: [String: RecordingVerification.Kind] = ["b.gaps": .strayGaps, "c.txt": .pending]
    switch appearance {
    // Nobody changes the directory without a server.
    case _ where !isServed, .none: expected["a.gaps"] = .strayGaps
    case .growing: expected["a.part"] = .unfinished
    case .complete: expected["a.txt"] = .pending
    case .removed: break
    }
    #expect(found == expected)
    #expect(summary.problems == expected.values.count { $0.isProblem })
  }

  @Test("a recording that gets its name while the directory is listed is not missing")
  func renamed() throws {
    let directory = try Directory()
    try directory.record("a.wav", [1])
    try directory.record("b.wav", [2])
    rename(directory.path + "/b.wav", directory.path + "/.b")
    var found: [String: RecordingVerification.Kind] = [:]
    _ = try RecordingVerification(directory: directory.path).run(
      progress: { progress in
        guard progress.read == 1 else { return }
        rename(directory.path + "/.b", directory.path + "/b.wav")
      }, { found[$0.path] = $0.kind })
    #expect(found == [:])
  }

  @Test("a recording that another one of the same name replaces during its verification is compared with the new one")
  func replaced() throws {
    let directory = try Directory()
    let piece = 1 << 20
    try directory.record("a.wav", [UInt8](repeating: 1, count: 2 * piece))
    var found: [String: RecordingVerification.Kind] = [:]
    var isReplaced = false
    _ = try RecordingVerification(directory: directory.path).run(
      progress: { progress in
        guard progress.read == UInt64(piece), !isReplaced else { return }
        isReplaced = true
        do {
          try directory.record("a.wav", [UInt8](repeating: 2, count: 2 * piece))
        } catch {
          Issue.record(error)
        }
      }, { found[$0.path] = $0.kind })
    #expect(isReplaced && found == [:])
  }
}
