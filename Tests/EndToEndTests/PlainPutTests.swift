// PUT to a server that does not support offsets: each request replaces the previous one.

import CommandTesting
import NetworkTesting
import PropertyTesting
import TestRigs
import Testing

@Suite("PUT to a plain server", .enabled(if: DavServer.isInstalled, "nginx is in Debian's nginx-light"))
struct PlainPutTests {
  private let put = ["--method", "PUT", "--resumable", "never"]
  private let pattern = OffsetPattern(seed: 9)

  private func input(_ scratch: ScratchDirectory, _ count: Int) -> String {
    scratch.write(pattern[0..<count], to: "input")
  }

  @Test(
    "a stream that is interrupted twice after its beginning left the buffer continues under numbered names, and replaces nothing"
  )
  func beginningIsGone() throws {
    let (server, scratch) = (try DavServer(), ScratchDirectory())
    let count = 3_000_000
    let proxy = try FaultyProxy(to: server.address) { $0 < 2 ? .reset(after: 900_000) : .relay }
    defer { proxy.stop() }
    let client = try StreamProcess(
      "pipe", "http://\(proxy.address)/kitchen.bin", more: put + ["--buffer", "128KiB"], input: input(scratch, count))
    let summary = try client.ended(code: 4)

    let moves = client.events("next-url")
    #expect(moves.compactMap { $0.text("url")?.split(separator: "/").last } == ["kitchen~2.bin", "kitchen~3.bin"])
    let last = try #require(moves.last?.integer("offset"))
    // nginx keeps no byte of an aborted request. The last one is stored, up to the stream's end.
    #expect(try server.names == ["kitchen~3.bin"])
    #expect(try server.stored("kitchen~3.bin") == pattern[last..<count])
    // All bytes before are reported.
    #expect(summary.integer("unconfirmed") == last)
    #expect(summary.integer("captured") == count && summary.integer("unsent") == 0)
  }

  @Test("each part of a microphone's stream has its own header")
  func header() throws {
    let (server, microphone) = (try DavServer(), TestMicrophone())
    let proxy = try FaultyProxy(to: server.address) { $0 == 0 ? .reset(after: 300_000) : .relay }
    defer { proxy.stop() }
    let client = try StreamProcess(
      microphone: microphone, to: "http://\(proxy.address)/kitchen.wav", more: put + ["--buffer", "1s"])
    let offset = try #require(try client.event("next-url").integer("offset"))
    try client.acknowledged(client.captured + 96_000)
    _ = try client.finish()

    let stored = try #require(try server.stored("kitchen~2.wav"))
    let length = MicrophoneStream.headerLength
    #expect((offset - length) % 2 == 0, "it begins with a whole sample of 16 bits")
    let whole = MicrophoneStream.bytes(header: stored.prefix(length), byteCount: offset + stored.count - length)
    #expect(
      stored.starts(with: Array("RIFF".utf8)) && stored[(length - 8)..<(length - 4)].elementsEqual(Array("data".utf8)))
    #expect(stored.dropFirst(length).elementsEqual(whole.dropFirst(offset)))
  }

  @Test(
    "if the final response is lost, all bytes are stored, whether the client can resend them or must report them",
    arguments: [40_000, 1_000_000])
  func answerIsLost(count: Int) throws {
    let (server, scratch) = (try DavServer(), ScratchDirectory())
    let proxy = try FaultyProxy(to: server.address) { $0 == 0 ? .dropAnswer : .relay }
    defer { proxy.stop() }
    let client = try StreamProcess(
      "pipe", "http://\(proxy.address)/kitchen.bin", more: put + ["--buffer", "128KiB"], input: input(scratch, count))
    let isKept = count < 100_000
    let summary = try client.ended(code: isKept ? 0 : 69)
    #expect(try server.stored("kitchen.bin") == pattern[0..<count])
    #expect(try server.names == ["kitchen.bin"])
    #expect(proxy.connections == (isKept ? 2 : 1))
    if !isKept { #expect(summary.text("error")?.contains("answer was lost") == true) }
  }
}
