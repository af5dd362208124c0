// The spool on disks that are full or do not answer.

import CommandTesting
import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Spool
import TestRigs
import Testing

@Suite("A spool on a faulty disk")
struct SpoolFaultTests {
  private let directory: TemporaryDirectory
  private let pattern = OffsetPattern(seed: 77)

  init() throws { directory = try TemporaryDirectory() }

  private func stretches(_ folder: String) throws -> [String] {
    try fileNames(in: folder).filter { $0.hasSuffix(".spool") }.sorted()
  }

  /// The buffers of a stretch in memory.
  private func inMemory(_ stretch: String) throws -> [String] {
    let id = stretch.dropLast(".spool".count).drop { $0 != "-" }.dropFirst()
    return try fileNames(in: "/dev/shm").filter { $0.hasPrefix("sluice-\(id)") }
  }

  @Test(
    "a restart on a full disk streams from memory, the backlog of the killed process stays, and both move to the disk later",
    .enabled(if: Surroundings.mayMount, "mounting a small tmpfs needs CAP_SYS_ADMIN"))
  func fullDiskAndRestart() throws {
    let server = try ServeProcess("\(directory.path)/stored")
    let address = server.address
    server.kill()
    let path = "\(directory.path)/disk"
    #expect(mkdir(path, 0o700) == 0)
    let disk = try SpoolDisk(path, size: "8m")
    let input = try HeldInput("\(directory.path)/input")
    func client() throws -> StreamProcess {
      try StreamProcess(
        "pipe", "http://\(address)/x.bin",
        more: [
          "--spool", "\(path)/spool", "--stream-id", "cam", "--spool-limit", "64MiB", "--buffer", "4MiB",
          "--sync-interval", "50ms", "--retry-ceiling", "50ms",
        ], prefix: disk.prefix, input: input.path)
    }
    func captured(_ client: StreamProcess, _ count: Int) throws {
      try client.event("progress") { ($0.integer("captured") ?? 0) >= count }
    }
    let folder = disk.outside("spool/cam")
    let first = try client()
    // More than twice the disk's content when it becomes full, because the spool may have allocated as much again.
    let firstBytes = pattern.bytes(6_300_000, at: 0)
    try input.write(Array(firstBytes[..<3_000_000]))
    try captured(first, 3_000_000)
    try disk.fill()
    try input.write(Array(firstBytes[3_000_000...]))
    try captured(first, firstBytes.count)
    _ = try first.line("cannot write to the spool")
    first.kill()
    let stretch = try #require(try stretches(folder).first)
    #expect(try inMemory(stretch).count == 1)

    let second = try client()
    let secondBytes = pattern.bytes(200_000, at: 1 << 32)
    try input.write(secondBytes)
    try captured(second, secondBytes.count)
    _ = try second.line("cannot write to the spool")
    #expect(try stretches(folder) == [stretch])
    #expect(try inMemory(stretch).count == 1)
    try disk.makeRoom()
    _ = try second.line("the spool is writable again")
    #expect(try stretches(folder).count == 2)
    #expect(try inMemory(stretch).isEmpty)
    second.kill()

    let again = try ServeProcess("\(directory.path)/stored", address: address)
    let drain = try SluiceProcess(
      ["spool", "drain", "\(path)/spool", "--retry-ceiling", "50ms"], prefix: disk.prefix)
    #expect(try drain.exitCode() == 0, "\(drain.output.text)")
    try expectStored([firstBytes, secondBytes])
    withExtendedLifetime(again) {}
  }

