// What a stream over TLS must not trust: an unencrypted Location, and a certificate before its validity.

import CommandTesting
import Glibc
import NetworkTesting
import SoakTesting
import TestRigs
import Testing

@Suite("A stream over TLS")
struct TLSTrustTests {
  @Test(
    "a Location from https to http is refused, and the error suggests --location keep; with it, the stream stays on TLS"
  )
  func insecureLocation() throws {
    // Its own port, under another name than the one that nginx would replace.
    let port = EndPort()
    let server = try ResumableServer(
      .init(announces: false, location: { "http://localhost:\(port.value)\($0)" }), { _, _ in .proper })
    port.value = String(server.url.split(separator: ":").last ?? "")
    let front = try TLSFrontEnd(backend: "127.0.0.1:\(port.value)")
    let scratch = ScratchDirectory()
    let input = scratch.write(Array(repeating: 0x61, count: 100_000), to: "input")
    let words = [
      "pipe", "https://127.0.0.1:\(front.port)/take", "--progress", "none", "--ca-file", front.authority, "--resumable",
      "always", "--http1",
    ]
    let refused = try SluiceProcess(words, input: input)
    #expect(try refused.exitCode() == 76)
    let message = refused.output.text.joined(separator: "\n")
    #expect(message.contains("an http URL") && message.contains("--location keep"), "\(message)")
    #expect(server.of("PATCH").isEmpty, "not a byte in clear text")
    let kept = try SluiceProcess(words + ["--location", "keep"], input: input)
    #expect(try kept.exitCode() == 0, "\(kept.output.text)")
    #expect(server.upload(1).bytes.count == 100_000)
  }

  @Test("a certificate that is not valid yet is an outage until this machine's clock is set")
  func clockIsWrong() throws {
    let scratch = ScratchDirectory()
    // nginx can stop sending a request after an interim response.
    let server = try ServeProcess(scratch.path, more: ["--proxied-interims", "0"])
    let front = try TLSFrontEnd(backend: server.address)
    let time = try SimulatedTime(scratch.file("clock"), factor: 1)
    // Like a Raspberry Pi before NTP.
    time.step(by: -3650 * 86_400)
    let input = scratch.write(Array(repeating: 0x61, count: 100_000), to: "input")
    let client = try StreamProcess(
      "pipe", "https://127.0.0.1:\(front.port)/take", more: ["--ca-file", front.authority, "--http1"],
      prefix: time.prefix, input: input)
    let failure = try client.event("outage")
    #expect(failure.text("cause")?.contains("not yet valid") == true, "\(failure)")
    try client.event("attempt-failed")
    time.step(by: 3650 * 86_400)
    let summary = try client.ended(code: 0)
    #expect(summary.integer("acknowledged") == 100_000 && summary.integer("outages") == 1)
  }

  @Test(
    "a peer that stops reading HTTP/2: --give-up ends the stream, and two signals do, too", arguments: [true, false])
  func stalledPeer(givesUp: Bool) throws {
    let scratch = ScratchDirectory()
    let server = try ServeProcess(scratch.path, more: ["--proxied-interims", "0"])
    let front = try TLSFrontEnd(backend: server.address)
    let microphone = TestMicrophone()
    let client = try StreamProcess(
      microphone: microphone, to: "https://127.0.0.1:\(front.port)/take",
      more: [
        "--ca-file", front.authority, "--stall-timeout", "2s", "--connect-timeout", "2s", "--response-timeout", "2s",
        "--retry-ceiling", "200ms", "--roll-over-after", "500ms",
      ] + (givesUp ? ["--give-up", "2s"] : []))
    try client.acknowledged(200_000)
    front.stop()
    defer { front.goOn() }
    if givesUp {
      #expect(try client.ended(code: 69).text("error") != nil)
    } else {
      try client.event("outage")
      client.signal(SIGTERM)
      try client.event("attempt-failed", from: client.output.events.count)
      client.signal(SIGTERM)
      _ = try client.ended(code: 130)
    }
  }
}

/// A port that is determined later than its users.
private final class EndPort: @unchecked Sendable {
  // Set before the first request.
  var value = ""
}
