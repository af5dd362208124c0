// Tests `sluice verify`, with recordings whose server is killed at any system call while it completes them.

import CommandTesting
import Glibc
import NetworkTesting
import PropertyTesting
import TestRigs
import Testing

@Suite("sluice verify")
struct VerifyTests {
  /// The head that `sluice mic` sends, and some frames.
  private static func stream(frames: Int) -> [UInt8] {
    func little(_ number: Int, _ count: Int) -> [UInt8] {
      (0..<count).map { UInt8(truncatingIfNeeded: number >> (8 * $0)) }
    }
    var bytes = Array("RIFF".utf8) + [255, 255, 255, 255] + Array("WAVEJUNK".utf8) + little(28, 4)
    bytes += [UInt8](repeating: 0, count: 28) + Array("fmt ".utf8) + little(16, 4) + little(1, 2) + little(1, 2)
    bytes += little(48_000, 4) + little(96_000, 4) + little(2, 2) + little(16, 2)
    bytes += Array("data".utf8) + [255, 255, 255, 255]
    return bytes + (0..<(2 * frames)).map { UInt8(truncatingIfNeeded: $0 &* 31) }
  }

  private func store(_ bytes: [UInt8], _ recordings: String) throws {
    let input = try TemporaryDirectory()
    let file = try input.write("input", bytes)
    let server = try ServeProcess(recordings)
    _ = try StreamProcess("pipe", "http://\(server.address)/k.wav", more: ["--stream-id", "a"], input: file).ended()
    try eventually("the sidecar") { access(recordings + "/k-a.sidecar", F_OK) == 0 }
  }

