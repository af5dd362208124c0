// The protocol's two problem types (RFC 9457; section "Problem Types").

/// What a server reports in the body of a 4xx answer, as `application/problem+json`.
package enum ProblemType: Equatable, Sendable {
  case mismatchingOffset(expected: UInt64, provided: UInt64)
  case inconsistentLength

  package static let mediaType = "application/problem+json"
  private static let base = "https://iana.org/assignments/http-problem-types#"

  package var uri: String {
    switch self {
    case .mismatchingOffset: Self.base + "mismatching-upload-offset"
    case .inconsistentLength: Self.base + "inconsistent-upload-length"
    }
  }

  /// The title that is registered with IANA.
  package var title: String {
    switch self {
    case .mismatchingOffset: "Mismatching Upload Offset"
    case .inconsistentLength: "Inconsistent Upload Length Values"
    }
  }

  /// The status code that is recommended with it.
  package var status: Int {
    switch self {
    case .mismatchingOffset: 409
    case .inconsistentLength: 400
    }
  }
}
