import PropertyTesting
import Testing

@testable import UploadClient

@Suite("The text of a response")
struct ResponseReasonTests {
  private func response(_ body: String, _ type: String?) -> HTTPResponse {
    var response = HTTPResponse(status: 502, fields: type.map { ["content-type": $0] } ?? [:])
    response.body = Array(body.utf8)
    return response
  }

  @Test(
    "for a page it is the title, and for a text its beginning, in one line without control characters",
    arguments: [
      ("<html>\r\n<head><title>502 Bad\n Gateway</title></head><body>long</body>", "text/html", "502 Bad Gateway"),
      ("<!DOCTYPE html><TITLE lang=en>Wartung</TITLE>", "TEXT/HTML; charset=utf-8", "Wartung"),
      ("<html><title>no type</title>", nil, "no type"), ("  <?xml?><x>no title</x>", nil, nil),
      ("<title>cut", "text/html", nil),
      ("<title", "text/html", nil), ("İ<title>größe</title>", "text/html", "größe"),
      ("disk full\n", "text/plain", "disk full"), ("a\u{1B}[2Jb\u{0}\r\nc", "text/plain", "a [2Jb c"), ("", nil, nil),
      ("a\u{202E}b\u{2066}\u{61C}c", "text/plain", "a b c"), ("<title>a\u{200F}b</title>", "text/html", "a b"),
      (" \n", nil, nil), ("<b>", "text/plain", nil),
    ] as [(String, String?, String?)])
  func reason(_ body: String, _ type: String?, _ expected: String?) {
    #expect(response(body, type).reason == expected)
  }

  @Test("a text is a page only if its first characters begin one, and a reason has at most 200 characters")
  func limits() {
    let page = "<title>x</title>"
    #expect(response(String(repeating: " ", count: 63) + page, nil).reason == "x")
    #expect(response(String(repeating: " ", count: 64) + page, nil).reason == page)
    for count in [1, 199, 200] {
      #expect(response(String(repeating: "y", count: count), nil).reason == String(repeating: "y", count: count))
    }
    for count in [201, 300] {
      #expect(
        response(String(repeating: "y", count: count), nil).reason == String(repeating: "y", count: 197) + "...")
    }
  }

  @Test("a printed response has its status and its reason, and no list of bytes")
  func description() {
    #expect("\(response("disk full\n", "text/plain"))" == "502: disk full" && "\(response("", nil))" == "502")
  }

  @Test("for a long or broken response, it is a short line", arguments: Seed.several(20))
  func anything(_ seed: Seed) {
    var random = seed.generator
    let pieces = [
      "<title>", "</title>", "<TITLE", ">", "İ", "ß", "\u{1B}", "\n", String(repeating: "x", count: 300), "ü", "\0",
    ]
    for _ in 0..<200 {
      let body = (0..<Int.random(in: 0...9, using: &random)).map { _ in pieces.randomElement(using: &random) ?? "" }
        .joined()
      let reason = response(body, Bool.random(using: &random) ? "text/html" : nil).reason ?? "none"
      #expect(!reason.isEmpty && reason.count <= 200)
      #expect(!reason.unicodeScalars.contains { $0.value < 0x20 || (0x7F..<0xA0).contains($0.value) })
    }
  }
}
