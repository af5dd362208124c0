// The digests that a client sends (RFC 9530), of one request's content and of the whole upload.

internal import Digests
internal import HTTPMessages
internal import ResumableUploads
internal import StreamServing

/// The expected digests of a request's content and of its whole upload. Only on the loop's thread.
///
/// A published message cannot be withdrawn. So content with a `Content-Digest` is held until it is complete, and only
/// then published. libcrypto does not export the state of a digest, so the next server cannot continue it. If the bytes
/// of an upload arrive in several requests, its `Repr-Digest` is computed from the log at the end.
final class LogDigests {
  enum Intake {
    case append, hold
    case refuse(UploadRefusal)
  }

  /// The maximum length of a `Want-Repr-Digest`, which is in each message.
  private static let longestWish = 200

  private let log: UploadLog
  private let content: ContentDigest?
  /// Receives all bytes of the upload. Nil if they arrive in several requests, or if no digest is required.
  private let whole: WholeDigest?
  private var held: [UInt8] = []
  /// The expected digest of the whole upload, as a field.
  var representation: String?
  /// The digest of the whole upload that the client requests, as a field.
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

  /// The digests of a request that is the whole upload and cannot be continued. Its content need not be held, because
  /// it is removed if it does not match.
  convenience init(_ log: UploadLog, plain fields: HeaderFields) {
    self.init(
      log, content: nil, representation: Self.known(fields, [DigestField.representation, DigestField.content]),
      isFirst: true)
  }

  convenience init(_ log: UploadLog, appendingWith fields: HeaderFields) {
    self.init(log, content: ContentDigest(fields), isFirst: false)
  }

  deinit { drop() }

  /// The digests in the fields with known algorithms. Others are ignored (RFC 9530, section 2).
  private static func known(_ fields: HeaderFields, _ names: [String]) -> String? {
    let digests = names.flatMap { name in fields[name].flatMap { DigestField(parsing: $0) }?.digests ?? [] }
    let known = digests.filter { DigestAlgorithm(name: $0.algorithm) != nil }
    return known.isEmpty ? nil : DigestField(known).value
  }

  // MARK: Content

  /// Whether content counts only after it is complete and matches.
  var holdsContent: Bool { content != nil }
  var isContentRight: Bool { content?.isRight ?? true }

  /// The reason why content of that length cannot be compared. Nil if it may be possible.
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

  /// Returns the retained bytes, which count from now on.
  func release() -> [UInt8] {
    defer { drop() }
    return held
  }

  /// Drops the retained bytes.
  func drop() {
    log.heldCount -= held.count
    held = []
  }

  // MARK: The whole

  /// The digests of all bytes of the upload, if all of them arrived in this request.
  var ofRequest: WholeDigest? { whole }
  /// Digests for all bytes of the upload, which must be read from the log. Nil if none are required.
  var toBeRead: WholeDigest? { whole == nil ? WholeDigest(representation, wanted: wanted) : nil }
}
