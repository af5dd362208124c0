// A request controlled by a test: its body is written on the test's thread, which waits for its events.

import EventLoops
import NetworkTesting
import PropertyTesting
import StreamBuffers

@testable import UploadClient

/// The output end of a bound pair for a thread that may block.
final class BodyFeed: Sendable {
  private let output: BoundPair.Output
  private let news: EventCounter
  private let state = Lock<(mayWrite: Bool, isOver: Bool)>((false, false))

  init(_ output: consuming BoundPair.Output) throws {
    self.output = output
    news = try EventCounter()
    self.output.open { [weak self] event in
      guard let self else { return }
      state.withLock { if case .spaceAvailable = event { $0.mayWrite = true } else { $0.isOver = true } }
      news.signal()
    }
  }

  /// Writes all of `bytes`, and waits for space. Throws if the reader has ended.
  func write(_ bytes: [UInt8]) throws {
    var done = 0
    while done < bytes.count {
      let (mayWrite, isOver) = state.withLock { state in
        defer { state.mayWrite = false }
        return state
      }
      if isOver { throw TestFailure("the reader is gone") }
      guard mayWrite else {
        guard waitUntilReadable(news.descriptor) else { throw TestFailure("the pair never had space again") }
        news.drain()
        continue
      }
      if case .accepted(let count) = output.write(bytes.span.bytes.extracting(done..<bytes.count)) { done += count }
    }
  }

  func write(_ text: String) throws { try write(Array(text.utf8)) }

  /// Writes this again and again until the reader has closed its end. Throws if it does not.
  func writeUntilOver(_ block: [UInt8]) throws {
    do { while true { try write(block) } } catch { try waitUntilOver() }
  }

  func end() { output.close() }
  func fail() { output.fail(.init("the microphone burnt")) }

  /// Waits until the reader has closed its end.
  func waitUntilOver() throws {
    while !state.withLock({ $0.isOver }) {
      guard waitUntilReadable(news.descriptor) else { throw TestFailure("the reader did not go") }
      news.drain()
    }
  }
}

/// A started request.
struct RunningRequest {
  let task: UploadTask
  let events: EventLog<UploadTask.Event>

  init(
    _ session: UploadSession, _ request: UploadRequest, _ body: consuming UploadBody = .none,
    also: @escaping @Sendable () -> Void = {}
  ) throws {
    let events = try EventLog<UploadTask.Event>()
    task = try session.upload(request, body: body) { event in
      also()
      events.append(event)
    }
    self.events = events
  }

  /// Waits for the end, and returns its result.
  func result() throws -> Result<UploadTask.Outcome, UploadError> {
    try events.wait("the end") { Self.end($0) }
  }

  func response() throws -> HTTPResponse { try result().get().response }

  /// Waits for a failure.
  func failure() throws -> UploadError {
    switch try result() {
    case .failure(let error): return error
    case .success(let outcome): throw TestFailure("no failure, but \(outcome)")
    }
  }

  private static func end(_ events: [UploadTask.Event]) -> Result<UploadTask.Outcome, UploadError>? {
    for case .finished(let result) in events { return result }
    return nil
  }

  /// The number of reported ends, which should be one.
  var endCount: Int { events.all.count { if case .finished = $0 { true } else { false } } }
  var connectedCount: Int { events.all.count { if case .connected = $0 { true } else { false } } }
  var interim: [HTTPResponse] {
    events.all.compactMap { if case .interimResponse(let head) = $0 { head } else { nil } }
  }
}

/// A started request whose body the test writes.
struct RunningUpload {
  let request: RunningRequest
  let body: BodyFeed

  init(
    _ session: UploadSession, _ request: UploadRequest, pairSize: Int = BoundPair.defaultBufferSize,
    also: @escaping @Sendable () -> Void = {}
  ) throws {
    let pair = BoundPair.make(bufferSize: pairSize)
    body = try BodyFeed(pair.output)
    self.request = try RunningRequest(session, request, .stream(pair.input), also: also)
  }

  var task: UploadTask { request.task }
  var events: EventLog<UploadTask.Event> { request.events }
  var interim: [HTTPResponse] { request.interim }
  var endCount: Int { request.endCount }
  func result() throws -> Result<UploadTask.Outcome, UploadError> { try request.result() }
  func response() throws -> HTTPResponse { try request.response() }
  func failure() throws -> UploadError { try request.failure() }
}

/// A session for the length of a test.
@discardableResult
func withSession<Value>(_ body: (UploadSession) throws -> Value) throws -> Value {
  let session = try UploadSession()
  defer { session.close() }
  return try body(session)
}

/// Waits until `value` has stayed the same for a while, because nothing flows any more.
func settled<Value: Equatable>(_ value: () -> Value) throws -> Value {
  let never = try EventCounter()
  let deadline = MonotonicInstant.now + .seconds(60)
  var last = value()
  while MonotonicInstant.now < deadline {
    if waitUntilReadable(never.descriptor, limit: .milliseconds(200)) { break }
    let now = value()
    if now == last { return now }
    last = now
  }
  throw TestFailure("it never came to rest")
}

/// Polls until `condition` holds, for conditions without an event.
func eventually(_ what: String, _ condition: () -> Bool) throws {
  let never = try EventCounter()
  let deadline = MonotonicInstant.now + .seconds(60)
  while !condition() {
    guard MonotonicInstant.now < deadline else { throw TestFailure("\(what) did not come") }
    _ = waitUntilReadable(never.descriptor, limit: .milliseconds(5))
  }
}

/// A server that reports each chunk of a request, and accepts the request at its end.
func chunkServer(_ chunks: EventLog<[UInt8]>) throws -> ScriptedServer {
  try ScriptedServer { connection, _ in
    _ = try connection.head()
    while let chunk = try connection.chunk() { chunks.append(chunk) }
    try connection.respond("200 OK")
  }
}
