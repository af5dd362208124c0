// A transfer as the agent knows it.

package import TransferClient
internal import UploadClient

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

/// A transfer of which something is left at the server, or on the disk, that nobody wants any more.
package struct AbandonedTransfer: Equatable, Sendable {
  /// How long the server is asked to forget it, in milliseconds.
  package static let age: Int64 = 24 * 3_600_000

  /// As it was before its end, with its secrets.
  package var transfer: Transfer
  /// When it was abandoned, in milliseconds since 1970.
  package var time: Int64

  package init(_ transfer: Transfer, time: Int64) {
    (self.transfer, self.time) = (transfer.stored, time)
    // Of the file, nothing is needed any more.
    (self.transfer.size, self.transfer.state) = (nil, .active)
  }

  /// Whether there is something to delete.
  package var hasRemains: Bool { transfer.request.kind == .download || transfer.resumeData != nil }
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
  /// The file as it was when an upload was accepted (`FileVersion`). Another file is never sent in its place.
  package var version: String
  /// In bytes; nil while no server has said it.
  package var size: UInt64?
  /// Names the upload at the server (`ResumeData`), or the part of a download (`DownloadCheckpoint`); nil before there is
  /// one.
  package var resumeData: String?
  /// When it was accepted, in milliseconds since 1970.
  package var created: Int64

  // Not in the database: the server is asked for it, and the file is looked at.

  /// How much the server has, or has come from it, in bytes.
  package var acknowledged: UInt64 = 0
  /// Where the content of a download's last response begins in the whole; nil while there is none.
  package var contentStart: UInt64?
  /// What went wrong last, in words; nil while all is well.
  package var trouble: String?

  package init(id: Int64, request: TransferRequest, version: String, size: UInt64?, created: Int64) {
    (self.id, self.request, self.version, self.size, self.created) = (id, request, version, size, created)
  }

  /// What there is already: as the agent knows it, or else as the program has handed it in.
  package var knownPart: String? { resumeData ?? request.resumeData }

  package var result: TransferResult? { if case .ended(let result) = state { result } else { nil } }
  package var hasEnded: Bool { result != nil }

  /// It has ended: what is secret of it is of no more use. The session and the key are, and where a part is.
  package mutating func removeSecrets() {
    request.url = UploadRequest.withoutSecrets(request.url)
    (request.token, request.fields, request.proxy) = (nil, [], nil)
    if request.kind == .upload { resumeData = nil }
  }

  /// As the database keeps it.
  package var stored: Transfer {
    var copy = self
    (copy.acknowledged, copy.contentStart, copy.trouble) = (0, nil, nil)
    if request.kind == .download { copy.size = nil }
    return copy
  }
}
