// Tests the client exactly at each limit, and one below it.

import HTTPMessages
import Testing

@testable import ResumableUploads

@Suite("The client at limits") struct ClientBoundaryTests {
  @Test(
    "before a pause of the source, a rest below the server's minimum append is the last one of the upload",
    arguments: [(1, true), (99, true), (100, false), (101, false), (500, false)] as [(UInt64, Bool)])
  func pause(_ head: UInt64, _ isLast: Bool) {
    var client = ClientScript.live(head)
    client.supply.pausesAtHead = true
    client.start()
    client.answer(201, ["Upload-Limit": "min-append-size=100"], location: ClientScript.upload)
    #expect(client.next == "PATCH 0" && client.fields["Upload-Complete"] == (isLast ? "?1" : "?0"))
    guard isLast else { return }
    #expect(client.maximum == head)
    client.sendAll()
    client.answer(200)
    #expect(client.next == "CREATE" && client.machine.base == head)
  }

  @Test(
    "a server that returned to the oldest byte in the buffer receives the rest in the same upload",
    arguments: [nil, "s"])
  func wentBackToOldest(_ streamID: String?) {
    for (claimed, isKept) in [(100, true), (101, true), (99, false)] as [(UInt64, Bool)] {
      var client = ClientScript.created(500) { $0.streamID = streamID }
      client.send(upTo: 300)
      client.interim(["Upload-Offset": "200"])
      client.release(upTo: 100)
      client.lose()
      _ = client.machine.takeNotes()
      let fields: HeaderFields = ["Upload-Offset": "\(claimed)", "Upload-Complete": "?0", "Stream-ID": "s"]
      // An answer can be damaged on its way.
      #expect(client.next == "HEAD" && client.answer(204, fields) == .wait)
      client.goOn()
      client.answer(204, fields)
      if isKept {
        #expect(client.next == "PATCH \(claimed)" && client.maximum == nil && client.machine.base == 0)
        #expect(client.machine.takeNotes() == [.serverWentBack(from: 200, to: claimed)])
      } else {
        // The upload ends, or the client asks the server to confirm it.
        #expect(client.maximum == 0)
      }
    }
  }

  @Test(
    "only an upload below min-size becomes a plain one when its creation is refused",
    arguments: [(999, "unsupported"), (1000, "fail"), (1001, "fail")] as [(UInt64, String)])
  func minimumSize(_ length: UInt64, _ next: String) {
    for status in [400, 411, 422] {
      var client = ClientScript.live(length, isFinished: true) { ($0.discovers, $0.length) = (true, length) }
      client.start()
      client.answer(200, ["Upload-Limit": "min-size=1000"])
      #expect(client.next == "CREATE")
      client.answer(status)
      #expect(client.next == next, "\(status)")
    }
  }

  @Test("an upload that always disappears before its first byte is created eight times, and then the client gives up")
  func goneEachTime() {
    var client = ClientScript.created(500)
    var creations = 1
    while client.failure == nil, creations < 50 {
      client.answer(410)
      guard client.next == "CREATE" else { continue }
      creations += 1
      client.answer(201, location: ClientScript.other)
    }
    #expect(creations == 9 && client.failure == .noProgress(status: 410))
  }

  @Test("each upload has its length, even one that replaces another with a length")
  func lengthIsToldAnew() {
    var client = ClientScript.created(500, isFinished: true)
    #expect(client.next == "PATCH 0" && client.fields["Upload-Length"] == "500")
    client.send(upTo: 300)
    client.lose()
    client.answer(204, ["Upload-Offset": "200", "Upload-Complete": "?0"])
    #expect(client.next == "PATCH 200" && client.fields["Upload-Length"] == nil, "some servers refuse a second one")
    client.insist(404)
    #expect(client.next == "CREATE")
    client.answer(201, location: ClientScript.other)
    #expect(client.next == "PATCH 0" && client.fields["Upload-Length"] == "500")
  }
}
