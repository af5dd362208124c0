// A refused request, and the response to its sender. A value, so that every rule of the parser is one line of a table
// in the tests.

/// Why a request was refused before any handler saw it: the status to answer with, and the reason in words.
///
/// After a refusal the connection cannot be trusted to be in step any more (RFC 9112, section 9.3): it is answered and
/// then closed.
package struct RequestRefusal: Error, Equatable, Sendable {
  /// The status code of the answer (RFC 9110, section 15).
  package let status: Int
  /// What was wrong, in words of our own: never holds bytes that the peer sent.
  package let reason: String

  package init(_ status: Int, _ reason: String) {
    self.status = status
    self.reason = reason
  }
}
