// Servers that refuse instead of storing: temporarily (503), for lack of credentials (401), or for lack of space (507).

import CommandTesting
import Glibc
import PropertyTesting
import TestRigs
import Testing

@Suite("Servers that refuse")
struct RefusalTests {
  private let second = 96_000
  private let microphone = TestMicrophone()
  private let scratch = ScratchDirectory()

  @Test(
    "503 with Retry-After three times, then storage: the client waits as requested, and no frame is missing")
  func unavailable() throws {
    let server = try ServeProcess(scratch.path)
    let answer = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    let proxy = try FaultyProxy(to: server.address) { $0 < 3 ? .refuse(answer) : .relay }
    defer { proxy.stop() }
    let client = try StreamProcess(microphone: microphone, to: proxy.url, more: ["--retry-ceiling", "2s"])
    try server.event("begun")
    try client.acknowledged(client.captured + second)
    let summary = try client.finish()
    let ended = try server.event("ended")

    #expect(client.failures.count == 3 && summary.integer("outages") == 1)
    for attempt in client.failures {
      #expect(attempt.text("cause")?.contains("503") == true)
      // In thousandths: one second plus the jitter.
      #expect(attempt.thousandths("retry_seconds").map { (1000...1250).contains($0) } == true)
    }
    let stored = try StoredStream(scratch.path, try #require(ended.text("file")))
    #expect(stored.isWAV)
    #expect(stored.firstDifferenceFromMicrophone() == nil)
    #expect(stored.holes.isEmpty)
    #expect(summary.integer("missing_at_server") == 0)
    #expect(summary.integer("captured") == stored.bytes.count)
    #expect(stored.frameCount >= 4 * 48_000)
    #expect(microphone.framesLost == 0)
  }

  @Test("503 in the middle of a plain request: bytes that the server may have dropped are sent again, and stored once")
  func unavailableInTheMiddle() throws {
    let server = try ServeProcess(scratch.path)
    let answer =
      "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    let proxy = try FaultyProxy(to: server.address) { $0 == 0 ? .answer(answer, after: 150_000) : .relay }
    defer { proxy.stop() }
    let client = try StreamProcess(microphone: microphone, to: proxy.url, more: StreamProcess.plain)
    let interrupted = try server.event("interrupted")
    #expect(interrupted.integer("offset") ?? 0 >= 140_000)
    // From its first byte, because the answer did not report the stored bytes.
    #expect(try server.event("continued").integer("offset") == 0)
    try client.acknowledged(client.captured + second)
    let summary = try client.finish()
    let ended = try server.event("ended")

    let stored = try StoredStream(scratch.path, try #require(ended.text("file")))
    #expect(stored.isWAV)
    #expect(stored.firstDifferenceFromMicrophone() == nil)
    #expect(stored.holes.isEmpty)
    #expect(summary.integer("missing_at_server") == 0)
    #expect(summary.integer("resent") ?? 0 >= 140_000)
    #expect(summary.integer("captured") == stored.bytes.count)
    #expect(microphone.framesLost == 0)
  }

  @Test(
    "401 in the middle of the stream: exit code 77, a message with a remedy, and the acknowledged bytes are stored"
  )
  func unauthorized() throws {
    let server = try ServeProcess(scratch.path)
    let answer =
      "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer\r\nContent-Length: 14\r\nConnection: close\r\n\r\ntoken expired\n"
    let proxy = try FaultyProxy(to: server.address) { _ in .answer(answer, after: 200_000) }
    defer { proxy.stop() }
    let client = try StreamProcess(microphone: microphone, to: proxy.url, more: ["--give-up-on-refusal", "0s"])
    let summary = try client.ended(code: 77)
    let interrupted = try server.event("interrupted")

    let message = try #require(summary.text("error"))
    #expect(
      message.contains("401") && message.contains("token expired") && message.contains("--bearer-token-file"),
      "\(message)")
    // Not repeated, as requested. Without the option, it may repeat for ten minutes.
    #expect(proxy.connections == 1)
    #expect(server.events("ended").isEmpty)
    let stored = try StoredStream(scratch.path, try #require(interrupted.text("file")))
    #expect(stored.fileName.hasSuffix(".part"))
    let acknowledged = try #require(summary.integer("acknowledged"))
    // The server reports its progress once per second, so the last report may be a second old.
    #expect(acknowledged > 0)
    #expect(acknowledged <= stored.bytes.count)
    #expect(acknowledged <= summary.integer("captured") ?? 0)
    #expect(stored.isWAV)
    #expect(stored.firstDifferenceFromMicrophone() == nil)
  }

  @Test(
    "a full disk: the client receives the reason, keeps its bytes, and continues when there is space, byte for byte",
    .enabled(if: Surroundings.mayMount, "a small disk needs a mount namespace: run as root"),
    arguments: Seed.several(1), ["never", "always"])
  func diskFull(seed: Seed, resumable: String) throws {
    var random = seed.generator
    let bytes = (0..<1_000_003).flatMap { _ in withUnsafeBytes(of: random.next()) { Array($0) } }
    let input = scratch.write(bytes, to: "input")
    // 12 MiB, of which 8 are used, so 8 MB do not fit.
    let disk = scratch.file("disk")
    mkdir(disk, 0o755)
    let server = try ServeProcess(
      disk, prefix: Surroundings.onSmallDisk(disk, size: "12m", ballast: 8 << 20))
    // The mount is in the server's own namespace, and ends with it.
    let seen = "/proc/\(server.identifier)/root\(disk)"
    let client = try StreamProcess("pipe", server.url, more: ["--resumable", resumable], input: input)
    let interrupted = try server.event("interrupted") { $0.integer("status") == 507 }
    let attempt = try client.event("outage")
    #expect(attempt.text("cause")?.contains("507") == true)
    // The server's offset counts, not TCP's. Bytes that it could not store are not acknowledged.
    let (acknowledged, kept) = (
      try #require(attempt.integer("acknowledged")), try #require(interrupted.integer("offset"))
    )
    // A resumable upload asks for the offset first. A plain stream gets it from the refusal itself.
    #expect(resumable == "never" ? acknowledged == kept : acknowledged <= kept)
    let partial = try #require(interrupted.text("file"))
    let growing = try StoredStream(seen, partial)
    #expect(growing.bytes.count == interrupted.integer("offset"))
    #expect(growing.firstDifference(from: Array(bytes.prefix(growing.bytes.count))) == nil)
    // The disk is still full at the next attempt, but the stream continues.
    try client.event("attempt-failed") { $0.text("cause")?.contains("507") == true }
    #expect(unlink("\(seen)/ballast") == 0)
    let summary = try client.ended(code: 0)
    let ended = try server.event("ended")
    let stored = try StoredStream(seen, try #require(ended.text("file")))
    #expect(stored.holes.isEmpty)
    #expect(stored.firstDifference(from: bytes) == nil, "\(seed)")
    #expect(summary.integer("missing_at_server") == 0)
    #expect(summary.integer("acknowledged") == bytes.count)
  }
}
