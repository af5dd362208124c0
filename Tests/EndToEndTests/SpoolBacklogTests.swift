// The remains of earlier runs in a spool, and their delivery by the next run and by `sluice spool drain`.

import CommandTesting
import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Spool
import TestRigs
import Testing

@Suite("Backlogs of earlier runs in a spool")
struct SpoolBacklogTests {
  private let directory: TemporaryDirectory
  private let server: ServeProcess
  private let pattern = OffsetPattern(seed: 78)

  init() throws {
    directory = try TemporaryDirectory()
    server = try ServeProcess("\(directory.path)/stored", more: ["--durability", "none"])
  }

  private var spool: String { "\(directory.path)/spool" }

  /// Leaves a stretch like a killed process.
  ///
  /// - Parameter time: the time of its capture.
  private func leave(
    _ parts: [Range<UInt64>], folder: String = "cam", id: String = "left", time: Int64 = WallClock.now.sinceEpoch
  ) throws {
    let folder = try SpoolFolder(directory: spool, stream: folder)
    let description = "format=1, url=\"http://\(server.address)/x.bin\", stream-id=\"\(id)\""
    let file = try SpoolFile.create(in: folder, description: description, capacity: 1 << 20)
    for part in parts {
      let bytes = pattern.bytes(part.count, at: part.lowerBound)
      try bytes.withUnsafeBytes { try file.append($0, at: part.lowerBound, time: time) }
    }
    try file.commit(state: "", pausedByteCount: 0, pauses: [], isFinished: false, sync: true)
  }

  private func drain(_ more: [String] = [], prefix: [String] = []) throws -> (code: Int32, text: [String]) {
    let process = try SluiceProcess(["spool", "drain", spool] + more, prefix: prefix)
    return (try process.exitCode(), process.output.text)
  }

  private func stored(_ id: String) throws -> [UInt8] {
    try StoredStream.contents("\(directory.path)/stored/x-\(id).bin")
  }

  /// What happens to the server between the two processes.
  enum Between: CaseIterable, Sendable { case nothing, away, expired }

