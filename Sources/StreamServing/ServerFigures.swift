// The figures of a server's work, as values. Each loop counts for itself, and the counts are added on request.

internal import EventLoops
package import HTTPServer
package import Metrics
internal import ResumableUploads

/// The figures of one loop, or of all.
package struct ServerFigures: Sendable {
  package var connections = ConnectionFigures()
  package private(set) var events = [UInt64](repeating: 0, count: ServerEvent.Kind.allCases.count)
  /// How often the disk refused bytes.
  package var storageFailures: UInt64 = 0
  /// The uploads whose acknowledged bytes the disk refused when the server ended.
  package var unsyncedUploads = 0
  package var openUploads = 0
  package var storedBytes: UInt64 = 0
  package var acknowledgedBytes: UInt64 = 0
  /// Bytes of recordings that clients downloaded.
  package var downloadedBytes: UInt64 = 0
  package var openDownloads = 0
  /// Seconds from the arrival of an upload's oldest unacknowledged byte to the 104 or 2xx that acknowledges it.
  package var acknowledgementDelays = Distribution()
  /// Seconds from a publish to its acknowledgement by the brokers, if uploads are stored there.
  package var publishDelays = Distribution()
  package var publishesInFlight = 0
  /// Publishes that were refused because another server had changed the upload.
  package var refusedPublishes: UInt64 = 0
  /// How many seconds work from another thread waited for its turn in the loop, at the last measurement.
  package var lags: [Double] = []

  package mutating func happened(_ kind: ServerEvent.Kind) {
    // `allCases` contains every kind.
    if let index = ServerEvent.Kind.allCases.firstIndex(of: kind) { events[index] += 1 }
  }

  /// Adds the figures of another loop.
  package mutating func add(_ other: ServerFigures) {
    connections.add(other.connections)
    for index in events.indices { events[index] += other.events[index] }
    storageFailures += other.storageFailures
    unsyncedUploads += other.unsyncedUploads
    openUploads += other.openUploads
    storedBytes += other.storedBytes
    acknowledgedBytes += other.acknowledgedBytes
    downloadedBytes += other.downloadedBytes
    openDownloads += other.openDownloads
    acknowledgementDelays.add(other.acknowledgementDelays)
    publishDelays.add(other.publishDelays)
    publishesInFlight += other.publishesInFlight
    refusedPublishes += other.refusedPublishes
    lags += other.lags
  }
}

/// The figures that everything on one loop adds to. Only on the loop's thread.
package final class ServerLoopFigures {
  package var values = ServerFigures()

  package init() {}
}

/// Adds up the figures of several loops as they arrive. Any thread.
package final class FigureSum: Sendable {
  private let state: Lock<(sum: ServerFigures, missing: Int)>

  package init(of count: Int) { state = Lock((ServerFigures(), count)) }

  /// Adds the figures of one loop. Returns the sum after the last.
  package func add(_ figures: ServerFigures) -> ServerFigures? {
    state.withLock { state in
      state.sum.add(figures)
      state.missing -= 1
      return state.missing == 0 ? state.sum : nil
    }
  }
}

extension ServerFigures {
  /// - Parameter residentBytesAtStart: the resident size of the process before its first connection.
  package func page(residentBytesAtStart: Int) -> MetricsText {
    var page = MetricsText()
    page.gauge("sluice_server_connections_open", "Open connections.", Double(connections.open))
    page.counter("sluice_server_connections_accepted_total", "Accepted connections.", connections.accepted)
    page.counter(
      "sluice_server_connections_refused_total", "Connections that could not be accepted or served.",
      connections.refused)
    page.counter(
      "sluice_server_connections_handed_over_total", "Connections that moved to the thread of their upload.",
      connections.handedOver)
    page.counter(
      "sluice_server_requests_total", "Answered requests by method and status class.",
      ConnectionFigures.methods.flatMap { method in
        (2...5).compactMap { digit -> MetricsText.Sample? in
          let count = connections.responses(to: method, class: digit)
          // A family without any sample would look broken, so the common ones are always there.
          guard count > 0 || (digit == 2 && method != ConnectionFigures.otherMethods) else { return nil }
          return .init([.init("method", method), .init("status", "\(digit)xx")], Double(count))
        }
      })
    page.gauge("sluice_server_uploads_open", "Unfinished resumable uploads.", Double(openUploads))
    page.counter(
      "sluice_server_stream_events_total",
      "Events of streams and uploads. \"continued\" counts resumed ones, and \"ended\" counts finished ones.",
      zip(ServerEvent.Kind.allCases, events).map { .init([.init("event", $0.rawValue)], Double($1)) })
    page.counter(
      "sluice_server_received_bytes_total", "Received bytes of request bodies.", connections.receivedBytes)
    page.counter("sluice_server_stored_bytes_total", "Bytes written to files.", storedBytes)
    page.counter(
      "sluice_server_acknowledged_bytes_total", "Bytes that were acknowledged to clients by 104, 2xx or HEAD.",
      acknowledgedBytes)
    page.gauge("sluice_server_downloads_open", "Downloads in progress.", Double(openDownloads))
    page.counter(
      "sluice_server_downloaded_bytes_total", "Bytes of recordings sent in downloads.", downloadedBytes)
    page.counter(
      "sluice_server_progress_responses_total", "104 responses sent.",
      connections.interimResponses[UploadFields.resumptionSupported] ?? 0)
    page.histogram(
      "sluice_server_acknowledgement_delay_seconds",
      "Time from the arrival of an upload's oldest unacknowledged byte to its acknowledgement.",
      acknowledgementDelays)
    page.counter(
      "sluice_server_errors_total", "Errors by class.",
      errors.map { .init([.init("class", $0)], Double($1)) })
    page.gauge(
      "sluice_server_event_loop_lag_seconds", "Time that this request waited for its turn in each loop.",
      lags.enumerated().map { .init([.init("loop", "\($0.offset)")], $0.element) })
    let grown = max(0, ProcessFigures.residentBytes - residentBytesAtStart)
    page.gauge(
      "sluice_server_resident_bytes_per_connection",
      "Growth of the process since its start, divided by the number of open connections.",
      connections.open == 0 ? 0 : Double(grown) / Double(connections.open))
    return page
  }

  /// Adds the figures of the brokers that store the uploads.
  ///
  /// - Parameter reconnects: how often the connection to them was made again.
  package func addBrokers(to page: inout MetricsText, reconnects: UInt64) {
    page.histogram(
      "sluice_server_publish_delay_seconds", "Time from a publish to its acknowledgement by the brokers.", publishDelays
    )
    page.gauge(
      "sluice_server_publishes_in_flight", "Publishes that the brokers have not answered.", Double(publishesInFlight))
    page.counter(
      "sluice_server_publishes_refused_total",
      "Publishes that were refused because of another change of the same upload.",
      refusedPublishes)
    page.counter(
      "sluice_server_broker_reconnects_total", "Number of reconnects to a broker.",
      reconnects)
  }

  /// How often something failed, with the value for its label.
  private var errors: [(String, UInt64)] {
    var errors = ConnectionFigures.Failure.allCases.map { ($0.rawValue, connections.failures(of: $0)) }
    // At its established position, before the descriptors, which come last.
    errors.insert(("storage", storageFailures), at: errors.count - 1)
    return errors
  }
}
