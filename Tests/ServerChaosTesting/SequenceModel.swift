// What was acknowledged to each token: the streams and uploads of one sequence, as far as its clients can know.

internal import EventLoops

/// A violation of the server's rules.
package struct Violation: Error, Sendable, CustomStringConvertible {
  /// Equal for equal defects, so that a shorter sequence can be compared with a longer one.
  package var kind: String
  package var detail: String
  package var description: String { detail.isEmpty ? kind : "\(kind): \(detail)" }
}

/// One stream, regardless of its owner. Its requests share the names of its files.
///
/// With a log, it is a part of a stream: one upload, or all of its plain requests. Each of these is a separate subject
/// with its own owner (docs/scaling.md, "Differences from `--directory`").
final class StreamModel {
  let stem: String
  let id: String
  /// The stream of this part; nil for a stream itself.
  private let whole: StreamModel?
  /// The part of the stream's plain requests.
  private(set) var plainPart: StreamModel?
  /// The final file that each type gives.
  static let types = [(suffix: ".txt", type: "text/plain"), (suffix: ".wav", type: "audio/wav")]
  let type: Int
  /// The content of each token.
  let content: [ChaosBytes]
  /// The ranges that each token has sent.
  var sent = [SentRanges(), SentRanges()]
  /// The offset that each token's requests have reached. An empty one that completes may leave a hole before it.
  var sentEnd: [UInt64] = [0, 0]
  /// Whether any byte was sent for it, because a hole alone is not a recording.
  var hasContent = false
  /// Whether a request of each token may have made it the owner.
  var claims = [false, false]
  /// The offset up to which a plain request of each token was acknowledged.
  var plainEnd: [UInt64] = [0, 0]
  /// Tokens that learned that bytes are stored.
  var evidence: Set<Int> = []
  /// Its length, once a 2xx has reported it complete.
  var completeEnd: UInt64?
  /// Whether it was to be completed, with unknown result.
  var mayBeComplete = false
  /// Whether a request that may have created something was not answered, or a plain one arrived.
  var hasUnknown = false
  /// Whether another token's request was dropped. It may be processed after its owner has released the stream.
  var mayBeginLate = false
  /// Whether its newest upload was deleted, which removes everything incomplete.
  var wasCancelled = false
  /// Whether a power failure may have destroyed any of it.
  var mayHaveLost = false

  init(stem: String, id: String, type: Int, content: [ChaosBytes]) {
    (self.stem, self.id, self.type, self.content) = (stem, id, type, content)
    whole = nil
  }

  private init(partOf whole: StreamModel) {
    (stem, id, type, content) = (whole.stem, whole.id, whole.type, whole.content)
    self.whole = whole
  }

  /// The stream to which this part belongs, or the stream itself.
  var stream: StreamModel { whole ?? self }
  /// Whether it is the part of the plain requests.
  var isPlainPart: Bool { stream.plainPart === self }

  /// A part for another upload.
  func newPart() -> StreamModel { StreamModel(partOf: stream) }

  /// Makes the part of the plain requests.
  func makePlainPart() -> StreamModel {
    let part = StreamModel(partOf: stream)
    stream.plainPart = part
    return part
  }

  var base: String { "\(stem)-\(id)" }
  /// Whether a token's requests have left a hole.
  func hasHole(_ token: Int) -> Bool { sent[token].end(from: 0) < sentEnd[token] }
  /// The certain owner.
  var owner: Int? { evidence.count == 1 ? evidence.first : nil }

  /// None of it exists any more, as far as is known.
  func reset() {
    (plainEnd, evidence, claims) = ([0, 0], [], [false, false])
    (completeEnd, mayBeComplete) = (nil, false)
  }
}

/// The bytes of a stream that one token has sent.
struct SentRanges {
  /// Sorted, without adjacent ranges.
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

  /// The offset up to which all bytes from `start` on were sent.
  func end(from start: UInt64) -> UInt64 {
    ranges.first { $0.lowerBound <= start && $0.upperBound >= start }?.upperBound ?? start
  }
}

