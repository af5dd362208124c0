// What a client may conclude from the answers of a case. The protocol's rules are applied to each answer: the client
// may count no byte as acknowledged that no answer has acknowledged.

import HTTPMessages
import NetworkTesting
import ResumableUploads

/// Stream offsets that answers have acknowledged. An answer is recorded before it is sent, so the client cannot be
/// ahead.
struct Claims: Sendable {
  /// An answer about an upload resource, or about a plain request.
  struct Subject: Sendable {
    /// Stream offset of the first byte of the upload resource.
    var base: UInt64
    /// Stream offset after the last stored byte.
    var stored: UInt64
    /// Stream offset of the first byte of the request's content.
    var start: UInt64
    /// Stream offset of the content's end; nil while only the client knows it.
    var end: UInt64?
    /// The request's number.
    var request: Int
    /// Whether a 104 has announced the upload resource that the request creates.
    var isAnnounced = false
  }

  /// Bytes that an answer has acknowledged although they were not stored when it was sent.
  private struct Lie {
    /// Stream offset after the last stored byte.
    var stored: UInt64
    /// The end of the acknowledged range; nil while it is unknown.
    var end: UInt64?
    /// The request whose content ends there.
    var request: Int
  }

  /// The furthest acknowledged offset before which everything is stored.
  private(set) var truth: UInt64 = 0
  private var lies: [Lie] = []
  /// From answers without any field of the protocol. They count while nothing else is acknowledged, because a portal's
  /// answer looks the same.
  private var mute: [Lie] = []
  /// From such answers to requests that complete an upload. They count once the upload resource is gone.
  private var unproved: [Lie] = []
  /// Whether a HEAD was answered with less than was stored.
  private(set) var understates = false

  /// Whether a client that has `captured` bytes of its source may count `offset` as acknowledged.
  ///
  /// - Parameter isFirst: whether it has counted nothing as acknowledged before. It may accept an answer without any
  ///   field of the protocol only in this case, and only such a permitted answer excuses missing bytes.
  mutating func allow(_ offset: UInt64, captured: UInt64, isFirst: Bool) -> Bool {
    // The client never accepts an offset beyond its own bytes.
    func covers(_ lie: Lie) -> Bool { offset <= lie.end ?? captured && lie.end ?? 0 <= captured }
    if offset <= truth || lies.contains(where: covers) { return true }
    guard isFirst, let believed = mute.first(where: covers) else { return false }
    lies.append(believed)
    return true
  }

  /// Bytes that the client may count as acknowledged although they were not stored.
  func untrue(captured: UInt64) -> [Range<UInt64>] {
    lies.compactMap { lie in
      let end = lie.end ?? captured
      return end <= captured && lie.stored < end ? lie.stored..<end : nil
    }
  }

  /// The content of a request that was answered early has ended.
  mutating func noteEnd(of request: Int, at end: UInt64) {
    func close(_ lies: inout [Lie]) {
      for index in lies.indices where lies[index].request == request && lies[index].end == nil {
        lies[index].end = end
      }
    }
    close(&lies)
    close(&mute)
    close(&unproved)
  }

  /// An interim response.
  mutating func note(interim head: ReplyHead, to request: WireRequest, _ subject: Subject) {
    guard head.status == UploadFields.resumptionSupported, head.speaks(request.version),
      let count = UploadFields.offset(head.lines)
    else { return }
    note(subject.base + count, subject)
  }

  /// A final response.
  mutating func note(_ head: ReplyHead, to request: WireRequest, _ subject: Subject) {
    if request.method == "HEAD", [404, 410].contains(head.status) {
      lies += unproved
      unproved = []
    }
    guard (200..<300).contains(head.status), !["OPTIONS", "DELETE"].contains(request.method) else { return }
    let claimed = UploadFields.offset(head.lines).map { subject.base + $0 }
    if request.method == "HEAD" {
      guard let claimed else { return }
      if claimed < subject.stored { understates = true }
      return note(claimed, subject)
    }
    if claimed != nil || request.version.hasCompleteness(head.lines) || head.speaks(request.version) {
      guard let claimed else { return note(end: subject.end, subject) }
      note(min(claimed, subject.end ?? claimed), subject)
    } else {
      noteMute(request, subject)
    }
  }

  /// Bytes that are not a response as a whole, although some of them may be.
  mutating func noteGarbage(_ bytes: [UInt8], to request: WireRequest, _ subject: Subject) {
    if !["OPTIONS", "DELETE", "HEAD"].contains(request.method) { noteMute(request, subject) }
    if bytes.starts(with: "HTTP/1.1 200 OK\nUpload-Offset: 5".utf8) {
      if request.method == "HEAD", subject.base + 5 < subject.stored { understates = true }
      note(subject.base + 5, subject)
    }
  }

  private mutating func noteMute(_ request: WireRequest, _ subject: Subject) {
    let lie = Lie(stored: min(subject.stored, subject.end ?? .max), end: subject.end, request: subject.request)
    if request.completes { unproved.append(lie) }
    if !subject.isAnnounced { mute.append(lie) }
  }

  private mutating func note(end: UInt64?, _ subject: Subject) {
    if let end {
      note(end, subject)
    } else {
      lies.append(Lie(stored: subject.stored, end: nil, request: subject.request))
    }
  }

  private mutating func note(_ offset: UInt64, _ subject: Subject) {
    if offset <= subject.stored {
      truth = max(truth, offset)
    } else {
      lies.append(Lie(stored: subject.stored, end: offset, request: subject.request))
    }
  }
}

extension ReplyHead {
  var lines: HeaderFields { HeaderFields(received: fields.map { (name: $0.name, value: $0.value) }) }

  /// Whether it names the client's version.
  func speaks(_ version: InteropVersion) -> Bool {
    switch InteropVersion.Named(lines) {
    case .absent: version.number == nil
    case .known(let named): named == version
    case .unknown: false
    }
  }
}

extension WireRequest {
  /// The client's version.
  var version: InteropVersion {
    guard let text = head[InteropVersion.fieldName], let number = Int64(text) else { return .none }
    return InteropVersion(number: number) ?? .newest
  }
}

extension InteropVersion {
  /// Whether a message contains a completeness field of any version.
  func hasCompleteness(_ fields: HeaderFields) -> Bool {
    completeness(fields) != nil
      || InteropVersion.drafts.contains {
        $0.invertsCompleteness != invertsCompleteness && $0.completeness(fields) != nil
      }
  }
}
