// The content of one message of an upload. It states the whole state of the upload up to it, so a server requires only
// the last message.

internal import CZlib
internal import Digests
internal import HTTPMessages
package import JetStream
package import ResumableUploads

/// A message of an upload's subject. `docs/jetstream.md` describes it for other readers.
package struct LogEntry: Equatable, Sendable {
  /// The publisher of a message and its number. With it, a publisher that did not receive an acknowledgement recognizes
  /// its own message.
  package struct Mark: Equatable, Sendable {
    package var publisher: String
    package var number: UInt64
    package var text: String { "\(publisher).\(number)" }
    /// The end of the publisher's name in a message that ends another request, after which the client is asked for the
    /// bytes before it.
    static let asking = "-a"
    var asks: Bool { publisher.hasSuffix(Self.asking) }
    package init(publisher: String, number: UInt64) { (self.publisher, self.number) = (publisher, number) }
  }

  /// The offset of the message's bytes in the upload.
  package var offset: UInt64
  /// The number of its bytes. 0 for a message that only changes the state.
  package var count: UInt64
  /// The length of the whole upload, if it is known.
  package var length: UInt64?
  /// Whether the upload is complete with this message.
  package var isComplete = false
  /// The reason why the upload is over and receives no more bytes.
  package var deactivation: Deactivation?
  /// The stream of the upload, and the offset of the upload in it. After a hole in a plain stream, it is the offset at
  /// which the upload would begin without the hole.
  package var streamID: String
  package var streamStart: UInt64
  /// The digest of the credential of the upload's creator.
  package var owner: [UInt8]?
  /// The announced digest of the whole upload, and after its completion the actual one, as a `Repr-Digest` field.
  package var digest: String?
  /// The digest of the upload that the client requests, as a `Want-Repr-Digest` field.
  package var wanted: String?
  package var mark: Mark
  /// The number of the message in its upload, and the digest of all messages up to it.
  package var link = Link()

  /// The number of bytes of the upload up to the end of this message.
  package var end: UInt64 { offset + count }
  /// The SHA-256 of the whole upload. Nil if it is unknown. Servers have verified it if the upload is complete.
  package var sha256: [UInt8]? {
    let value = digest.flatMap { DigestField(parsing: $0) }?[DigestAlgorithm.sha256.name]
    return value.flatMap { Digest(.sha256, bytes: $0) }?.bytes
  }
  /// The same offsets, counted from the first byte of the stream.
  var streamOffset: UInt64 { streamStart + offset }
  var streamEnd: UInt64 { streamStart + end }

  /// The position of a message in its upload. Each message states a digest of the link before it and of itself. So a
  /// reader of the messages after it detects a message that is missing or was changed.
  package struct Link: Equatable, Sendable {
    /// Counted from 1. 0 before the first message.
    package var number: UInt64 = 0
    /// In hexadecimal. Empty before the first message.
    package var digest = ""
    package init() {}
    package init(number: UInt64, digest: String) { (self.number, self.digest) = (number, digest) }

    /// The link of the next message.
    package func next(_ content: MessageContent) -> Link {
      var text: [UInt8] = []
      text.reserveCapacity(1024)
      text += digest.utf8
      for name in Name.linked {
        text.append(UInt8(ascii: "\n"))
        if let value = content[name] { text += value.utf8 }
      }
      return Link(number: number + 1, digest: Digest(.sha256, of: text.span.bytes).hexadecimal)
    }
  }

  // MARK: Messages

  private enum Name {
    static let streamOffset = "Stream-Offset"
    static let streamID = "Stream-ID"
    static let checksum = "Sluice-CRC32"
    static let publisher = "Sluice-Publisher"
    static let owner = "Sluice-Owner"
    static let ended = "Sluice-Ended"
    static let complete = "Upload-Complete"
    static let number = "Sluice-Number"
    static let chain = "Sluice-Chain"
    /// The headers of which a link is the digest, in this order.
    static let linked = [
      streamID, streamOffset, UploadFields.offset, UploadFields.length, complete, number, ended, owner, publisher,
      LogHeaders.request, LogHeaders.mediaType, LogHeaders.description, DigestField.representation, checksum,
    ]
  }

  /// The message after the one with that link, with `more` headers. Sets ``link``.
  package mutating func message(
    _ payload: [UInt8], behind last: Link, more: [MessageContent.Header] = []
  ) -> MessageContent {
    var headers: [MessageContent.Header] = [
      .init(Name.streamID, streamID), .init(Name.streamOffset, String(streamStart + offset)),
      .init(UploadFields.offset, String(offset)), .init(Name.checksum, Self.checksum(payload)),
      .init(Name.publisher, mark.text), .init(Name.number, String(last.number + 1)),
    ]
    if let length { headers.append(.init(UploadFields.length, String(length))) }
    if isComplete { headers.append(.init(Name.complete, "?1")) }
    if let deactivation { headers.append(.init(Name.ended, deactivation.rawValue)) }
    if let owner { headers.append(.init(Name.owner, Hexadecimal.text(owner))) }
    if let digest { headers.append(.init(DigestField.representation, digest)) }
    if let wanted { headers.append(.init(DigestField.wantRepresentation, wanted)) }
    // libnats takes the line after a header without a value for its value.
    var content = MessageContent(headers: headers + more.filter { !$0.value.isEmpty }, payload: payload)
    link = last.next(content)
    content.headers.append(.init(Name.chain, link.digest))
    return content
  }

  /// Nil if no server has published this message, or if it is damaged.
  package init?(_ content: MessageContent) {
    guard content[Name.checksum] == Self.checksum(content.payload) else { return nil }
    self.init(headers: content, count: UInt64(content.payload.count))
  }

  /// The same for a message whose payload was not read, so that damage to it is not detected.
  init?(headersOf content: MessageContent) {
    guard let count = content["Nats-Msg-Size"].flatMap({ UInt64($0) }), count <= UInt64(BareItem.largestInteger) else {
      return nil
    }
    self.init(headers: content, count: count)
  }

  /// The headers that ``init(headersOf:)`` reads, except digests of the upload.
  static let headerNames = [
    Name.streamID, Name.streamOffset, UploadFields.offset, UploadFields.length, Name.complete, Name.number, Name.chain,
    Name.ended, Name.owner, Name.publisher,
  ]

  /// What a message reports about an upload that is known already. This costs a fraction of the whole entry.
  ///
  /// - Returns: the end of the upload's bytes, and whether its length is unknown. Nil if the message ends the upload,
  ///   or if no server has published it.
  static func progress(headersOf content: MessageContent) -> (end: UInt64, isLive: Bool)? {
    guard content[Name.complete] == nil, content[Name.ended] == nil,
      let offset = content[UploadFields.offset].flatMap({ UInt64($0) }), offset <= UInt64(BareItem.largestInteger),
      let count = content["Nats-Msg-Size"].flatMap({ UInt64($0) }), count <= UInt64(BareItem.largestInteger)
    else { return nil }
    return (offset + count, content[UploadFields.length] == nil)
  }

  /// The publisher of a message, without the number of its mark. Nil if no server has published it.
  static func publisher(headersOf content: MessageContent) -> Substring? {
    content[Name.publisher].flatMap { $0.split(separator: ".").first }
  }

  private init?(headers content: MessageContent, count: UInt64) {
    func number(_ name: String) -> UInt64? { content[name].flatMap { UInt64($0) } }
    guard let offset = number(UploadFields.offset), let streamOffset = number(Name.streamOffset),
      streamOffset >= offset, streamOffset - offset <= UInt64(BareItem.largestInteger),
      let streamID = content[Name.streamID], offset <= UInt64(BareItem.largestInteger),
      let mark = content[Name.publisher]?.split(separator: "."), mark.count == 2, let markNumber = UInt64(mark[1]),
      let number = number(Name.number), (1...UInt64(Int64.max)).contains(number), let chain = content[Name.chain]
    else { return nil }
    (self.offset, self.count) = (offset, count)
    (self.streamID, streamStart) = (streamID, streamOffset - offset)
    self.mark = Mark(publisher: String(mark[0]), number: markNumber)
    link = Link(number: number, digest: chain)
    (digest, wanted) = (content[DigestField.representation], content[DigestField.wantRepresentation])
    length = content[UploadFields.length].flatMap { UInt64($0) }
    isComplete = content[Name.complete] == "?1"
    if let text = content[Name.ended] {
      guard let cause = Deactivation(rawValue: text) else { return nil }
      deactivation = cause
    }
    if let text = content[Name.owner] {
      guard let owner = Hexadecimal.bytes(text.utf8) else { return nil }
      self.owner = owner
    }
  }

  init(offset: UInt64, count: UInt64, streamID: String, streamStart: UInt64, owner: [UInt8]?, mark: Mark) {
    (self.offset, self.count) = (offset, count)
    (self.streamID, self.streamStart) = (streamID, streamStart)
    (self.owner, self.mark) = (owner, mark)
  }

  // MARK: Text

  /// CRC-32 as zlib computes it, in eight hexadecimal digits.
  static func checksum(_ payload: [UInt8]) -> String {
    let value = payload.withUnsafeBufferPointer { crc32_z(0, $0.baseAddress, $0.count) }
    // Without bytes, zlib returns its initial value, which is 0.
    let digits = String(UInt32(truncatingIfNeeded: payload.isEmpty ? 0 : value), radix: 16)
    return String(repeating: "0", count: 8 - digits.count) + digits
  }
}

/// Headers that describe an upload, in its first message or in the first one of a request.
enum LogHeaders {
  static let request = "Sluice-Request"
  static let mediaType = "Content-Type"
  static let description = "Stream-Description"

  /// The headers of the request that creates an upload.
  static func origin(_ head: RequestHead) -> [MessageContent.Header] {
    var headers = [MessageContent.Header(request, "\(head.method) \(head.target.path)")]
    if let type = head.fields.single("content-type") { headers.append(.init(mediaType, type)) }
    return headers
  }

  /// The headers of a request about its stream.
  static func description(_ head: RequestHead) -> [MessageContent.Header] {
    head.fields.single("stream-description").map { [.init(description, $0)] } ?? []
  }
}
