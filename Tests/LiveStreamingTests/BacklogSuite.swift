// What the suites about backlogs share: stretches that earlier processes have left, and the events of sending them.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import ResumableUploads
import Spool
import SpooledStreams
import Testing
import UploadClient

@testable import LiveStreaming

/// A suite whose tests send a spool in `directory` to `server`. The bytes follow `pattern`.
protocol BacklogSuite {
  var pattern: OffsetPattern { get }
  var directory: TemporaryDirectory { get }
  var server: StreamServer { get }
}

extension BacklogSuite {
  /// Leaves a stretch like a killed process.
  ///
  /// - Parameter origin: the origin of its URL; nil for the server's.
  func leave(_ number: Int, count: Int, for origin: String? = nil) throws {
    try leave(number, [0..<count], for: origin)
  }

  /// - Parameters:
  ///   - parts: the bytes that are in the spool.
  ///   - grid: the lengths of the header and of a frame.
  ///   - acknowledged: what a plain server has acknowledged.
  ///   - upload: the upload resource that the process has created.
  ///   - sent: the last description that was sent.
  ///   - released: the position before which the server has acknowledged everything.
  ///   - evicted: the position before which bytes were discarded to make room.
  func leave(
    _ number: Int, _ parts: [Range<Int>], for origin: String? = nil, grid: (header: Int, frame: Int) = (0, 1),
    acknowledged: UInt64? = nil, upload: ResumeData? = nil, sent: String? = nil, released: UInt64 = 0,
    evicted: UInt64 = 0
  ) throws {
    let folder = try SpoolFolder(directory: directory.path, stream: "cam")
    var description = StretchDescription(url: "\(origin ?? server.url)/x.bin", streamID: "s\(number)")
    description.contentType = "audio/x-test"
    description.header = [UInt8](repeating: 0, count: grid.header)
    description.frameLength = grid.frame
    var resumption = StretchResumption()
    (resumption.acknowledged, resumption.upload, resumption.description) = (acknowledged, upload, sent)
    let isBegun = acknowledged != nil || upload != nil
    let file = try SpoolFile.create(in: folder, description: try #require(description.text), capacity: 1 << 20)
    for part in parts {
      let bytes = patternBytes(pattern, 1000 * number + part.lowerBound, part.count)
      try bytes.withUnsafeBytes { try file.append($0, at: UInt64(part.lowerBound), time: 1) }
    }
    file.release(upTo: released)
    file.evict(upTo: evicted)
    try file.commit(
      state: isBegun ? resumption.text : "", pausedByteCount: 0, pauses: [], isFinished: false, sync: true)
  }

  func spool() throws -> StreamSpool {
    let end = MonotonicInstant.now + .seconds(20)
    while true {
      do {
        return try StreamSpool(
          directory: directory.path, stream: "cam", settings: SpoolSettings(limit: 1 << 30), report: { _ in })
      } catch {
        // The folder belongs to the previous spool until its thread has ended.
        guard case .inUse = error.cause, .now < end else { throw error }
        poll(nil, 0, 1)
      }
    }
  }

  /// Sends the remaining stretches, and returns the events.
  ///
  /// - Parameters:
  ///   - origin: the origin of the configured URL; nil for the server's.
  ///   - token: a bearer token for that origin.
  func send(
    _ session: UploadSession, _ use: LiveStreamConfiguration.ResumableUse = .auto, _ origin: String? = nil,
    token: String? = nil, rate: Int? = nil, isCancelled: Bool = false
  ) throws -> [BacklogStreamer.Event] {
    var configuration = LiveStreamConfiguration(request: UploadRequest(url: "\(origin ?? server.url)/other.bin"))
    configuration.resumable = use
    if let token { configuration.bearerToken = { token } }
    configuration.request.maximumSendRate = rate
    let streamer = BacklogStreamer(try spool(), configuration: configuration, session: session)
    let events = try EventLog<BacklogStreamer.Event>()
    // In one turn of the loop, so that no stretch is open at the time of the cancellation.
    session.loop.execute {
      streamer.start { events.append($0) }
      if isCancelled { streamer.cancel() }
    }
    try events.first("the end of the backlog") { if case .ended = $0 { true } else { false } }
    return events.all
  }

  static func counts(_ events: [BacklogStreamer.Event]) -> (begun: Int, delivered: Int?, kept: Int?) {
    var counts: (begun: Int, delivered: Int?, kept: Int?) = (0, nil, nil)
    for event in events {
      switch event {
      case .begins: counts.begun += 1
      case .ended(let delivered, let kept): (counts.delivered, counts.kept) = (delivered, kept)
      case .stream, .unreadable: break
      }
    }
    return counts
  }

  static func gaps(_ events: [BacklogStreamer.Event]) -> [Gap] {
    events.compactMap { if case .stream(_, .gap(let gap)) = $0 { gap } else { nil } }
  }

  static func isEnd(_ event: BacklogStreamer.Event) -> Bool { if case .ended = event { true } else { false } }

  /// A plain server: it knows no resumable uploads, and stores one body after another.
  func plainServer(_ stored: EventLog<(start: UInt64, body: [UInt8])>) throws -> ScriptedServer {
    try ScriptedServer { connection, _ in
      let head = try connection.head()
      guard head.line.hasPrefix("POST"), head["Upload-Complete"] == nil else {
        return try connection.respond("404 Not Found")
      }
      let body = try connection.body()
      stored.append((head.offset, body))
      try connection.respond("200 OK")
    }
  }
}
