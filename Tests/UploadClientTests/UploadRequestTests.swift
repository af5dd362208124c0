import Testing

@testable import UploadClient

@Suite("Valid requests")
struct UploadRequestTests {
  private func refusal(_ url: String = "http://h/", _ change: (inout UploadRequest) -> Void) -> String? {
    var request = UploadRequest(url: url)
    change(&request)
    do throws(UploadError) {
      try request.validate()
      return nil
    } catch {
      return error.kind == .invalidRequest ? error.description : "kind \(error.kind)"
    }
  }

  @Test("a bearer token consists of printable ASCII characters without space")
  func token() {
    #expect(!UploadRequest.canSend(token: ""))
    for byte in UInt8.min ... .max {
      let character = String(Unicode.Scalar(byte))
      for token in [character, "a" + character, character + "a"] {
        #expect(UploadRequest.canSend(token: token) == (0x21...0x7E).contains(byte), "\(byte)")
      }
    }
  }

  @Test("an ordinary request is valid, with any text that a field may contain")
  func fine() {
    #expect(refusal { _ in } == nil)
    #expect(
      refusal { $0.fields = ["X-Zelle": "Küche \t 3 \"a\"; b=c", "Empty": ""] }
        == nil)
    #expect(refusal("https://user:word@[::1]:8443/a%20b?c#d") { $0.method = "PUT" } == nil)
  }

  @Test(
    "a value that would begin another field is refused (header injection)",
    arguments: ["a\r\nEvil: 1", "a\nEvil: 1", "a\r", "a\u{0}b", "a\u{7F}"])
  func injectedValue(_ value: String) {
    #expect(
      refusal { $0.fields = ["X": value] }?.contains("field X has control characters") == true)
  }

  @Test("a name that is not a token is refused", arguments: ["", "a b", "a:b", "X\r\nEvil", "Größe", "a\u{0}"])
  func injectedName(_ name: String) {
    let message = refusal { $0.fields = [name: "v"] }
    #expect(message?.contains("the field name \(quoted(name)) is invalid") == true)
    // The message is a single line for any input.
    #expect(message?.contains { $0.isNewline } == false)
  }

  @Test("only the fields of the protocol and of the connection are reserved, in any case")
  func reserved() {
    for name in [
      "Upload-Offset", "upload-complete", "UPLOAD-LIMIT", "Stream-ID", "stream-offset", "Content-Length", "TE",
      "Transfer-Encoding", "Expect", "Connection", "Incremental",
    ] { #expect(UploadRequest.isReserved(fieldName: name), "\(name)") }
    // The last one begins with the Kelvin sign, which `lowercased()` converts to k.
    for name in [
      "X-Upload-Offset", "Uploads", "Streams", "Content-Type", "X-TE", "Authorization", "\u{212A}eep-Alive",
    ] {
      #expect(!UploadRequest.isReserved(fieldName: name), "\(name)")
    }
  }

  @Test("a method that is not a token is refused", arguments: ["", "PO ST", "GET / HTTP/1.1\r\nX:"])
  func method(_ method: String) {
    #expect(refusal { $0.method = method }?.contains("the method") == true)
  }

  @Test(
    "an invalid token is refused, and not displayed",
    arguments: ["", "two words", "line\r\nEvil: 1", "schlüssel"])
  func token(_ token: String) {
    let message = refusal { $0.bearerToken = token }
    #expect(message?.contains("bearer token") == true)
    #expect(token.isEmpty || message?.contains(token) == false)
  }

  @Test(
    "an invalid URL is refused with a reason",
    arguments: [
      "", "http://", "http://host:port/", "http://host:99999/", "http://a b/", "http://h/a\r\nEvil: 1", "http://[::1/",
      "localhost:8080/x", "ftp://host/", "file:///etc/passwd", "unix:/a",
    ])
  func url(_ url: String) {
    #expect(refusal(url) { _ in }?.contains("URL") == true)
  }

  @Test(
    "fields for the length of the body are not available to the caller, because they would break its framing",
    arguments: ["Content-Length", "transfer-encoding", "TE", "Trailer"])
  func framing(_ name: String) {
    let refused = ["Content-Length", "transfer-encoding"].contains(name)
    #expect((refusal { $0.fields = [name: "5"] } != nil) == refused)
  }

  @Test("the description of a request contains no secrets, in any form")
  func secrets() {
    var request = UploadRequest(url: "http://me:pass-secret@host/kitchen")
    request.bearerToken = "token-secret"
    request.proxy = "http://p:proxy-secret@proxy:3128"
    request.fields = ["Authorization": "field-secret"]
    var dumped = ""
    dump(request, to: &dumped)
    for text in ["\(request)", String(reflecting: request), dumped] {
      #expect(!text.contains("secret"), "\(text)")
      #expect(text.contains("host/kitchen"))
    }
  }

  @Test("a debugger shows which secrets a request has, and none of them", arguments: [true, false])
  func mirror(isSecret: Bool) {
    var request = UploadRequest(url: isSecret ? "http://me:word@h/a?b=c" : "http://h/a")
    request.fields = ["A": "b"]
    if isSecret { (request.bearerToken, request.proxy) = ("token", "http://p:word@proxy") }
    let shown = Mirror(reflecting: request).children.map { "\($0.label ?? ""): \($0.value)" }
    #expect(
      shown == [
        isSecret ? "url: http://h/a?b=..." : "url: http://h/a", "method: POST", "fields: [\"A\"]",
        isSecret ? "bearerToken: given" : "bearerToken: none", isSecret ? "proxy: http://proxy" : "proxy: none",
      ])
  }

  @Test("an error about a URL does not contain its password")
  func passwordInURL() {
    let message = refusal("http://me:pass-secret@host:port/") { _ in }
    #expect(message?.contains("http://host:port/") == true && message?.contains("secret") == false)
    let noScheme = refusal("me:pass-secret@host/") { _ in }
    #expect(noScheme?.contains("http://host/") == true && noScheme?.contains("secret") == false)
  }

  @Test("a Location with a host that is not ASCII text after decoding is refused")
  func decodedHost() {
    let request = UploadRequest(url: "http://host/x")
    #expect(request.resolving(location: "http://h%C3%BC/y") == nil)
    #expect(request.resolving(location: "http://other/y") == "http://other/y")
  }
}
