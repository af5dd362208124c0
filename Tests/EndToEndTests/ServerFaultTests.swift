// The server is killed, stalls, or starts late. The stored data is compared with the microphone's frames.

import CommandTesting
import Glibc
import TestDeviceControl
import TestRigs
import Testing

@Suite("A server with faults")
struct ServerFaultTests {
  /// A second of 48 kHz, mono, S16_LE, in bytes.
  private let second = 96_000
  private let microphone = TestMicrophone()
  private let scratch = ScratchDirectory()

  @Test(
    "killed and started again after 3 s: a plain stream loses only bytes that the server's TCP had acknowledged and the server had not read, and reports them",
    arguments: [false, true])
  func killed(unread: Bool) throws {
    let first = try ServeProcess(scratch.path)
    let client = try StreamProcess(microphone: microphone, to: first.url, more: StreamProcess.plain)
    try client.acknowledged(2 * second)
    if unread {
      // Stopped first, so that bytes are acknowledged but not read. They are lost with it.
      first.signal(SIGSTOP)
      try client.acknowledged(client.lastAcknowledged + second / 4)
    }
    first.kill()
    elapse(.seconds(3))
    let server = try ServeProcess(scratch.path, address: first.address)
    try server.event("continued")
    try client.acknowledged(client.captured + second)
    let summary = try client.finish()
    let ended = try server.event("ended")

    let stored = try StoredStream(scratch.path, try #require(ended.text("file")))
    #expect(stored.isWAV)
    #expect(stored.firstDifferenceFromMicrophone() == nil)
    // Three sources agree: the record beside the file, the server's event, and the client's summary.
    #expect(ended.integer("missing") == stored.missing)
    #expect(summary.integer("missing_at_server") == stored.missing)
    if unread { #expect(stored.missing > 0, "nothing was unread: this run shows less than it should") }
    // At most two socket buffers of 64 KiB, as the kernel counts them.
    #expect(stored.missing <= 256 << 10)
    #expect(summary.integer("captured") == stored.bytes.count)
    #expect(summary.integer("acknowledged") == stored.bytes.count - stored.missing)
    #expect(summary.integer("outages") ?? 0 >= 1)
    #expect(stored.frameCount >= 6 * 48_000)
    #expect(microphone.framesLost == 0)
  }

  @Test("killed and started again after 3 s: a resumable upload loses nothing, whatever the server had not read")
  func killedInUpload() throws {
    let first = try ServeProcess(scratch.path)
    let client = try StreamProcess(
      microphone: microphone, to: first.url, more: ["--resumable", "always", "--retry-ceiling", "500ms"])
    try client.acknowledged(second)
    // Stopped first, so that bytes are acknowledged by its TCP but not read. Only these are lost with it.
    let sent = try #require(client.events("progress").last?.integer("sent"))
    first.signal(SIGSTOP)
    try client.event("progress") { $0.integer("sent") ?? 0 > sent + second / 4 }
    first.kill()
    elapse(.seconds(3))
    let server = try ServeProcess(scratch.path, address: first.address)
    try client.acknowledged(client.captured + second)
    let summary = try client.finish()
    let ended = try server.event("ended")

    let stored = try StoredStream(scratch.path, try #require(ended.text("file")))
    #expect(stored.isWAV)
    #expect(stored.firstDifferenceFromMicrophone() == nil)
    #expect(stored.holes.isEmpty)
    #expect(summary.integer("captured") == stored.bytes.count)
    #expect(summary.integer("acknowledged") == stored.bytes.count)
    #expect(summary.integer("lost") == 0)
    #expect(summary.integer("resent") ?? 0 > 0, "nothing was unread: this run shows less than it should")
    #expect(stored.frameCount >= 5 * 48_000)
    #expect(microphone.framesLost == 0)
  }

  @Test("a server that stops reading for 5 s receives every sample, and the microphone does not lose a frame")
  func stalled() throws {
    let server = try ServeProcess(scratch.path)
    let client = try StreamProcess(microphone: microphone, to: server.url)
    try client.acknowledged(second)
    server.pause(for: .seconds(5))
    // The stall was effective: seconds of audio had to wait here.
    #expect(client.events("progress").contains { $0.integer("buffered") ?? 0 > 2 * second })
    try client.acknowledged(client.captured + second)
    let summary = try client.finish()
    let ended = try server.event("ended")

    let stored = try StoredStream(scratch.path, try #require(ended.text("file")))
    #expect(stored.isWAV)
    #expect(stored.firstDifferenceFromMicrophone() == nil)
    #expect(stored.holes.isEmpty)
    #expect(summary.integer("missing_at_server") == 0)
    #expect(summary.integer("captured") == stored.bytes.count)
    #expect(stored.frameCount >= 7 * 48_000)
    #expect(microphone.framesLost == 0)
  }

  @Test("a server that starts 3 s late receives every frame from the first on")
  func late() throws {
    // A port that was free a moment ago, at an address that nobody else uses.
    let probe = try ServeProcess(scratch.path)
    let address = probe.address
    probe.kill()
    let client = try StreamProcess(
      microphone: microphone, to: "http://\(address)/take", more: ["--retry-ceiling", "2s"])
    let attempt = try client.event("outage")
    #expect(attempt.integer("acknowledged") == 0)
    elapse(.seconds(3))
    // The capture began at once, with or without the server.
    #expect(client.captured >= second)
    let server = try ServeProcess(scratch.path, address: address)
    #expect(try server.event("begun").integer("offset") == 0)
    try client.acknowledged(client.captured + second)
    let summary = try client.finish()
    let ended = try server.event("ended")

    let stored = try StoredStream(scratch.path, try #require(ended.text("file")))
    #expect(stored.isWAV)
    #expect(stored.firstDifferenceFromMicrophone() == nil)
    #expect(stored.holes.isEmpty)
    #expect(summary.integer("missing_at_server") == 0)
    #expect(summary.integer("captured") == stored.bytes.count)
    #expect(stored.frameCount >= 4 * 48_000)
    #expect(microphone.framesLost == 0)
  }
}