  @Test("0 if all recordings match, 4 with the finding if a byte has changed; as text and as JSON")
  func codes() throws {
    let directory = try TemporaryDirectory()
    try store(Self.stream(frames: 1000), directory.path)
    let sound = try sluice(["verify", directory.path])
    #expect(try sound.wait() == 0 && sound.output == [], "\(sound.output)")
    #expect(sound.errors == ["1 recording: 1 match their sidecars (2.08 kB), 0 problems"], "\(sound.errors)")
    let descriptor = open(directory.path + "/k-a.wav", O_WRONLY)
    pwrite(descriptor, "x", 1, 1000)
    close(descriptor)
    let text = try sluice(["verify", directory.path])
    #expect(try text.wait() == 4)
    #expect(
      text.output.count == 1 && text.output[0].hasPrefix("\"k-a.wav\": wrong-digest: SHA-256 is "), "\(text.output)")
    let json = try sluice(["verify", directory.path, "--json"])
    #expect(try json.wait() == 4)
    #expect(json.output.count == 2 && json.output[0].contains("\"kind\":\"wrong-digest\""), "\(json.output)")
    #expect(
      json.output.last == "{\"event\":\"verified\",\"recordings\":1,\"verified\":0,\"bytes\":0,\"problems\":1}")
  }

  @Test("a missing directory is 66, with its name; no directory argument is a usage error")
  func errors() throws {
    let missing = try sluice(["verify", "/nonexistent/\u{1B}[2J"])
    #expect(try missing.wait() == 66)
    #expect(missing.errors.count == 1 && !missing.errors[0].contains("\u{1B}"), "\(missing.errors)")
    #expect(try sluice(["verify"]).wait() == 64)
  }

  /// The calls by which a server changes the disk or informs its client.
  private static let calls = [
    "openat", "pwrite64", "pwritev", "write", "fdatasync", "fsync", "renameat", "renameat2", "unlinkat",
  ]

  /// Runs a command and kills it at its n-th system call of this name, counted from 1. -D makes the command, and not
  /// its tracer, the process that is killed at the end.
  private static func killing(_ call: String, _ number: Int) -> [String] {
    [
      "strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=\(call)", "-e",
      "inject=\(call):signal=KILL:when=\(number)",
    ]
  }

  @Test(
    "if a server is killed at any system call during a recording and its end, the next one completes it, with a correct header",
    arguments: Seed.several(4))
  func killed(_ seed: Seed) throws {
    var generator = seed.generator
    let (directory, input) = (try TemporaryDirectory(), try TemporaryDirectory())
    let stream = Self.stream(frames: 20_000)
    let file = try input.write("input", stream)
    let address = "\(ServeProcess.freshHost()):8080"
    let call = Self.calls.randomElement(using: &generator)!  // not empty
    let number = Int.random(in: 1...(["openat", "write"].contains(call) ? 60 : 6), using: &generator)
    let durability = ["always", "interval", "none"].randomElement(using: &generator)!  // not empty
    let more = ["--durability", durability]
    let client: StreamProcess
    do {
      // Here a server that is killed before it listens throws an error.
      let server = try? ServeProcess(
        directory.path, address: address, prefix: Self.killing(call, number), more: more)
      client = try StreamProcess(
        "pipe", "http://\(address)/k.wav", more: ["--stream-id", "a", "--retry-ceiling", "200ms"], input: file)
      // Either the recording or the server ends.
      try eventually("an end") {
        access(directory.path + "/k-a.sidecar", F_OK) == 0 || server == nil
          || (try? server?.exitCode(limit: .zero)) != nil
      }
      server?.kill()
    }
    let server = try ServeProcess(directory.path, address: address, more: more)
    _ = try client.ended()
    try eventually("the sidecar") { access(directory.path + "/k-a.sidecar", F_OK) == 0 }
    var expected = stream
    expected.replaceSubrange(4..<8, with: [0x88, 0x9C, 0, 0])
    expected.replaceSubrange(76..<80, with: [0x40, 0x9C, 0, 0])
    #expect(try directory.contents("k-a.wav") == expected, "\(call) \(number) \(durability)")
    let verify = try sluice(["verify", directory.path])
    #expect(try verify.wait() == 0, "\(call) \(number) \(durability): \(verify.output)")
    _ = server
  }

  @Test(
    "if a server is killed at any system call while it splits an upload, all files together are the stream, once",
    arguments: Seed.several(4))
  func killedWhileSplitting(_ seed: Seed) throws {
    var generator = seed.generator
    let (directory, input) = (try TemporaryDirectory(), try TemporaryDirectory())
    // Four files, of which the last is short.
    let limit = (1_000_000 - 80) / 2 * 2
    let stream = Self.stream(frames: 3 * limit / 2 + 100)
    let file = try input.write("input", stream)
    let address = "\(ServeProcess.freshHost()):8080"
    let call = Self.calls.randomElement(using: &generator)!  // not empty
    let most = ["openat": 150, "write": 100, "pwrite64": 40, "unlinkat": 20]
    let number = Int.random(in: 1...(most[call] ?? 10), using: &generator)
    let durability = ["always", "interval", "none"].randomElement(using: &generator)!  // not empty
    let more = ["--durability", durability, "--split", "1MB"]
    func isComplete() -> Bool { access(directory.path + "/k-a~4.sidecar", F_OK) == 0 }
    let client: StreamProcess
    do {
      let server = try? ServeProcess(
        directory.path, address: address, prefix: Self.killing(call, number), more: more)
      client = try StreamProcess(
        "pipe", "http://\(address)/k.wav", more: ["--stream-id", "a", "--retry-ceiling", "200ms", "--buffer", "8MB"],
        input: file)
      try eventually("an end") {
        isComplete() || server == nil || (try? server?.exitCode(limit: .zero)) != nil
      }
      server?.kill()
    }
    let server = try ServeProcess(directory.path, address: address, more: more)
    _ = try client.ended()
    let context: Comment = "\(call) \(number) \(durability)"
    let names = ["k-a.wav", "k-a~2.wav", "k-a~3.wav", "k-a~4.wav"]
    try eventually("all files") {
      isComplete() && names.allSatisfy { access("\(directory.path)/\($0)", F_OK) == 0 }
        && (try? sluice(["verify", directory.path]).wait()) == 0
    }
    let samples = try names.flatMap { try directory.contents($0).dropFirst(80) }
    #expect(samples == Array(stream.dropFirst(80)), context)
    for name in names.dropLast() { #expect(try directory.contents(name).count == 80 + limit, context) }
    _ = server
  }
}
