// A refused request, and the response to its sender. A value, so that every rule of the parser is one line of a table
// in the tests.

/// Why a request was refused before any handler received it: the status of the answer, and the reason in words.
///
/// After a refusal, the boundaries of requests on the connection are no longer certain (RFC 9112, section 9.3), so it
/// is closed after the answer.
package struct RequestRefusal: Error, Equatable, Sendable {
  /// The status code of the answer (RFC 9110, section 15).
  package let status: Int
  /// The reason in our own words. It never contains bytes from the peer.
  package let reason: String

  package init(_ status: Int, _ reason: String) {
    self.status = status
    self.reason = reason
  }
}
