import PropertyTesting
import Testing

@testable import UploadClient

@Suite("Parsing of responses")
struct ResponseTests {
  private func heads(_ lines: String...) -> [HTTPResponse] {
    var assembler = ResponseHeadAssembler()
    return lines.compactMap { (line: String) in Array(line.utf8).withUnsafeBytes { assembler.take(line: $0) } }
  }

  @Test("interim heads and the final one arrive one by one, with fields in order and names as sent")
  func several() {
    let found = heads(
      "HTTP/1.1 103 Early Hints", "Link: </a>; rel=x", "Link: </b>", "", "HTTP/1.1 104 ", "Upload-Offset: 5", "",
      "HTTP/1.1 201 Created", "X-Empty:", "x-Spaced: \t a b \t", "Date: Fri, 20 Nov 2026 17:22:19 GMT", "")
    #expect(found.map(\.status) == [103, 104, 201])
    #expect(found.map(\.isInterim) == [true, true, false])
    #expect(found[0].fields == ["Link": "</a>; rel=x", "Link": "</b>"])
    #expect(found[2].fields.all.map(\.rawName) == ["X-Empty", "x-Spaced", "Date"])
    #expect(found[2]["X-EMPTY"] == "" && found[2]["X-Spaced"] == "a b")
    #expect(found[2]["date"] == "Fri, 20 Nov 2026 17:22:19 GMT")
    #expect(found[2]["absent"] == nil)
  }

