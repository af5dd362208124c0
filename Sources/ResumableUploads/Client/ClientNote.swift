// What a client reports apart from the requests it sends, and why it gives up.

/// Something that happened to a stream on its way through upload resources.
package enum ClientNote: Equatable, Sendable {
  /// An upload resource exists, whose first byte is the stream's byte at `base`.
  case created(url: String, base: UInt64)
  /// The stream continues in a new upload resource, from this offset on.
  case newPart(PartEnd, previous: String?, from: UInt64)
  /// These bytes reach no upload resource, because the server has lost or refused them, or because they were discarded
  /// here before it had them.
  case gap(from: UInt64, to: UInt64, isServersFault: Bool)
  /// The server has less than it had acknowledged (which "MUST NOT decrease", section "Offset").
  case serverWentBack(from: UInt64, to: UInt64)
  /// The server reported an impossible offset: more than was ever sent. The client asks once more.
  case impossibleOffset(UInt64)
  /// Another process has sent more than is kept here, up to `offset`. The upload is completed there.
  case serverHasMore(offset: UInt64, kept: UInt64)
  /// The server speaks an older version.
  case steppedDown(to: InteropVersion)
}

/// Why an upload resource ends before its stream.
package enum PartEnd: String, Equatable, Sendable {
  /// The server does not know it any more.
  case gone
  /// A response has named it, but it has never answered as an upload resource.
  case unproven
  /// The next bytes to send are no longer kept here.
  case gap
  /// The source produced nothing for longer than the buffer keeps. No byte is lost, and the stream continues at a later
  /// offset.
  case pause
  /// Its lifetime is over (`max-age`).
  case expiry
  /// It is full (`max-size`).
  case size
  /// The server lost bytes that it had acknowledged.
  case serverWentBack
  /// The server reported it complete.
  case completed
  /// The server repeatedly claims to have more than was ever sent.
  case impossibleOffset
}

/// Why an upload cannot continue.
package enum ClientFailure: Equatable, Sendable {
  case cancelled
  /// This status is final. The caller words it.
  case refused(status: Int)
  /// The representation was received, and processing it failed with this status (section "Upload Append").
  case processingFailed(status: Int)
  /// The server answers, but never with progress: the last status.
  case noProgress(status: Int)
  /// The server reports that it has stored more than was ever sent (section "Offset Retrieval").
  case offsetBeyondSent(offset: UInt64, sent: UInt64)
  /// An answer lacks the `Upload-Offset` that it requires.
  case noOffset
  /// The answer to a creation does not name the upload resource.
  case noLocation
  /// The upload resource's URL is unencrypted, and the request was encrypted.
  case insecureLocation
  /// The server named two different URLs (section "Upload Creation").
  case locationChanged
  /// The representation is longer than the server allows, in bytes.
  case tooLarge(limit: UInt64)
  /// The server accepts so few bytes per request, or per upload resource, that a stream would flood it.
  case limitTooSmall(UInt64)
  /// The server allows at most `maximum` bytes per request, and requires at least `minimum` (`Upload-Limit`).
  case limitsContradict(minimum: UInt64, maximum: UInt64)
  /// The server refuses even the smallest append that it allows (413).
  case appendTooLarge
  /// The server ended the upload before the stream was over.
  case completedEarly

  /// Whether the upload resource is useless to everybody afterwards.
  var isFinal: Bool {
    switch self {
    case .processingFailed, .completedEarly, .offsetBeyondSent, .locationChanged, .tooLarge, .limitTooSmall: true
    case .cancelled, .refused, .noProgress, .noOffset, .noLocation, .insecureLocation, .limitsContradict,
      .appendTooLarge:
      false
    }
  }

  /// The reason, in words.
  package var description: String {
    switch self {
    case .cancelled: "the upload was cancelled"
    case .refused(let status): "the server refused it (\(status))"
    case .processingFailed(let status): "the server has received all of it and could not process it (\(status))"
    case .noProgress(let status): "the server answers \(status) repeatedly, and accepts no bytes"
    case .offsetBeyondSent(let offset, let sent):
      "the server reports offset \(offset), but only \(sent) bytes were sent. It confuses uploads"
    case .noOffset: "the server does not report its offset (no valid Upload-Offset)"
    case .noLocation: "the server does not name the upload resource (no Location)"
    case .insecureLocation:
      "the server names an upload resource with an http URL, although the request was encrypted. Sluice does not follow it"
    case .locationChanged: "the server named two upload resources for one upload"
    case .tooLarge(let limit): "it is longer than the server allows (\(limit) bytes)"
    case .limitTooSmall(let limit):
      "the server accepts at most \(limit) bytes per request (Upload-Limit), which is too little for a stream. Raise its max-size and max-append-size."
    case .limitsContradict(let minimum, let maximum):
      "the server accepts at most \(maximum) bytes per request, but at least \(minimum) (Upload-Limit). Correct one of its limits."
    case .appendTooLarge: "the server refuses even the smallest part that it allows (413)"
    case .completedEarly: "the server ended the upload before its end"
    }
  }
}
