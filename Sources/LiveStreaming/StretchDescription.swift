// The metadata of a stream in a spool, with which another process can send it.

internal import HTTPMessages
package import ResumableUploads
internal import UploadClient

/// The constant metadata of a stretch in the spool. Its text is one structured dictionary (RFC 9651).
package struct StretchDescription: Equatable, Sendable {
  /// The destination, without user and password.
  package var url: String
  /// The stream's name at the server.
  package var streamID: String
  /// `Content-Type`.
  package var contentType: String?
  /// The bytes with which each part of the stream begins.
  package var header: [UInt8] = []
  /// In bytes.
  package var frameLength = 1
  /// The number of bytes per second of the stream. Nil if it is unknown.
  package var bytesPerSecond: Int?

  static let format: Int64 = 1

  package init(url: String, streamID: String) {
    self.url = UploadRequest.withoutCredentials(url)
    self.streamID = streamID
  }

  /// Reads ``text``. Nil for anything else, including an unknown format.
  package init?(_ text: String) {
    guard let fields = StructuredDictionary(parsing: text), fields.integer("format") == Self.format,
      let url = fields.string("url"), let streamID = fields.string("stream-id")
    else { return nil }
    self.init(url: url, streamID: streamID)
    contentType = fields.string("content-type")
    if case .item(let item)? = fields["header"], case .bytes(let bytes) = item.value { header = bytes }
    guard let length = Int(exactly: fields.integer("frame-length") ?? 1), (1...1 << 20).contains(length) else {
      return nil
    }
    frameLength = length
    bytesPerSecond = fields.integer("bytes-per-second").flatMap { Int(exactly: $0) }.flatMap { $0 > 0 ? $0 : nil }
  }

  /// Nil for text that structured fields cannot represent.
  package var text: String? {
    var fields = StructuredDictionary()
    fields.set("format", .item(Item(.integer(Self.format))))
    fields.set("url", .item(Item(.string(url))))
    fields.set("stream-id", .item(Item(.string(streamID))))
    if let contentType { fields.set("content-type", .item(Item(.string(contentType)))) }
    if !header.isEmpty { fields.set("header", .item(Item(.bytes(header)))) }
    fields.set("frame-length", .item(Item(.integer(Int64(frameLength)))))
    if let bytesPerSecond { fields.set("bytes-per-second", .item(Item(.integer(Int64(bytesPerSecond))))) }
    return fields.serialized
  }
}

/// The progress of a stream: the variable metadata of a stretch in the spool. Its text is one structured dictionary.
package struct StretchResumption: Equatable, Sendable {
  /// The upload resource, or nil.
  package var upload: ResumeData?
  /// The stream offset at which a plain stream continues. The server has the bytes before it, as far as is known. Nil
  /// if the stream was last a resumable upload.
  package var acknowledged: UInt64?
  /// The last `Stream-Description` that was sent.
  package var description: String?
  /// Whether the stream ends only because its source failed.
  package var isCutOff = false

  static let format: Int64 = 1

  package init() {}

  /// Reads ``text``. Unreadable members are nil.
  package init(_ text: String) {
    guard let fields = StructuredDictionary(parsing: text), fields.integer("format") == Self.format else { return }
    upload = fields.string("upload").flatMap { ResumeData($0) }
    acknowledged = fields.integer("acknowledged").flatMap { UInt64(exactly: $0) }
    description = fields.string("description")
    if case .item(let item)? = fields["cut-off"], case .boolean(true) = item.value { isCutOff = true }
  }

  /// At most 8 KiB. The description is omitted if the text would be longer.
  package var text: String {
    var fields = StructuredDictionary()
    fields.set("format", .item(Item(.integer(Self.format))))
    if let text = upload?.text { fields.set("upload", .item(Item(.string(text)))) }
    if let acknowledged { fields.set("acknowledged", .item(Item(.integer(Int64(clamping: acknowledged))))) }
    if isCutOff { fields.set("cut-off", .item(Item(.boolean(true)))) }
    let short = fields.serialized ?? ""
    if let description { fields.set("description", .item(Item(.string(description)))) }
    guard let long = fields.serialized, long.utf8.count <= 8 << 10 else {
      return short.utf8.count <= 8 << 10 ? short : ""
    }
    return long
  }
}

extension StructuredDictionary {
  fileprivate func string(_ key: String) -> String? {
    if case .item(let item)? = self[key], case .string(let text) = item.value { text } else { nil }
  }

  fileprivate func integer(_ key: String) -> Int64? {
    if case .item(let item)? = self[key], case .integer(let number) = item.value { number } else { nil }
  }
}
