// Which bytes are requested next, and what a response means for the existing ones (RFC 9110, sections 13.1.5, 14 and
// 15.3.7). No I/O, no clock.

internal import Digests
internal import EventLoops
package import HTTPMessages
package import UploadClient

/// The state of one download, across all its requests and connections.
package struct DownloadStateMachine: Equatable {
  /// How many bytes exist, all of one representation and from its beginning.
  package private(set) var count: UInt64 = 0
  /// The validator for requesting the rest: a strong entity tag, or a date; nil if the server provides neither.
  package private(set) var validator: String?
  /// The length of the representation; nil while it is unknown.
  package private(set) var length: UInt64?
  /// The `Repr-Digest` of the representation, from the response with these bytes or an earlier one. If a whole response
  /// has only a `Content-Digest`, that one, because its content is the representation.
  package private(set) var digest: String?
  /// The `ETag` and the `Last-Modified` of the response that these bytes began with, as far as they are known.
  private var tag: String?
  private var modified: String?
  /// Whether the server has sent a part without identifying its version. Then no part from this server is continued.
  private var isUnidentified = false
  /// How often responses to requests for the rest have contradicted the earlier responses of the same version, since
  /// they last did so after more bytes than ever before.
  private var contradictions = 0
  /// The validator and the largest number of the bytes that existed at those contradictions; nil if there was none.
  private var contradicted: VersionBytes?
  /// The number of contradictions that ends the download.
  private static let contradictionLimit = 3
  /// Where the range of the current request begins; 0 for a request without a range.
  private var asked: UInt64 = 0
  /// Where the content of the current response ends; nil if it is not stated, or there is no response.
  private var end: UInt64?
  /// Whether the existing bytes began with a response whose content ends with its connection, so that a lost connection
  /// looks like its end (RFC 9112, section 6.3).
  private var endsWithConnection = false
  /// Why the rest cannot be requested; nil if it can, or if there is no response.
  private var obstacle: DownloadRestart?
  /// The validator and the bytes of the last such response that did not match the server's digest; nil if there was
  /// none.
  private var lastMismatch: VersionBytes?
  /// The number of such responses, each of another version or with more bytes than the one before.
  private var mismatches = 0
  /// The number of such responses that ends the download.
  private static let mismatchLimit = 3
  /// Whether a 416 without a version has completed the bytes, so that only their digest shows that nothing is missing.
  private var awaitsDigest = false

  private struct VersionBytes: Equatable {
    var validator: String?
    var count: UInt64
  }

  package init() {}

  package init(resuming data: DownloadResumeData) {
    (count, validator, length, digest) = (data.byteCount, data.validator, data.length, data.digest)
    if data.validator.hasPrefix("\"") { tag = data.validator } else { modified = data.validator }
  }

  /// Whether the existing bytes can be kept for another request.
  package var isResumable: Bool { count > 0 && validator != nil }

  /// Whether the current response contains all remaining bytes, as far as it states.
  package var reachesEnd: Bool { end != nil && end == length }

  // MARK: Requests

  /// The fields of the next request, which ask for the missing part; none to ask for everything. The existing bytes do
  /// not count unless the server can confirm that they are still the beginning of the same representation.
  package mutating func begin() -> HeaderFields {
    end = nil
    guard let validator, count > 0 else {
      (count, asked, length, digest) = (0, 0, nil, nil)
      return [:]
    }
    asked = count
    return ["Range": "bytes=\(count)-", "If-Range": validator]
  }

  // MARK: Responses

  package enum Answer: Equatable {
    /// The content is the representation's from that byte on. If that is 0, it replaces the existing bytes, and the
    /// reason states why, if there were any.
    case content(from: UInt64, reason: DownloadRestart?)
    /// The response is unusable. The next request asks for everything.
    case startOver(DownloadRestart)
    /// There is nothing beyond the existing bytes.
    case complete
    /// Not a valid response to this request, with the reason in words.
    case broken(String)
    /// No response of this server leads to the end, with the reason in words. The download ends.
    case fail(String)
  }

  /// The head of a response with status 200, 206, 412 or 416.
  package mutating func answered(_ response: HTTPResponse) -> Answer {
    if let coding = response["Content-Encoding"], !coding.isSameWord(as: "identity") {
      // The bytes would not be those of the resource, and a range would have another meaning.
      return .broken("its response has Content-Encoding: \(coding), although the request accepts none")
    }
    if response.hasOddTransferCoding {
      return .broken("its Transfer-Encoding is not chunked: \(response["Transfer-Encoding"] ?? "")")
    }
    switch response.status {
    case 206: return part(response)
    case 200 where hasOddLength(response):
      return .broken("its Content-Length is not a number: \(response["Content-Length"] ?? "")")
    case 200: return whole(response)
    default: break
    }
    guard asked > 0 else {
      return .broken("it answered \(response.status) to a request without a range or a condition")
    }
    if response.status == 416, case .unsatisfied(let total)? = contentRange(response), total == count,
      length ?? total == total, hasAll(response)
    {
      awaitsDigest = length == nil && match(response) == .unknown
      length = total
      digest = digest ?? response[DigestField.representation]
      return .complete
    }
    return contradict(
      response, as: response.status == 416 ? .range : .changed, "it refuses to send the missing bytes of the resource")
  }

  private func contentRange(_ response: HTTPResponse) -> ContentRange? {
    response["Content-Range"].flatMap { ContentRange(parsing: $0) }
  }

  private mutating func part(_ response: HTTPResponse) -> Answer {
    guard asked > 0 else { return .broken("it answered 206 to a request without a range") }
    guard response.fields.count("Content-Range") == 1,
      case .part(let range, let total)? = contentRange(response), range.lowerBound == asked
    else { return contradict(response, "it sends other bytes than the requested ones") }
    guard length == nil || total == nil || length == total, range.upperBound <= length ?? .max else {
      return contradict(response, Self.differentLengths)
    }
    // A server that ignores If-Range sends a part of the present version.
    switch match(response) {
    case .same: break
    case .other:
      return contradict(response, as: .changed, "its responses state different dates or digests for one version")
    case .unknown:
      // Otherwise each outage would bring another such part.
      isUnidentified = true
      forget()
      return .startOver(.unidentified)
    }
    length = total ?? length
    end = range.upperBound
    // A 206 to If-Range need not repeat the metadata of the representation (section 15.3.7).
    if let other = response[DigestField.representation], Self.isComparable(other) || digest == nil { digest = other }
    return .content(from: asked, reason: nil)
  }

  /// Whether a response probably does not come from the resource's server, although its status is usable: it lacks the
  /// kind of validator that the existing bytes have, a strong entity tag or a date.
  package func isDoubtful(_ response: HTTPResponse) -> Bool {
    guard response.status == 200, asked > 0, let validator, response["ETag"] == nil else { return false }
    return validator.hasPrefix("\"") || response["Last-Modified"] == nil
  }

  /// Whether the end of the content is undefined (RFC 9112, section 6.3).
  private func hasOddLength(_ response: HTTPResponse) -> Bool {
    guard response["Transfer-Encoding"] == nil, let text = response["Content-Length"] else { return false }
    return Self.byteCount(text) == nil
  }

  /// Only digits are accepted.
  private static func byteCount(_ text: String) -> UInt64? {
    text.utf8.allSatisfy { (0x30...0x39).contains($0) } ? UInt64(text) : nil
  }

  private mutating func whole(_ response: HTTPResponse) -> Answer {
    let isSame = validator != nil && Self.validator(response) == validator
    // With chunks, a length is meaningless (RFC 9112, section 6.3).
    let stated = response["Transfer-Encoding"] == nil ? response["Content-Length"].flatMap(Self.byteCount) : nil
    if asked > 0, isSame, let length, let stated, stated != length {
      // One version has one length, as for a 206.
      return contradict(response, Self.differentLengths)
    }
    let reason: DownloadRestart? = asked > 0 ? (isSame ? .ignored : .changed) : nil
    (count, asked) = (0, 0)
    length = stated
    end = length
    digest = response[DigestField.representation] ?? response[DigestField.content]
    validator = isUnidentified || Self.refusesRanges(response) ? nil : Self.validator(response)
    (tag, modified) = (response["ETag"], response["Last-Modified"])
    // From HTTP/2 on, the end of a response is marked (RFC 9113, section 8.1).
    endsWithConnection = response.version < .http2 && response["Transfer-Encoding"] == nil && stated == nil
    obstacle = findObstacle(response, reason)
    return .content(from: 0, reason: reason)
  }

  /// Why the rest of a whole response cannot be requested later; nil if it can.
  private func findObstacle(_ response: HTTPResponse, _ reason: DownloadRestart?) -> DownloadRestart? {
    if isUnidentified { return .unidentified }
    if reason == .ignored || Self.refusesRanges(response) { return .ignored }
    return Self.validator(response) == nil ? .unknown : nil
  }

  private static func refusesRanges(_ response: HTTPResponse) -> Bool {
    response["Accept-Ranges"]?.isSameWord(as: "none") == true
  }

  private static let differentLengths = "its responses state different lengths for the same version of the resource"

  /// The response contradicts an earlier one, unless it is of another version. Each time, the existing bytes are lost.
  /// So a server that always does this, and never sends everything at once, would be asked without end.
  private mutating func contradict(
    _ response: HTTPResponse, as restart: DownloadRestart = .range, _ reason: String
  ) -> Answer {
    if let other = Self.validator(response), other != validator {
      forget()
      return .startOver(restart)
    }
    if let contradicted, contradicted.validator == validator, count <= contradicted.count {
      contradictions += 1
    } else {
      (contradicted, contradictions) = (VersionBytes(validator: validator, count: count), 1)
    }
    forget()
    return contradictions < Self.contradictionLimit ? .startOver(restart) : .fail(reason)
  }

  private mutating func forget() {
    let (isUnidentified, contradictions, contradicted) = (isUnidentified, contradictions, contradicted)
    let (lastMismatch, mismatches) = (lastMismatch, mismatches)
    self = DownloadStateMachine()
    (self.isUnidentified, self.contradictions, self.contradicted) = (isUnidentified, contradictions, contradicted)
    (self.lastMismatch, self.mismatches) = (lastMismatch, mismatches)
  }

  // MARK: Versions

  private enum Match { case same, other, unknown }

  /// Whether a response belongs to the same representation as the bytes.
  ///
  /// Validators that both have must be equal. A 206 has the `ETag` that a 200 would have (RFC 9110, section 15.3.7). A
  /// response without validators may belong to any version, because the server may not support `If-Range`.
  private func match(_ response: HTTPResponse) -> Match {
    var isNamed = false
    for (name, known) in [("ETag", tag), ("Last-Modified", modified)] {
      guard response.fields.count(name) < 2 else { return .unknown }
      guard let known, let value = response[name] else { continue }
      guard value == known else { return .other }
      if known == validator { isNamed = true }
    }
    if let known = digest.flatMap({ DigestField(parsing: $0) }),
      let found = response[DigestField.representation].flatMap({ DigestField(parsing: $0) })
    {
      for algorithm in DigestAlgorithm.allCases {
        guard let value = known[algorithm.name], let other = found[algorithm.name] else { continue }
        guard value == other else { return .other }
        isNamed = true
      }
    }
    return isNamed ? .same : .unknown
  }

  /// Whether a 416 means that nothing is missing. Servers send it without an `ETag`. Then only a known length, or the
  /// later comparison with a digest, shows that the bytes are their version's whole.
  private func hasAll(_ response: HTTPResponse) -> Bool {
    switch match(response) {
    case .same: true
    case .other: false
    case .unknown: length != nil || (digest ?? response[DigestField.representation]).map(Self.isComparable) == true
    }
  }

  private static func isComparable(_ digest: String) -> Bool { !FileDownload.digests(digest).isEmpty }

  /// The permitted value of `If-Range` for a representation (section 13.1.5): a strong entity tag, or if there is no
  /// tag at all, a date that is at least a second older than the response.
  static func validator(_ response: HTTPResponse) -> String? {
    guard ["ETag", "Last-Modified"].allSatisfy({ response.fields.count($0) < 2 }) else { return nil }
    if let tag = response["ETag"] {
      // U+FFFD replaces any octet that is not valid, so two different tags may look equal.
      guard !tag.unicodeScalars.contains("\u{FFFD}") else { return nil }
      return EntityTag(parsing: tag).flatMap { $0.isWeak ? nil : tag }
    }
    guard let text = response["Last-Modified"], let modified = HTTPDate.seconds(parsing: text),
      let date = response["Date"].flatMap({ HTTPDate.seconds(parsing: $0) }), date > modified
    else { return nil }
    return text
  }

  // MARK: Content

  /// The next bytes have arrived.
  ///
  /// - Returns: false if there are more than the response has announced, so that none of it can be trusted.
  package mutating func received(_ byteCount: Int) -> Bool {
    count = count.addingSaturated(UInt64(byteCount))
    if let end, count > end {
      forget()
      return false
    }
    return true
  }

  package enum End: Equatable {
    /// All bytes are there.
    case complete
    /// The server has sent a part of the requested range. The next part is requested at once.
    case goOn
    /// The rest is missing.
    case broken
  }

  /// The response has ended.
  ///
  /// - Parameter isWhole: whether its content ended as HTTP requires.
  package func ended(isWhole: Bool) -> End {
    guard isWhole, end == nil || count == end else { return .broken }
    if let length {
      if count >= length { return .complete }
    } else if end == nil {
      return .complete
    }
    // The total length is unknown. The next answer shows whether anything follows this part.
    return count > asked ? .goOn : .broken
  }

  package enum Mismatch: Equatable {
    /// The bytes are wrong.
    case wrong
    /// The response may have been cut off. The next request asks for the rest, and its answer shows whether there is
    /// one.
    case mayLackRest
    /// The response may have been cut off, and the rest cannot be requested for that reason.
    case cannotContinue(DownloadRestart)
    /// This number of such responses did not match, each of another version or with more bytes than the one before.
    case changes(Int)
    /// The last 416 was that of another version. The next request asks for everything.
    case startOver(DownloadRestart)
  }

  /// The bytes of a download that seemed complete do not match the server's digest.
  package mutating func mismatched() -> Mismatch {
    if awaitsDigest {
      forget()
      return .startOver(.range)
    }
    guard endsWithConnection, length == nil else { return .wrong }
    if let obstacle { return .cannotContinue(obstacle) }
    // Otherwise a server whose digest is wrong, and whose 416 does not confirm the end, would be asked without end.
    if let lastMismatch, lastMismatch.validator == validator, count <= lastMismatch.count { return .wrong }
    lastMismatch = VersionBytes(validator: validator, count: count)
    // A file that changes while it is sent has another version each time, so each request asks for everything.
    mismatches += 1
    return mismatches < Self.mismatchLimit ? .mayLackRest : .changes(mismatches)
  }

  /// The bytes from there on are lost, because they could not be written.
  package mutating func lost(from offset: UInt64) { count = min(count, offset) }
}
