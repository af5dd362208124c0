// A request's own measurements: when each step ended, and how much of its body libcurl has passed on.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
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

  @Test("a response starts with its final head, and the ends of its connection are known")
  func interim() throws {
    let mayAnswer = try EventCounter()
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.send("HTTP/1.1 103 Early Hints\r\n\r\n")
      guard waitUntilReadable(mayAnswer.descriptor) else { return }
      try connection.respond("200 OK")
    }
    try withSession { session throws in
      var request = UploadRequest("GET", server.url)
      request.isMeasured = true
      let before = wallClock()
      let running = try RunningRequest(session, request)
      let task = running.task
      try running.events.first("the interim response") { if case .interimResponse = $0 { true } else { false } }
      let isStarted = try onThread(of: session) { task.measure().map { $0.responseStart != nil } }
      #expect(isStarted == false)
      mayAnswer.signal()
      #expect(try running.response().status == 200)
      let measured = try #require(task.measure())
      #expect(measured.responseStart != nil && measured.secureConnectionEnd == nil)
      #expect((before - 1...wallClock() + 1).contains(measured.start))
      #expect(measured.protocolName == "http/1.1" && measured.remotePort == Int(server.port))
      #expect(measured.localAddress == "127.0.0.1" && measured.remoteAddress == "127.0.0.1")
      #expect((measured.localPort ?? 0) > 0 && measured.localPort != measured.remotePort)
      #expect(measured.requestHeadSize > 0 && measured.responseHeadSize > 0)
    }
  }

  @Test("a request without a connection has none of a connection's measurements")
  func noConnection() throws {
    try withSession { session throws in
      var request = UploadRequest("GET", "http://127.0.0.1:9/")
      (request.isMeasured, request.proxy) = (true, "nonsense://host")
      let running = try RunningRequest(session, request)
      _ = try running.failure()
      let measured = try #require(running.task.measure())
      #expect(!measured.isConnectionReused && measured.requestStart == nil && measured.responseStart == nil)
      #expect(measured.connectEnd == nil && measured.protocolName == nil && measured.requestEnd == nil)
      #expect(measured.localAddress == nil && measured.remoteAddress == nil)
      #expect(measured.localPort == nil && measured.remotePort == nil)
    }
  }

  /// In seconds since 1970.
  private func wallClock() -> Double {
    var time = timespec()
    clock_gettime(CLOCK_REALTIME, &time)
    return Double(time.tv_sec) + Double(time.tv_nsec) / 1e9
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
