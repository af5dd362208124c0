// The real PipeWire as ALSA's default device. Its plugin starts threads when the device is opened.

import CommandTesting
import Glibc
import TestRigs
import Testing

@Suite(
  "A microphone behind PipeWire",
  .enabled(if: PrivatePipeWire.isAvailable, "make test-packages fetches pipewire, wireplumber and pipewire-alsa"))
struct PipeWireTests {
  @Test("a signal finishes the stream, whichever thread receives it", arguments: [SIGINT, SIGTERM])
  func signals(_ signal: Int32) throws {
    let pipeWire = try PrivatePipeWire()
    let scratch = ScratchDirectory()
    let server = try ServeProcess(scratch.path)
    let stream = try StreamProcess(
      "mic", server.url, more: ["--stream-id", "s", "--device", "default"], prefix: pipeWire.prefix)
    // Half a second of audio has arrived.
    try stream.acknowledged(48_000)
    stream.signal(signal)
    let summary = try stream.ended(code: 0)
    let ended = try server.event("ended") { $0.text("stream") == "s" }
    let stored = try StoredStream(scratch.path, try #require(ended.text("file")))
    #expect(stored.isWAV)
    #expect(stored.bytes.count == summary.integer("captured"))
    #expect(stored.holes.isEmpty)
    #expect(stream.events("device-lost").isEmpty)
  }
}
