// The digests of all bytes of an upload: what it must be, and what its client wants to know.

internal import Digests
internal import HTTPMessages
internal import StreamServing

/// Takes the bytes of an upload from its first one on. Only on the loop's thread.
final class WholeDigest {
  /// What the upload must be; nil if nothing was announced.
  private let announced: ContentDigest?
  private let algorithm: DigestAlgorithm?
  private let wanted: SharedDigest?

  /// - Parameters:
  ///   - representation: what the upload must be, as a field.
  ///   - wanted: what its client wants to know, as a field.
  init?(_ representation: String?, wanted field: String?) {
    announced = representation.flatMap { ContentDigest(["content-digest": $0]) }
    algorithm = field.flatMap { Self.algorithm($0) }
    // An algorithm that libcrypto does not have here is one that we do not know.
    wanted = algorithm.flatMap { try? SharedDigest($0) }
    if announced == nil && wanted == nil { return nil }
  }

  /// The first that a field wants and we know.
  static func algorithm(_ wanted: String) -> DigestAlgorithm? {
    DigestField.wanted(parsing: wanted).lazy.compactMap { DigestAlgorithm(name: $0) }.first
  }

  func update(_ bytes: Span<UInt8>) {
    announced?.update(bytes, [0..<bytes.count])
    wanted?.update(bytes, [0..<bytes.count])
  }

  /// Whether the bytes are what was announced.
  var isRight: Bool { announced?.isRight ?? true }

  /// What the client wants to know, as a field; nil if it wants nothing.
  var field: String? {
    guard let algorithm, let digest = try? wanted?.running.value() else { return nil }
    return DigestField([(algorithm.name, digest.bytes)]).value
  }

  /// What the client wants of what the upload is known to be, as fields.
  static func field(of representation: String?, wanted: String?) -> String? {
    guard let algorithm = wanted.flatMap({ algorithm($0) }),
      let value = representation.flatMap({ DigestField(parsing: $0) })?[algorithm.name]
    else { return nil }
    return DigestField([(algorithm.name, value)]).value
  }

  /// Both fields, as one.
  static func joined(_ representation: String?, _ field: String?) -> String? {
    guard let representation, let field else { return representation ?? field }
    let known = DigestField(parsing: representation)?.digests ?? []
    let more = DigestField(parsing: field)?.digests.filter { new in !known.contains { $0.algorithm == new.algorithm } }
    return DigestField(known + (more ?? [])).value
  }
}

extension UploadLog {
  /// How long an upload that is not complete may be whose digest is read from the log for one response.
  private static let longestRead: UInt64 = 4 << 20

  /// What the client of an upload wants to know of its bytes, as a field: `completion` gets nil if it wants nothing, or
  /// too much would have to be read for it.
  func digest(
    of entry: LogEntry, at sequence: UInt64, _ token: String, _ completion: @escaping (String?) -> Void
  ) {
    if entry.isComplete { return completion(WholeDigest.field(of: entry.digest, wanted: entry.wanted)) }
    guard entry.end <= Self.longestRead, let digest = WholeDigest(nil, wanted: entry.wanted) else {
      return completion(nil)
    }
    LogVerification(self, token, upTo: entry.link, at: sequence) { verdict in
      // Other requests for the bytes report the loss. Here, only a field is missing.
      if case .intact = verdict { completion(digest.field) } else { completion(nil) }
    }.read { digest.update($0) }
  }
}
