// All requests to one upload resource and their answers, as an observer between client and servers sees them.

/// The requests to one upload resource, in any order.
package struct UploadHistory: Sendable {
  package var operations: [Operation] = []

  package init(_ operations: [Operation] = []) { self.operations = operations }

  /// A request. Times are nanoseconds of a monotonic clock.
  package struct Operation: Sendable {
    package enum Kind: Equatable, Sendable {
      /// A creation (at 0), or an append that begins at this offset of the upload. If `completes` is true, the upload
      /// is complete with its last byte.
      case append(at: UInt64, completes: Bool)
      case head
      case cancellation
    }

    package var kind: Kind
    /// Before the servers could receive it.
    package var called: Int64
    /// How many bytes of content were sent to the servers.
    package var sent: UInt64 = 0
    /// Whether the content was sent to its end.
    package var isWhole = false
    /// Interim responses with an offset.
    package var progress: [Progress] = []
    /// The final response; nil if there was none, so that the effect of the request is unknown.
    package var answer: Answer?

    package init(_ kind: Kind, called: Int64) { (self.kind, self.called) = (kind, called) }
  }

  /// An interim response.
  package struct Progress: Sendable {
    package var time: Int64
    package var offset: UInt64
    /// How many bytes of content had been sent to the servers by then.
    package var sent: UInt64

    package init(time: Int64, offset: UInt64, sent: UInt64) {
      (self.time, self.offset, self.sent) = (time, offset, sent)
    }
  }

  /// A final response.
  package struct Answer: Sendable {
    /// After it was sent towards the client.
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

/// A claim of the servers that is false for every order of the operations.
package struct HistoryViolation: Hashable, Sendable, CustomStringConvertible {
  package enum Kind: String, CaseIterable, Sendable {
    /// An accepted append begins where the upload cannot have ended.
    case hole
    /// Two accepted appends added the same bytes.
    case overlap
    /// An announced offset is below an earlier acknowledgement.
    case lostBytes
    /// An announced offset includes bytes that had not been sent yet.
    case unsentBytes
    /// 409 for an append that began where the upload ended all the time.
    case unjustifiedConflict
    /// A request continued after another one had received the offset, which ends it.
    case notTakenOver
    /// Bytes were accepted after the end of a complete upload.
    case afterCompletion
    /// A complete upload was reported as incomplete, or the reverse.
    case wrongCompletion
    /// An upload that nobody had cancelled was unknown or gone.
    case missing
  }

  package var kind: Kind
  package var detail: String
  package var description: String { "\(kind.rawValue): \(detail)" }
}
