// A live stream controlled by a test, and sources with the test's bytes.

import EventLoops
import NetworkTesting
import PropertyTesting
import StreamBuffers
import UploadClient

@testable import LiveStreaming

/// A source that the test's thread writes to.
final class PushedSource: StreamSource {
  private let producer = Lock<CircularBuffer.Producer?>(nil)
  private let context = Lock<SourceContext?>(nil)
  private let started: EventLog<Bool>

  init() throws { started = try EventLog() }

  func start(into producer: consuming CircularBuffer.Producer, context: SourceContext) {
    self.context.withLock { $0 = context }
    let handover = Handover(producer)
    self.producer.withLock { $0 = handover.take() }
    started.append(true)
  }

  /// Reports an event of the source.
  func report(_ event: SourceEvent) throws {
    try started.first("the source's start") { $0 }
    context.withLock { $0?.report(event) }
  }

  /// Ends the stream with an error of the source, after the buffered bytes.
  func fail(_ error: LiveStreamError) throws {
    try started.first("the source's start") { $0 }
    context.withLock { $0?.fail(error) }
  }

  /// Omits bytes. Returns false if the buffer does not allow it.
  func pause(_ length: UInt64) throws -> Bool {
    try started.first("the source's start") { $0 }
    return producer.withLock { $0?.pause(length) ?? false }
  }

  func stop() {
    producer.withLock { producer in
      producer?.finish()
      producer = nil
    }
  }

  /// Writes all of `bytes`, or as many as the overflow policy accepts. Returns their number.
  @discardableResult
  func push(_ bytes: [UInt8]) throws -> Int {
    try started.first("the source's start") { $0 }
    return producer.withLock { producer in
      var done = 0
      while done < bytes.count {
        let piece = bytes.span.bytes.extracting(done..<min(bytes.count, done + 4096))
        // Dropping the oldest bytes fails only while the reader uses them, for the duration of its copy.
        switch producer?.write(copying: piece) {
        case .written(let count)? where count > 0: done += count
        case .full?, .written?:
          if context.withLock({ $0?.overflow }) != .dropOldest { return done }
        case nil: return done
        }
      }
      return done
    }
  }
}

/// The bytes of a pattern from `offset` on.
func patternBytes(_ pattern: OffsetPattern, _ offset: Int, _ count: Int) -> [UInt8] {
  pattern[offset..<offset + count]
}

/// A started stream.
final class RunningStream: Sendable {
  let streamer: LiveStreamer
  let events: EventLog<LiveStreamEvent>

  init(
    _ source: any StreamSource, _ session: UploadSession, _ url: String,
    _ change: (inout LiveStreamConfiguration) -> Void = { _ in }
  ) throws {
    var configuration = LiveStreamConfiguration(request: UploadRequest(url: url))
    configuration.retry.initialCeiling = .milliseconds(20)
    configuration.retry.maximumCeiling = .milliseconds(50)
    // Most servers of these tests accept one plain request, without a preceding OPTIONS.
    configuration.resumable = .never
    change(&configuration)
    let events = try EventLog<LiveStreamEvent>()
    self.events = events
    streamer = try LiveStreamer(source, configuration: configuration, session: session)
    streamer.start { events.append($0) }
  }

  /// An upload of a file.
  init(
    _ file: UploadFile, _ session: UploadSession, _ url: String,
    _ change: (inout LiveStreamConfiguration) -> Void = { _ in }
  ) throws {
    var configuration = LiveStreamConfiguration(request: UploadRequest(url: url))
    configuration.request.method = "PUT"
    configuration.retry.initialCeiling = .milliseconds(20)
    configuration.retry.maximumCeiling = .milliseconds(50)
    change(&configuration)
    let events = try EventLog<LiveStreamEvent>()
    self.events = events
    streamer = LiveStreamer(file, configuration: configuration, session: session)
    streamer.start { events.append($0) }
  }

  func summary() throws -> StreamSummary {
    try events.wait("the stream's end") { events in
      if case .ended(let summary)? = events.last { summary } else { nil }
    }
  }

  /// The requests that ended before their stream, usually several in one outage.
  func failures() -> [FailedAttempt] {
    events.all.compactMap {
      switch $0 {
      case .outage(let attempt), .attemptFailed(let attempt): attempt
      default: nil
      }
    }
  }
  func gaps() -> [Gap] { events.all.compactMap { if case .gap(let gap) = $0 { gap } else { nil } } }

  func waitForFailure(_ count: Int = 1) throws {
    try events.wait("failure \(count)") { _ in failures().count >= count ? true : nil }
  }

  /// The offsets at which requests began.
  var connects: [UInt64] { events.all.compactMap { if case .connecting(let offset, _) = $0 { offset } else { nil } } }
}

extension RunningStream {
  /// A stream of a source to a server that may support resumable uploads.
  convenience init(
    _ source: any StreamSource, _ session: UploadSession, _ server: ResumableServer,
    _ change: (inout LiveStreamConfiguration) -> Void = { _ in }
  ) throws {
    try self.init(source, session, server.url + "/take") {
      $0.resumable = .auto
      change(&$0)
    }
  }

  var notices: [UploadNotice] { events.all.compactMap { if case .upload(let notice) = $0 { notice } else { nil } } }
  /// Reasons of the parts after the first.
  var parts: [String] { notices.compactMap { if case .newPart(_, _, let reason) = $0 { reason } else { nil } } }

  func waitUntilAcknowledged(_ offset: UInt64) throws {
    try events.wait("the acknowledgement of \(offset)") { events in
      events.contains { if case .acknowledged(let end) = $0 { end >= offset } else { false } } ? true : nil
    }
  }
}

/// A plain server's bytes of a stream at their offsets, from all connections.
final class StoredBytes: Sendable {
  private let state = Lock<(bytes: [UInt8], present: [Bool])>(([], []))

  func store(_ bytes: [UInt8], at offset: UInt64) {
    state.withLock { state in
      let end = Int(offset) + bytes.count
      while state.bytes.count < end {
        state.bytes.append(0)
        state.present.append(false)
      }
      for (index, byte) in bytes.enumerated() {
        state.bytes[Int(offset) + index] = byte
        state.present[Int(offset) + index] = true
      }
    }
  }

  var count: Int { state.withLock { $0.bytes.count } }

  /// The first offset at which a stored byte differs from the pattern.
  func firstDifference(from pattern: OffsetPattern) -> Int? {
    state.withLock { state in state.bytes.indices.first { state.present[$0] && state.bytes[$0] != pattern[UInt64($0)] }
    }
  }

  /// Offsets without stored bytes.
  var holes: [Range<Int>] {
    state.withLock { state in
      var holes: [Range<Int>] = []
      for (index, present) in state.present.enumerated() where !present {
        if holes.last?.upperBound == index {
          holes[holes.count - 1] = holes[holes.count - 1].lowerBound..<index + 1
        } else {
          holes.append(index..<index + 1)
        }
      }
      return holes
    }
  }

  /// Stores a request's body as it arrives. Returns true if it was complete.
  func take(_ connection: ServerConnection, from offset: UInt64) -> Bool {
    var offset = offset
    do {
      while let chunk = try connection.chunk(brokenOff: { store($0, at: offset) }) {
        store(chunk, at: offset)
        offset += UInt64(chunk.count)
      }
      return true
    } catch {
      return false
    }
  }
}

/// A session for the length of a test.
@discardableResult
func withSession<Value>(_ body: (UploadSession) throws -> Value) throws -> Value {
  let session = try UploadSession()
  defer { session.close() }
  return try body(session)
}
