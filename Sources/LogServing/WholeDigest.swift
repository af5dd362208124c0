// The digests of all bytes of an upload: the announced one, and the one that its client requests.

internal import Digests
internal import HTTPMessages
internal import StreamServing

/// Receives the bytes of an upload, beginning with the first one. Only on the loop's thread.
final class WholeDigest {
  /// The announced digest. Nil if none was announced.
  private let announced: ContentDigest?
  private let algorithm: DigestAlgorithm?
  private let wanted: SharedDigest?

  /// - Parameters:
  ///   - representation: the announced digest, as a field.
  ///   - wanted: the requested digest, as a field.
  init?(_ representation: String?, wanted field: String?) {
    announced = representation.flatMap { ContentDigest(["content-digest": $0]) }
    algorithm = field.flatMap { Self.algorithm($0) }
    wanted = algorithm.map { SharedDigest($0) }
    if announced == nil && wanted == nil { return nil }
  }

  /// The first known algorithm that a field requests.
  static func algorithm(_ wanted: String) -> DigestAlgorithm? {
    DigestField.wanted(parsing: wanted).lazy.compactMap { DigestAlgorithm(name: $0) }.first
  }

  func update(_ bytes: Span<UInt8>) {
    announced?.update(bytes, [0..<bytes.count])
    wanted?.update(bytes, [0..<bytes.count])
  }

  /// Whether the bytes match the announced digest.
  var isRight: Bool { announced?.isRight ?? true }

  /// The requested digest, as a field. Nil if none was requested.
  var field: String? {
    guard let algorithm, let digest = wanted?.running.value() else { return nil }
    return DigestField([(algorithm.name, digest.bytes)]).value
  }

  /// The requested part of the known digests, as a field.
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
  /// The maximum length of an incomplete upload whose bytes are read from the log for the digest in a response.
  private static let longestRead: UInt64 = 4 << 20

  /// Computes the digest that the client requests, as a field. `completion` receives nil if it requests none, or if too
  /// many bytes would have to be read for it.
  func digest(
    of entry: LogEntry, at sequence: UInt64, _ token: String, _ completion: @escaping (String?) -> Void
  ) {
    if entry.isComplete { return completion(WholeDigest.field(of: entry.digest, wanted: entry.wanted)) }
    guard entry.end <= Self.longestRead, let digest = WholeDigest(nil, wanted: entry.wanted) else {
      return completion(nil)
    }
    LogVerification(self, token, upTo: entry.link, at: sequence) { verdict in
      // Other requests for the bytes report a loss. Here, only a field is omitted.
      if case .intact = verdict { completion(digest.field) } else { completion(nil) }
    }.read { digest.update($0) }
  }
}
