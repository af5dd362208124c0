// The protocol's problem types (RFC 9457; section "Problem Types").

/// What a server reports in the body of a 4xx answer, as `application/problem+json`.
package enum ProblemType: Equatable, Sendable {
  case mismatchingOffset(expected: UInt64, provided: UInt64)
  case inconsistentLength
  /// Only in -04 to -11; see ``InteropVersion/namesCompletedUpload``.
  case completedUpload

  package static let mediaType = "application/problem+json"
  private static let base = "https://iana.org/assignments/http-problem-types#"

  package var uri: String {
    switch self {
    case .mismatchingOffset: Self.base + "mismatching-upload-offset"
    case .inconsistentLength: Self.base + "inconsistent-upload-length"
    case .completedUpload: Self.base + "completed-upload"
    }
  }

  /// The title that is registered with IANA.
  package var title: String {
    switch self {
    case .mismatchingOffset: "Mismatching Upload Offset"
    case .inconsistentLength: "Inconsistent Upload Length Values"
    case .completedUpload: "Upload Is Completed"
    }
  }
}
