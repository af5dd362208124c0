// Tests what the client assumes to be stored if an upload is gone, or was created by another process.

import HTTPMessages
import Testing

@testable import ResumableUploads

@Suite("The client and uploads that are gone")
struct ClientLossTests {
  private static let upload = ClientScript.upload
  private static let portal = "http://portal/login"
  private static let third = "http://host/uploads/3"

  /// A stream whose upload resource is gone. The client creates another one.
  private func recreating() -> ClientScript {
    var client = ClientScript.streaming()
    client.release(upTo: 200)
    client.lose()
    client.answer(410)
    #expect(client.next == "CREATE" && client.machine.base == 200)
    return client
  }

  // MARK: Other processes

  @Test("what another process knows as acknowledged is not sent again, and its loss is noticed")
  func acknowledgedByOther() {
    for acknowledged in [0, 50, 100, 200] as [UInt64] {
      var client = ClientScript.live(500)
      client.perform(
        client.machine.resume(url: Self.upload, base: 100, version: .newest, acknowledged: acknowledged))
      #expect(client.machine.acknowledged == max(100, acknowledged))
      client.answer(204, ["Upload-Offset": "50"])
      if acknowledged == 200 {
        #expect(client.next == "wait" && client.machine.takeNotes().isEmpty)
        client.goOn()
        client.answer(204, ["Upload-Offset": "50"])
        #expect(client.machine.takeNotes() == [.serverWentBack(from: 200, to: 150)])
      }
      #expect(client.next == "PATCH 50" && client.machine.takeNotes().isEmpty)
      #expect(client.machine.acknowledged == (acknowledged == 200 ? 150 : 100))
    }
  }

  @Test("at impossible offsets, a stream of another process continues behind its acknowledged bytes, if there are any")
  func impossibleForOther() {
    for acknowledged in [0, 200] as [UInt64] {
      var client = ClientScript.live(500)
      client.perform(client.machine.resume(url: Self.upload, base: 0, version: .newest, acknowledged: acknowledged))
      for _ in 0..<60 where client.next == "HEAD" {
        if client.answer(204, ["Upload-Offset": "900"]) == .wait { client.goOn() }
      }
      if acknowledged == 0 {
        #expect(client.failure == .offsetBeyondSent(offset: 900, sent: 500))
      } else {
        #expect(client.next == "CREATE" && client.machine.base == 200 && client.newParts() == [.impossibleOffset])
      }
    }
  }

  // MARK: Missing uploads

  @Test("a missing upload is complete only if all of its bytes are acknowledged, or another process's HEAD showed them")
  func missingAtEnd() {
    var client = ClientScript.created(500, isFinished: true)
    client.sendAll()
    client.lose()
    client.answer(204, ["Upload-Offset": "500", "Upload-Complete": "?0"])
    #expect(client.next == "PATCH 500" && client.fields["Upload-Complete"] == "?1")
    client.lose()
    client.insist(404)
    #expect(client.next == "CREATE", "only one response to HEAD has reported the bytes")

    for offset in [300, 500] {
      client = .live(500, isFinished: true)
      client.perform(client.machine.resume(url: Self.upload, base: 0, version: .newest))
      client.answer(204, ["Upload-Offset": "\(offset)", "Upload-Complete": "?0"])
      #expect(client.next == "PATCH \(offset)")
      client.sendAll()
      client.lose()
      client.insist(404)
      #expect(client.next == (offset == 500 ? "completed" : "CREATE"))
    }
  }

