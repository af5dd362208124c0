// Tests the limits of plain requests: their number, size and rate, and the holes before their bytes.

import NetworkTesting
import Testing

@testable import ResumableServing
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

@Suite("The limits of plain requests", .serialized)
struct PlainLimitTests {
  @Test("plain requests count as running uploads, in total and per client, and only while they last")
  func counts() throws {
    for perClient in [true, false] {
      let test = try TestServer {
        if perClient { $0.uploads.maximumCountPerClient = 2 } else { $0.uploads.maximumCount = 2 }
      }
      let upload = try test.create()
      let plain = try test.connect()
      try plain.send(TestServer.head(id: "a") + "1\r\nx\r\n")
      _ = try test.events.wait(.begun)
      for version in [8, nil] {
        let third = try test.connect()
        try third.request("POST", "/t", version: version, version == nil ? [] : ["Upload-Complete: ?0"], body: "x")
        let answer = try third.final().answer
        #expect(answer.status == 503 && answer["retry-after"] == "2", "\(answer)")
      }
      // A newer request for the same stream replaces the older one.
      let newer = try test.connect()
      try newer.send(TestServer.head(id: "a", offset: 1) + "1\r\ny\r\n")
      _ = try test.events.wait(.continued)
      #expect(plain.isClosedByServer())
      newer.disconnect()
      _ = try test.events.wait(.interrupted, count: 2)
      let again = try test.connect()
      try again.request("POST", "/t", version: nil, ["Stream-ID: a", "Stream-Offset: 2"], body: "z")
      #expect(try again.final().answer.status == 200)
      try again.request("DELETE", upload)
      #expect(try again.final().answer.status == 204)
      _ = try test.create()
      _ = try test.create()
    }
  }

  @Test("a plain stream has at most the maximum size, whatever it sends or announces")
  func sizes() throws {
    let test = try TestServer { $0.uploads.maximumSize = 10 }
    for (fields, body) in [([], "12345678901"), (["Stream-Offset: 6"], "12345"), (["Stream-Offset: 11"], "")] {
      let client = try test.connect()
      try client.request("POST", "/t", version: nil, ["Stream-ID: a"] + fields, body: body)
      #expect(try client.final().answer.status == 413)
    }
    #expect(test.directory.names == [])
    let chunked = try test.connect()
    try chunked.send(TestServer.head(id: "a") + "c\r\n123456789012\r\n")
    let answer = try chunked.answer()
    #expect(answer.status == 413 && answer["stream-offset"] == "10" && answer["retry-after"] == nil)
    #expect(try test.directory.text("t-a.part") == "1234567890")
    let rest = try test.connect()
    try rest.request("POST", "/t.txt", version: nil, ["Stream-ID: a", "Stream-Offset: 5"], body: "67890")
    #expect(try rest.final().answer.status == 200)
  }

  @Test("a plain request below the minimum rate is disconnected, and its bytes stay")
  func tooSlow() throws {
    let test = try TestServer {
      $0.uploads.minimumRate = 1000
      $0.uploads.rateWindow = .seconds(1)
    }
    let client = try test.connect()
    try client.send(TestServer.head(id: "a") + "3\r\nabc\r\n")
    let answer = try client.answer()
    #expect(answer.status == 408 && answer["stream-offset"] == "3")
    #expect(try test.directory.text("t-a.part") == "abc")
  }

  @Test("a hole counts like sent bytes, and an announcement of a terabyte is refused", arguments: [true, false])
  func holes(_ isResumable: Bool) throws {
    let test = try TestServer { $0.uploads.quotaPerClient = 1 << 30 }
    let version = isResumable ? 8 : nil
    let more = isResumable ? ["Upload-Complete: ?1"] : []
    for (offset, statuses) in [(1 << 40, [409, 507]), (2 << 30, [507]), (1 << 20, [201])] {
      let client = try test.connect()
      try client.request(
        "POST", "/t.bin", version: version, ["Stream-ID: o\(offset)", "Stream-Offset: \(offset)"] + more, body: "x")
      let status = try client.final().answer.status
      #expect(statuses.contains(status), "\(offset) \(status)")
    }
    // Refused requests have used up no quota.
    let client = try test.connect()
    try client.request("POST", "/u.bin", version: version, more, body: "x")
    #expect(try client.final().answer.status == 201)
  }

  @Test("any number of holes neither overflows a counter nor stops the server", arguments: [true, false])
  func manyHoles(_ discards: Bool) throws {
    let directory = TemporaryDirectory()
    let test = try TestServer(in: directory) {
      if discards { $0.storage = .discarding }
      $0.maximumHoleLength = .max
    }
    for offset in [
      "999999999999999", "9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551614",
    ] {
      for id in ["a", "b\(offset)"] {
        let client = try test.connect()
        try client.request(
          "POST", "/t", version: nil, ["Stream-ID: \(id)", "Stream-Offset: \(offset)"], chunked: true)
        _ = try? client.sendChunk("xy")
        client.disconnect()
        let other = try test.connect()
        try other.request("POST", "/t", version: nil, ["Stream-ID: \(id)", "Stream-Offset: \(offset)"], body: "xy")
        #expect([200, 201, 409, 507].contains(try other.final().answer.status))
      }
    }
    #expect(try test.connect().ok())
  }
}

extension RawClient {
  fileprivate func ok() throws -> Bool {
    try send("GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    return try answer().status == 200
  }
}
