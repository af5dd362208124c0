import HTTPMessages
import Testing

@Suite("A response")
struct ResponseTests {
  @Test("a body has a media type, and a response without one has none")
  func mediaType() {
    #expect(Response(404, body: "no\n").fields["content-type"] == "text/plain")
    #expect(Response.ok("{}", type: "application/json").fields["content-type"] == "application/json")
    let empty = Response(204, ["upload-offset": "5"])
    #expect(empty.fields["content-type"] == nil && empty.fields["upload-offset"] == "5" && empty.body.isEmpty)
  }

  @Test("a server sends a name in one spelling, whatever that of its handler is, and no field of the connection")
  func spelling() {
    let fields: HeaderFields = ["x-API-key": "1", "STREAM-id": "2", "tRANSFER-eNCODING": "chunked", "eTag": "3"]
    let sent = "X-Api-Key: 1\r\nStream-ID: 2\r\nEtag: 3\r\n"
    let head = String(decoding: Response(204, fields).serialized(keepsAlive: true, date: "now"), as: UTF8.self)
    #expect(head == "HTTP/1.1 204 No Content\r\nDate: now\r\n\(sent)\r\n")
    #expect(Response.interim(100, fields) == Array("HTTP/1.1 100 Continue\r\n\(sent)\r\n".utf8))
  }
}