  @Test(
    "the next process finds and sends a stretch that never had a file because the disk was full",
    .enabled(if: Surroundings.mayMount, "mounting a small tmpfs needs CAP_SYS_ADMIN"))
  func killedWithoutFile() throws {
    let server = try ServeProcess("\(directory.path)/stored")
    let address = server.address
    server.kill()
    let path = "\(directory.path)/disk"
    #expect(mkdir(path, 0o700) == 0)
    let disk = try SpoolDisk(path, size: "1m")
    let input = try HeldInput("\(directory.path)/input")
    #expect(mkdir(disk.outside("spool"), 0o700) == 0 && mkdir(disk.outside("spool/cam"), 0o700) == 0)
    try disk.fill()
    let client = try StreamProcess(
      "pipe", "http://\(address)/x.bin",
      more: ["--spool", "\(path)/spool", "--stream-id", "cam", "--spool-limit", "64MiB", "--sync-interval", "50ms"],
      prefix: disk.prefix, input: input.path)
    let bytes = pattern.bytes(100_000, at: 0)
    try input.write(bytes)
    try client.event("progress") { ($0.integer("captured") ?? 0) >= bytes.count }
    client.kill()
    #expect(try stretches(disk.outside("spool/cam")).isEmpty)
    let list = try SluiceProcess(["spool", "list", "--json", "\(path)/spool"], prefix: disk.prefix)
    #expect(try list.exitCode() == 0)
    let found = try #require(list.output.events.first { $0.event == "stretch-in-memory" }, "\(list.output.text)")
    #expect(found.integer("memory_bytes") == bytes.count)
    let again = try ServeProcess("\(directory.path)/stored", address: address)
    // The disk is still full, so it is sent from memory.
    let drain = try SluiceProcess(["spool", "drain", "\(path)/spool"], prefix: disk.prefix)
    #expect(try drain.exitCode() == 0, "\(drain.output.text)")
    try expectStored([bytes])
    withExtendedLifetime(again) {}
  }

  /// A folder on a tmpfs needs no block, but an inode.
  private static let fewInodes = "8m,nr_inodes=16"

  /// Creates files until the disk refuses another one. Returns their paths.
  private func useUpInodes(of disk: SpoolDisk) throws -> [String] {
    var others: [String] = []
    do throws(SystemError) {
      while others.count < 16 {
        let other = disk.outside("other\(others.count)")
        close(
          try retryingInterrupts("open \(other)") { open(other, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0o600) })
        others.append(other)
      }
    } catch {
      #expect(error.code == ENOSPC)
    }
    #expect((8..<16).contains(others.count))
    return others
  }

  @Test(
    "spool drain sends the bytes of a killed process whose folder was never made",
    .enabled(if: Surroundings.mayMount, "mounting a small tmpfs needs CAP_SYS_ADMIN"))
  func drainWithoutFolder() throws {
    let server = try ServeProcess("\(directory.path)/stored")
    let address = server.address
    server.kill()
    let path = "\(directory.path)/disk"
    #expect(mkdir(path, 0o700) == 0)
    let disk = try SpoolDisk(path, size: Self.fewInodes)
    #expect(mkdir(disk.outside("spool"), 0o700) == 0)
    _ = try useUpInodes(of: disk)
    let input = try HeldInput("\(directory.path)/input")
    let client = try StreamProcess(
      "pipe", "http://\(address)/x.bin",
      more: ["--spool", "\(path)/spool", "--stream-id", "cam", "--spool-limit", "64MiB", "--sync-interval", "50ms"],
      prefix: disk.prefix, input: input.path)
    let bytes = pattern.bytes(100_000, at: 0)
    try input.write(bytes)
    try client.event("progress") { ($0.integer("captured") ?? 0) >= bytes.count }
    client.kill()
    let again = try ServeProcess("\(directory.path)/stored", address: address)
    let drain = try SluiceProcess(["spool", "drain", "\(path)/spool"], prefix: disk.prefix)
    #expect(try drain.exitCode() == 0, "\(drain.output.text)")
    try expectStored([bytes])
    withExtendedLifetime(again) {}
  }