/// One upload resource.
final class UploadModel {
  enum Phase: Equatable {
    case open
    /// Complete with that many bytes.
    case complete(UInt64)
    /// Refused as a whole by an answer.
    case refused
    /// Deleted while it was unfinished.
    case deleted
    /// Its record was deleted after its completion.
    case forgotten(UInt64)
    case expired
    /// The server that knew it has ended, or a power failure has destroyed it.
    case lost
  }

  let location: String
  let stream: StreamModel
  /// The stream offset of its first byte.
  let base: UInt64
  let token: Int
  let version: Int?
  var length: UInt64?
  /// The length that a completing request has stated, whether or not it was accepted.
  var givenLength: UInt64?
  /// The largest offset that was reported to its client.
  var acknowledged: UInt64 = 0
  /// The offset, if no active request can change it.
  var exact: UInt64?
  var phase = Phase.open
  var mayBeGone = false
  var mayBeComplete = false
  /// Whether a DELETE was not answered.
  var mayBeDeleted = false
  /// Whether a client did not wait for the answer to a completing request.
  var mayBeCompleteUnseen = false
  var lastTouch = MonotonicInstant.now
  /// The ranges of dropped appends. A server with a log may process one of them after a HEAD that was sent later.
  private(set) var late: [Range<UInt64>] = []

  init(_ location: String, _ stream: StreamModel, base: UInt64, token: Int, version: Int?, length: UInt64?) {
    (self.location, self.stream, self.base, self.token) = (location, stream, base, token)
    (self.version, self.length) = (version, length)
  }

  var isOpen: Bool { phase == .open }

  /// Called when an append was dropped.
  func dropped(_ range: Range<UInt64>) { if !range.isEmpty { late.append(range) } }

  /// Whether a dropped append may still follow at that offset.
  func mayBeContinuedLate(at offset: UInt64) -> Bool { late.contains { $0.lowerBound == offset && !$0.isEmpty } }

  /// Uses up the bytes of a dropped append that explain why the upload has grown, because each byte explains this once.
  /// Returns false if there are none.
  func useUpLateBytes(from old: UInt64, to new: UInt64) -> Bool {
    guard new > old, let index = late.firstIndex(where: { $0.lowerBound == old && new <= $0.upperBound }) else {
      return false
    }
    late[index] = new..<late[index].upperBound
    return true
  }
  /// Its largest possible offset, because bytes after a hole do not belong to it.
  var sentEnd: UInt64 { stream.sent[token].end(from: base) - base }
  /// Whether the version has `application/partial-upload` and `Upload-Length`.
  static func isNew(_ version: Int?) -> Bool { (version ?? 8) >= 6 }
}

/// The purpose of a request.
enum Intent: String {
  case create, plain, append, complete, head, delete
}

/// One request of a sequence, from its intent to its result.
final class Call {
  let intent: Intent
  let token: Int
  let upload: UploadModel?
  let stream: StreamModel
  let detail: RequestDetail
  /// The offset of an append in its upload, or of a creation or a plain request in its stream.
  let offset: UInt64
  let count: UInt64
  let completes: Bool
  let length: UInt64?
  let request: ChaosRequest
  /// The acknowledged offset before it was sent.
  let acknowledgedBefore: UInt64
  let exactBefore: UInt64?
  let phaseBefore: UploadModel.Phase?
  let ownerBefore: Int?
  var connection: ChaosConnection?
  var sentAt = MonotonicInstant.now
  var isDropped = false
  /// The server that it was sent to.
  var server = 0
  /// Whether a dropped append came before it, at the offset that had been announced to it.
  var wasOvertaken = false
  /// Whether it must be refused, because its target certainly belongs to another token.
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

  /// Whether the upload belongs to another token.
  var isForeign: Bool { upload.map { $0.token != token } ?? false }
  var hasAnswer: Bool { outcome.final != nil }
}
