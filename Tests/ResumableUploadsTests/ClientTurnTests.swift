// Tests what a client must remember, and what it must forget, between successive phases of a stream.

import HTTPMessages
import Testing

@testable import ResumableUploads

@Suite("The client in the next turn")
struct ClientTurnTests {
  private static let portal = "http://portal/login"

  /// A live stream whose first creation was answered by a portal that never acts as an upload resource.
  private func misled() -> ClientScript {
    var client = ClientScript.live(500)
    client.start()
    client.answer(200, location: Self.portal, silent: true)
    for _ in 0..<100 where client.next != "CREATE" {
      if client.next == "wait" { client.goOn() } else { client.answer(503) }
    }
    #expect(client.next == "CREATE" && client.failure == nil)
    return client
  }

  @Test("the portal that was left is the reason of the next part")
  func reason() {
    var client = misled()
    client.answer(201, location: ClientScript.upload)
    #expect(
      client.machine.takeNotes().contains(.newPart(.unproven, previous: Self.portal, from: 0)))
  }

  @Test("the resource before one that has responded is not asked again", arguments: [404, 410])
  func forgotten(status: Int) {
    var client = misled()
    client.answer(201, location: ClientScript.upload)
    client.lose()
    client.answer(204, ["Upload-Offset": "0"])
    #expect(client.next == "PATCH 0")
    client.answer(status)
    for _ in 0..<10 where client.next != "CREATE" {
      if client.next == "wait" { client.goOn() } else { client.answer(status) }
    }
    for _ in 0..<10 {
      #expect(client.next == "CREATE" && client.request?.url != Self.portal)
      client.answer(503)
      client.goOn()
    }
  }

  @Test("a permanently refused creation fails with its status")
  func refused() {
    var final: [Int] = []
    for status in 400...599 {
      var client = ClientScript.live(500)
      client.start()
      client.answer(status)
      if let failure = client.failure {
        #expect(failure == .refused(status: status))
        final.append(status)
      }
    }
    #expect(final.contains(413) && final.contains(415) && !final.contains(503))
  }

  @Test(
    "a small limit of the whole upload resource affects the rest of an ended stream only if it does not fit",
    arguments: [599, 600, 601, 999] as [UInt64])
  func rest(_ limit: UInt64) {
    var client = ClientScript.created(5_000, isFinished: true) { $0.smallestLimit = 1_000 }
    client.send(upTo: 4_400)
    client.lose()
    client.answer(204, ["Upload-Offset": "4400", "Upload-Limit": "max-size=\(limit)"])
    // 600 bytes are left. The client ignores a lower limit, because the server has accepted more before. It keeps a
    // limit that they fit into, so they go to another upload resource.
    #expect((client.next == "PATCH 4400" && client.maximum == 600) == (limit < 600))
  }
}
