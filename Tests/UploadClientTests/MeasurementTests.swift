// A request's own measurements: when each step ended, and how much of its body libcurl has passed on.

import EventLoops
import NetworkTesting
import StreamBuffers
import Testing

@testable import UploadClient

@Suite("The measurements of a request")
struct MeasurementTests {
  @Test("each step ends within the request's time, in order, and the start of the response is among them")
  func order() throws {
    let server = try ScriptedServer { connection, _ in
      while true {
        _ = try connection.head()
        _ = try connection.body()
        try connection.send("HTTP/1.1 103 Early Hints\r\n\r\n")
        try connection.respond("201 Created", body: "hello")
      }
    }
    let session = try UploadSession()
    defer { session.close() }
    for isReused in [false, true] {
      var request = UploadRequest(url: server.url)
      request.isMeasured = true
      let before = MonotonicInstant.now
      let pair = BoundPair.make(bufferSize: 4096)
      let running = try RunningRequest(session, request, .stream(pair.input))
      let feed = try BodyFeed(pair.output)
      try feed.write("0123456789")
      feed.end()
      #expect(try running.response().status == 201)
      let elapsed = (MonotonicInstant.now - before).seconds
      let measured = try #require(running.task.measure())
      #expect(measured.isConnectionReused == isReused)
      let connection = [measured.nameLookupEnd, measured.connectEnd]
      #expect(isReused ? connection == [nil, nil] : !connection.contains(nil))
      let own = [measured.requestStart, measured.requestEnd, measured.responseStart]
      #expect(!own.contains(nil), "\(own)")
      let steps = (connection + own).compactMap { $0 } + [measured.end]
      // libcurl counts whole microseconds, with another clock.
      #expect(zip(steps, steps.dropFirst()).allSatisfy { $0 <= $1 + 0.001 }, "\(steps)")
      #expect(steps.allSatisfy { 0...elapsed + 0.001 ~= $0 }, "\(steps) within \(elapsed) s")
      #expect(measured.requestBodySize == 10 && measured.responseBodySize == 5)
    }
  }

  @Test("the accepted number is reported once for each new value")
  func accepted() throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      _ = try connection.body()
      try connection.respond("200 OK")
    }
    let session = try UploadSession()
    defer { session.close() }
    var request = UploadRequest(url: server.url)
    request.tellsAccepted = true
    let pair = BoundPair.make(bufferSize: 4096)
    let running = try RunningRequest(session, request, .stream(pair.input))
    let feed = try BodyFeed(pair.output)
    for number in 1...5 {
      try feed.write("0123456789")
      // The next piece is written only after libcurl has paused, because it requests the body more than once with the
      // same count.
      try running.events.first("piece \(number)") {
        if case .accepted(let count) = $0 { count >= 10 * number } else { false }
      }
    }
    feed.end()
    #expect(try running.response().status == 200)
    let told = running.events.all.compactMap { if case .accepted(let count) = $0 { count } else { nil } }
    #expect(told.first ?? 0 > 0 && told.last == 50 && zip(told, told.dropFirst()).allSatisfy { $0 < $1 }, "\(told)")
  }
}
