// Tests live streams whose client returns after their recording was closed: it continues the stream in a next part.

import Glibc
import NetworkTesting
import Testing
import UploadServer

@Suite("Next parts of closed recordings")
struct ClosedPartTests: ClosedRecordingSuite {
  @Test(
    "a client that returns continues in a next part, with its own header and whole frames",
    arguments: [true, false])
  func nextPart(_ isResumable: Bool) throws {
    let test = try server()
    let samples = (0..<400).map { UInt8(truncatingIfNeeded: $0 * 7) }
    let stream = Self.header + samples
    func send(_ range: Range<Int>, completes: Bool = false) throws {
      if isResumable {
        let location = try test.create(
          "/kitchen.wav", ["Stream-ID: a", "Stream-Offset: \(range.lowerBound)", "Content-Type: audio/wav"])
        try test.append(location, at: 0, completes: completes, Array(stream[range]))
      } else if completes {
        let client = try test.connect()
        try client.send(TestServer.head("/kitchen.wav", id: "a", offset: range.lowerBound, type: "audio/wav"))
        try client.sendChunk(Array(stream[range]))
        try client.send("0\r\n\r\n")
        #expect(try client.answer()["stream-offset"] == "\(range.upperBound)")
      } else {
        try test.plain(
          "/kitchen.wav", id: "a", offset: range.lowerBound, type: "audio/wav", Array(stream[range]))
      }
    }
    // The first part ends in the middle of a frame.
    try send(0..<(44 + 101))
    _ = try test.events.wait(.closed)
    #expect(
      try test.directory.contents("kitchen-a.wav") == Self.header(dataLength: 100) + Array(stream[44..<145]))
    // The client knows of fewer bytes than the server has.
    try send((44 + 98)..<(44 + 206))
    _ = try test.events.wait(.closed, count: 2)
    #expect(try test.directory.contents("kitchen-a~2.wav") == Self.header(dataLength: 108) + Array(samples[96..<206]))
    #expect(
      try test.directory.text("kitchen-a~2.gaps")
        == "{\"offset\":140,\"length\":0,\"cause\":\"next-part\"}\n{\"offset\":250,\"length\":0,\"cause\":\"interrupted\"}\n"
    )
    // The client has lost some bytes meanwhile, and the first frame is only half there.
    try send((44 + 302)..<444, completes: true)
    #expect(
      try test.directory.contents("kitchen-a~3.wav")
        == Self.header(dataLength: 100) + [0, 0] + Array(samples[302...]))
    #expect(
      try test.directory.text("kitchen-a~3.gaps")
        == "{\"offset\":344,\"length\":0,\"cause\":\"next-part\"}\n{\"offset\":250,\"length\":96,\"cause\":\"not-received\"}\n"
    )
    #expect(test.directory.names.filter { $0.hasSuffix(".part") } == [])
    // The stream has ended, so a repeated request gets the same answer.
    guard !isResumable else { return }
    try send((44 + 302)..<444, completes: true)
  }

  @Test("a directory of logs that is a link to nowhere stops neither the server nor the stream")
  func missingLogs() throws {
    let test = try server()
    symlink("/nonexistent/parts", test.directory.path + "/.parts")
    try test.plain(id: "a", Array("abc".utf8))
    _ = try test.events.wait("the warning") { events in
      events.first { $0.kind == .warning && $0.reason?.contains("cannot close ") == true }
    }
    try test.plain(id: "a", offset: 3, Array("def".utf8))
    #expect(try test.directory.text("t-a.part") == "abcdef")
  }

  @Test(
    "no offset of a request behind a closed recording stops the server, and what is stored there is closed as well",
    arguments: [true, false])
  func extremeOffsets(_ isResumable: Bool) throws {
    let test = try server()
    let offsets = [
      "999999999999998", "999999999999999", "1000000000000000", "9223372036854775806", "9223372036854775807",
      "9223372036854775808", "18446744073709551614", "18446744073709551615", "18446744073709551616",
    ]
    for (number, offset) in offsets.enumerated() {
      let id = "s\(number)"
      try test.plain("/kitchen.wav", id: id, type: "audio/wav", Self.header + [1, 2, 3])
      _ = try test.events.wait("the recording is closed") { $0.first { $0.kind == .closed && $0.stream == id } }
      let client = try test.connect()
      let fields = ["Stream-ID: \(id)", "Stream-Offset: \(offset)", "Content-Type: audio/wav"]
      if isResumable {
        try client.request("POST", "/kitchen.wav", ["Upload-Complete: ?0"] + fields, body: "abcd")
        let status = try client.final().answer.status
        #expect(offset.utf8.count > 15 ? [400, 409].contains(status) : status == 201, "\(offset): \(status)")
      } else {
        try client.request("POST", "/kitchen.wav", version: nil, fields, chunked: true)
        try client.sendChunk("abcd")
        if offset.utf8.count > 15 {
          #expect([400, 409].contains(try client.final().answer.status), "\(offset)")
        } else {
          client.disconnect()
        }
      }
      guard offset.utf8.count <= 15 else { continue }
      _ = try test.events.wait("the next part is closed") { events in
        events.filter { $0.kind == .closed && $0.stream == id }.dropFirst().first
      }
    }
  }

  @Test("after a part that repeats a piece of an earlier one, only missing bytes are recorded as not received")
  func repeatingPart() throws {
    let test = try server()
    // The client of the second part knew of fewer bytes than the server had.
    for (number, range) in [0..<20, 5..<10, 20..<25, 12..<15, 30..<31].enumerated() {
      try test.plain(id: "a", offset: range.lowerBound, range.map { UInt8($0) })
      _ = try test.events.wait(.closed, count: number + 1)
    }
    for (part, gaps) in [2: [], 3: [], 4: [], 5: ["{\"offset\":25,\"length\":5,\"cause\":\"not-received\"}"]] {
      let lines = try test.directory.text("t-a~\(part).gaps").split(separator: "\n").map(String.init)
      #expect(lines.filter { $0.contains("not-received") } == gaps, "part \(part)")
    }
  }

  @Test("a next part survives the server with its offset, and text requires no header")
  func nextPartAfterRestart() throws {
    let directory = TemporaryDirectory()
    var location = ""
    do {
      let test = try server(directory)
      try test.plain(id: "a", Array("abc".utf8))
      _ = try test.events.wait(.closed)
    }
    do {
      let test = try server(directory, finishAfter: .seconds(60))
      location = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: 3"])
      try test.append(location, at: 0, "def")
    }
    let test = try server(directory, finishAfter: .seconds(60))
    #expect(try test.connect().head(location)["upload-offset"] == "3")
    try test.append(location, at: 3, completes: true, "ghi")
    #expect(try directory.text("t-a.txt") == "abc" && directory.text("t-a~2.txt") == "defghi")
    // The stream has ended, so nothing may follow it.
    let late = try test.connect()
    try late.send(TestServer.head(id: "a", offset: 10))
    #expect(try late.answer().status == 409)
  }

  @Test("a stream whose closed recording was moved away continues in the next part")
  func moved() throws {
    let test = try server()
    try test.plain("/k.wav", id: "a", type: "audio/wav", Self.header + [1, 2, 3, 4])
    _ = try test.events.wait(.closed)
    unlink(test.directory.path + "/k-a.wav")
    unlink(test.directory.path + "/k-a.gaps")
    try test.plain("/k.wav", id: "a", offset: 48, type: "audio/wav", [5, 6, 7, 8])
    _ = try test.events.wait(.closed, count: 2)
    #expect(try test.directory.contents("k-a~2.wav") == Self.header(dataLength: 4) + [5, 6, 7, 8])
  }
}
