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
}