  @Test("HTTP/2's status line without a reason is a head, and trailers after the last head are not")
  func http2AndTrailers() {
    var assembler = ResponseHeadAssembler()
    func take(_ lines: String...) -> [HTTPResponse] {
      lines.compactMap { (line: String) in Array(line.utf8).withUnsafeBytes { assembler.take(line: $0) } }
    }
    let found = take("HTTP/2 200 ", "a: 1", "", "Trailer: x", "")
    var expected = HTTPResponse(status: 200, fields: ["a": "1"])
    expected.version = .http2
    #expect(found == [expected])
    #expect(assembler.trailers == ["Trailer": "x"])
    #expect(found[0].fields.all.map(\.rawName) == ["a"] && assembler.trailers.all.map(\.rawName) == ["Trailer"])
    for number in 0..<1000 { #expect(take("t\(number): x").isEmpty) }
    #expect(assembler.trailers.all.count == 64, "a server cannot make it keep any number")
    #expect(take("HTTP/2 200 ", "").count == 1 && assembler.trailers.all.isEmpty)
  }

  @Test("a line with an invalid name is dropped, and an invalid octet of a value is replaced")
  func odd() {
    let found = heads(
      "HTTP/1.1 200 OK", "A B: x", "X: a\u{1}b", ": y", "Z : z", "no colon", "Y: \u{e9}", "x: c", "")
    #expect(found.count == 1 && found[0].fields.lines == ["X: a\u{FFFD}b", "Y: \u{c3}\u{a9}", "x: c"])
    #expect(found[0]["X"] == "a\u{FFFD}b", "the first of two lines")
    #expect(found[0].fields["X"] == "a\u{FFFD}b, c")
  }

  @Test("each status has one class, and a head states its version and only its own fields")
  func classes() {
    for status in [100, 101, 199, 200, 201, 299, 300, 304, 404, 500, 599] {
      let response = HTTPResponse(status: status)
      #expect(response.isInterim == (status < 200) && response.isSuccess == (200..<300).contains(status), "\(status)")
    }
    let found = heads(
      "HTTP/1.0 200 OK", "Hello: world", "", "HTTP/1.1 404 Not Found", "A: b",
      "HTTP/1.1 503 Service Unavailable", "C: d", "", "HTTP/2 204 ", "", "HTTP/3 204 ", "", "HTTP/1.1 200 OK", "")
    #expect(found.map(\.status) == [200, 503, 204, 204, 200])
    #expect(found.map(\.version) == [.http10, .http11, .http2, .http2, .http11])
    #expect(found.map(\.fields.lines) == [["Hello: world"], ["C: d"], [], [], []])
  }

  @Test("line ends and white space around a value are no part of it, and octets that are not UTF-8 are Latin-1")
  func octets() {
    var assembler = ResponseHeadAssembler()
    let value: [UInt8] = [0x80]
    let lines: [[UInt8]] = [
      Array("HTTP/1.1 200 OK\r\n".utf8), Array("A:1\r\n".utf8), Array("B: \t \r\n".utf8),
      Array("C:  2\t \n".utf8),
      Array("D:".utf8) + value + [0x0D, 0x0A], Array("E: 3 4\r".utf8), Array("(: x\r\n".utf8),
      Array("F: \u{1}\r\n".utf8), [0x0D, 0x0A],
    ]
    // Twice, because the names of a head are those of the one before it.
    for _ in 0..<2 {
      let found = lines.compactMap { line in line.withUnsafeBytes { assembler.take(line: $0) } }
      #expect(found.map(\.status) == [200])
      #expect(found.first?.fields.lines == ["A: 1", "B: ", "C: 2", "D: \u{80}", "E: 3 4", "F: \u{FFFD}"])
    }
  }

  @Test("a head does not depend on the heads before it", arguments: Seed.several(20))
  func afterOthers(_ seed: Seed) {
    var random = seed.generator
    let names = ["Upload-Offset", "upload-offset", "Upload-Offsets", "Date", "A", "a", "A B", "", "X\u{e9}"]
    let values = ["", "1", "234567", " b\t", "a\u{1}b", "\u{e9}", "Fri, 20 Nov 2026 17:22:19 GMT"]
    var assembler = ResponseHeadAssembler()
    for _ in 0..<30 {
      // Mostly the same fields in the same order, as in the interim responses of an upload.
      let fields = (0..<Int.random(in: 0...4, using: &random)).map { index in
        Bool.random(using: &random)
          ? "\(names[index]): \(values[index])"
          : "\(names.randomElement(using: &random)!): \(values.randomElement(using: &random)!)"
      }
      let lines = ["HTTP/1.1 \(Int.random(in: 100...599, using: &random)) "] + fields + [""]
      let found = lines.compactMap { (line: String) in Array(line.utf8).withUnsafeBytes { assembler.take(line: $0) } }
      let alone = lines.reduce(into: (ResponseHeadAssembler(), [HTTPResponse]())) { state, line in
        if let head = Array(line.utf8).withUnsafeBytes({ state.0.take(line: $0) }) { state.1.append(head) }
      }.1
      #expect(found == alone && found.map(\.fields.lines) == alone.map(\.fields.lines), "seed \(seed)")
    }
  }

  @Test(
    "Retry-After is a number of seconds or a date, and any other value is invalid",
    arguments: [
      ("120", 120), ("0", 0), ("-5", nil), ("Fri, 20 Nov 2026 17:22:19 GMT", 19),
      ("Friday, 20-Nov-26 17:22:19 GMT", 19),
      ("Fri Nov 20 17:22:19 2026", 19), ("Thu, 01 Jan 1970 00:00:00 GMT", 0), ("Fri, 20 Nov 2026 17:21:00 GMT", 0),
      ("soon", nil), ("", nil),
    ] as [(String, Int?)])
  func retryAfter(_ value: String, _ seconds: Int?) {
    let response = HTTPResponse(status: 503, fields: ["retry-after": value])
    // 2026-11-20 17:22:00 UTC.
    #expect(response.retryAfter(wallClock: 1_795_195_320) == seconds.map { .seconds($0) })
  }

  @Test("a response's text is its body without the trailing line ends, and missing if it is not UTF-8")
  func text() {
    var response = HTTPResponse(status: 500)
    #expect(response.text == nil)
    response.body = Array("no\nroom\r\n\n".utf8)
    #expect(response.text == "no\nroom")
    response.body = [0x61, 0xFF]
    #expect(response.text == nil)
  }

  @Test("a field is added only if there is none of that name")
  func defaultField() {
    var fields: HeaderFields = ["content-TYPE": "a/b"]
    fields.addDefault("Content-Type", "c/d")
    fields.addDefault("X", "y")
    #expect(fields.lines == ["content-TYPE: a/b", "X: y"])
  }
}
