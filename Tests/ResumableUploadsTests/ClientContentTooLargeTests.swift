// Tests how a client finds a size that is accepted after 413 (Content Too Large; draft, section Limits).

import HTTPMessages
import Testing

@testable import ResumableUploads

@Suite("The client receives a 413") struct ClientContentTooLargeTests {
  @Test("after a 413 with max-append-size, the next append is at most that size (draft, section Limits)")
  func contentTooLarge() {
    var client = ClientScript.created(500)
    client.sendAll()
    client.answer(413, ["Upload-Limit": "max-append-size=200"])
    #expect(client.next == "HEAD")
    client.answer(204, ["Upload-Offset": "0"])
    #expect(client.next == "PATCH 0" && client.maximum == 200)
  }

  @Test(
    "after a 413 without limits, the client requests them with OPTIONS, or halves the append (draft, section Limits)")
  func contentTooLargeForReasonsUnknown() {
    var client = ClientScript.created(1_000_000)
    client.sendAll()
    client.answer(413)
    #expect(client.next == "OPTIONS" && client.request?.url == nil && client.fields["Upload-Complete"] == nil)
    client.answer(200, ["Upload-Limit": "min-size=0"])
    #expect(client.next == "HEAD")
    var sizes: [UInt64] = []
    while sizes.count < 100 {
      client.answer(204, ["Upload-Offset": "0"])
      sizes.append(client.maximum ?? 0)
      if sizes.last ?? 0 <= 1000 { break }
      client.sendAll()
      client.answer(413)
    }
    #expect(sizes.first == 500_000 && sizes.last ?? 0 > 100 && zip(sizes, sizes.dropFirst()).allSatisfy { $0 > $1 })
    client.sendAll()
    client.answer(204)
    #expect(client.next.hasPrefix("PATCH") && client.maximum == sizes.last, "what was accepted stays")
  }

  @Test("an OPTIONS response with the limit ends the search (draft, section Limits)")
  func contentTooLargeAndAsked() {
    var client = ClientScript.created(500)
    client.sendAll()
    client.answer(413)
    client.answer(200, ["Upload-Limit": "max-append-size=64"])
    client.answer(204, ["Upload-Offset": "0"])
    #expect(client.maximum == 64)
  }

  @Test("a 413 at min-append-size is final (draft, section Limits)")
  func smallestRefused() {
    var client = ClientScript.created(500, limits: "min-append-size=100, max-append-size=100")
    client.sendAll()
    #expect(client.answer(413) == .fail(.appendTooLarge))
  }

  @Test("a permanent 413 ends the upload")
  func refusedForEver() {
    var client = ClientScript.created(1 << 30)
    var count = 0
    while client.failure == nil, count < 1000 {
      client.sendAll()
      client.answer(client.next.hasPrefix("PATCH") ? 413 : 204, ["Upload-Offset": "0"])
      count += 1
    }
    #expect(client.failure == .appendTooLarge && count < 200)
  }

  @Test("after a 413 to a whole file before its first byte, parts of half the size follow, not of a byte")
  func fileTooLarge() {
    var client = ClientScript.file(10_000)
    client.start()
    client.answer(413, isEarly: true)
    #expect(client.next == "OPTIONS")
    client.answer(405)
    #expect(client.next == "CREATE" && client.request?.content == .empty)
    client.answer(201, location: ClientScript.upload)
    #expect(client.next == "PATCH 0" && client.maximum == 5_000)
    client.answer(413, isEarly: true)
    client.answer(204, ["Upload-Offset": "0"])
    #expect(client.maximum == 2_500)
  }

  @Test("a 413 because the whole is too large is final, and the client cancels (draft, section Limits)")
  func fileTooLargeForGood() {
    var client = ClientScript.file(10_000)
    client.start()
    client.interim(location: ClientScript.upload)
    client.answer(413, ["Upload-Limit": "max-size=5000"], isEarly: true)
    #expect(client.next == "DELETE")
    client.answer(204)
    #expect(client.failure == .tooLarge(limit: 5000))
  }
}