  @Test("bytes that only HEAD has reported are lost with their upload")
  func headOnlyBytesLost() {
    var client = ClientScript.streaming()
    client.sendAll()
    client.lose()
    client.answer(204, ["Upload-Offset": "300"])
    client.release(upTo: 250, restart: 280)
    client.answer(410)
    #expect(client.next == "CREATE" && client.machine.base == 280)
    client.answer(201, location: ClientScript.other)
    #expect(
      client.machine.takeNotes() == [
        .gap(from: 200, to: 280, isServersFault: false), .newPart(.gone, previous: Self.upload, from: 280),
        .created(url: ClientScript.other, base: 280),
      ])
  }

  @Test("an upload that is gone just before its lifetime ends is reported as gone")
  func goneBeforeExpiry() {
    var client = ClientScript.streaming()
    #expect(client.machine.expiresSoon() == true)
    client.lose()
    client.answer(410)
    client.answer(201, location: ClientScript.other)
    #expect(client.newParts() == [.gone] && client.machine.base == 0)
  }

  @Test("notes about an earlier part are not repeated with a later one")
  func notesOnce() {
    var client = recreating()
    client.answer(201, ["Upload-Limit": "max-size=100"], location: ClientScript.other)
    #expect(
      client.machine.takeNotes() == [
        .newPart(.gone, previous: Self.upload, from: 200), .created(url: ClientScript.other, base: 200),
      ])
    client.sendAll()
    client.answer(204)
    #expect(client.next == "PATCH 100" && client.maximum == 0)
    client.answer(200)
    client.answer(201, location: Self.third)
    #expect(
      client.machine.takeNotes() == [
        .newPart(.size, previous: ClientScript.other, from: 300), .created(url: Self.third, base: 300),
      ])
  }

  @Test("the client that returns to its former upload remembers what it has sent and counted since")
  func formerUpload() {
    var client = recreating()
    (client.machine.patience.detours, client.machine.patience.placeRefusals) = (5, 1)
    client.machine.patience.shortAppends = 3
    client.lose()
    #expect(client.next == "HEAD" && client.request?.url == Self.upload)
    #expect(client.machine.patience.detours == 5 && client.machine.patience.placeRefusals == 1)
    #expect(client.machine.patience.shortAppends == 3)

    client = recreating()
    client.answer(201, location: Self.portal)
    client.sendAll()
    client.machine.patience.restarts = 4
    for _ in 0..<10 where client.request?.url == Self.portal { if client.answer(404) == .wait { client.goOn() } }
    #expect(client.next == "HEAD" && client.request?.url == Self.upload && client.machine.patience.restarts == 4)
    // Joined uploads of a stream may have received the bytes that were sent to the other one.
    client.answer(204, ["Upload-Offset": "450"])
    #expect(client.next == "PATCH 450")
  }

  @Test("silence is no completion if it came early, or if nothing was to be completed")
  func silences() {
    var client = ClientScript.file(500)
    client.start()
    client.interim(location: Self.upload)
    client.sendAll()
    client.answer(200, isEarly: true)
    #expect(client.next == "HEAD")
    client.insist(404)
    #expect(client.next == "CREATE")

    client = .streaming()
    client.sendAll()
    client.answer(200, silent: true)
    #expect(client.next == "HEAD")
    client.grow(to: 500, isFinished: true)
    client.insist(404)
    #expect(client.next == "CREATE")
  }

  @Test("an upload that ended is not complete, although all of it was acknowledged, nor one that only HEAD called so")
  func endedAtEnd() {
    var client = ClientScript.created(500, isFinished: true)
    client.sendAll()
    client.interim(["Upload-Offset": "500"])
    client.lose()
    client.answer(410)
    #expect(client.next == "CREATE")

    client = .created(500, isFinished: true)
    client.sendAll()
    client.lose()
    client.answer(204, ["Upload-Offset": "500", "Upload-Complete": "?1"])
    #expect(client.next == "PATCH 500" && client.answer(503) == .wait)
    client.goOn()
    client.insist(404)
    #expect(client.next == "CREATE")
  }

  private func gaps(_ client: inout ClientScript) -> [Range<UInt64>] {
    client.machine.takeNotes().compactMap { note in
      if case .gap(let start, let end, _) = note { start..<end } else { nil }
    }
  }

  @Test(
    "bytes that were reported as lost are not sent if the upload behind them is false, although some are still kept",
    arguments: [300, 350, 400, 450] as [UInt64])
  func reportedOnce(oldest: UInt64) {
    var client = ClientScript.created(500)
    client.sendAll()
    client.interim(["Upload-Offset": "100"])
    client.lose()
    client.supply = Supply(oldest: 300, head: 500, isFinished: false, restart: 400)
    client.insist(404)
    #expect(client.next == "CREATE" && client.machine.base == 400)
    client.answer(201, location: Self.portal)
    #expect(gaps(&client) == [100..<400])
    for _ in 0..<10 where client.request?.url == Self.portal { if client.answer(404) == .wait { client.goOn() } }
    #expect(client.next == "HEAD" && client.request?.url == Self.upload)
    client.supply = Supply(oldest: oldest, head: 600, isFinished: false, restart: oldest + 50)
    client.insist(404)
    let next = oldest <= 400 ? 400 : oldest + 50
    #expect(client.next == "CREATE" && client.machine.base == next, "\(client.next) \(client.machine.base)")
    client.answer(201, location: ClientScript.other)
    #expect(gaps(&client) == (next > 400 ? [400..<next] : []))
  }

  @Test(
    "a creation that is refused while the buffer overflows is repeated behind the lost bytes, and they are one loss")
  func refusedOverflow() {
    var client = ClientScript.live(500) { $0.streamID = "s" }
    client.start()
    for (oldest, restart) in [(300, 400), (310, 410), (350, 450), (700, 800)] as [(UInt64, UInt64)] {
      #expect(client.answer(503) == .wait)
      client.supply = Supply(oldest: oldest, head: oldest + 500, isFinished: false, restart: restart)
      client.goOn()
      // As many bytes are left out as may be overwritten while the answer is awaited.
      #expect(client.next == "CREATE" && client.fields["Stream-Offset"] == "\(restart)")
      #expect(client.machine.acknowledged == 0 && client.machine.releasable == 0)
      #expect(client.machine.takeNotes().isEmpty)
    }
    client.answer(201, ["Stream-ID": "s"], location: Self.upload)
    #expect(client.next == "PATCH 0" && client.machine.acknowledged == 800)
    #expect(
      client.machine.takeNotes() == [
        .gap(from: 0, to: 800, isServersFault: false), .created(url: Self.upload, base: 800),
      ])
  }

  @Test("a plain server is recognised after an overflow, and no loss was reported before")
  func plainAfterOverflow() {
    var client = ClientScript.live(500) { $0.discovers = true }
    client.start()
    client.perform(client.machine.questionIsUnanswered(client.supply))
    #expect(client.answer(503) == .wait)
    client.supply = Supply(oldest: 300, head: 500, isFinished: false, restart: 400)
    client.goOn()
    #expect(client.machine.base == 400)
    client.answer(200)
    #expect(client.next == "unsupported" && client.machine.acknowledged == 0, "\(client.next)")
    #expect(client.machine.takeNotes().isEmpty)
  }

  @Test("a later part whose creation is refused begins behind the lost bytes, too")
  func refusedPart() {
    var client = ClientScript.live(500) { $0.streamID = "s" }
    client.start()
    client.answer(201, ["Stream-ID": "s", "Upload-Limit": "max-size=200"], location: Self.upload)
    client.sendAll()
    client.answer(204)
    #expect(client.next == "CREATE" && client.machine.base == 200, "\(client.next)")
    _ = client.machine.takeNotes()
    #expect(client.answer(503) == .wait)
    client.supply = Supply(oldest: 300, head: 600, isFinished: false, restart: 350)
    client.goOn()
    #expect(client.machine.base == 350 && client.machine.releasable == 200)
    client.answer(201, ["Stream-ID": "s"], location: ClientScript.other)
    #expect(
      client.machine.takeNotes() == [
        .gap(from: 200, to: 350, isServersFault: false), .created(url: ClientScript.other, base: 350),
      ])
  }
}
