// Tests an upload resource that a response has named but that never answers as one.

import HTTPMessages
import PropertyTesting
import Testing

@testable import ResumableUploads

@Suite("The client and an upload resource that never responds as one") struct ClientTrustTests {
  private static let portal = "http://portal/login"

  /// How the portal answers: with a status but without fields of the protocol, or not at all.
  enum Voice: CaseIterable, Sendable { case page, redirect, notFound, error, refusal, silence }

  /// Lets the portal answer each request until the client turns elsewhere. Returns the number of requests.
  private func askPortal(_ client: inout ClientScript, _ voice: Voice) -> Int {
    var count = 0
    while count < 1000, client.failure == nil, client.next == "wait" || client.request?.url == Self.portal {
      if client.next == "wait" {
        client.goOn()
        continue
      }
      count += 1
      switch voice {
      case .page: client.answer(200, ["Content-Type": "text/html"], silent: true)
      case .redirect: client.answer(307, location: Self.portal)
      case .notFound: client.answer(404)
      case .error: client.answer(503)
      case .refusal: client.answer(403)
      case .silence: client.perform(client.machine.interrupted(sentUpTo: client.sentUpTo))
      }
    }
    return count
  }

  /// A live stream of 500 bytes whose server has acknowledged 200 bytes and no longer knows the upload resource.
  private func gone() -> ClientScript {
    var client = ClientScript.created(500)
    client.send(upTo: 300)
    client.interim(["Upload-Offset": "200"])
    client.release(upTo: 200)
    client.lose()
    client.answer(410)
    _ = client.machine.takeNotes()
    return client
  }

  /// A portal answers a creation, either immediately or by a 104 before the connection is lost.
  private func misdirect(_ client: inout ClientScript, byInterim: Bool) {
    if byInterim {
      client.interim(location: Self.portal)
      client.lose()
    } else {
      client.answer(200, location: Self.portal, silent: true)
    }
  }

  @Test(
    "for the first one, another is created at the target, with the same bytes", arguments: Voice.allCases,
    [false, true])
  func first(_ voice: Voice, _ byInterim: Bool) {
    var client = ClientScript.live(500)
    client.start()
    misdirect(&client, byInterim: byInterim)
    // Before an acknowledgement, a redirect or a page may end a stream, or count as the acceptance of an append.
    guard voice != .page && voice != .redirect else { return }
    let count = askPortal(&client, voice)
    #expect((1...13).contains(count) && client.next == "CREATE" && client.machine.base == 0)
    client.answer(201, location: ClientScript.upload)
    #expect(client.next == "PATCH 0")
    client.sendAll()
    client.answer(204)
    #expect(client.machine.acknowledged == 500)
  }

  @Test(
    "after an acknowledgement, the client asks the previous one, and creates another if that is gone",
    arguments: Voice.allCases, [false, true])
  func next(_ voice: Voice, _ byInterim: Bool) {
    var client = gone()
    for _ in 0..<20 {
      #expect(client.next == "CREATE" && client.machine.base == 200)
      misdirect(&client, byInterim: byInterim)
      #expect((1...13).contains(askPortal(&client, voice)))
      #expect(client.next == "HEAD" && client.request?.url == ClientScript.upload)
      #expect(client.machine.acknowledged == 200)
      client.answer(410)
      if client.next == "wait" {
        client.goOn()
        client.answer(410)
      }
    }
    _ = client.machine.takeNotes()
    client.answer(201, location: ClientScript.other)
    client.sendAll()
    client.answer(204)
    #expect(client.machine.acknowledged == 500)
    #expect(
      client.machine.takeNotes() == [
        .newPart(.gone, previous: ClientScript.upload, from: 200), .created(url: ClientScript.other, base: 200),
      ])
  }

  @Test("if the previous one exists after all, the stream continues in it, and the record has it again")
  func formerIsBack() {
    var client = gone()
    misdirect(&client, byInterim: false)
    _ = client.machine.takeNotes()
    _ = askPortal(&client, .notFound)
    #expect(client.machine.takeNotes() == [.created(url: ClientScript.upload, base: 0)])
    client.answer(204, ["Upload-Offset": "300"])
    #expect(client.next == "PATCH 300" && client.machine.takeNotes().isEmpty)
  }

  @Test("an irreplaceable part is created once more at its start, even after many turns")
  func nextPart() {
    var client = ClientScript.created(500, limits: "max-size=200")
    client.sendAll()
    client.answer(204, ["Upload-Offset": "200"])
    if client.next.hasPrefix("PATCH") { client.answer(204) }
    client.release(upTo: 200)
    for _ in 0..<20 {
      #expect(client.next == "CREATE" && client.machine.base == 200)
      misdirect(&client, byInterim: false)
      _ = askPortal(&client, .page)
      // The creation fails, and the client asks the portal again.
      client.lose()
      #expect(client.request?.url == Self.portal)
      _ = askPortal(&client, .error)
    }
    client.answer(201, ["Upload-Limit": "max-size=1000"], location: ClientScript.other)
    client.sendAll()
    client.answer(204)
    #expect(client.machine.acknowledged == 500 && client.machine.base == 200)
  }

  @Test("a file that restarts begins at its first byte, even if a 104 to its creation had an offset")
  func file() {
    var client = ClientScript.file(500)
    client.start()
    client.sendAll()
    client.interim(["Upload-Offset": "300"], location: Self.portal)
    client.lose()
    _ = askPortal(&client, .error)
    #expect(client.next == "CREATE" && client.machine.base == 0 && client.maximum == 0)
    client.answer(201, location: ClientScript.upload)
    #expect(client.next == "PATCH 0")
  }

  @Test("an upload resource that has responded is not left, however long the outage", arguments: [0, 1, 2])
  func proven(_ how: Int) {
    var client = ClientScript.created(500)
    client.send(upTo: 300)
    switch how {
    case 0: client.interim(["Upload-Offset": "0"])
    case 1: client.answer(204, ["Upload-Offset": "300"])
    default:
      client.lose()
      client.answer(204, ["Upload-Offset": "0"])
    }
    for _ in 0..<100 { client.lose() }
    for _ in 0..<100 {
      client.answer(503)
      client.goOn()
    }
    #expect(client.next == "HEAD" && client.request?.url == ClientScript.upload)
  }

  @Test("an outage just after the creation does not lose the upload resource, because the client asks it many times")
  func outage() {
    var client = ClientScript.created(500)
    client.sendAll()
    var creations = 0
    for _ in 0..<130 {
      client.lose()
      if client.next == "CREATE" { creations += 1 }
    }
    #expect((1...10).contains(creations))
    while client.next == "CREATE" { client.lose() }
    client.answer(204, ["Upload-Offset": "500"])
    #expect(client.machine.base == 0 && client.next != "CREATE")
  }
}
