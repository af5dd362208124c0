// A transfer as the agent knows it.

package import TransferClient

/// A transfer whose end its program has acknowledged: what is left of it.
package struct AcknowledgedTransfer: Equatable, Sendable {
  /// How long it is kept, in milliseconds.
  package static let age: Int64 = 24 * 3_600_000
  /// How many are kept.
  package static let limit = 1000

  package var key: String
  package var id: Int64
  /// When it was acknowledged, in milliseconds since 1970.
  package var time: Int64

  package init(key: String, id: Int64, time: Int64) { (self.key, self.id, self.time) = (key, id, time) }
}

/// One transfer: what was asked for, what is known of it, and how it stands.
package struct Transfer: Equatable, Sendable {
  package enum State: Equatable, Sendable {
    /// It is to run.
    case active
    case paused
    case ended(TransferResult)
  }

  package var id: Int64
  package var request: TransferRequest
  package var state = State.active
  /// The file as it was when the transfer was accepted (`FileVersion`). Another file is never sent in its place.
  package var version: String
  /// In bytes.
  package var size: UInt64
  /// Names the upload at the server (`ResumeData`); nil before there is one.
  package var resumeData: String?
  /// When it was accepted, in milliseconds since 1970.
  package var created: Int64

  // Not in the database: the server is asked for it.

  /// How much the server has, in bytes.
  package var acknowledged: UInt64 = 0
  /// What went wrong last, in words; nil while all is well.
  package var trouble: String?

  package init(id: Int64, request: TransferRequest, version: String, size: UInt64, created: Int64) {
    (self.id, self.request, self.version, self.size, self.created) = (id, request, version, size, created)
  }

  package var result: TransferResult? { if case .ended(let result) = state { result } else { nil } }
  package var hasEnded: Bool { result != nil }

  /// As the database keeps it.
  package var stored: Transfer {
    var copy = self
    (copy.acknowledged, copy.trouble) = (0, nil)
    return copy
  }
}