  @Test("what a killed process has delivered is not reported as lost by the next one", arguments: Between.allCases)
  func delivered(_ between: Between) throws {
    var server = self.server
    let address = server.address
    let input = try HeldInput("\(directory.path)/input")
    let client = try StreamProcess(
      "pipe", "http://\(address)/x.bin",
      more: [
        "--spool", spool, "--spool-limit", "64MiB", "--stream-id", "cam", "--sync-interval", "20ms", "--buffer",
        "100kB", "--resumable", "always",
      ], input: input.path)
    for number in 0..<10 {
      try input.write(pattern.bytes(100_000, at: UInt64(number) * 100_000))
      try client.acknowledged((number + 1) * 100_000)
    }
    // The bytes that are released by then are no longer in the spool, and the last ones are not delivered.
    server.signal(SIGSTOP)
    try input.write(pattern.bytes(50_000, at: 1_000_000))
    try client.event("progress") { ($0.integer("captured") ?? 0) == 1_050_000 }
    client.kill()
    server.signal(SIGCONT)
    if between != .nothing { server.kill() }
    if between == .expired { _ = try TestProcess("rm", ["-rf", "\(directory.path)/stored/.uploads"]).wait() }
    let drain = try SluiceProcess(["spool", "drain", spool])
    if between != .nothing {
      // It first finds nobody there.
      _ = try drain.line("backlog: ")
      server = try ServeProcess("\(directory.path)/stored", address: address, more: ["--durability", "none"])
    }
    #expect(try drain.exitCode() == 0, "\(drain.output.text)")
    let words = ["lost", "discard", "missing", "gap"]
    #expect(!drain.output.text.contains { line in words.contains { line.contains($0) } }, "\(drain.output.text)")
    let names = try fileNames(in: "\(directory.path)/stored").filter { $0.hasSuffix(".bin") }
    #expect(
      try names.map { try StoredStream.contents("\(directory.path)/stored/\($0)") } == [pattern.bytes(1_050_000, at: 0)]
    )
    withExtendedLifetime(server) {}
  }

  @Test("a process with a limit of 40 files sends 60 stretches one after another")
  func many() throws {
    for number in 0..<60 { try leave([0..<100], id: "s\(number)") }
    let result = try drain(prefix: ["sh", "-c", "ulimit -n 40; exec \"$@\"", "sh"])
    #expect(result.code == 0, "\(result.text.suffix(5))")
    #expect(try fileNames(in: "\(directory.path)/stored").filter { $0.hasSuffix(".bin") }.count == 60)
    #expect(try fileNames(in: "\(spool)/cam") == ["lock"])
  }

  @Test("--catch-up-rate limits the rate of a backlog")
  func rate() throws {
    try leave([0..<600_000])
    let start = MonotonicInstant.now
    let result = try drain(["--catch-up-rate", "200kB"])
    // At most one second's worth at once, so the rest takes two more seconds.
    #expect(result.code == 0 && .now - start >= .seconds(2), "\(.now - start)")
    #expect(try stored("left") == pattern.bytes(600_000, at: 0))
  }

  @Test("--backlog first sends the backlog before the first byte of the new stream")
  func first() throws {
    try leave([0..<600_000])
    let input = try directory.write("input", pattern.bytes(1000, at: 1 << 32))
    let client = try StreamProcess(
      "pipe", "http://\(server.address)/x.bin",
      more: [
        "--spool", spool, "--spool-limit", "64MiB", "--stream-id", "cam", "--backlog", "first", "--catch-up-rate",
        "600kB",
      ], input: input)
    #expect(try client.exitCode() == 0, "\(client.output.text)")
    let events = client.output.events.map(\.event)
    let done = try #require(events.firstIndex(of: "backlog-done"), "\(events)")
    let streaming = try #require(events.firstIndex(of: "streaming"), "\(events)")
    #expect(done < streaming, "\(events)")
    #expect(try stored("left") == pattern.bytes(600_000, at: 0))
  }

  @Test(
    "--spool-keep discards data that is too old, and reports it",
    .enabled(if: WallClock.isSynchronized == true, "the clock of this machine is not synchronized"))
  func keep() throws {
    try leave([0..<400_000], time: WallClock.now.sinceEpoch - 3_600_000)
    let address = server.address
    server.kill()
    let input = try HeldInput("\(directory.path)/input")
    let client = try StreamProcess(
      "pipe", "http://\(address)/x.bin",
      more: [
        "--spool", spool, "--spool-limit", "64MiB", "--stream-id", "cam", "--spool-keep", "1min", "--sync-interval",
        "20ms",
      ], input: input.path)
    try input.write([1])
    try client.event("progress") { ($0.integer("captured") ?? 0) == 1 }
    client.kill()
    let list = try SluiceProcess(["spool", "verify", "--json", spool])
    #expect(try list.exitCode() == 4)
    let evicted = try #require(list.output.events.first { $0.event == "evicted" }, "\(list.output.events)")
    #expect(evicted.integer("lost_bytes") == 400_000)
  }

  @Test(
    "the default limit is half of the free space, and the backlog counts as free at the next start",
    .enabled(if: Surroundings.mayMount, "mounting a small tmpfs needs CAP_SYS_ADMIN"))
  func defaultLimit() throws {
    let path = "\(directory.path)/disk"
    #expect(mkdir(path, 0o700) == 0)
    let disk = try SpoolDisk(path, size: "20m")
    let address = server.address
    server.kill()
    let input = try HeldInput("\(directory.path)/input")
    func limit() throws -> Double {
      let client = try SluiceProcess(
        [
          "pipe", "http://\(address)/x.bin", "--spool", "\(path)/spool", "--sync-interval", "20ms", "--progress",
          "none",
        ],
        prefix: disk.prefix, input: input.path)
      let line = try client.line("half of the free space")
      try input.write(pattern.bytes(4_000_000, at: 0))
      // As long as the disk does not have them.
      var status = stat()
      while status.st_blocks < 4_000_000 / 512 {
        let names = try fileNames(in: disk.outside("spool/\(try fileNames(in: disk.outside("spool"))[0])"))
        if let name = names.filter({ $0.hasSuffix(".spool") }).max() {
          let folder = try fileNames(in: disk.outside("spool"))[0]
          stat(disk.outside("spool/\(folder)/\(name)"), &status)
        }
        poll(nil, 0, 5)
      }
      client.kill()
      return try #require(line.split(separator: " ").compactMap { Double($0) }.first)
    }
    let first = try limit()
    #expect((10...11).contains(first), "\(first) MB")
    #expect(abs(try limit() - first) < 0.3)
  }

  @Test("a hole in the middle of a stretch becomes a gap of its recording, and drain reports the loss")
  func hole() throws {
    try leave([0..<100_000, 150_000..<300_000])
    let result = try drain()
    #expect(result.code == 4, "\(result.text)")
    let stream = try StoredStream("\(directory.path)/stored", "x-left.bin")
    #expect(stream.bytes.count == 300_000 && stream.holes == [100_000..<150_000], "\(stream.holes)")
    #expect(stream.bytes[..<100_000] == pattern.bytes(100_000, at: 0)[...])
    #expect(stream.bytes[150_000...] == pattern.bytes(150_000, at: 150_000)[...])
  }

  @Test("list counts no byte that the spool does not have, verify exits with 4 for them, and show has all figures")
  func figures() throws {
    try leave([0..<100_000, 600_000..<700_000])
    let list = try SluiceProcess(["spool", "list", "--json", spool])
    #expect(try list.exitCode() == 0)
    let stretch = try #require(list.output.events.first { $0.event == "stretch" }, "\(list.output.events)")
    #expect(stretch.integer("bytes") == 700_000)
    // A block with some bytes counts completely.
    #expect((200_000..<210_000).contains(stretch.integer("unacknowledged_bytes") ?? 0), "\(stretch)")
    let verify = try SluiceProcess(["spool", "verify", "--json", spool])
    #expect(try verify.exitCode() == 4)
    let verified = try #require(verify.output.events.first { $0.event == "verified" }, "\(verify.output.events)")
    #expect(verified.integer("intact_bytes") == 200_000 && verified.integer("lost_bytes") == 500_000, "\(verified)")
    let show = try SluiceProcess(["spool", "show", "--json", spool])
    #expect(try show.exitCode() == 0)
    let shown = try #require(show.output.events.first { $0.event == "checkpoint" }, "\(show.output.events)")
    #expect(shown.integer("capacity") ?? 0 >= 1 << 20 && shown.integer("head") == 700_000, "\(shown)")
  }

  @Test("drain sends the other streams if one is in use or unreadable, and its exit code states which")
  func exitCodes() throws {
    try leave([0..<1000], folder: "b", id: "b")
    try leave([0..<1000], folder: "a", id: "a")
    let using = try SpoolFolder(directory: spool, stream: "a")
    var result = try drain()
    #expect(result.code == 75, "\(result.text)")
    #expect(result.text.contains { $0.contains("another process uses it") && $0.contains("/a") }, "\(result.text)")
    #expect(try stored("b") == pattern.bytes(1000, at: 0))
    #expect(try SluiceProcess(["spool", "remove", "\(spool)/a", "--force"]).exitCode() == 75)
    withExtendedLifetime(using) {}

    try leave([0..<1000], folder: "c", id: "c")
    #expect(mkdir("\(spool)/bad", 0o700) == 0)
    _ = try SpoolFolder(directory: spool, stream: "bad")
    try directory.write("spool/bad/1795403376004-57f93922e6ee4bd9.spool", "none")
    result = try drain()
    #expect(result.code == 65, "\(result.text)")
    #expect(try stored("c") == pattern.bytes(1000, at: 0))
    for (action, code) in [("verify", 4), ("list", 65), ("show", 65)] as [(String, Int32)] {
      #expect(try SluiceProcess(["spool", action, spool]).exitCode() == code, "\(action)")
    }
    #expect(
      try SluiceProcess(["spool", "list", "\(spool)/bad/1795403376004-57f93922e6ee4bd9.spool/x"]).exitCode() == 66)

    server.kill()
    try leave([0..<1000], folder: "c", id: "d")
    unlink("\(spool)/bad/1795403376004-57f93922e6ee4bd9.spool")
    result = try drain(["--give-up", "100ms"])
    #expect(result.code == 69, "\(result.text)")
  }

  @Test(
    "a stretch that may lack bytes is sent once, and stays until remove --force removes it", arguments: [false, true])
  func doubt(hasNothing: Bool) throws {
    try leave([0..<10_000])
    let name = try #require(try fileNames(in: "\(spool)/cam").first { $0 != "lock" })
    let file = open("\(spool)/cam/\(name)", O_WRONLY | O_CLOEXEC)
    defer { close(file) }
    // All checkpoints, and what only they contain: the bytes after the last complete block.
    let zeros = [UInt8](repeating: 0, count: 3 * 16_384)
    #expect(hasNothing ? ftruncate(file, 4096) == 0 : pwrite(file, zeros, zeros.count, 16_384) == zeros.count)
    for _ in 0..<2 {
      let result = try drain()
      #expect(result.code == 4 && result.text.contains { $0.contains("bytes may be lost") }, "\(result)")
    }
    for (action, code) in [("list", 0), ("verify", 4), ("remove", 77)] as [(String, Int32)] {
      let process = try SluiceProcess(["spool", action, spool])
      #expect(try process.exitCode() == code, "\(action)")
      #expect(process.output.text.contains { $0.contains("bytes may be lost") }, "\(process.output.text)")
    }
    let names = try fileNames(in: "\(directory.path)/stored").filter { $0.hasSuffix(".bin") }
    #expect(names == (hasNothing ? [] : ["x-left.bin"]))
    if !hasNothing { #expect(try stored("left") == pattern.bytes(2 * 4064, at: 0)) }
    #expect(try SluiceProcess(["spool", "remove", spool, "--force"]).exitCode() == 0)
    #expect(try drain().code == 0)
  }

  @Test("no command changes files of other programs in the directory of a spool")
  func foreignFiles() throws {
    try leave([0..<1000])
    #expect(mkdir("\(spool)/other", 0o700) == 0)
    let names = ["lock", ".rc", ".notes.new", ".x.spool.new"]
    for name in names { try directory.write("spool/other/\(name)", "precious") }
    for action in ["list", "show", "verify", "drain", "remove"] {
      let process = try SluiceProcess(["spool", action, spool])
      #expect(try process.exitCode() == 0, "\(action): \(process.output.text)")
    }
    let input = try directory.write("input", [1])
    let client = try StreamProcess(
      "pipe", "http://\(server.address)/x.bin", more: ["--spool", spool, "--stream-id", "other"], input: input)
    #expect(try client.exitCode() == 74, "\(client.output.text)")
    #expect(client.output.text.contains { $0.contains("/other/lock: written by another program. Move it away") })
    for name in names { #expect(try directory.contents("spool/other/\(name)") == Array("precious".utf8), "\(name)") }
    #expect(try stored("left") == pattern.bytes(1000, at: 0))
  }

  @Test("a FIFO with the name of a stretch blocks no action of sluice spool, and drain sends the other stretches")
  func fifo() throws {
    try leave([0..<1000])
    let fifo = "\(spool)/cam/1795403376004-57f93922e6ee4bd9.spool"
    #expect(mkfifo(fifo, 0o600) == 0)
    let actions: [(String, String, Int32)] = [
      ("list", spool, 65), ("show", spool, 65), ("verify", spool, 4), ("remove", fifo, 74),
    ]
    for (action, path, code) in actions {
      let process = try SluiceProcess(["spool", action, path])
      #expect(try process.exitCode() == code, "\(action): \(process.output.text)")
    }
    let result = try drain()
    #expect(result.code == 65, "\(result.text)")
    #expect(result.text.contains { $0.contains(fifo) && $0.contains("not a regular file") }, "\(result.text)")
    #expect(try stored("left") == pattern.bytes(1000, at: 0))
  }

  @Test("a microphone's stretch is sent as a separate WAV file after the process was killed")
  func microphone() throws {
    let address = server.address
    server.kill()
    let microphone = TestMicrophone()
    let client = try StreamProcess(
      microphone: microphone, to: "http://\(address)/take.wav",
      more: ["--spool", spool, "--spool-limit", "64MiB", "--stream-id", "mic", "--sync-interval", "50ms"])
    let captured = try client.event("progress") { ($0.integer("captured") ?? 0) > 100_000 }.integer("captured") ?? 0
    client.kill()
    let again = try ServeProcess("\(directory.path)/stored", address: address)
    let result = try drain()
    #expect(result.code == 0, "\(result.text)")
    let name = try #require(try fileNames(in: "\(directory.path)/stored").first { $0.hasSuffix(".wav") })
    let bytes = try StoredStream.contents("\(directory.path)/stored/\(name)")
    #expect(bytes.starts(with: Array("RIFF".utf8)) && bytes.count >= captured, "\(bytes.count) of \(captured)")
    withExtendedLifetime(again) {}
  }
}
