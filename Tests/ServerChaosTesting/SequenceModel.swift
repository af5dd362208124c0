// What was acknowledged to whom: the streams and uploads of one sequence, as far as its clients can know.

internal import EventLoops

/// Something that the server must not do.
package struct Violation: Error, Sendable, CustomStringConvertible {
  /// The same for the same defect, so that a shorter sequence can be compared with a longer one.
  package var kind: String
  package var detail: String
  package var description: String { detail.isEmpty ? kind : "\(kind): \(detail)" }
}

/// One stream, whoever's it is: what the requests for it have in common are the names of its files.
final class StreamModel {
  let stem: String
  let id: String
  /// Of the final file that each type gives.
  static let types = [(suffix: ".txt", type: "text/plain"), (suffix: ".wav", type: "audio/wav")]
  let type: Int
  /// What each token would send.
  let content: [ChaosBytes]
  /// What each token has sent.
  var sent = [SentRanges(), SentRanges()]
  /// Up to which offset each token's requests have gone: an empty one that completes may leave a hole in
  /// front of it.
  var sentEnd: [UInt64] = [0, 0]
  /// Whether anything at all was sent for it: a hole alone is no recording.
  var hasContent = false
  /// Whether a request of each token may have made the stream that token's.
  var claims = [false, false]
  /// Up to which offset a plain request of each token was acknowledged.
  var plainEnd: [UInt64] = [0, 0]
  /// Tokens that were told that bytes are stored.
  var evidence: Set<Int> = []
  /// Its length, once a 2xx has said that it is complete.
  var completeEnd: UInt64?
  /// Whether it was asked to be complete and nobody knows whether it is.
  var mayBeComplete = false
  /// Whether a request that may have made something was not answered, or a plain one has come.
  var hasUnknown = false
  /// Whether another token's request was dropped, which may be served when its owner has let go of the stream.
  var mayBeginLate = false
  /// Whether its newest upload was deleted, and so all that is not complete.
  var wasCancelled = false
  /// Whether a power cut may have taken anything of it.
  var mayHaveLost = false

  init(stem: String, id: String, type: Int, content: [ChaosBytes]) {
    (self.stem, self.id, self.type, self.content) = (stem, id, type, content)
  }

  var base: String { "\(stem)-\(id)" }
  /// Whether a token's requests have left bytes out.
  func hasHole(_ token: Int) -> Bool { sent[token].end(from: 0) < sentEnd[token] }
  /// Whose it certainly is.
  var owner: Int? { evidence.count == 1 ? evidence.first : nil }

  /// Nothing of it is there any more, for all that anybody knows.
  func reset() {
    (plainEnd, evidence, claims) = ([0, 0], [], [false, false])
    (completeEnd, mayBeComplete) = (nil, false)
  }
}

/// Which bytes of a stream one token has sent.
struct SentRanges {
  /// In order, and none touches the next.
  private var ranges: [Range<UInt64>] = []

  mutating func insert(_ range: Range<UInt64>) {
    guard !range.isEmpty else { return }
    let touching = ranges.filter { $0.upperBound >= range.lowerBound && $0.lowerBound <= range.upperBound }
    let start = min(range.lowerBound, touching.first?.lowerBound ?? range.lowerBound)
    let end = max(range.upperBound, touching.last?.upperBound ?? range.upperBound)
    ranges.removeAll { $0.upperBound >= range.lowerBound && $0.lowerBound <= range.upperBound }
    let index = ranges.firstIndex { $0.lowerBound > start } ?? ranges.count
    ranges.insert(start..<end, at: index)
  }

  /// Up to where all bytes from `start` on were sent.
  func end(from start: UInt64) -> UInt64 {
    ranges.first { $0.lowerBound <= start && $0.upperBound >= start }?.upperBound ?? start
  }
}

/// One upload resource.
final class UploadModel {
  enum Phase: Equatable {
    case open
    /// With that many bytes.
    case complete(UInt64)
    /// With an answer that refuses the whole of it.
    case refused
    /// Deleted while it was unfinished.
    case deleted
    /// Its record was deleted after it was complete.
    case forgotten(UInt64)
    case expired
    /// The server that knew it has ended, or a power cut has taken it.
    case lost
  }

  let location: String
  let stream: StreamModel
  /// The stream offset of its first byte.
  let base: UInt64
  let token: Int
  let version: Int?
  var length: UInt64?
  /// The length that a completing request has given, whether or not it was taken.
  var givenLength: UInt64?
  /// The largest offset that its client was told.
  var acknowledged: UInt64 = 0
  /// The offset, where nothing that is under way can move it.
  var exact: UInt64?
  var phase = Phase.open
  var mayBeGone = false
  var mayBeComplete = false
  /// Whether a DELETE was not answered.
  var mayBeDeleted = false
  /// Whether a client did not wait for the answer to what would complete it.
  var mayBeCompleteUnseen = false
  var lastTouch = MonotonicInstant.now

  init(_ location: String, _ stream: StreamModel, base: UInt64, token: Int, version: Int?, length: UInt64?) {
    (self.location, self.stream, self.base, self.token) = (location, stream, base, token)
    (self.version, self.length) = (version, length)
  }

  var isOpen: Bool { phase == .open }
  /// The largest offset that it can have: what is behind a hole is not its own.
  var sentEnd: UInt64 { stream.sent[token].end(from: base) - base }
  /// Whether the version has `application/partial-upload` and `Upload-Length`.
  static func isNew(_ version: Int?) -> Bool { (version ?? 8) >= 6 }
}

/// What a request is for.
enum Intent: String {
  case create, plain, append, complete, head, delete
}

/// One request of a sequence, from what it is meant to do to what came of it.
final class Call {
  let intent: Intent
  let token: Int
  let upload: UploadModel?
  let stream: StreamModel
  let detail: RequestDetail
  /// Of an append in its upload, of a creation or a plain request in its stream.
  let offset: UInt64
  let count: UInt64
  let completes: Bool
  let length: UInt64?
  let request: ChaosRequest
  /// What was known before it was sent.
  let acknowledgedBefore: UInt64
  let exactBefore: UInt64?
  let phaseBefore: UploadModel.Phase?
  let ownerBefore: Int?
  var connection: ChaosConnection?
  var sentAt = MonotonicInstant.now
  var isDropped = false
  /// Whether nothing but a refusal is right, because what it asks for is certainly another token's.
  var mustBeRefused = false
  var outcome = ChaosOutcome()

  init(
    _ intent: Intent, token: Int, upload: UploadModel?, stream: StreamModel, detail: RequestDetail, offset: UInt64,
    count: UInt64, completes: Bool, length: UInt64?, request: ChaosRequest
  ) {
    (self.intent, self.token, self.upload, self.stream) = (intent, token, upload, stream)
    (self.detail, self.offset, self.count, self.completes) = (detail, offset, count, completes)
    (self.length, self.request) = (length, request)
    acknowledgedBefore = upload?.acknowledged ?? 0
    exactBefore = upload?.exact
    phaseBefore = upload?.phase
    ownerBefore = stream.owner
  }

  /// Whether the upload is another token's.
  var isForeign: Bool { upload.map { $0.token != token } ?? false }
  var hasAnswer: Bool { outcome.final != nil }
}
