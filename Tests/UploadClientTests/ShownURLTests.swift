// URLs in lists, logs and messages.

import Testing

@testable import UploadClient

@Suite("A displayed URL")
struct ShownURLTests {
  @Test(
    "it has no user information, no values of its query and no fragment",
    arguments: [
      ("http://h/p", "http://h/p"), ("http://h", "http://h"), ("http://h/p/?", "http://h/p/?"),
      ("http://u:s@h/p?sig=s", "http://h/p?sig=..."), ("http://u@h?s", "http://h?..."),
      ("https://h/p?X-Amz-Signature=s&X-Amz-Date=s", "https://h/p?X-Amz-Signature=...&X-Amz-Date=..."),
      ("http://h/p?a=s&s&b=s=s", "http://h/p?a=...&...&b=..."), ("http://h/p?a=", "http://h/p?a=..."),
      ("http://h/p?&&a=s&", "http://h/p?a=..."), ("http://h/p#s", "http://h/p"),
      ("http://h/p?a=s#s", "http://h/p?a=..."),
      ("http://h/p#s?s", "http://h/p"), ("http://h/p?a=@s/:?s", "http://h/p?a=..."), ("u:s@h/p?s=s", "h/p?s=..."),
      ("", ""), ("?", "?"),
    ])
  func shown(_ url: String, _ shown: String) {
    #expect(UploadRequest.withoutSecrets(url) == shown)
    #expect(UploadRequest.withoutSecrets(shown) == shown, "also of one that is shown already")
    #expect(UploadRequest(url: url).description == "POST \(shown)")
  }

  @Test(
    "a server's text shows no value of a query, for a URL at any position",
    arguments: [
      ("Cannot POST /a?key=s", "Cannot POST /a?key=..."), ("no '/a?key=s&s' here", "no '/a?key=...&...' here"),
      ("<a?k=s>?k=s\"?k=s (http://h/?k=s)", "<a?k=...>?k=...\"?k=... (http://h/?k=...)"),
      ("{\"target\":\"/?k=s=s#s\",\"n\":1}", "{\"target\":\"/?k=...\",\"n\":1}"),
      ("why? a=b", "why? a=b"), ("why?", "why?"), ("?k=s", "?k=..."), ("a?b ?c", "a?b ?c"), ("", ""), ("no", "no"),
    ])
  func text(_ text: String, _ shown: String) {
    #expect(UploadRequest.withoutQueryValues(text) == shown)
    #expect(UploadRequest.withoutQueryValues(shown) == shown)
  }
}
