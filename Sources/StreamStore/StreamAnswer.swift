// The answers to requests that store a stream in files, as values.

internal import DiskFiles
internal import EventLoops
internal import HTTPMessages
internal import HTTPServer
internal import JSONLines
internal import ResumableUploads
internal import StreamServing

extension StreamAnswer {
  static let beginsBeforeHole = "bytes of the stream behind this offset never came, and later ones are stored"
  static let tooManyGaps =
    "the recording has as many gaps as it may have, and the server cannot close it now to continue in the next part"
  static let stopping = "the server stops"
  static let withdrawn = "the token is not valid any more"
  static let lostFile = "something else has changed, replaced or removed the file of the stream"
  /// The owner of the stream cannot be read now: no client is admitted, and none gets a 403.
  static let unknownStatus = 503

  /// - Parameters:
  ///   - isKept: whether the bytes are stored.
  ///   - file: the name of the complete recording; nil if it has none yet.
  static func complete(_ status: Int, _ standing: Standing, isKept: Bool = true, file: String?) -> Response {
    var body = JSONLine(event: isKept ? "stored" : "discarded")
    if isKept, let file { body.add("name", file) }
    return complete(status, standing, body)
  }

  /// The token was withdrawn during the request.
  static func withdrawn(_ standing: Standing) -> Response {
    var fields = standing.fields
    fields.append("www-authenticate", "Bearer")
    return Response(401, fields, body: withdrawn + "\n")
  }

  static func status(of error: SystemError) -> Int {
    if error.isFull { return 507 }
    return error.isShortage ? 503 : 500
  }
}

extension StreamAnswer.Standing {
  init(_ stream: any StoredStream) {
    self.init(stream.name.streamID, length: stream.length, missing: stream.missing)
  }
}
