// A transfer in the agent's form.

package import TransferClient
internal import UploadClient

/// The remains of a transfer whose end its program has acknowledged.
package struct AcknowledgedTransfer: Equatable, Sendable {
  /// How long it is kept, in milliseconds.
  package static let age: Int64 = 24 * 3_600_000
  /// The maximum number kept.
  package static let limit = 1000

  package var key: String
  package var id: Int64
  /// When it was acknowledged, in milliseconds since 1970.
  package var time: Int64

  package init(key: String, id: Int64, time: Int64) { (self.key, self.id, self.time) = (key, id, time) }
}

/// A transfer of which something unwanted remains on the server or on the disk.
package struct AbandonedTransfer: Equatable, Sendable {
  /// For how long the agent asks the server to remove it, in milliseconds.
  package static let age: Int64 = 24 * 3_600_000

  /// The transfer before its end, with its secrets.
  package var transfer: Transfer
  /// When it was abandoned, in milliseconds since 1970.
  package var time: Int64

  package init(_ transfer: Transfer, time: Int64) {
    (self.transfer, self.time) = (transfer.stored, time)
    // The file is no longer needed.
    (self.transfer.size, self.transfer.state) = (nil, .active)
  }

  /// Whether there is something to delete.
  package var hasRemains: Bool { transfer.request.kind == .download || transfer.resumeData != nil }
}

/// One transfer: the request, what is known about it, and its state.
package struct Transfer: Equatable, Sendable {
  package enum State: Equatable, Sendable {
    /// It should run.
    case active
    case paused
    case ended(TransferResult)
  }

  package var id: Int64
  package var request: TransferRequest
  package var state = State.active
  /// The identity of the file when an upload was accepted (`FileVersion`). No other file is ever sent in its place.
  package var version: String
  /// In bytes; nil until the server states it.
  package var size: UInt64?
  /// Identifies the upload on the server (`ResumeData`), or the part of a download (`DownloadCheckpoint`); nil before
  /// there is one.
  package var resumeData: String?
  /// When it was accepted, in milliseconds since 1970.
  package var created: Int64

  // Not in the database, because the server and the file show it.

  /// How many bytes the server has stored, or has sent.
  package var acknowledged: UInt64 = 0
  /// Where the content of a download's last response begins in the complete file; nil while there is none.
  package var contentStart: UInt64?
  /// The last problem, in words; nil if there is none.
  package var trouble: String?

  package init(id: Int64, request: TransferRequest, version: String, size: UInt64?, created: Int64) {
    (self.id, self.request, self.version, self.size, self.created) = (id, request, version, size, created)
  }

  /// The existing part: the one the agent knows, or else the one that the program has submitted.
  package var knownPart: String? { resumeData ?? request.resumeData }

  package var result: TransferResult? { if case .ended(let result) = state { result } else { nil } }
  package var hasEnded: Bool { result != nil }

  /// It has ended, so its secrets are no longer needed. The session, the key and the path of a part are.
  package mutating func removeSecrets() {
    request.url = UploadRequest.withoutSecrets(request.url)
    (request.token, request.fields, request.proxy) = (nil, [], nil)
    if request.kind == .upload { resumeData = nil }
  }

  /// The form in the database.
  package var stored: Transfer {
    var copy = self
    (copy.acknowledged, copy.contentStart, copy.trouble) = (0, nil, nil)
    if request.kind == .download { copy.size = nil }
    return copy
  }
}
