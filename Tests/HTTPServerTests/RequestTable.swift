// Valid and invalid requests, each with the expected result: from our parser, and from nginx, which was tested with the
// same bytes. Where the two differ, the row has the reason.

import Testing

/// One row: raw bytes, and the result of their first request.
struct RequestCase: Sendable, CustomTestStringConvertible {
  let name: String
  let raw: String
  /// `"accepted"`, `"incomplete"` or the status of the refusal.
  let verdict: String
  /// nil if nginx decides alike (accepts, or refuses with any status), and otherwise the reason.
  let nginxDiffers: String?

  var octets: [UInt8] { raw.unicodeScalars.map { UInt8(truncatingIfNeeded: $0.value) } }
  var testDescription: String { name }

  /// `raw` is Latin-1, so a scalar is an octet.
  init(_ name: String, _ raw: String, _ verdict: String, nginxDiffers: String? = nil) {
    self.name = name
    self.raw = raw
    self.verdict = verdict
    self.nginxDiffers = nginxDiffers
  }
}

private let get = "GET / HTTP/1.1\r\nHost: h\r\n"
private let put = "PUT /t HTTP/1.1\r\nHost: h\r\n"
private let chunked = put + "Transfer-Encoding: chunked\r\n\r\n"

extension RequestCase {
  static let requestLines: [RequestCase] = [
    .init("a plain request", get + "\r\n", "accepted"),
    .init("an empty line before the request", "\r\n" + get + "\r\n", "accepted"),
    .init("an absolute form", "GET http://h/x HTTP/1.1\r\nHost: h\r\n\r\n", "accepted"),
    .init("an absolute form without a path", "GET http://h HTTP/1.1\r\nHost: h\r\n\r\n", "accepted"),
    .init(
      "user information in an absolute form", "GET http://u@h/ HTTP/1.1\r\nHost: h\r\n\r\n", "400",
      nginxDiffers: nil),
    .init("a target that is not a path", "GET x HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
    .init("another scheme", "GET ftp://h/ HTTP/1.1\r\nHost: h\r\n\r\n", "400", nginxDiffers: "it does not look at it"),
    .init("no target", "GET  HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
    .init("two spaces", "GET  / HTTP/1.1\r\nHost: h\r\n\r\n", "400", nginxDiffers: "it skips spaces"),
    .init("a tab", "GET\t/ HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
    .init("a space at the end", "GET / HTTP/1.1 \r\nHost: h\r\n\r\n", "400", nginxDiffers: "it skips spaces"),
    .init("a space in the target", "GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
    .init("no version", "GET /\r\nHost: h\r\n\r\n", "400", nginxDiffers: "it still speaks HTTP/0.9"),
    .init("version 0.9", "GET / HTTP/0.9\r\nHost: h\r\n\r\n", "505"),
    .init("version 1.0", "GET / HTTP/1.0\r\n\r\n", "accepted"),
    .init("version 1.9", "GET / HTTP/1.9\r\nHost: h\r\n\r\n", "accepted"),
    .init("version 2.0", "GET / HTTP/2.0\r\nHost: h\r\n\r\n", "505"),
    .init("version 1.10", "GET / HTTP/1.10\r\nHost: h\r\n\r\n", "400", nginxDiffers: "it reads numbers of any length"),
    .init("a version in lower case", "GET / http/1.1\r\nHost: h\r\n\r\n", "400"),
    .init("the preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505"),
    .init("a method that is not a token", "G(T / HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
    .init("no method", " / HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
    .init("TLS", "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0", "400"),
    .init("broken percent-encoding", "GET /%zz HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
    .init("percent-encoding cut short", "GET /%2 HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
    .init("an encoded NUL", "GET /%00 HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
    .init("a NUL in the target", "GET /\0 HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
    .init("a fragment", "GET /#a HTTP/1.1\r\nHost: h\r\n\r\n", "400", nginxDiffers: "it cuts it off"),
    .init("octets above ASCII", "GET /\u{fc} HTTP/1.1\r\nHost: h\r\n\r\n", "400", nginxDiffers: "it takes them"),
    .init("a request line too long", "GET /" + String(repeating: "a", count: 9000) + " HTTP/1.1\r\n\r\n", "414"),
    .init(
      "LF alone after the request line", "GET / HTTP/1.1\nHost: h\r\n\r\n", "400", nginxDiffers: "it allows bare LF"),
    .init("CR alone in the request line", "GET /\r HTTP/1.1\r\nHost: h\r\n\r\n", "400"),
  ]

  static let fields: [RequestCase] = [
    .init("no Host", "GET / HTTP/1.1\r\n\r\n", "400"),
    .init("two Hosts", get + "Host: h\r\n\r\n", "400"),
    .init("two Hosts in HTTP/1.0", "GET / HTTP/1.0\r\nHost: h\r\nHost: h\r\n\r\n", "400"),
    .init("a malformed Host", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", "400"),
    .init("a Host that is IPv6 with a port", "GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", "accepted"),
    .init("a space before the colon", get + "A : b\r\n\r\n", "400"),
    .init("a field without a colon", get + "A\r\n\r\n", "400", nginxDiffers: "it ignores invalid fields by default"),
    .init("a field without a name", get + ": b\r\n\r\n", "400"),
    .init(
      "an invalid field name", get + "A(b: c\r\n\r\n", "400", nginxDiffers: "it ignores invalid fields by default"),
    .init("a name above ASCII", get + "\u{e4}: b\r\n\r\n", "400", nginxDiffers: "it ignores invalid fields by default"),
    .init("folded over two lines", get + "A: b\r\n c\r\n\r\n", "400"),
    .init("an empty value", get + "A:\r\n\r\n", "accepted"),
    .init("spaces and tabs around a value", get + "A: \t b \t\r\n\r\n", "accepted"),
    .init("a value above ASCII", get + "A: \u{fc}\r\n\r\n", "accepted"),
    .init("a NUL in a value", get + "A: b\0c\r\n\r\n", "400"),
    .init("a control character in a value", get + "A: b\u{1}c\r\n\r\n", "400", nginxDiffers: "it looks for NUL only"),
    .init("DEL in a value", get + "A: b\u{7f}c\r\n\r\n", "400", nginxDiffers: "it looks for NUL only"),
    .init("LF alone after a field", get + "A: b\n\r\n", "400", nginxDiffers: "it allows bare LF"),
    .init("LF alone at the end of the head", get + "\n", "400", nginxDiffers: "it allows bare LF"),
    .init("CR alone in a value", get + "A: b\rc\r\n\r\n", "400"),
    .init(
      "too many fields", get + String(repeating: "A: b\r\n", count: 100) + "\r\n", "431", nginxDiffers: "no such limit"),
    .init("as many fields as allowed", get + String(repeating: "A: b\r\n", count: 99) + "\r\n", "accepted"),
    .init("a head too long", get + "A: " + String(repeating: "b", count: 17_000) + "\r\n\r\n", "431"),
    .init("another expectation", get + "Expect: 200-ok\r\n\r\n", "417", nginxDiffers: "it ignores other expectations"),
  ]

  static let framing: [RequestCase] = [
    .init("a sized body", put + "Content-Length: 3\r\n\r\nabc", "accepted"),
    .init("a sized body, cut short", put + "Content-Length: 3\r\n\r\nab", "incomplete"),
    .init("an empty sized body", put + "Content-Length: 0\r\n\r\n", "accepted"),
    .init("a chunked body", chunked + "3\r\nabc\r\n0\r\n\r\n", "accepted"),
    .init(
      "chunk sizes in either case, with zeros", chunked + "0A\r\n0123456789\r\na\r\n0123456789\r\n00\r\n\r\n",
      "accepted"),
    .init("a chunk extension", chunked + "3;a=b;c=\"d\"\r\nabc\r\n0\r\n\r\n", "accepted"),
    .init("trailers", chunked + "0\r\nA: b\r\nC:\r\n\r\n", "accepted"),
    .init("Transfer-Encoding in capitals", put + "Transfer-Encoding: CHUNKED\r\n\r\n0\r\n\r\n", "accepted"),
    .init("length and chunked", put + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"),
    .init("chunked and length", put + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", "400"),
    .init("two equal lengths", put + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", "400"),
    .init("two different lengths", put + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "400"),
    .init("a list of lengths", put + "Content-Length: 3, 3\r\n\r\nabc", "400"),
    .init("a length with a sign", put + "Content-Length: +3\r\n\r\nabc", "400"),
    .init("a negative length", put + "Content-Length: -3\r\n\r\nabc", "400"),
    .init("a length in hexadecimal", put + "Content-Length: 0x3\r\n\r\nabc", "400"),
    .init("an empty length", put + "Content-Length:\r\n\r\n", "400"),
    .init("a length beyond 63 bits", put + "Content-Length: 9223372036854775808\r\n\r\n", "413"),
    .init("a length of many digits", put + "Content-Length: 99999999999999999999999999\r\n\r\n", "413"),
    .init("another transfer coding", put + "Transfer-Encoding: gzip, chunked\r\n\r\n", "501"),
    .init("chunked before another coding", put + "Transfer-Encoding: chunked, gzip\r\n\r\n", "501"),
    .init("identity", put + "Transfer-Encoding: identity\r\n\r\n", "501"),
    .init("chunked twice", put + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"),
    .init("chunked, misspelt", put + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "501"),
    .init("chunked with the Kelvin sign", put + "Transfer-Encoding: chun\u{e2}\u{84}\u{aa}ed\r\n\r\n0\r\n\r\n", "400"),
    .init("chunked after an empty element", put + "Transfer-Encoding: ,chunked\r\n\r\n0\r\n\r\n", "400"),
    .init("chunked before an empty element", put + "Transfer-Encoding: chunked,\r\n\r\n0\r\n\r\n", "400"),
    .init("chunked between empty elements", put + "Transfer-Encoding: ,chunked,\r\n\r\n0\r\n\r\n", "400"),
    .init("chunked twice in a list", put + "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", "400"),
    .init("chunked in quotes", put + "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n", "501"),
    .init("chunked with a parameter", put + "Transfer-Encoding: chunked;a=b\r\n\r\n0\r\n\r\n", "501"),
    .init(
      "another transfer coding in a line of its own",
      put + "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "501"),
    .init("an empty Transfer-Encoding", put + "Transfer-Encoding:\r\n\r\n", "400"),
    .init("chunked in HTTP/1.0", "PUT / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"),
    .init("a chunk size that is not a number", chunked + "x\r\n\r\n", "400"),
    .init("a chunk size with a sign", chunked + "+3\r\nabc\r\n0\r\n\r\n", "400"),
    .init("a chunk size with 0x", chunked + "0x3\r\nabc\r\n0\r\n\r\n", "400"),
    .init("blanks after a chunk size", chunked + "3 \t\r\nabc\r\n0 \r\n\r\n", "accepted"),
    .init("blanks before a chunk extension", chunked + "3 \t;a=b\r\nabc\r\n0\t;c\r\n\r\n", "accepted"),
    .init(
      "a second chunk size behind a blank", chunked + "3 4\r\nabc\r\n0\r\n\r\n", "400",
      nginxDiffers: "it skips what follows"),
    .init("a blank in front of a chunk size", chunked + " 3\r\nabc\r\n0\r\n\r\n", "400"),
    .init("LF alone after a blank", chunked + "3 \nabc\r\n0\r\n\r\n", "400", nginxDiffers: "it allows bare LF"),
    .init(
      "too many blanks after a chunk size", chunked + "3" + String(repeating: " ", count: 300) + "\r\nabc\r\n0\r\n\r\n",
      "400", nginxDiffers: "no such limit"),
    .init("no chunk size", chunked + "\r\n", "400"),
    .init("a chunk size beyond 64 bits", chunked + "10000000000000000\r\n", "400"),
    .init("a chunk size of 64 bits", chunked + "ffffffffffffffff\r\n", "400"),
    .init(
      "a chunk size of many zeros", chunked + "00000000000000003\r\nabc\r\n0\r\n\r\n", "400",
      nginxDiffers: "it counts the value, not the digits"),
    .init("a chunk longer than its size", chunked + "3\r\nabcd\r\n0\r\n\r\n", "400"),
    .init("a chunk longer than its size, and LF where it should end", chunked + "3\r\nabcd\n0\r\n\r\n", "400"),
    .init("LF alone after a chunk size", chunked + "3\nabc\r\n0\r\n\r\n", "400", nginxDiffers: "it allows bare LF"),
    .init("LF alone after a chunk", chunked + "3\r\nabc\n0\r\n\r\n", "400", nginxDiffers: "it allows bare LF"),
    .init(
      "a chunk extension too long", chunked + "3;" + String(repeating: "a", count: 300) + "\r\nabc\r\n0\r\n\r\n", "400",
      nginxDiffers: "no such limit"),
    .init(
      "a control character in a chunk extension", chunked + "3;a\0\r\nabc\r\n0\r\n\r\n", "400",
      nginxDiffers: "it skips what follows"),
    .init(
      "a trailer that is folded", chunked + "0\r\nA: b\r\n c\r\n\r\n", "400", nginxDiffers: "it skips trailers unread"),
    .init(
      "trailers too long", chunked + "0\r\n" + String(repeating: "A: b\r\n", count: 2000) + "\r\n", "431",
      nginxDiffers: "it skips trailers unread"),
  ]

  static let all = requestLines + fields + framing
}
