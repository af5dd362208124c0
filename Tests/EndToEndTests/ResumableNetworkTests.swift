// Network faults and resumable uploads: the stored bytes must be the sent ones, once.

import ChaosTesting
import CommandTesting
import Glibc
import NetworkTesting
import TestRigs
import Testing

@Suite(
  "A resumable upload over a faulty network",
  .enabled(if: Surroundings.mayMakeNetworks, "a network namespace needs root, ip (iproute2) and nft (nftables)"))
struct ResumableNetworkTests {
  /// Gives up a connection after a second without an acknowledgement of sent bytes.
  private static let hasty = [
    "--stall-timeout", "1s", "--response-timeout", "1s", "--connect-timeout", "1s", "--retry-ceiling", "200ms",
  ]
  private static let appendSize = 512 << 10

  /// A stream to a server at the other end of a cable.
  private final class Run {
    let directory: TemporaryDirectory
    let server: ServeProcess
    let cable: Cable
    let pattern: StampedPattern
    private(set) var streams: [(client: StreamProcess, input: PacedInput, name: String)] = []

    init(_ options: [[String]]) throws {
      directory = try TemporaryDirectory()
      guard mkdir("\(directory.path)/stored", 0o700) == 0 else { throw TestFailure("mkdir") }
      server = try ServeProcess(
        "\(directory.path)/stored", address: "0.0.0.0:8080", prefix: ["unshare", "--net"],
        more: ["--durability", "none"])
      cable = try Cable(to: server.identifier)
      pattern = StampedPattern(seed: UInt64(server.identifier))
      for (number, more) in options.enumerated() {
        let input = try PacedInput("\(directory.path)/input\(number)", pattern, bytesPerSecond: 200_000)
        try input.start()
        let client = try StreamProcess(
          "pipe", "http://\(cable.there):8080/stream\(number).bin",
          more: ["--resumable", "always", "--roll-over-after", "500ms", "--roll-over-bytes", "\(appendSize)"] + more,
          input: input.path)
        try client.event("connecting")
        input.isBeingRead()
        streams.append((client, input, "stream\(number)"))
      }
      for stream in streams { try advance(stream.client) }
    }

    /// Waits until the server has acknowledged new bytes several times.
    func advance(_ client: StreamProcess) throws {
      let before = client.acknowledgements
      try client.output.wait(for: "three more acknowledgements") { events, _ in
        events.count { $0.event == "acknowledged" } >= before + 3 ? () : nil
      }
    }

    /// Ends a stream and compares. Returns its summary.
    func finish(_ number: Int, faults: Int) throws -> FlatObject {
      let (client, input, name) = streams[number]
      let length = input.finish()
      let summary = try client.ended(code: 0)
      let ended = try server.event("ended") { $0.text("file")?.hasPrefix(name) == true }
      let file = "\(directory.path)/stored/\(try #require(ended.text("file")))"
      #expect(try pattern.firstDifference(file: file, count: length) == nil)
      #expect(try StampedPattern.digest(file: file) == pattern.digest(count: length))
      #expect(summary.integer("acknowledged") == Int(length))
      #expect(summary.integer("lost") == 0)
      #expect(client.events("upload-created").count == 1)
      #expect(summary.integer("resent") ?? .max <= faults * appendSize)
      return summary
    }
  }

  @Test(
    "a link cut for 10 s: one client waits, another drops its connection and fails to reconnect, and both resume at their offsets"
  )
  func cut() throws {
    let run = try Run([["--stall-timeout", "60s"], Self.hasty])
    try run.cable.pull()
    elapse(.seconds(10))
    let atTheEnd = run.streams.map(\.client.acknowledgements)
    try run.cable.putBack()
    for (stream, before) in zip(run.streams, atTheEnd) {
      #expect(stream.client.captured > 2_000_000)
      try run.advance(stream.client)
      #expect(stream.client.acknowledgements > before)
    }
    #expect(try run.finish(0, faults: 0).integer("outages") == 0)
    #expect(try run.finish(1, faults: 1).integer("outages") == 1)
    #expect(run.streams[1].client.failures.count >= 2)
  }

  @Test(
    "packets pass in one direction only, for each direction, until a reconnection has failed",
    arguments: [Cable.Direction.there, .back])
  func oneWay(direction: Cable.Direction) throws {
    let run = try Run([Self.hasty])
    let client = run.streams[0].client
    try run.cable.drop(direction)
    // Until the client has noticed it, and another attempt has failed.
    let before = client.failures.count
    try client.output.wait(for: "two failures") { events, _ in
      SluiceProcess.failures(in: events).count >= before + 2 ? () : nil
    }
    try run.cable.dropNoMore(direction)
    try run.advance(client)
    _ = try run.finish(0, faults: 1)
  }

  @Test("the client's address changes in the middle: the upload continues from another one")
  func addressChange() throws {
    let run = try Run([Self.hasty])
    let client = run.streams[0].client
    try run.cable.changeAddress()
    try client.event("outage")
    try run.advance(client)
    _ = try run.finish(0, faults: 1)
    let peers = Set(
      run.server.output.events.compactMap { $0.text("peer")?.split(separator: ":").first.map(String.init) })
    #expect(peers.contains(run.cable.here))
    #expect(peers.contains { $0.hasPrefix("100.") })
  }
}

extension StreamProcess {
  fileprivate var acknowledgements: Int { events("acknowledged").count }
}
