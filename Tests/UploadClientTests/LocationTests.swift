import PropertyTesting
import Testing

@testable import UploadClient

@Suite("Resolving a Location")
struct LocationTests {
  private func resolve(_ location: String, from url: String) -> String? {
    UploadRequest(url: url).resolving(location: location)
  }

  /// RFC 3986, section 5.4, whose base is `http://a/b/c/d;p?q`, without those of unsupported schemes.
  static let examples = [
    ("g", "http://a/b/c/g"), ("./g", "http://a/b/c/g"), ("g/", "http://a/b/c/g/"), ("/g", "http://a/g"),
    ("//g", "http://g/"), ("?y", "http://a/b/c/d;p?y"), ("g?y", "http://a/b/c/g?y"), ("#s", "http://a/b/c/d;p?q"),
    ("g#s", "http://a/b/c/g"), ("g?y#s", "http://a/b/c/g?y"), (";x", "http://a/b/c/;x"), ("g;x", "http://a/b/c/g;x"),
    ("g;x?y#s", "http://a/b/c/g;x?y"), (".", "http://a/b/c/"), ("./", "http://a/b/c/"), ("..", "http://a/b/"),
    ("../", "http://a/b/"), ("../g", "http://a/b/g"), ("../..", "http://a/"), ("../../", "http://a/"),
    ("../../g", "http://a/g"),
    // Abnormal examples.
    ("../../../g", "http://a/g"), ("../../../../g", "http://a/g"), ("/./g", "http://a/g"), ("/../g", "http://a/g"),
    ("g.", "http://a/b/c/g."), (".g", "http://a/b/c/.g"), ("g..", "http://a/b/c/g.."), ("..g", "http://a/b/c/..g"),
    ("./../g", "http://a/b/g"), ("./g/.", "http://a/b/c/g/"), ("g/./h", "http://a/b/c/g/h"),
    ("g/../h", "http://a/b/c/h"), ("g;x=1/./y", "http://a/b/c/g;x=1/y"), ("g;x=1/../y", "http://a/b/c/y"),
    ("g?y/./x", "http://a/b/c/g?y/./x"), ("g?y/../x", "http://a/b/c/g?y/../x"), ("g#s/./x", "http://a/b/c/g"),
    ("g#s/../x", "http://a/b/c/g"),
  ]

  @Test("references are resolved as in the examples of RFC 3986", arguments: examples)
  func standard(_ reference: String, _ expected: String) {
    #expect(resolve(reference, from: "http://a/b/c/d;p?q") == expected)
  }

  static let table = [
    ("http://h/files", "/up/1", "http://h/up/1"),
    ("http://h:8080/files/", "1", "http://h:8080/files/1"),
    ("http://h", "1", "http://h/1"),
    ("http://h?where=/x/y", "1", "http://h/1"),
    ("http://h/a?q=/x/", "?r", "http://h/a?r"),
    ("http://h/a?q", "b?c?d/e", "http://h/b?c?d/e"),
    ("http://h/a", "http://other/b?c", "http://other/b?c"),
    ("http://h/a", "HTTPS://Other:0443/b", "https://other/b"),
    ("https://h/a", "//other:99/b", "https://other:99/b"),
    ("http://[2001:DB8:0:0::1]:8080/a", "b", "http://[2001:db8::1]:8080/b"),
    ("http://[::1]/a", "http://[::2]:5/b", "http://[::2]:5/b"),
    ("http://[fe80::1%25eth0]/a", "b", "http://[fe80::1%25eth0]/b"),
    // Names keep the case of their percent-encodings.
    ("http://h/a%2Fb/c", "d%2Fe?f=%2F", "http://h/a%2Fb/d%2Fe?f=%2F"),
    ("http://h/a", "/b%3Fc", "http://h/b%3Fc"),
    ("http://h/x/y", "/a//b/", "http://h/a//b/"),
    ("http://me:w@b\u{FC}cher.example/\u{FC}/a", "b", "http://me:w@b\u{FC}cher.example/\u{FC}/b"),
    // Its second octet is 0x80.
    ("http://h/\u{C0}/a", "b", "http://h/\u{C0}/b"),
    ("http://h/x:y/z", "./k:v", "http://h/x:y/k:v"),
    ("http://me@h/a", "b", "http://me@h/b"),
  ]

  @Test("whole URLs, other hosts, IPv6, queries", arguments: table)
  func others(_ base: String, _ reference: String, _ expected: String) {
    #expect(resolve(reference, from: base) == expected)
  }

  @Test(
    "a value that is not a reference to an http or https URL is refused",
    arguments: [
      "", " ", "/a b", "/a\r\nX: 1", "/a\u{0}", "/a\u{7F}", "/\u{E4}", "ftp://h/", "file:///etc/passwd",
      "javascript:alert(1)",
      "http://", "http:///", "http://h:port/", "http://h:99999/", "http://h:0/", "http://[::1/", "http://a b/", "//",
      "http://h\\@other/", "http:g", "mailto:me@h", "a:b", "http://:80/",
    ])
  func garbage(_ location: String) {
    let found = resolve(location, from: "http://h/a")
    // libcurl treats the text before the @ as a name. Then it is another host, and reported as one.
    #expect(found == nil || found == "http://other/", "\(location) → \(found ?? "")")
  }

