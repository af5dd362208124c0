import Testing

@testable import UploadClient

@Suite("URLs as people write them")
struct URLTests {
  @Test(
    "other letters than ASCII's are encoded: a host as in the DNS, all else in percent-encodings",
    arguments: [
      ("http://h/a?b", "http://h/a?b"), ("http://bücher.example", "http://xn--bcher-kva.example"),
      (
        "https://me:größe@BÜCHER.example:81/a/ü?q=ß#é",
        "https://me:gr%C3%B6%C3%9Fe@xn--bcher-kva.example:81/a/%C3%BC?q=%C3%9F#%C3%A9"
      ),
      ("http://日本語.jp/", "http://xn--wgv71a119e.jp/"), ("http://h/日", "http://h/%E6%97%A5"),
      ("http://[::1]:80/ü", "http://[::1]:80/%C3%BC"), ("größe", "größe"),
    ])
  func ascii(_ url: String, _ expected: String) { #expect(UploadRequest.ascii(url) == expected) }

  @Test("a host that no DNS can have is none")
  func noHost() {
    #expect(UploadRequest.ascii("http://\u{FFFD}ü\u{200E}.example/") == nil)
  }

  @Test(
    "a file's name goes where the path names none, before the query",
    arguments: [
      ("http://h/d/?", "http://h/d/?"), ("http://h", "http://h/n%20%C3%BC"), ("http://h/", "http://h/n%20%C3%BC"),
      ("http://h/d", "http://h/d"),
      ("http://h/d/", "http://h/d/n%20%C3%BC"), ("http://h/d/?q=/", "http://h/d/n%20%C3%BC?q=/"),
      ("http://h?q", "http://h/n%20%C3%BC?q"),
      ("http://h/d?q=/", "http://h/d?q=/"), ("http://h#f", "http://h/n%20%C3%BC#f"),
      ("http://u:p@h:1", "http://u:p@h:1/n%20%C3%BC"),
    ])
  func appending(_ url: String, _ expected: String) {
    #expect(UploadRequest.appending(fileName: "n ü", to: url) == expected)
  }
}
