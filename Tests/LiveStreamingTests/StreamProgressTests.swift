import EventLoops
import Testing

@testable import LiveStreaming
@testable import UploadClient

@Suite("The progress of a stream")
struct StreamProgressTests {
  private func progress(
    _ captured: UInt64 = 0, acknowledged: UInt64 = 0, lost: UInt64 = 0, elapsed: Duration = .zero, buffered: Int = 0,
    rate: Int? = nil
  ) -> StreamProgress {
    StreamProgress(
      elapsed: elapsed, captured: captured, sent: 0, acknowledged: acknowledged, lost: lost, buffered: buffered,
      capacity: 1000, outageCount: 0, isConnected: true, bytesPerSecond: rate)
  }

  @Test("the completed fraction and the unsent bytes follow from the counts, whatever they are")
  func counts() {
    #expect(progress().fractionCompleted == 1)
    #expect(progress(10).fractionCompleted == 0 && progress(10).unsent == 10)
    #expect(progress(10, acknowledged: 5).fractionCompleted == 0.5)
    #expect(progress(10, acknowledged: 20).fractionCompleted == 1 && progress(10, acknowledged: 20).unsent == 0)
    let part = progress(10, acknowledged: 4, lost: 1)
    #expect(part.settled == 5 && part.unsent == 5)
    let huge = progress(10, acknowledged: .max, lost: 1)
    #expect(huge.settled == .max && huge.unsent == 0)
  }

  @Test("the time until the buffer is full follows from the source's rate, or else from the mean rate")
  func bufferTime() {
    #expect(progress(rate: 100).bufferTimeLeft == .seconds(10))
    #expect(progress(buffered: 900, rate: 1).bufferTimeLeft == .seconds(100))
    for buffered in [1000, 1001] { #expect(progress(buffered: buffered, rate: 1).bufferTimeLeft == .zero) }
    #expect(progress(300, elapsed: .milliseconds(1500), buffered: 100).bufferTimeLeft == .seconds(4))
    #expect(progress(1, elapsed: .milliseconds(500), buffered: 1).bufferTimeLeft == .seconds(499))
    #expect(progress(50, elapsed: .seconds(1), rate: 0).bufferTimeLeft == .seconds(20))
    #expect(progress(50, elapsed: .seconds(1), rate: 1).bufferTimeLeft == .seconds(1000))
    for none in [progress(), progress(0, elapsed: .seconds(1)), progress(5), progress(rate: 0)] {
      #expect(none.bufferTimeLeft == nil)
    }
    // However slow the source is.
    let slow = progress(1, elapsed: .seconds(Int64.max))
    #expect(slow.bufferTimeLeft == .seconds(300_000_000_000))
  }

  @Test("a summary without losses and without a response has only the counts")
  func summary() {
    var summary = StreamSummary(
      progress: progress(8, acknowledged: 8, elapsed: .seconds(1)), gaps: 0, resent: 0, sourceLost: 0)
    #expect("\(summary)" == "8 bytes acknowledged in 1 s, 0 outages, 0 bytes lost")
    summary.sourceLost = 1
    summary.sourceUnit = .beats
    summary.error = LiveStreamError(.refused, "no")
    #expect(
      "\(summary)" == "8 bytes acknowledged in 1 s, 0 outages, 0 bytes lost, 1 beat lost at the source; refused: no")
  }

  @Test("the stored name is that of the server's JSON, or else its Content-Location")
  func storedName() {
    func response(_ type: String?, _ location: String?, _ body: String) -> HTTPResponse {
      var fields: [(name: String, value: String)] = []
      if let type { fields.append((name: "Content-Type", value: type)) }
      if let location { fields.append((name: "Content-Location", value: location)) }
      var response = HTTPResponse(status: 200, fields: HeaderFields(received: fields))
      response.body = Array(body.utf8)
      return response
    }
    let json = "{\"name\":\"a.wav\"}"
    #expect(response("application/json", nil, json).storedName == "a.wav")
    #expect(response("application/json; charset=utf-8", "/b", json).storedName == "a.wav")
    #expect(response("application/json", "/b", "{}").storedName == "/b")
    #expect(response("text/plain", "/b", json).storedName == "/b")
    #expect(response(nil, "/b", json).storedName == "/b")
    #expect(response(nil, nil, json).storedName == nil)
  }

  @Test("a source has no header, frames of one byte and no constant rate, unless it says so")
  func sourceDefaults() throws {
    let source = try PushedSource()
    #expect(source.header == [] && source.frameLength == 1 && source.bytesPerSecond == nil)
  }
}
