// Media types: each form of RFC 9110, section 8.3.1, and text that only resembles one.

import HTTPMessages
import Testing

@Suite("Media types")
struct MediaTypeTests {
  @Test(
    "a media type is a type, a subtype and any number of parameters",
    arguments: [
      "text/html;charset=utf-8", "Text/HTML;Charset=\"utf-8\"", "text/html; charset=\"utf-8\"", "text/plain",
      "application/vnd.api+json", "!#$%&'*+-.^_`|~0aZ/!#$%&'*+-.^_`|~0aZ", "text/plain;", "text/plain ; ",
      "text/plain;;charset=utf-8; ;", "text/plain\t;\ta=1 ;\tb=2", " text/plain ", "a/b; c=\"\"",
      #"multipart/mixed; boundary="a;b=\"c\"/ \\ (d)""#, "a/b; c=\"\u{E9}\t\"", #"a/b; c="\é""#, "a/b;a=1;a=2",
    ])
  func valid(_ text: String) { #expect(MediaType.isValid(text)) }

  @Test(
    "other text is not a media type",
    arguments: [
      "", " ", "=", "/", "text", "text/", "/plain", "text/plain/x", "text//plain", "text / plain", "text/ plain",
      "text/plain x", "text/plain, text/html", "text/plain charset=utf-8", "text/plain; charset",
      "text/plain; charset=", "text/plain; =utf-8", "text/plain; charset = utf-8", "text/plain; charset= utf-8",
      "text/plain; charset=utf 8",
      "text/plain; charset=\"utf-8", "text/plain; charset=\"utf-8\\\"", "text/plain; charset=\"utf-8\\",
      "text/plain; charset=\"utf-8\"x", "text/plain; charset=x\"utf-8\"", "text/plain; charset='\"", "\"text\"/plain",
      "t\u{E9}xt/plain", "text/pl\u{E4}in", "text/plain; a=\u{E9}", "text/plain\r\n", "text/plain; a=\"\u{0}\"",
      "text/plain; a=\"\\\u{7F}\"", "text/plain\u{37E}a=b", "(text)/plain", "text@plain",
    ])
  func invalid(_ text: String) { #expect(!MediaType.isValid(text)) }
}
