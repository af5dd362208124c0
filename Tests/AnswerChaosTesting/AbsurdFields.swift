// Field values and bytes that no server should send, but some do.

import PropertyTesting

enum AbsurdFields {
  /// The fields of a proper answer of the protocol.
  static let own = [
    "Upload-Offset", "Upload-Complete", "Upload-Limit", "Location", "Upload-Draft-Interop-Version", "Content-Length",
  ]
  static let all =
    own + [
      "Retry-After", "Stream-Offset", "Connection", "Transfer-Encoding", "Content-Type", "Stream-Missing", "Set-Cookie",
    ]

  private static let numbers = [
    "-1", "1, 2", "99999999999999999999999", "18446744073709551615", "18446744073709551616", "999999999999999",
    "9223372036854775807", "0x10", "1.5", "", " ", "one", "+5", "\"7\"", "?1", "1;a=b", "00000000000000000000001", "0",
    "1",
    "1000000",
  ]

  private static let values: [String: [String]] = [
    "Upload-Offset": numbers,
    "Stream-Offset": numbers,
    "Stream-Missing": numbers,
    "Content-Length": ["-1", "99999999999999999999999", "5", "1, 2", "", "abc", "1000000"],
    "Upload-Complete": ["perhaps", "?2", "1", "true", "", "?1, ?0", "?1;a", "?0", "?1", "?"],
    "Upload-Limit": [
      "max-append-size=\"much\"", "max-size", "=", "max-size=-1", "max-age=99999999999999999999",
      "min-size=0,min-size=0",
      "max-append-size=-5", "max-append-size=999999999999999", String(repeating: "a=1,", count: 500) + "a=1",
      "max-age=0",
      "min-append-size=999999999999999", "max-append-size=0", "max-size=0", "max-append-size=1000",
    ],
    "Location": [
      "", "http://[", "/login", "//", "http://127.0.0.1:1/x", "ftp://127.0.0.1/x", "javascript:alert(1)",
      "/" + String(repeating: "x", count: 4000), "/uploads/999", "\u{1B}[2J", "http://user:secret@127.0.0.1:1/x", "?",
      "#",
      "https://127.0.0.1:1/uploads/0",
    ],
    "Upload-Draft-Interop-Version": ["8, 8", "", "0", "-1", "99999999999999999999", "eight", "3", "7", "2", "9"],
    "Retry-After": [
      "99999999999999999999", "-1", "0", "1", "Thu, 01 Jan 1970 00:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", "soon",
      "3600",
    ],
    "Connection": ["close", "upgrade", "keep-alive, close", ",,,", "Upload-Offset"],
    "Transfer-Encoding": ["chunked", "gzip, chunked", "identity", "chunked, chunked", "nonsense"],
    "Content-Type": ["text/html", "application/problem+json", "", String(repeating: "x", count: 2000)],
    "Set-Cookie": ["\u{1B}]0;title\u{7}", "a=b"],
  ]

  static func value(of name: String, _ random: inout SplitMix64) -> String {
    if name == "Upload-Offset", random.chance(40) { return "\(random.size(upTo: 40_000))" }
    return values[name]?.randomElement(using: &random) ?? "?"
  }

  static func someUnrelated(_ random: inout SplitMix64) -> [(name: String, value: String)] {
    ["Content-Type", "Location", "Retry-After", "Set-Cookie", "Connection", "Allow", "Server"].compactMap { name in
      guard random.chance(25) else { return nil }
      if name == "Allow" { return (name, random.chance(50) ? "GET, HEAD" : "OPTIONS, POST") }
      if name == "Server" { return (name, "nginx") }
      return (name, value(of: name, &random))
    }
  }

  /// An interim response: mostly a 104 that reports an offset.
  static func interim(_ random: inout SplitMix64) -> ReplyHead {
    if random.chance(25) {
      let status = [100, 101, 102, 103, 199].randomElement(using: &random) ?? 102
      return ReplyHead(status, random.chance(30) ? [("Upload-Offset", value(of: "Upload-Offset", &random))] : [])
    }
    var fields: [(name: String, value: String)] = [("Upload-Draft-Interop-Version", random.chance(85) ? "8" : "6")]
    if random.chance(80) { fields.append(("Upload-Offset", value(of: "Upload-Offset", &random))) }
    if random.chance(20) { fields.append(("Location", value(of: "Location", &random))) }
    if random.chance(20) { fields.append(("Upload-Limit", value(of: "Upload-Limit", &random))) }
    if random.chance(20) { fields.append(("Upload-Complete", value(of: "Upload-Complete", &random))) }
    return ReplyHead(104, fields)
  }
}

enum Garbage {
  /// - Parameter isHTTP2: whether to draw frames that violate HTTP/2, as often as bytes that are not HTTP/2.
  static func draw(_ isHTTP2: Bool, _ random: inout SplitMix64) -> [UInt8] {
    if isHTTP2, random.chance(60) { return frame(&random) }
    let texts = [
      "SSH-2.0-OpenSSH_9.2\r\n", "HTTP/1.1\r\n\r\n", "HTTP/3.0 200 OK\r\n\r\n", "HTTP/1.1 abc OK\r\n\r\n",
      "\r\n\r\n\r\n",
      "HTTP/1.1 99 Low\r\n\r\n", "HTTP/1.1 1000 High\r\n\r\n", "HTTP/1.1 -200 OK\r\n\r\n", "220 smtp ESMTP\r\n",
      "{\"error\":1}",
      "<html>hello</html>", "HTTP/1.1 200 OK\nUpload-Offset: 5\n\n", "HTTP/1.1 204 No\r\n: empty\r\n\r\n",
      "HTTP/1.1 204 No\r\n folded\r\n\r\n", "HTTP/1.1 204 No\r\nNoColon\r\n\r\n",
      "HTTP/1.1 204 No\r\nA\u{0}B: c\r\n\r\n",
      "ICY 200 OK\r\n\r\n", "HTTP/0.9 200\r\n\r\n", "\u{15}\u{3}\u{1}\u{0}\u{2}\u{2}\u{28}",
      "HTTP/1.1 200 " + String(repeating: "y", count: 9000) + "\r\n\r\n",
      "HTTP/1.1 204 No\r\nX: " + String(repeating: "z", count: 120_000) + "\r\n\r\n",
      String(repeating: "HTTP/1.1 102 Processing\r\n\r\n", count: 300),
    ]
    if random.chance(25) { return (0..<random.size(upTo: 4000)).map { _ in UInt8.random(in: 0...255, using: &random) } }
    return Array((texts.randomElement(using: &random) ?? "").utf8)
  }

  private static func frame(_ random: inout SplitMix64) -> [UInt8] {
    let length = random.chance(20) ? 0xFFFFFF : random.size(upTo: 64)
    let type = UInt8(random.chance(80) ? Int.random(in: 0...10, using: &random) : 0xFA)
    let stream: UInt8 = [0, 1, 1, 1, 2, 3, 5, 7].randomElement(using: &random) ?? 1
    let head = [
      UInt8(length >> 16), UInt8(length >> 8 & 0xFF), UInt8(length & 0xFF), type, .random(in: 0...255, using: &random),
      0, 0, 0, stream,
    ]
    return head + (0..<min(length, 64)).map { _ in UInt8.random(in: 0...255, using: &random) }
  }
}
