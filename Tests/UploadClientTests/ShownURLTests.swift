// URLs in lists, logs and messages.

import Testing

@testable import UploadClient

@Suite("A URL as people see it")
struct ShownURLTests {
  @Test(
    "it has neither user information nor the values of its query nor a fragment",
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
}
