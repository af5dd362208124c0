// Statuses after which a client may try again.

/// The statuses of responses that may differ at the next attempt.
package enum RetriedStatus {
  /// Whether a repetition of the request may succeed (RFC 9110, section 15): the server was too busy or too slow, was
  /// not ready for the request, or failed. After 421, another connection may lead to a server for this host. 501 and
  /// 505 state that the server lacks a feature.
  package static func contains(_ status: Int) -> Bool {
    switch status {
    case 408, 421, 423, 425, 429, 500, 502...504, 506...: true
    default: false
    }
  }
}
