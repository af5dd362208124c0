// Checks again and again, while a request runs, that nobody has withdrawn its token.

internal import EventLoops

/// When the credential of one request was last checked. The check before the request counts.
package struct AuthorizationCheck {
  private var lastCheck = MonotonicInstant.now

  package init() {}

  /// Whether the credential is valid, or was checked less than `patience` ago. A request without one needs none.
  package mutating func admits(
    _ credential: [UInt8]?, within patience: Duration, _ isValid: ([UInt8]) -> Bool
  ) -> Bool {
    guard let credential else { return true }
    let now = MonotonicInstant.now
    guard now - lastCheck >= patience else { return true }
    lastCheck = now
    return isValid(credential)
  }
}
