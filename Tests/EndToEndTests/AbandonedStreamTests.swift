// A stream whose sender disappears before its end is never treated as complete.

import CommandTesting
import Glibc
import TestRigs
import Testing

@Suite("An abandoned stream")
struct AbandonedStreamTests {
  private let second = 96_000
  private let microphone = TestMicrophone()
  private let scratch = ScratchDirectory()

  @Test("a client killed in the middle leaves a .part with the sent bytes, and no finished name")
  func killed() throws {
    let server = try ServeProcess(scratch.path)
    let client = try StreamProcess(microphone: microphone, to: server.url)
    try client.acknowledged(2 * second)
    client.kill()
    let interrupted = try server.event("interrupted")
    try expectPartial(interrupted, server, atLeast: 2 * second)
  }

  @Test(
    "a connection cut within the body, cleanly or by reset, leaves a .part, and no finished name",
    arguments: [false, true])
  func cut(isReset: Bool) throws {
    let server = try ServeProcess(scratch.path)
    // It tries again, without success.
    let away = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    let proxy = try FaultyProxy(to: server.address) {
      $0 == 0 ? .cut(after: 150_001, isReset: isReset) : .refuse(away)
    }
    defer { proxy.stop() }
    let client = try StreamProcess(microphone: microphone, to: proxy.url, more: ["--give-up", "0s"])
    let interrupted = try server.event("interrupted")
    #expect(try client.exitCode() == 69)
    try expectPartial(interrupted, server, atLeast: isReset ? 0 : 140_000)
  }

  private func expectPartial(_ interrupted: FlatObject, _ server: ServeProcess, atLeast least: Int) throws {
    let partial = try #require(interrupted.text("file"))
    #expect(StoredStream.names(in: scratch.path) == [partial])
    #expect(partial.hasSuffix(".part"))
    #expect(server.events("ended").isEmpty)
    let stored = try StoredStream(scratch.path, partial)
    #expect(stored.bytes.count == interrupted.integer("offset"))
    #expect(stored.bytes.count >= least)
    #expect(stored.firstDifferenceFromMicrophone() == nil)
    // Nor does the server treat it as complete when it ends.
    server.signal(SIGTERM)
    #expect(try server.exitCode() == 0)
    #expect(StoredStream.names(in: scratch.path) == [partial])
  }
}
