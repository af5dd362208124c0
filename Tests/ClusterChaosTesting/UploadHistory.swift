// Everything that was asked of one upload resource and what was answered, as whoever stands between client and servers
// sees it.

/// The requests to one upload resource, in any order.
package struct UploadHistory: Sendable {
  package var operations: [Operation] = []

  package init(_ operations: [Operation] = []) { self.operations = operations }

  /// A request. Times are nanoseconds of one clock that does not go back.
  package struct Operation: Sendable {
    package enum Kind: Equatable, Sendable {
      /// A creation (at 0) or an append that begins at this offset of the upload. `completes`: with its last byte, the
      /// upload is complete.
      case append(at: UInt64, completes: Bool)
      case head
      case cancellation
    }

    package var kind: Kind
    /// Before the servers could know of it.
    package var called: Int64
    /// How many bytes of content were sent to the servers.
    package var sent: UInt64 = 0
    /// The content was sent to its end.
    package var isWhole = false
    /// Interim responses that named an offset.
    package var progress: [Progress] = []
    /// The final response; nil if there was none, so that nobody knows what became of the request.
    package var answer: Answer?

    package init(_ kind: Kind, called: Int64) { (self.kind, self.called) = (kind, called) }
  }

  /// An interim response.
  package struct Progress: Sendable {
    package var time: Int64
    package var offset: UInt64
    /// How many bytes of content the servers had been sent by then.
    package var sent: UInt64

    package init(time: Int64, offset: UInt64, sent: UInt64) {
      (self.time, self.offset, self.sent) = (time, offset, sent)
    }
  }

  /// A final response.
  package struct Answer: Sendable {
    /// After it was on its way to the client.
    package var time: Int64
    package var status: Int
    package var offset: UInt64?
    /// `Upload-Complete`; nil if it is missing.
    package var isComplete: Bool?

    package init(time: Int64, status: Int, offset: UInt64? = nil, isComplete: Bool? = nil) {
      (self.time, self.status, self.offset, self.isComplete) = (time, status, offset, isComplete)
    }

    var isSuccess: Bool { (200..<300).contains(status) }
  }
}

/// A claim of the servers that no order of the operations makes true.
package struct HistoryViolation: Hashable, Sendable, CustomStringConvertible {
  package enum Kind: String, CaseIterable, Sendable {
    /// An accepted append begins where the upload could not have ended.
    case hole
    /// Two accepted appends brought the same bytes.
    case overlap
    /// An offset was announced that is below what had been acknowledged before.
    case lostBytes
    /// An offset was announced before anybody had sent the bytes before it.
    case unsentBytes
    /// 409 for an append that began where the upload ended all the time.
    case unjustifiedConflict
    /// A request went on after another one had been told the offset, which ends it.
    case notTakenOver
    /// Bytes were accepted behind the end of a complete upload.
    case afterCompletion
    /// A complete upload was announced as incomplete, or the other way round.
    case wrongCompletion
    /// An upload that nobody had cancelled was unknown or gone.
    case missing
  }

  package var kind: Kind
  package var detail: String
  package var description: String { "\(kind.rawValue): \(detail)" }
}
