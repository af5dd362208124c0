// Tests that the sidecar contains a sender's description of its stream, even after several requests and servers.

import NetworkTesting
import Recordings
import Testing
import UploadServer

@Suite("Descriptions of streams by their senders")
struct DescribedStreamTests {
  private static let description =
    "Stream-Description: started=1763762567123, device=\"hw:1,0\", format=\"S16_LE\", rate=48000, channels=2, software=\"t/1\""

  private func sidecar(_ directory: TemporaryDirectory, _ name: String = "t-a.sidecar") throws -> RecordingSidecar {
    try waitUntil("\(name) is written") { directory.exists(name) }
    return try RecordingSidecar(parsing: try directory.contents(name))
  }

  private func check(_ sidecar: RecordingSidecar, steps: [RecordingSidecar.ClockStep] = []) {
    #expect(sidecar.started == "2025-11-21T22:02:47.123Z" && sidecar.startedBySender)
    #expect(sidecar.device == "hw:1,0" && sidecar.format == "S16_LE" && sidecar.software == "t/1")
    #expect(sidecar.rate == 48_000 && sidecar.channels == 2 && sidecar.clockSteps == steps)
  }

  @Test("a plain stream, and one that is closed after an interruption", arguments: [true, false])
  func plain(_ isClosed: Bool) throws {
    let test = try TestServer { $0.finishAfter = isClosed ? .milliseconds(100) : .seconds(60) }
    let client = try test.connect()
    try client.send(TestServer.head(more: Self.description + "\r\n"))
    try client.sendChunk("abc")
    if isClosed {
      try waitUntil("all has arrived") { client.unacknowledged == 0 }
      client.disconnect()
      _ = try test.events.wait(.closed)
    } else {
      try client.send("0\r\n\r\n")
      #expect(try client.answer().status == 201)
    }
    check(try sidecar(test.directory))
  }

  @Test("an upload over several requests and a restart; later requests describe the clock")
  func upload() throws {
    let directory = TemporaryDirectory()
    var location = ""
    let steps = ", clock-steps=(2;by=-3600000)"
    do {
      let test = try TestServer(in: directory)
      location = try test.create("/t.txt", ["Stream-ID: a", Self.description])
      let client = try test.connect()
      try client.patch(location, at: 0, ["Content-Length: 3", Self.description + steps])
      try client.send("abc")
      #expect(try client.final().answer["upload-offset"] == "3")
    }
    let test = try TestServer(in: directory)
    try test.append(location, at: 3, completes: true, "def")
    check(try sidecar(directory), steps: [.init(offset: 2, milliseconds: -3_600_000)])
  }

  @Test("a server without sidecars that completes a described recording leaves no unfinished sidecar")
  func withoutSidecars() throws {
    let directory = TemporaryDirectory()
    let first = try TestServer(in: directory)
    let location = try first.create("/t.txt", ["Stream-ID: a", Self.description])
    let client = try first.connect()
    try client.patch(location, at: 0, body: "abc")
    #expect(try client.final().answer["upload-offset"] == "3")
    #expect(directory.exists(".t-a.sidecar"))
    first.stop()
    let second = try TestServer(in: directory) { $0.writesSidecars = false }
    try second.append(location, at: 3, completes: true, "def")
    second.stop()
    #expect(try directory.text("t-a.txt") == "abcdef")
    #expect(!directory.exists(".t-a.sidecar"))
  }

  @Test("an unreadable field changes nothing", arguments: ["(", "device=5", "x\"", ""])
  func invalid(_ value: String) throws {
    let test = try TestServer()
    let client = try test.connect()
    try client.send(TestServer.head(more: "Stream-Description: \(value)\r\n"))
    try client.sendChunk("abc")
    try client.send("0\r\n\r\n")
    #expect(try client.answer().status == 201)
    let sidecar = try sidecar(test.directory)
    #expect(sidecar.device == nil && !sidecar.startedBySender && sidecar.started != nil)
  }

  @Test("without sidecars, no file is written beside a recording, and a WAV header stays unchanged")
  func off() throws {
    let test = try TestServer { $0.writesSidecars = false }
    let stream = StreamedHead.all[0].bytes + [1, 2, 3, 4]
    let client = try test.connect()
    try client.send(TestServer.head("/t.wav", type: "audio/wav", more: Self.description + "\r\n"))
    try client.sendChunk(stream)
    try client.send("0\r\n\r\n")
    #expect(try client.answer().status == 201)
    #expect(try test.directory.contents("t-a.wav") == stream)
    #expect(!test.directory.exists("t-a.sidecar") && !test.directory.exists(".t-a.sidecar"))
  }
}
