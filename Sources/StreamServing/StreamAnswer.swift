// The answers to requests that store a stream, as values, wherever it is stored.

internal import HTTPMessages
package import HTTPServer
package import JSONLines
package import ResumableUploads

package enum StreamAnswer {
  package static let notYours = "the stream belongs to another token"
  package static let otherContent =
    "the content does not match the Content-Digest or Repr-Digest of the request. Nothing was stored"
  package static let withoutLength = "a stream needs Transfer-Encoding: chunked or a Content-Length"

  /// The facts of a stream that an answer reports.
  package struct Standing {
    package var streamID: String
    package var length: UInt64
    /// How many of these bytes lie in holes.
    package var missing: UInt64

    package init(_ streamID: String, length: UInt64, missing: UInt64) {
      (self.streamID, self.length, self.missing) = (streamID, length, missing)
    }

    package var fields: HeaderFields {
      ["stream-id": streamID, "stream-offset": String(length), "stream-missing": String(missing)]
    }
  }

  /// The response to the request that has completed a stream, and to those that repeat it.
  ///
  /// - Parameter body: what became of the stream; its length is added.
  package static func complete(_ status: Int, _ standing: Standing, _ body: JSONLine) -> Response {
    var body = body
    body.add("bytes", standing.length)
    body.add("missing", standing.missing)
    return Response(status, standing.fields, body: body.line + "\n", type: "application/json")
  }

  /// - Parameters:
  ///   - standing: nil if the answer does not describe a stream.
  ///   - retries: whether the same request may succeed later.
  package static func refused(_ status: Int, _ standing: Standing?, _ reason: String, retries: Bool) -> Response {
    var fields = standing?.fields ?? [:]
    if retries { fields.append("retry-after", "2") }
    return Response(status, fields, body: reason + "\n")
  }

  package static func reason(_ refusal: UploadRefusal) -> String {
    // The answer to a plain request has no Upload-Limit.
    refusal == .representationTooLarge ? "the stream is larger than this server accepts" : refusal.reason
  }
}
