// Tests what the command shows while it discards bytes because its buffer is full.

import CommandTesting
import Glibc
import NetworkTesting
import TestRigs
import Testing

@testable import sluice

@Suite("A buffer that discards")
struct DiscardingTests {
  @Test(
    "it never shows more than 100 %, and each byte is acknowledged, lost or unsent at any time",
    arguments: [false, true])
  func full(answers: Bool) throws {
    let scratch = ScratchDirectory()
    // Either a server that stops reading after some bytes, or no server at all.
    let server = try answers ? ServeProcess(scratch.path) : nil
    let url = try server?.url ?? "http://127.0.0.1:\(freePort())/take"
    let microphone = TestMicrophone()
    let client = try StreamProcess(
      microphone: microphone, to: url, more: ["--buffer", "64KiB", "--rate", "192000", "--channels", "2"])
    if let server {
      try client.acknowledged(100_000)
      server.signal(SIGSTOP)
    }
    // 768,000 bytes per second.
    try client.event("discarding")
    let seen = client.events("progress").count
    try client.output.wait(for: "two seconds more") { events, _ in
      events.count { $0.event == "progress" } >= seen + 2 ? () : nil
    }
    client.signal(SIGTERM)
    client.signal(SIGQUIT)
    if let server { server.signal(SIGCONT) }
    _ = try client.exitCode()
    let all = client.output.events.filter { ["progress", "ended"].contains($0.event) }
    #expect(all.contains { ($0.integer("lost") ?? 0) > 500_000 })
    for event in all {
      func value(_ name: String) throws -> Int { try #require(event.integer(name), "\(event)") }
      #expect(try value("buffered") <= value("capacity"), "\(event)")
      #expect(try value("captured") == value("acknowledged") + value("lost") + value("unsent"), "\(event)")
    }
  }
}
