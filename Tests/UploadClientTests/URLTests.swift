import Glibc
import Testing

@testable import UploadClient

@Suite("User input of URLs")
struct URLTests {
  @Test(
    "non-ASCII characters are encoded: in a host as in the DNS, and elsewhere as percent-encodings",
    arguments: [
      ("http://h/a?b", "http://h/a?b"), ("http://bücher.example", "http://xn--bcher-kva.example"),
      (
        "https://me:größe@BÜCHER.example:81/a/ü?q=ß#é",
        "https://me:gr%C3%B6%C3%9Fe@xn--bcher-kva.example:81/a/%C3%BC?q=%C3%9F#%C3%A9"
      ),
      ("http://日本語.jp/", "http://xn--wgv71a119e.jp/"), ("http://h/日", "http://h/%E6%97%A5"),
      ("http://h/\u{C0}", "http://h/%C3%80"),
      ("http://[::1]:80/ü", "http://[::1]:80/%C3%BC"), ("größe", "größe"),
    ])
  func ascii(_ url: String, _ expected: String) { #expect(UploadRequest.ascii(url) == expected) }

  @Test("a host that is invalid in the DNS is refused")
  func noHost() {
    #expect(UploadRequest.ascii("http://\u{FFFD}ü\u{200E}.example/") == nil)
  }

  @Test("the conversion of a host leaves the thread its character set")
  func locale() {
    let before = uselocale(nil)
    #expect(UploadRequest.ascii("http://b\u{FC}cher.example/") == "http://xn--bcher-kva.example/")
    #expect(UploadRequest.ascii("http://\u{FFFD}\u{FC}\u{200E}.example/") == nil)
    let after = uselocale(nil)
    #expect(after == before)
  }

  @Test(
    "a URL is usable if it names a host and a port for a connection",
    arguments: [
      ("http://h", true), ("https://h:8/a?b", true), ("http:///h", false), ("h", false), ("ftp://h", false),
      ("http://h:0", false), ("", false),
    ])
  func usable(_ url: String, _ isUsable: Bool) { #expect(UploadRequest(url: url).hasUsableURL == isUsable) }

  @Test(
    "an address in a URL has a family, and a name has none",
    arguments: [
      ("http://127.0.0.1:8/", .ipv4), ("http://[::1]/", .ipv6), ("http://h/", nil), ("http://localhost:1", nil),
      ("h", nil),
    ] as [(String, UploadRequest.AddressFamily?)])
  func family(_ url: String, _ family: UploadRequest.AddressFamily?) {
    #expect(UploadRequest(url: url).literalFamily == family)
  }

  @Test(
    "a file's name is added if the path has none, before the query",
    arguments: [
      ("http://h/d/?", "http://h/d/?"), ("http://h", "http://h/n%20%C3%BC"), ("http://h/", "http://h/n%20%C3%BC"),
      ("http://h/d", "http://h/d"),
      ("http://h/d/", "http://h/d/n%20%C3%BC"), ("http://h/d/?q=/", "http://h/d/n%20%C3%BC?q=/"),
      ("http://h?q", "http://h/n%20%C3%BC?q"),
      ("http://h/d?q=/", "http://h/d?q=/"), ("http://h#f", "http://h/n%20%C3%BC#f"),
      ("http://u:p@h:1", "http://u:p@h:1/n%20%C3%BC"),
    ])
  func appending(_ url: String, _ expected: String) {
    #expect(UploadRequest.appending(nameOf: "/d/n ü", to: url) == expected)
  }
}