  @Test(
    "a first start on a disk without space for the folder streams from memory, and the next processes send the bytes",
    .enabled(if: Surroundings.mayMount, "mounting a small tmpfs needs CAP_SYS_ADMIN"))
  func noSpaceForFolder() throws {
    let server = try ServeProcess("\(directory.path)/stored")
    let address = server.address
    server.kill()
    let path = "\(directory.path)/disk"
    #expect(mkdir(path, 0o700) == 0)
    let disk = try SpoolDisk(path, size: Self.fewInodes)
    let others = try useUpInodes(of: disk)
    let input = try HeldInput("\(directory.path)/input")
    let arguments = [
      "--spool", "\(path)/spool", "--stream-id", "cam", "--spool-limit", "64MiB", "--sync-interval", "50ms",
      "--retry-ceiling", "50ms",
    ]
    let url = "http://\(address)/x.bin"
    var streams: [[UInt8]] = []
    for number: UInt64 in 0..<2 {
      let client = try StreamProcess("pipe", url, more: arguments, prefix: disk.prefix, input: input.path)
      _ = try client.line("cannot write to the spool")
      streams.append(pattern.bytes(100_000, at: number << 32))
      try input.write(streams[Int(number)])
      try client.event("progress") { ($0.integer("captured") ?? 0) >= 100_000 }
      #expect(try fileNames(in: disk.outside("")).contains("spool") == false)
      let other = try SluiceProcess(["pipe", url] + arguments, prefix: disk.prefix)
      #expect(try other.exitCode() == 75, "\(other.output.text)")
      if number == 1 {
        for path in others { #expect(unlink(path) == 0) }
        _ = try client.line("the spool is writable again")
        #expect(try stretches(disk.outside("spool/cam")).count == 2, "that of the killed process, too")
      }
      client.kill()
    }
    let again = try ServeProcess("\(directory.path)/stored", address: address)
    let drain = try SluiceProcess(["spool", "drain", "\(path)/spool"], prefix: disk.prefix)
    #expect(try drain.exitCode() == 0, "\(drain.output.text)")
    try expectStored(streams)
    withExtendedLifetime(again) {}
  }

  @Test(
    "a disk that does not answer does not block the end of the command, which reports the bytes that are not synced"
  )
  func silentDisk() throws {
    let server = try ServeProcess("\(directory.path)/stored")
    let input = try HeldInput("\(directory.path)/input")
    let folder = "\(directory.path)/spool/cam"
    let address = server.address
    server.kill()
    let client = try StreamProcess(
      "pipe", "http://\(address)/x.bin",
      more: [
        "--spool", "\(directory.path)/spool", "--stream-id", "cam", "--spool-limit", "64MiB", "--finish-timeout",
        "100ms", "--retry-ceiling", "50ms", "--sync-interval", "20ms",
      ],
      // The first sync of each thread succeeds, so the file of the stretch is made. The end of the command waits for
      // strace, but it has reported everything before.
      prefix: [
        "strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync", "-e",
        "inject=fdatasync:delay_enter=8000000:when=2+",
      ], input: input.path)
    try input.write(pattern.bytes(1000, at: 0))
    try waitUntil("the first bytes are in the file") {
      guard let path = try? SpoolFolder.stretches(in: folder).first else { return false }
      return (try? SpoolFile.open(path, access: .readOnly))?.checkpoint.head == 1000
    }
    try input.write(pattern.bytes(99_000, at: 1000))
    try client.event("progress") { ($0.integer("captured") ?? 0) >= 100_000 }
    client.signal(SIGTERM)
    #expect(try client.exitCode(limit: .seconds(60)) == 74)
    let ended = try client.event("ended")
    // The first sync may have stored the description of the stream instead of its first bytes.
    #expect([99_000, 100_000].contains(ended.integer("not_synchronized")), "\(ended)")
  }

  @Test(
    "a spool that is removed during its use is reported, and no byte counts as kept in it",
    arguments: [true, false])
  func removedSpool(serverReturns: Bool) throws {
    let server = try ServeProcess("\(directory.path)/stored")
    let address = server.address
    server.kill()
    let input = try HeldInput("\(directory.path)/input")
    let folder = "\(directory.path)/spool/cam"
    let client = try StreamProcess(
      "pipe", "http://\(address)/x.bin",
      more: [
        "--spool", "\(directory.path)/spool", "--stream-id", "cam", "--spool-limit", "64MiB", "--sync-interval", "20ms",
        "--finish-timeout", serverReturns ? "20s" : "100ms", "--retry-ceiling", "50ms",
      ], input: input.path)
    try input.write(pattern.bytes(100_000, at: 0))
    try client.event("progress") { ($0.integer("captured") ?? 0) >= 100_000 }
    // The file has no event of its own.
    for _ in 0..<20_000 where try stretches(folder).isEmpty { poll(nil, 0, 1) }
    let stretch = try #require(try stretches(folder).first)
    for name in try fileNames(in: folder) { #expect(unlink("\(folder)/\(name)") == 0) }
    try input.write(pattern.bytes(100_000, at: 100_000))
    try client.output.wait(for: "the report") { _, text in text.first { $0.contains(".spool\" was removed.") } }
    let again = serverReturns ? try ServeProcess("\(directory.path)/stored", address: address) : nil
    if serverReturns { try client.event("acknowledged") { $0.integer("offset") == 200_000 } }
    client.signal(SIGTERM)
    #expect(try client.exitCode(limit: .seconds(60)) == (serverReturns ? 0 : 74))
    #expect(try client.event("ended").integer("not_synchronized") == (serverReturns ? nil : 200_000))
    if serverReturns {
      try expectStored([pattern.bytes(200_000, at: 0)])
      #expect(!client.output.text.contains { $0.contains("cannot write to the spool") }, "\(client.output.text)")
      #expect(try inMemory(stretch).isEmpty)
    }
    withExtendedLifetime(again) {}
  }

  @Test(
    "data of a killed process that was removed from memory is a loss in each report",
    .enabled(if: Surroundings.mayMount, "mounting a small tmpfs needs CAP_SYS_ADMIN"))
  func lostMemory() throws {
    let server = try ServeProcess("\(directory.path)/stored")
    let address = server.address
    server.kill()
    let path = "\(directory.path)/disk"
    #expect(mkdir(path, 0o700) == 0)
    let disk = try SpoolDisk(path, size: "8m")
    let input = try HeldInput("\(directory.path)/input")
    let client = try StreamProcess(
      "pipe", "http://\(address)/x.bin",
      more: [
        "--spool", "\(path)/spool", "--stream-id", "cam", "--spool-limit", "64MiB", "--buffer", "4MiB",
        "--sync-interval", "50ms", "--retry-ceiling", "50ms",
      ], prefix: disk.prefix, input: input.path)
    let bytes = pattern.bytes(600_000, at: 0)
    try input.write(Array(bytes[..<100_000]))
    let folder = disk.outside("spool/cam")
    try waitUntil("the first bytes are on the disk") {
      guard let name = try? stretches(folder).first else { return false }
      return (try? SpoolFile.open("\(folder)/\(name)", access: .readOnly))?.checkpoint.head == 100_000
    }
    try disk.fill()
    try input.write(Array(bytes[100_000...]))
    try client.event("progress") { ($0.integer("captured") ?? 0) >= bytes.count }
    _ = try client.line("cannot write to the spool")
    client.kill()
    for name in try inMemory(try #require(try stretches(folder).first)) { unlink("/dev/shm/\(name)") }
    try disk.makeRoom()
    func report(_ action: String, _ code: Int32, _ text: String) throws {
      let command = try SluiceProcess(["spool", action, "\(path)/spool"], prefix: disk.prefix)
      #expect(try command.exitCode() == code, "\(action): \(command.output.text)")
      #expect(command.output.text.contains { $0.contains(text) }, "\(action): \(command.output.text)")
    }
    try report("list", 0, "bytes may be lost")
    try report("verify", 4, "on may be missing")
    let again = try ServeProcess("\(directory.path)/stored", address: address)
    // Each later run reports it again.
    for _ in 0..<2 { try report("drain", 4, "on may be missing") }
    let stored = "\(directory.path)/stored"
    let name = try #require(try fileNames(in: stored).first { $0.hasSuffix(".bin") })
    let found = try StoredStream.contents("\(stored)/\(name)")
    #expect(found.count >= 100_000 && bytes.starts(with: found))
    withExtendedLifetime(again) {}
  }

  private func expectStored(_ streams: [[UInt8]]) throws {
    let stored = "\(directory.path)/stored"
    var found: [[UInt8]] = []
    for name in try fileNames(in: stored) where name.hasSuffix(".bin") {
      found.append(try StoredStream.contents("\(stored)/\(name)"))
    }
    #expect(found.map(\.count).sorted() == streams.map(\.count).sorted())
    #expect(streams.allSatisfy { found.contains($0) }, "other bytes are stored")
  }
}
