// A stream that uses only HTTP/2, whose requests are aborted by HTTP/2's own means.

import EventLoops
import NetworkTesting
import PropertyTesting
import StreamBuffers
import Testing
import UploadClient

@testable import LiveStreaming

@Suite("Failures of HTTP/2", .serialized)
struct HTTP2FaultTests {
  /// Answers the first requests, a creation and its appends, resets all others, and reports each.
  private func server(
    answers answered: Int, _ code: HTTP2Connection.ErrorCode, _ requests: EventLog<Int>
  ) throws -> ScriptedServer {
    let count = Lock(0)
    return try ScriptedServer { connection, _ in
      let http2 = try HTTP2Connection(connection)
      while true {
        let stream = try http2.request()
        let number = count.withLock { count in
          defer { count += 1 }
          return count
        }
        // Reported first, because the answer may end the test.
        requests.append(number)
        if number < answered {
          try http2.content(of: stream)
          try http2.respond(
            number == 0 ? 201 : 204,
            [("location", "/uploads/0"), ("upload-draft-interop-version", "8"), ("upload-complete", "?0")], to: stream)
        } else {
          // The connection stays for later requests, and is read to its end.
          try http2.reset(stream, code)
        }
      }
    }
  }

  private func stream(_ source: PushedSource, _ session: UploadSession, _ server: ScriptedServer) throws
    -> RunningStream
  {
    try RunningStream(source, session, server.url + "/take") {
      $0.request.httpVersion = .http2
      $0.resumable = .always
      $0.rollOver.after = .milliseconds(20)
    }
  }

  @Test(
    "if HTTP/2 has worked before, its failure is an outage, and the next request uses HTTP/2 again",
    arguments: [HTTP2Connection.ErrorCode.protocolError, .internalError])
  func afterwards(_ code: HTTP2Connection.ErrorCode) throws {
    let requests = try EventLog<Int>()
    let server = try server(answers: 2, code, requests)
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try stream(source, session, server)
      try source.push([1, 2, 3])
      try stream.waitUntilAcknowledged(3)
      try source.push([4, 5, 6])
      // The second append is aborted, and then the offset retrieval.
      try stream.waitForFailure(2)
      try requests.first("another request over HTTP/2") { $0 == 4 }
      stream.streamer.cancel()
      #expect(try stream.summary().error?.kind == .cancelled)
      for attempt in stream.failures() {
        guard case .connectionLost = attempt.cause else {
          Issue.record("\(attempt)")
          continue
        }
      }
    }
  }

  @Test(
    "a source that waits for space does not wait forever, although TCP does not report the last bytes of HTTP/2",
    arguments: [0, 256 << 10])
  func smallBuffer(retention: Int) throws {
    let count = 400_000
    let server = try ScriptedServer { connection, _ in
      let http2 = try HTTP2Connection(connection)
      let stream = try http2.request()
      var (isEnd, sum) = (false, 0)
      while !isEnd {
        let piece = try http2.piece(of: stream, isEnd: &isEnd)
        sum += piece.count
        guard !piece.isEmpty, !isEnd else { continue }
        for place in [0, stream] { try http2.enlargeWindow(of: place, by: UInt32(piece.count)) }
      }
      try http2.respond(sum == count ? 200 : 400, [], to: stream)
    }
    try withSession { session throws in
      let pipe = try TestPipe()
      let stream = try RunningStream(try DescriptorSource(descriptor: pipe.reading), session, server.url + "/take") {
        $0.request.httpVersion = .http2
        $0.overflow = .wait
        $0.buffer = .bytes(8192)
        $0.retention = retention
      }
      let writing = try NamedThread("writing") {
        _ = pipe.write([UInt8](repeating: 7, count: count))
        pipe.closeWriting()
      }
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.progress.captured == count && summary.progress.outageCount == 0)
      // Otherwise it would wait for a reader.
      pipe.closeReading()
      writing.join()
    }
  }

  @Test("before the first byte has passed, it is an error with the reason, and there is no retry")
  func before() throws {
    let requests = try EventLog<Int>()
    let server = try server(answers: 1, .protocolError, requests)
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try stream(source, session, server)
      try source.push([1, 2, 3])
      let error = try #require(try stream.summary().error)
      #expect(error.kind == .http2NotSupported && error.description.contains("breaks HTTP/2"), "\(error)")
      #expect(stream.failures().isEmpty && requests.all == [0, 1])
    }
  }
}
