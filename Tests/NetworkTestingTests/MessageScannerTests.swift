// Tests the scanner that finds the ends of messages with known messages, split in every way.

import NetworkTesting
import PropertyTesting
import Testing

@Suite("The boundaries of messages")
struct MessageScannerTests {
  /// The content of one direction of a connection, merged so that it does not depend on the splits.
  private struct Parts: Equatable {
    var heads: [String] = []
    var content: [String] = []
    var framingCount = 0
    var ends = 0
  }

  private func scan(
    _ bytes: [UInt8], _ direction: MessageScanner.Direction, cuts: [Int], answering methods: [String] = []
  ) -> Parts {
    var scanner = MessageScanner(direction)
    var parts = Parts()
    var methods = methods[...]
    var content: [UInt8] = []
    for (start, end) in zip([0] + cuts, cuts + [bytes.count]) {
      let piece = Array(bytes[start..<end])
      var position = 0
      scanning: while true {
        switch scanner.next(piece.span, &position, answering: methods.first) {
        case .incomplete: break scanning
        case .head(let head): parts.heads.append(head.line)
        case .framing(let range): parts.framingCount += range.count
        case .content(let range): content += piece[range]
        case .end:
          parts.ends += 1
          parts.content.append(String(decoding: content, as: UTF8.self))
          content = []
          methods = methods.dropFirst()
        }
      }
      #expect(position == piece.count)
    }
    if !content.isEmpty { parts.content.append(String(decoding: content, as: UTF8.self)) }
    return parts
  }

  private let requests = """
    POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;name=value\r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\n\
    HEAD /b HTTP/1.1\r\nHost: x\r\n\r\n\
    PATCH /b HTTP/1.1\r\nContent-Length: 5\r\n\r\n12345\
    PATCH /b HTTP/1.1\r\nContent-Length: 0\r\n\r\n\
    DELETE /b HTTP/1.1\r\n\r\n
    """
  private let requestParts = Parts(
    heads: ["POST /a HTTP/1.1", "HEAD /b HTTP/1.1", "PATCH /b HTTP/1.1", "PATCH /b HTTP/1.1", "DELETE /b HTTP/1.1"],
    content: ["abc0123456789", "", "12345", "", ""], framingCount: 38, ends: 5)

  private let responses = """
    HTTP/1.1 104 Upload Resumption Supported\r\nLocation: /b\r\n\r\n\
    HTTP/1.1 100 Continue\r\n\r\n\
    HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok\
    HTTP/1.1 200 OK\r\nContent-Length: 999\r\nUpload-Offset: 7\r\n\r\n\
    HTTP/1.1 104 Upload Resumption Supported\r\nUpload-Offset: 9\r\n\r\n\
    HTTP/1.1 204 No Content\r\n\r\n\
    HTTP/1.1 409 Conflict\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n\
    HTTP/1.1 502 Bad Gateway\r\n\r\nuntil the end
    """
  private let responseParts = Parts(
    heads: [
      "HTTP/1.1 104 Upload Resumption Supported", "HTTP/1.1 100 Continue", "HTTP/1.1 201 Created", "HTTP/1.1 200 OK",
      "HTTP/1.1 104 Upload Resumption Supported", "HTTP/1.1 204 No Content", "HTTP/1.1 409 Conflict",
      "HTTP/1.1 502 Bad Gateway",
    ], content: ["ok", "", "", "x", "until the end"], framingCount: 10, ends: 4)
  private let methods = ["POST", "HEAD", "PATCH", "PATCH", "POST"]

  @Test("requests and responses are parsed correctly, split at every byte")
  func everyCut() {
    let (up, down) = (Array(requests.utf8), Array(responses.utf8))
    for cut in 0...up.count { #expect(scan(up, .requests, cuts: [cut]) == requestParts, "cut at \(cut)") }
    for cut in 0...down.count {
      #expect(scan(down, .responses, cuts: [cut], answering: methods) == responseParts, "cut at \(cut)")
    }
  }

  @Test("… and split anywhere, any number of times", arguments: Seed.several(20))
  func randomCuts(seed: Seed) {
    var random = seed.generator
    let (up, down) = (Array(requests.utf8), Array(responses.utf8))
    let upCuts = (0..<30).map { _ in Int.random(in: 0...up.count, using: &random) }.sorted()
    let downCuts = (0..<30).map { _ in Int.random(in: 0...down.count, using: &random) }.sorted()
    #expect(scan(up, .requests, cuts: upCuts) == requestParts)
    #expect(scan(down, .responses, cuts: downCuts, answering: methods) == responseParts)
  }

  @Test("the parts of a head can be read, and one field can be changed")
  func heads() {
    let head = MessageHead(
      Array("HTTP/1.1 204 No Content\r\nupload-offset:  12\r\nCache-Control: no-store\r\n\r\n".utf8))
    #expect(head.status == 204)
    #expect(head.integer("Upload-Offset") == 12)
    let changed = head.replacing("Upload-Offset", with: "99")
    #expect(
      String(decoding: changed.bytes, as: UTF8.self)
        == "HTTP/1.1 204 No Content\r\nUpload-Offset: 99\r\nCache-Control: no-store\r\n\r\n")
  }
}
