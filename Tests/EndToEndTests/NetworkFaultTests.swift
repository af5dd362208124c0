// A link that is cut for ten seconds without any packet about it.

import CommandTesting
import TestRigs
import Testing

@Suite("A network with faults")
struct NetworkFaultTests {
  private let second = 96_000

  @Test(
    "a link cut for 10 s: whether the connection survives or is replaced, no byte is missing",
    .enabled(if: Surroundings.mayMakeNetworks, "a network namespace needs root, and ip from the package iproute2"))
  func cut() throws {
    let scratch = ScratchDirectory()
    let server = try ServeProcess(scratch.path, address: "0.0.0.0:8080", prefix: ["unshare", "--net"])
    let cable = try Cable(to: server.identifier)
    let url = "http://\(cable.there):8080/take"
    // One waits. The other one treats its peer as dead after 3 s, and tries to connect until the link is back.
    let patient = (microphone: TestMicrophone(), name: "patient", more: ["--stall-timeout", "60s"])
    let hasty = (
      microphone: TestMicrophone(), name: "hasty",
      more: ["--stall-timeout", "3s", "--connect-timeout", "1s", "--retry-ceiling", "500ms"]
    )
    let clients = try [patient, hasty].map { kind in
      try StreamProcess(microphone: kind.microphone, to: url, more: ["--stream-id", kind.name] + kind.more)
    }
    for client in clients { try client.acknowledged(second) }
    try cable.pull()
    elapse(.seconds(10))
    let atTheEnd = clients.map { $0.lastAcknowledged }
    try cable.putBack()
    for (client, before) in zip(clients, atTheEnd) {
      // Nothing passed meanwhile, and the capture continued.
      #expect(client.captured - before >= 8 * second)
      try client.acknowledged(client.captured + second)
    }
    #expect(clients[0].events("outage").isEmpty)
    #expect(!clients[1].events("outage").isEmpty)
    for (client, kind) in zip(clients, [patient, hasty]) {
      let summary = try client.finish()
      let ended = try server.event("ended") { $0.text("stream") == kind.name }
      let stored = try StoredStream(scratch.path, try #require(ended.text("file")))
      #expect(stored.isWAV)
      #expect(stored.firstDifferenceFromMicrophone() == nil)
      #expect(stored.holes.isEmpty)
      #expect(summary.integer("missing_at_server") == 0)
      #expect(summary.integer("captured") == stored.bytes.count)
      #expect(stored.frameCount >= 12 * 48_000)
      #expect(kind.microphone.framesLost == 0)
    }
  }
}
