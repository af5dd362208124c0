// The figures of a server's connections, as values. Each loop counts for itself, and the counts are added on request.

/// The figures of the connections of one loop, or of all.
package struct ConnectionFigures: Sendable {
  /// The label of all methods without a label of their own.
  package static let otherMethods = "other"
  /// The methods with a label of their own, and the label of all others.
  package static let methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", otherMethods]

  /// Why something failed, as a value for a label.
  package enum Failure: String, CaseIterable {
    /// The request broke the rules of HTTP.
    case malformed
    /// The client took too long.
    case timeout
    /// The connection broke within a request.
    case connectionLost = "connection_lost"
    /// No descriptor or memory was left for a connection.
    case descriptors
  }

  package var accepted: UInt64 = 0
  package var refused: UInt64 = 0
  package var open = 0
  package var handedOver: UInt64 = 0
  /// By method, and within it by the status's first digit, from 2 on.
  private var responses = [UInt64](repeating: 0, count: methods.count * 4)
  private var failures = [UInt64](repeating: 0, count: Failure.allCases.count)
  /// The number of bytes in request bodies.
  package var receivedBytes: UInt64 = 0
  /// The interim responses that handlers sent, by their status.
  package private(set) var interimResponses: [Int: UInt64] = [:]

  package init() {}

  /// - Parameter digit: the first digit of the status, from 2 to 5.
  package func responses(to method: String, class digit: Int) -> UInt64 { responses[Self.index(method, digit)] }

  package func failures(of kind: Failure) -> UInt64 { failures[Self.index(kind)] }

  mutating func responded(_ method: String, _ status: Int) { responses[Self.index(method, status / 100)] += 1 }

  mutating func respondedInterim(_ status: Int) { interimResponses[status, default: 0] += 1 }

  mutating func failed(_ kind: Failure) { failures[Self.index(kind)] += 1 }

  /// A request ended without an answer.
  mutating func aborted(_ reason: AbortReason) {
    switch reason {
    case .peerClosed, .connectionLost: failed(.connectionLost)
    case .idle: failed(.timeout)
    case .malformed: failed(.malformed)
    case .uploadEnded: break
    }
  }

  private static func index(_ method: String, _ digit: Int) -> Int {
    (methods.firstIndex(of: method) ?? methods.count - 1) * 4 + min(max(digit, 2), 5) - 2
  }

  private static func index(_ kind: Failure) -> Int {
    // `allCases` contains every kind.
    Failure.allCases.firstIndex(of: kind) ?? 0
  }

  /// Adds the figures of another loop.
  package mutating func add(_ other: ConnectionFigures) {
    accepted += other.accepted
    refused += other.refused
    open += other.open
    handedOver += other.handedOver
    for index in responses.indices { responses[index] += other.responses[index] }
    for index in failures.indices { failures[index] += other.failures[index] }
    receivedBytes += other.receivedBytes
    interimResponses.merge(other.interimResponses, uniquingKeysWith: +)
  }
}

/// The figures that all connections of one loop add to. Only on the loop's thread.
package final class ConnectionCounter {
  var values = ConnectionFigures()
}
