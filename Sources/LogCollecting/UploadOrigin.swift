// What the first message of an upload says: which stream it is of, and how its recording is called.

internal import HTTPMessages
internal import JetStream
internal import LogServing
internal import StreamServing

/// The request that has created an upload, as far as a recording depends on it.
struct UploadOrigin: Equatable, Sendable {
  var path: String
  var mediaType: String?
  var streamID: String
  /// Where the upload begins in its stream.
  var streamStart: UInt64
  /// What identifies the token of the upload's creator.
  var owner: [UInt8]?
  /// Whether nobody had said how long the upload would be.
  var isLive: Bool
  /// What the sender says of the stream, as a field.
  var description: String?

  /// nil if the message is not the first one of an upload, or its stream has no valid name.
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

  /// The request that brings the upload's bytes from `offset` on; nil if its path is not one.
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