  @Test("user and password are sent only to the same origin, and a server's own are never used")
  func credentials() {
    let base = "http://me:se%40cret@h:8080/a"
    for (location, expected) in [
      ("b", "http://me:se%40cret@h:8080/b"), ("/b?c", "http://me:se%40cret@h:8080/b?c"),
      ("http://H:8080/b", "http://me:se%40cret@h:8080/b"), ("//h:8080/b", "http://me:se%40cret@h:8080/b"),
      ("http://you:x@h:8080/b", "http://me:se%40cret@h:8080/b"),
      ("http://h/b", "http://h/b"), ("https://h:8080/b", "https://h:8080/b"), ("//other/b", "http://other/b"),
      ("http://you:x@other/b", "http://other/b"), ("http://me:se%40cret@h:8080@other/b", nil),
    ] {
      #expect(resolve(location, from: base) == expected)
    }
  }

  @Test("the origin can be kept: path and query of the Location, and the rest unchanged")
  func keepingOrigin() {
    let request = UploadRequest(url: "https://me:word@h:8443/files?x")
    for (location, expected) in [
      ("http://localhost:1080/up/1?k=%2F", "https://me:word@h:8443/up/1?k=%2F"),
      ("/up/1", "https://me:word@h:8443/up/1"),
      ("//you:x@other", "https://me:word@h:8443/"), ("1", "https://me:word@h:8443/1"),
    ] {
      #expect(request.keepingOrigin(ofLocation: location) == expected)
    }
    #expect(request.keepingOrigin(ofLocation: "") == nil && request.keepingOrigin(ofLocation: "ftp://h/x") == nil)
  }

  @Test("an origin has one form")
  func origins() {
    for (url, expected) in [
      ("http://h", "http://h:80"), ("HTTP://H:80/a?b#c", "http://h:80"), ("https://u:p@h/", "https://h:443"),
      ("http://h:0080/", "http://h:80"), ("http://[0:0:0:0:0:0:0:1]:81/", "http://[::1]:81"),
      ("http://[::1%25lo]/", "http://[::1%25lo]:80"), ("http://h./", "http://h.:80"), ("ftp://h/", nil), ("h", nil),
      ("/a", nil), ("", nil),
    ] {
      #expect(UploadRequest.origin(of: url) == expected)
    }
  }

  @Test("no secret is sent to another origin, and on the same one the request is unchanged")
  func directed() {
    var request = UploadRequest(url: "https://me:url-secret@h/files")
    request.bearerToken = "token-secret"
    request.netrcFile = "/netrc-secret"
    request.clientCertificate = "/certificate-secret"
    request.clientKey = "/key-secret"
    request.unixSocket = "/socket-secret"
    request.proxy = "http://proxy:3128"
    request.certificateAuthorities = "/authorities"
    request.addressFamily = .ipv4
    request.fields = [
      "Authorization": "field-secret", "cookie": "field-secret", "X-Api-Key": "field-secret",
      "Content-Type": "audio/wav", "Upload-Complete": "?0", "Repr-Digest": "sha-256=:AA==:",
    ]
    var home = request
    home.url = request.resolving(location: "/up/1") ?? ""
    #expect(request.directed(to: home.url) == home && home.url == "https://me:url-secret@h/up/1")
    for location in ["https://other/1", "http://h/1", "https://h:444/1", "//other"] {
      let away = request.directed(to: request.resolving(location: location) ?? "")
      var dumped = ""
      for child in Mirror(reflecting: away.fields.all).children { dump(child.value, to: &dumped) }
      dumped += [away.url, away.bearerToken, away.netrcFile, away.clientCertificate, away.clientKey, away.unixSocket]
        .map { $0 ?? "" }.joined(separator: " ")
      #expect(!dumped.contains("secret"), "\(dumped)")
      #expect(away.fields.all.map(\.rawName) == ["Content-Type", "Upload-Complete", "Repr-Digest"])
      #expect(away.proxy == request.proxy && away.certificateAuthorities == "/authorities")
      #expect(away.addressFamily == .ipv4 && away.limits == request.limits)
    }
  }

  @Test(
    "the result of any Location can be sent, and has our credentials only at the same origin",
    arguments: Seed.several(8))
  func anything(_ seed: Seed) {
    var random = seed.generator
    let pieces = [
      "http:", "https:", "//", "/", "///", "..", ".", "?", "#", "@", ":", "me", "word", "h", "other", "8080", "80",
      "[::1]",
      "[", "]", "%", "%2f", "%2F", "%00", "\\", " ", "\t", "\r\n", "&", "=", ";", "a", "\u{E9}", "..%2f", "h:8080",
    ]
    let base = "http://me:word@h:8080/a/b?c"
    let request = UploadRequest(url: base)
    var (draws, found, home) = (0, 0, 0)
    // The pieces are chosen such that everything occurs. The rarest, another origin, occurs once in a hundred and
    // twenty times.
    while found < 500 || home < 100 || found - home < 20, draws < 100_000 {
      draws += 1
      let location = (0..<Int.random(in: 1...8, using: &random)).map { _ in pieces.randomElement(using: &random) ?? "" }
        .joined()
      guard let url = request.resolving(location: location) else { continue }
      found += 1
      // It is a valid URL, and stays unchanged.
      #expect((try? UploadRequest(url: url).validate()) != nil, "\(location) → \(url)")
      #expect(UploadRequest(url: url).resolving(location: url) == url, "\(location) → \(url)")
      let isHome = UploadRequest.origin(of: url) == "http://h:8080"
      if isHome { home += 1 }
      #expect(url.contains("me:word@") == isHome, "\(location) → \(url)")
      #expect(request.keepingOrigin(ofLocation: location)?.hasPrefix("http://me:word@h:8080/") == true)
    }
    #expect(found >= 500 && home >= 100 && found - home >= 20, "\(draws) \(found) \(home)")
  }
}
