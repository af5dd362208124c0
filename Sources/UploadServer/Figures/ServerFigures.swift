// What a server counts of its work, as values: each loop counts for itself, and the counts are added when somebody
// asks.

internal import EventLoops
internal import Metrics

/// The figures of one loop, or of all.
struct ServerFigures: Sendable {
  /// Methods that are told apart; any other is the last.
  static let methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "other"]

  /// Why something failed, in a word for a label.
  enum ErrorClass: String, CaseIterable {
    /// The request broke the rules of HTTP.
    case malformed
    /// The client took too long.
    case timeout
    /// The connection broke within a request.
    case connectionLost = "connection_lost"
    /// The disk did not take bytes.
    case storage
    /// No descriptor, or no memory, was left for a connection.
    case descriptors
  }

  var acceptedConnections: UInt64 = 0
  var refusedConnections: UInt64 = 0
  var openConnections = 0
  var handedOverConnections: UInt64 = 0
  /// By method, and within it by the status's first digit, from 2 on.
  private(set) var responses = [UInt64](repeating: 0, count: methods.count * 4)
  private(set) var events = [UInt64](repeating: 0, count: ServerEvent.Kind.allCases.count)
  private(set) var errors = [UInt64](repeating: 0, count: ErrorClass.allCases.count)
  var openUploads = 0
  var receivedBytes: UInt64 = 0
  var storedBytes: UInt64 = 0
  var acknowledgedBytes: UInt64 = 0
  var progressResponses: UInt64 = 0
  /// From the arrival of an upload's oldest unacknowledged byte to the 104 or 2xx that acknowledges it, in seconds.
  var acknowledgementDelays = Distribution()
  /// How long work from another thread waited for its turn in the loop, when it was asked last; in seconds.
  var lags: [Double] = []

  mutating func responded(_ method: String, _ status: Int) {
    let row = Self.methods.firstIndex(of: method) ?? Self.methods.count - 1
    responses[row * 4 + min(max(status / 100, 2), 5) - 2] += 1
  }

  mutating func happened(_ kind: ServerEvent.Kind) {
    // Every kind is one of all kinds.
    if let index = ServerEvent.Kind.allCases.firstIndex(of: kind) { events[index] += 1 }
  }

  mutating func failed(_ kind: ErrorClass) {
    if let index = ErrorClass.allCases.firstIndex(of: kind) { errors[index] += 1 }
  }

  /// A request ended without an answer.
  mutating func aborted(_ reason: AbortReason) {
    switch reason {
    case .peerClosed, .connectionLost: failed(.connectionLost)
    case .idle: failed(.timeout)
    case .malformed: failed(.malformed)
    case .uploadEnded: break
    }
  }

  /// Adds another loop's.
  mutating func add(_ other: ServerFigures) {
    acceptedConnections += other.acceptedConnections
    refusedConnections += other.refusedConnections
    openConnections += other.openConnections
    handedOverConnections += other.handedOverConnections
    for index in responses.indices { responses[index] += other.responses[index] }
    for index in events.indices { events[index] += other.events[index] }
    for index in errors.indices { errors[index] += other.errors[index] }
    openUploads += other.openUploads
    receivedBytes += other.receivedBytes
    storedBytes += other.storedBytes
    acknowledgedBytes += other.acknowledgedBytes
    progressResponses += other.progressResponses
    acknowledgementDelays.add(other.acknowledgementDelays)
    lags += other.lags
  }
}

/// The figures that everything on one loop counts in. Only on the loop's thread.
final class LoopFigures {
  var values = ServerFigures()
}

/// The figures of several loops as they come in. Any thread.
final class FigureSum: Sendable {
  private let state: Lock<(sum: ServerFigures, missing: Int)>

  init(of count: Int) { state = Lock((ServerFigures(), count)) }

  /// Adds those of one loop; gives the sum when they were the last.
  func add(_ figures: ServerFigures) -> ServerFigures? {
    state.withLock { state in
      state.sum.add(figures)
      state.missing -= 1
      return state.missing == 0 ? state.sum : nil
    }
  }
}

extension ServerFigures {
  /// - Parameter residentBytesAtStart: of the process, before its first connection.
  func page(residentBytesAtStart: Int) -> MetricsText {
    var page = MetricsText()
    page.gauge("sluice_server_connections_open", "Connections that are open.", Double(openConnections))
    page.counter("sluice_server_connections_accepted_total", "Connections that were accepted.", acceptedConnections)
    page.counter(
      "sluice_server_connections_refused_total", "Connections that could not be served, or not be accepted.",
      refusedConnections)
    page.counter(
      "sluice_server_connections_handed_over_total", "Connections that went to the thread of their upload.",
      handedOverConnections)
    page.counter(
      "sluice_server_requests_total", "Requests that were answered, by method and by class of the status.",
      Self.methods.indices.flatMap { row in
        (0..<4).compactMap { column -> MetricsText.Sample? in
          let count = responses[row * 4 + column]
          // A family without any sample would look broken: the common ones are there from the start.
          guard count > 0 || (column == 0 && Self.methods[row] != "other") else { return nil }
          return .init([.init("method", Self.methods[row]), .init("status", "\(column + 2)xx")], Double(count))
        }
      })
    page.gauge("sluice_server_uploads_open", "Resumable uploads that are not finished.", Double(openUploads))
    page.counter(
      "sluice_server_stream_events_total",
      "What happened to streams and uploads: continued are those that were resumed, ended those that were finished.",
      zip(ServerEvent.Kind.allCases, events).map { .init([.init("event", $0.rawValue)], Double($1)) })
    page.counter("sluice_server_received_bytes_total", "Bytes of request bodies that arrived.", receivedBytes)
    page.counter("sluice_server_stored_bytes_total", "Bytes that were written to files.", storedBytes)
    page.counter(
      "sluice_server_acknowledged_bytes_total", "Bytes that clients were told are kept, by 104, 2xx or HEAD.",
      acknowledgedBytes)
    page.counter("sluice_server_progress_responses_total", "104 responses that were sent.", progressResponses)
    page.histogram(
      "sluice_server_acknowledgement_delay_seconds",
      "From the arrival of an upload's oldest unacknowledged byte to the response that acknowledges it.",
      acknowledgementDelays)
    page.counter(
      "sluice_server_errors_total", "What failed, by class.",
      zip(ErrorClass.allCases, errors).map { .init([.init("class", $0.rawValue)], Double($1)) })
    page.gauge(
      "sluice_server_event_loop_lag_seconds", "How long this question waited for its turn in each loop.",
      lags.enumerated().map { .init([.init("loop", "\($0.offset)")], $0.element) })
    let grown = max(0, ProcessFigures.residentBytes - residentBytesAtStart)
    page.gauge(
      "sluice_server_resident_bytes_per_connection",
      "What the process has grown by since its start, divided by the connections that are open.",
      openConnections == 0 ? 0 : Double(grown) / Double(openConnections))
    return page
  }
}
