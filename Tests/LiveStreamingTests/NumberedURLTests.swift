import Testing
import UploadClient

@testable import LiveStreaming

@Suite("Numbered URLs")
struct NumberedURLTests {
  @Test(
    "the number follows the name and precedes its extension, and nothing else changes",
    arguments: [
      ("http://host/kitchen.wav", "http://host/kitchen~2.wav"),
      ("http://host/a.b/kitchen", "http://host/a.b/kitchen~2"),
      ("http://host/kitchen.wav?key=a/b.c", "http://host/kitchen~2.wav?key=a/b.c"),
      ("https://user:word@host:8080/dir/a.tar.gz#x", "https://user:word@host:8080/dir/a.tar~2.gz#x"),
      ("http://host/.hidden", "http://host/.hidden~2"), ("http://host/", "http://host/~2"),
      ("http://host", "http://host/~2"), ("http://host?q", "http://host/~2?q"),
      ("host/kitchen.wav", "host/kitchen~2.wav"),
    ])
  func numbered(_ url: String, _ expected: String) {
    #expect(UploadRequest.numbered(url, 2) == expected)
  }
}
