// The answers to requests that store a stream, as values.

internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import HTTPMessages
internal import HTTPServer
internal import JSONLines
internal import ResumableUploads
internal import StreamServing

enum StreamAnswer {
  static let beginsBeforeHole = "bytes of the stream behind this offset never came, and later ones are stored"
  static let notYours = "the stream belongs to another token"
  static let stopping = "the server stops"
  static let withdrawn = "the token is not valid any more"
  static let otherContent =
    "the content differs from the Content-Digest or Repr-Digest of the request; nothing of it is stored"
  static let lostFile = "something else has changed, replaced or removed the file of the stream"
  /// The owner of the stream cannot be read now: nobody is admitted, and nobody gets a 403.
  static let unknownStatus = 503

  /// What of a stream an answer tells.
  struct Standing {
    var name: StreamName
    var length: UInt64
    /// How many of these bytes lie in holes.
    var missing: UInt64

    init(_ name: StreamName, length: UInt64, missing: UInt64) {
      (self.name, self.length, self.missing) = (name, length, missing)
    }

    init(_ stream: any StoredStream) { self.init(stream.name, length: stream.length, missing: stream.missing) }

    var fields: HeaderFields {
      ["stream-id": name.streamID, "stream-offset": String(length), "stream-missing": String(missing)]
    }
  }

  /// The response to the request that has completed a stream, and to those that repeat it.
  static func complete(_ status: Int, _ standing: Standing, isStored: Bool = true) -> Response {
    var body = JSONLine(event: isStored ? "stored" : "discarded")
    if isStored { body.add("name", standing.name.final) }
    body.add("bytes", standing.length)
    body.add("missing", standing.missing)
    return Response(status, standing.fields, body: body.line + "\n", type: "application/json")
  }

  /// - Parameters:
  ///   - standing: nil where the answer tells nothing of a stream.
  ///   - retries: whether the same request may succeed later.
  static func refused(_ status: Int, _ standing: Standing?, _ reason: String, retries: Bool) -> Response {
    var fields = standing?.fields ?? [:]
    if retries { fields.append("retry-after", "2") }
    return Response(status, fields, body: reason + "\n")
  }

  /// The token was withdrawn within the request.
  static func withdrawn(_ standing: Standing) -> Response {
    var fields = standing.fields
    fields.append("www-authenticate", "Bearer")
    return Response(401, fields, body: withdrawn + "\n")
  }

  static func status(of error: SystemError) -> Int {
    if error.isFull { return 507 }
    // A recording is there that this stream did not make.
    if error.code == EEXIST { return 409 }
    return error.isShortage ? 503 : 500
  }

  static func reason(_ refusal: UploadRefusal) -> String {
    // The answer to a plain request has no Upload-Limit.
    refusal == .representationTooLarge ? "the stream is larger than this server accepts" : refusal.reason
  }
}
