// The digests that a client sends (RFC 9530): of one request's content, and of the whole upload.

internal import Digests
internal import HTTPMessages
internal import ResumableUploads
internal import StreamServing

/// What the content of one request, and its whole upload, must be. Only on the loop's thread.
///
/// The log cannot take back what it has. So content with a `Content-Digest` is held until all of it has come, and only
/// then published. libcrypto does not export the state of a digest, so the next server cannot continue it. Where the
/// bytes of an upload come in several requests, its `Repr-Digest` is computed from the log at the end.
final class LogDigests {
  enum Intake {
    case append, hold
    case refuse(UploadRefusal)
  }

  /// A `Want-Repr-Digest` is in each message, and has at most this many bytes.
  private static let longestWish = 200

  private let log: UploadLog
  private let content: ContentDigest?
  /// Sees all bytes of the upload that came by now; nil if they came in several requests, or nobody needs it.
  private let whole: WholeDigest?
  private var held: [UInt8] = []
  /// What the whole upload must be, as a field.
  var representation: String?
  /// Which digest of the whole upload the client wants to know, as a field.
  var wanted: String?

  private init(
    _ log: UploadLog, content: ContentDigest?, representation: String? = nil, wanted: String? = nil, isFirst: Bool
  ) {
    (self.log, self.content) = (log, content)
    (self.representation, self.wanted) = (representation, wanted)
    whole = isFirst ? WholeDigest(representation, wanted: wanted) : nil
  }

  convenience init(_ log: UploadLog, creatingWith fields: HeaderFields) {
    let wanted = fields[DigestField.wantRepresentation].flatMap { field in
      field.utf8.count <= Self.longestWish && WholeDigest.algorithm(field) != nil ? field : nil
    }
    self.init(
      log, content: ContentDigest(fields), representation: Self.known(fields, [DigestField.representation]),
      wanted: wanted, isFirst: true)
  }

  /// Of a request that is the whole upload and cannot be continued, so that nothing needs to be held: what is wrong is
  /// removed.
  convenience init(_ log: UploadLog, plain fields: HeaderFields) {
    self.init(
      log, content: nil, representation: Self.known(fields, [DigestField.representation, DigestField.content]),
      isFirst: true)
  }

  convenience init(_ log: UploadLog, appendingWith fields: HeaderFields) {
    self.init(log, content: ContentDigest(fields), isFirst: false)
  }

  deinit { drop() }

  /// Those of the fields' digests whose algorithms we know. Others are ignored (RFC 9530, section 2).
  private static func known(_ fields: HeaderFields, _ names: [String]) -> String? {
    let digests = names.flatMap { name in fields[name].flatMap { DigestField(parsing: $0) }?.digests ?? [] }
    let known = digests.filter { DigestAlgorithm(name: $0.algorithm) != nil }
    return known.isEmpty ? nil : DigestField(known).value
  }

  // MARK: Content

  /// Whether content counts only when all of it has come and is right.
  var holdsContent: Bool { content != nil }
  var isContentRight: Bool { content?.isRight ?? true }

  /// Why content of that length cannot be compared; nil if it can, as far as is known.
  func refusal(_ content: RequestSummary.Content) -> UploadRefusal? {
    guard holdsContent, case .sized(let count) = content, count > UploadLog.largestVerifiable else { return nil }
    return .unverifiable(limit: UploadLog.largestVerifiable)
  }

  /// The next bytes.
  func take(_ bytes: Span<UInt8>) -> Intake {
    guard let content else {
      whole?.update(bytes)
      return .append
    }
    guard held.count + bytes.count <= UploadLog.largestVerifiable else {
      return .refuse(.unverifiable(limit: UploadLog.largestVerifiable))
    }
    guard log.heldCount + bytes.count <= UploadLog.verificationRoom else {
      return .refuse(.outOfResources("too many requests with a Content-Digest are under way"))
    }
    log.heldCount += bytes.count
    bytes.withUnsafeBufferPointer { held += $0 }
    content.update(bytes, [0..<bytes.count])
    whole?.update(bytes)
    return .hold
  }

  /// The bytes that were held: they count now.
  func release() -> [UInt8] {
    defer { drop() }
    return held
  }

  /// Nothing is held any more.
  func drop() {
    log.heldCount -= held.count
    held = []
  }

  // MARK: The whole

  /// The digests of all bytes of the upload, if they all came in this request.
  var ofRequest: WholeDigest? { whole }
  /// Digests for all bytes of the upload, which are to be read from the log; nil if nobody needs them.
  var toBeRead: WholeDigest? { whole == nil ? WholeDigest(representation, wanted: wanted) : nil }
}
