// The content of the first message of an upload: its stream, and the name of its recording.

internal import HTTPMessages
internal import JetStream
internal import LogServing
internal import StreamServing

/// The part of the request that created an upload on which its recording depends.
struct UploadOrigin: Equatable, Sendable {
  var path: String
  var mediaType: String?
  var streamID: String
  /// The offset of the upload in its stream.
  var streamStart: UInt64
  /// The digest of the token of the upload's creator.
  var owner: [UInt8]?
  /// Whether the length of the upload was not announced.
  var isLive: Bool
  /// The sender's description of the stream, as a field.
  var description: String?

  /// Nil if the message is not the first one of an upload, or if its stream has no valid name.
  init?(_ entry: LogEntry, _ content: MessageContent) {
    guard let request = content["Sluice-Request"], let space = request.firstIndex(of: " "),
      StreamName.isValidID(entry.streamID)
    else { return nil }
    path = String(request[request.index(after: space)...])
    (mediaType, description) = (content["Content-Type"], content["Stream-Description"])
    (streamID, streamStart, owner) = (entry.streamID, entry.streamStart, entry.owner)
    isLive = entry.length == nil
  }

  init(
    path: String, mediaType: String?, streamID: String, streamStart: UInt64, owner: [UInt8]?, isLive: Bool,
    description: String?
  ) {
    (self.path, self.mediaType, self.streamID) = (path, mediaType, streamID)
    (self.streamStart, self.owner, self.isLive) = (streamStart, owner, isLive)
    self.description = description
  }

  var name: StreamName { StreamName(path: path, streamID: streamID, mediaType: mediaType) }

  /// A request with the upload's bytes from `offset` on. Nil if its path is invalid.
  func head(from offset: UInt64) -> RequestHead? {
    let octets = Array(path.utf8)
    guard let target = try? RequestTarget(octets.span, method: "POST") else { return nil }
    var fields: HeaderFields = ["stream-id": streamID, "stream-offset": String(streamStart + offset)]
    if let mediaType { fields.append("content-type", mediaType) }
    if let description { fields.append("stream-description", description) }
    var head = RequestHead(
      method: "POST", target: target, minorVersion: 1, fields: fields, framing: .chunked, expectsContinue: false,
      keepsAlive: true)
    head.credential = owner
    return head
  }
}
