// Tests the exact number of fruitless requests after which a client pauses, turns elsewhere or gives up.

import HTTPMessages
import Testing

@testable import ResumableUploads

@Suite("The client's patience") struct ClientPatienceTests {
  private static let portal = "http://portal/login"

  /// A stream of 500 bytes so far, of which 300 were sent and 200 are acknowledged.
  private func streaming() -> ClientScript {
    var client = ClientScript.created(500)
    client.send(upTo: 300)
    client.interim(["Upload-Offset": "200"])
    client.release(upTo: 200)
    _ = client.machine.takeNotes()
    return client
  }

  /// Gives the same answer to HEAD until something else than HEAD follows. Returns the number of answers.
  private func insist(_ client: inout ClientScript, _ status: Int, _ fields: HeaderFields = [:]) -> Int {
    var count = 0
    while client.next == "HEAD", count < 50 {
      count += 1
      if client.answer(status, fields) == .wait { client.goOn() }
    }
    return count
  }

  // MARK: Detours

  @Test("two detours follow at once, and later ones after a pause")
  func immediateDetours() {
    var client = streaming()
    var actions: [String] = []
    for _ in 0..<4 {
      client.answer(409)
      actions.append(client.next)
      if client.next == "wait" { client.goOn() }
      client.answer(204, ["Upload-Offset": "200"])
      #expect(client.next == "PATCH 200")
    }
    #expect(actions == ["HEAD", "HEAD", "wait", "wait"])
  }

  @Test("before the first acknowledged byte, the ninth detour ends the stream", arguments: [400, 409])
  func lastDetour(_ status: Int) {
    var client = ClientScript.created(500)
    var count = 0
    while client.failure == nil, count < 50 {
      count += 1
      client.answer(status)
      if client.next == "wait" { client.goOn() }
      if client.next == "HEAD" { client.answer(204, ["Upload-Offset": "0"]) }
    }
    #expect(count == 9 && client.failure == .noProgress(status: status))
    #expect(client.machine.state == .ended)
  }

  @Test("before the first acknowledged byte, the ninth useless response to HEAD ends the stream")
  func uselessHEAD() {
    for (status, failure) in [
      (400, .noProgress(status: 400)), (409, .noProgress(status: 409)), (204, .noOffset), (200, .noOffset),
    ] as [(Int, ClientFailure)] {
      var client = ClientScript.created(500)
      client.lose()
      #expect(insist(&client, status) == 9 && client.failure == failure, "\(status)")
    }
  }

  @Test("the ninth redirect in a row ends the stream, or is an outage after an acknowledged byte")
  func redirects() {
    for isAcknowledged in [false, true] {
      var client = isAcknowledged ? streaming() : ClientScript.created(500)
      var count = 0
      while case .send = client.last, count < 50 {
        count += 1
        client.answer(308, location: "http://host/uploads/\(count % 2)")
      }
      #expect(count == 9 && client.next == (isAcknowledged ? "wait" : "fail"))
    }
  }

  @Test("the ninth upload that ends early at its beginning ends the stream")
  func earlyEnds() {
    var client = ClientScript.live(500)
    client.start()
    var ends = 0
    while client.failure == nil, ends < 50 {
      if client.endEarly() { ends += 1 }
    }
    #expect(ends == 9 && client.failure == .completedEarly)
  }

  @Test("OPTIONS that is answered 500 is sent three times")
  func brokenOPTIONS() {
    var client = ClientScript.live(500) { $0.discovers = true }
    client.start()
    for _ in 0..<2 {
      #expect(client.next == "OPTIONS" && client.answer(500) == .wait)
      client.goOn()
    }
    client.answer(500)
    #expect(client.next == "unsupported" && client.machine.state == .ended)
  }

  @Test("an offset that the server has reached for the first time renews the client's patience")
  func renewal() {
    var client = ClientScript.created(500)
    client.send(upTo: 300)
    (client.machine.patience.detours, client.machine.patience.shrinks) = (5, 6)
    client.machine.patience.restarts = 7
    client.interim(["Upload-Offset": "0"])
    #expect(client.machine.patience.detours == 5 && client.machine.patience.shrinks == 6)
    client.interim(["Upload-Offset": "1"])
    #expect(client.machine.patience.detours == 0 && client.machine.patience.shrinks == 0)
    #expect(client.machine.patience.restarts == 0 && client.machine.advances == 1)
  }

  // MARK: Missing uploads

  @Test("404 counts when it comes for the third time, and 410 at once, or for the second time after many detours")
  func confirmations() {
    for (status, detours, requests) in [(404, 0, 3), (404, 8, 3), (410, 0, 1), (410, 2, 1), (410, 3, 2), (410, 8, 2)] {
      var client = streaming()
      client.lose()
      client.machine.patience.detours = detours
      #expect(insist(&client, status) == requests && client.next == "CREATE", "\(status) after \(detours)")
      #expect(client.machine.patience.restarts == 1)
      // The next upload is asked as often.
      client.answer(201, location: ClientScript.other)
      client.interim(["Upload-Offset": "0"])
      client.lose()
      client.machine.patience.detours = detours
      #expect(insist(&client, status) == requests && client.next == "CREATE", "\(status) after \(detours), again")
    }
    // An upload that has answered in between is asked three times again.
    var client = streaming()
    client.lose()
    for _ in 0..<2 {
      #expect(client.answer(404) == .wait)
      client.goOn()
    }
    client.answer(204, ["Upload-Offset": "300"])
    client.lose()
    #expect(insist(&client, 404) == 3 && client.next == "CREATE")
  }

  @Test("a byte of an upload that follows a missing one is progress once")
  func progressAfterRestart() {
    var client = ClientScript.file(500)
    client.start()
    client.interim(location: ClientScript.upload)
    client.sendAll()
    client.interim(["Upload-Offset": "400"])
    client.lose()
    client.insist(404)
    #expect(client.next == "CREATE" && client.machine.advances == 1)
    client.interim(location: ClientScript.other)
    client.sendAll()
    client.interim(["Upload-Offset": "1"])
    #expect(client.machine.advances == 2)
    for (offset, advances) in [(1, 2), (2, 3), (2, 3), (399, 4), (399, 4), (400, 5), (401, 6), (401, 6)]
      as [(UInt64, UInt64)]
    {
      client.lose()
      client.answer(204, ["Upload-Offset": "\(offset)"])
      #expect(client.next == "PATCH \(offset)" && client.machine.advances == advances, "\(offset)")
    }
    // After new bytes, the same applies to the next upload that follows a missing one.
    client.lose()
    client.insist(404)
    #expect(client.next == "CREATE")
    client.interim(location: ClientScript.upload)
    client.sendAll()
    client.interim(["Upload-Offset": "1"])
    #expect(client.machine.advances == 7)
  }

  @Test(
    "an unproven upload resource is left after three other responses or twelve lost connections, each time",
    arguments: [false, true])
  func doubts(byInterim: Bool) {
    for isSilent in [false, true] {
      var client = ClientScript.live(500)
      client.start()
      if byInterim {
        client.interim(location: Self.portal)
        client.lose()
      } else {
        client.answer(201, location: Self.portal)
      }
      for _ in 0..<2 {
        var count = 0
        while client.request?.url == Self.portal, count < 50 {
          count += 1
          if isSilent {
            client.lose()
          } else {
            client.answer(503)
            client.goOn()
          }
        }
        #expect(count == (isSilent ? 12 : 3) && client.next == "CREATE")
        // The target does not answer either, so the client asks the former upload resource again.
        client.lose()
        #expect(client.next == "HEAD" && client.request?.url == Self.portal)
      }
    }
  }

  // MARK: Impossible offsets

  @Test("an impossible offset counts when it comes for the fourth time, with or without a low one before")
  func impossibleOffsets() {
    var client = ClientScript.created(500)
    client.send(upTo: 300)
    client.lose()
    #expect(insist(&client, 204, ["Upload-Offset": "301"]) == 4)
    #expect(client.failure == .offsetBeyondSent(offset: 301, sent: 300) && client.machine.state == .ended)

    client = streaming()
    client.lose()
    #expect(client.answer(204, ["Upload-Offset": "150"]) == .wait)
    client.goOn()
    #expect(insist(&client, 204, ["Upload-Offset": "301"]) == 3)
    #expect(client.next == "CREATE" && client.machine.base == 200)

    // A believable one in between starts the count anew.
    client = streaming()
    client.lose()
    for _ in 0..<3 {
      client.answer(204, ["Upload-Offset": "301"])
      client.goOn()
    }
    client.answer(204, ["Upload-Offset": "300"])
    #expect(client.next == "PATCH 300")
    client.lose()
    #expect(insist(&client, 204, ["Upload-Offset": "301"]) == 4 && client.next == "CREATE")
  }

  /// A file of 500 bytes, of which all were sent and 200 are acknowledged. HEAD is under way.
  private func file(_ change: (inout UploadClientStateMachine.Configuration) -> Void = { _ in }) -> ClientScript {
    var client = ClientScript.created(500, isFinished: true) {
      $0.length = 500
      change(&$0)
    }
    client.sendAll()
    client.interim(["Upload-Offset": "\(min(client.sentUpTo, 200))"])
    client.lose()
    return client
  }

  @Test("an append without content checks impossible offsets of a file once, until the server has confirmed another")
  func probes() {
    let impossible: HeaderFields = ["Upload-Offset": "501"]
    var client = file()
    #expect(insist(&client, 204, impossible) == 4)
    #expect(client.next == "PATCH 200" && client.maximum == 0 && client.fields["Upload-Complete"] == "?0")
    // It is refused without an offset.
    var refused = client
    refused.answer(409)
    #expect(refused.next == "HEAD")
    var believed = refused
    #expect(insist(&refused, 204, impossible) == 1 && refused.next == "DELETE")
    believed.answer(204, ["Upload-Offset": "300"])
    #expect(believed.next == "PATCH 300")
    believed.lose()
    #expect(insist(&believed, 204, impossible) == 4 && believed.next == "PATCH 200" && believed.maximum == 0)
    // It is accepted, which shows nothing that the client did not know.
    client.answer(204)
    #expect(client.next == "PATCH 200" && client.maximum == 300)
    client.lose()
    #expect(insist(&client, 204, impossible) == 1 && client.next == "DELETE")
    // More bytes do.
    client = file { $0.appendSize = 100 }
    #expect(insist(&client, 204, impossible) == 4 && client.next == "PATCH 100" && client.maximum == 0)
    client.answer(204)
    client.sendAll()
    client.answer(204)
    #expect(client.next == "PATCH 200" && client.machine.acknowledged == 200)
    client.lose()
    #expect(insist(&client, 204, impossible) == 4 && client.next == "PATCH 200" && client.maximum == 0)
  }

  @Test("denials before the server reported the upload as incomplete do not count later")
  func denials() {
    var client = ClientScript.created(500, isFinished: true)
    client.sendAll()
    client.lose()
    let complete: HeaderFields = ["Upload-Offset": "500", "Upload-Complete": "?1"]
    for _ in 0..<2 {
      client.answer(204, complete)
      #expect(client.next == "PATCH 500" && client.answer(204, ["Upload-Complete": "?0"]) == .wait)
      client.goOn()
    }
    client.answer(204, ["Upload-Offset": "500", "Upload-Complete": "?0"])
    #expect(client.next == "PATCH 500" && client.fields["Upload-Complete"] == "?1")
    client.lose()
    for _ in 0..<3 {
      client.answer(204, complete)
      #expect(client.next == "PATCH 500" && client.answer(204, ["Upload-Complete": "?0"]) == .wait)
      client.goOn()
    }
    client.answer(204, complete)
    client.answer(204, ["Upload-Complete": "?0"])
    #expect(client.next == "completed")
    #expect(client.machine.state == .ended && client.machine.isForgotten)
  }

  @Test("a server's surplus is asked for up to eight detours")
  func surplus() {
    for detours in [8, 9] {
      var client = ClientScript.live(500, isFinished: true)
      client.perform(client.machine.resume(url: ClientScript.upload, base: 0, version: .newest))
      client.machine.patience.detours = detours
      #expect(client.answer(204, ["Upload-Offset": "900"]) == .wait)
      #expect(client.machine.isAskingForSurplus == (detours == 8))
      #expect(client.machine.takeNotes() == (detours == 8 ? [] : [.impossibleOffset(900)]))
    }
  }

  // MARK: 413

  @Test("the smallest append is one byte, and a 413 to it is final, or not about the size after an acknowledged byte")
  func smallestAppend() {
    var client = ClientScript.created(500, limits: "max-append-size=2")
    client.sendAll()
    client.answer(413)
    #expect(client.next == "HEAD", "the limit is known")
    client.answer(204, ["Upload-Offset": "0"])
    #expect(client.next == "PATCH 0" && client.maximum == 1)
    var accepted = client
    client.sendAll()
    #expect(client.answer(413) == .fail(.appendTooLarge))
    accepted.sendAll()
    accepted.answer(204)
    #expect(accepted.next == "PATCH 1" && accepted.maximum == 1)
    accepted.sendAll()
    #expect(accepted.answer(413) == .wait && accepted.machine.patience.shrinks == 0)
    accepted.goOn()
    #expect(accepted.next == "HEAD" && accepted.request?.url == ClientScript.upload)
    accepted.answer(204, ["Upload-Offset": "1"])
    #expect(accepted.next == "PATCH 1" && accepted.maximum == 2)
  }

  @Test("after all sizes were refused once, each further attempt waits, until the server stores bytes again")
  func refusedInVain() {
    var client = ClientScript.created(1 << 20, limits: "max-append-size=1024")
    client.send(upTo: 1024)
    client.answer(204)
    for round in 0..<3 {
      var (appends, waits) = (0, 0)
      while appends < 11 {
        #expect(client.next == "PATCH 1024", "round \(round)")
        client.sendAll()
        client.answer(413)
        appends += 1
        if client.next == "wait" {
          waits += 1
          client.goOn()
        }
        #expect(client.next == "HEAD", "round \(round)")
        client.answer(204, ["Upload-Offset": "1024"])
      }
      #expect(client.maximum == 1024, "the sizes begin again")
      #expect(waits == (round == 0 ? 1 : 11), "round \(round)")
    }
    client.send(upTo: 2048)
    client.answer(204)
    client.sendAll()
    client.answer(413)
    #expect(client.next == "HEAD", "the server has stored bytes since")
  }

  @Test("the 65th refusal of a size in a row is the last")
  func shrinks() {
    for shrinks in [63, 64] {
      var client = ClientScript.created(10_000, limits: "max-append-size=1000")
      client.machine.patience.shrinks = shrinks
      client.sendAll()
      client.answer(413)
      #expect(client.next == (shrinks == 63 ? "HEAD" : "fail"))
    }
  }

  @Test("the size of a stream's refused append is what was sent of it, and at least 64 KiB")
  func refusedSize() {
    for (sent, maximum) in [(0, 32_768), (65_536, 32_768), (65_538, 32_769), (100_000, 50_000)] as [(UInt64, UInt64)] {
      for start in [0, 300_000] as [UInt64] {
        var client = ClientScript.created(1_000_000)
        client.send(upTo: start)
        client.answer(204)
        client.send(upTo: start + sent)
        client.answer(413)
        #expect(client.next == "OPTIONS")
        client.answer(405)
        #expect(client.next == "HEAD")
        client.answer(204, ["Upload-Offset": "\(start)"])
        #expect(client.next == "PATCH \(start)" && client.maximum == maximum, "\(sent) from \(start)")
      }
    }
  }

  // MARK: Short appends

  @Test("an append is judged once, and only if it has sent and stored something")
  func judgedOnce() {
    var client = ClientScript.created(1_000_000) { $0.appendSize = 1000 }
    client.sendAll()
    client.answer(204, ["Upload-Offset": "1", "Upload-Complete": "?0"])
    client.answer(204, ["Upload-Offset": "1", "Upload-Complete": "?0"])
    #expect(client.next == "PATCH 1" && client.machine.patience.shortAppends == 1)
    for offset in 2...20 {
      client.sendAll()
      client.lose()
      client.answer(204, ["Upload-Offset": "\(offset)", "Upload-Complete": "?0"])
    }
    #expect(client.machine.patience.shortAppends == 1)

    client = streaming()
    client.lose()
    client.answer(204, ["Upload-Offset": "200"])
    for _ in 0..<10 {
      client.sendAll()
      #expect(client.answer(503) == .wait)
      client.goOn()
      client.answer(204, ["Upload-Offset": "200"])
      #expect(client.next == "PATCH 200" && client.machine.patience.shortAppends == 0)
    }

    client.machine.patience.shortAppends = 3
    client.answer(503)
    client.goOn()
    client.answer(204, ["Upload-Offset": "250"])
    #expect(client.next == "PATCH 250" && client.machine.patience.shortAppends == 3, "nothing of it was sent")
  }

  @Test("an append is short if less than half of it and less than 64 KiB are stored")
  func shortAppends() {
    for (size, stored, isShort) in [
      (1000, 1, true), (1000, 499, true), (1000, 500, false), (200_000, 65_535, true), (200_000, 65_536, false),
    ] as [(UInt64, UInt64, Bool)] {
      var client = ClientScript.created(1_000_000) { $0.appendSize = size }
      client.machine.patience.shortAppends = 2
      client.sendAll()
      client.answer(204, ["Upload-Offset": "\(stored)", "Upload-Complete": "?0"])
      client.answer(204, ["Upload-Offset": "\(stored)", "Upload-Complete": "?0"])
      #expect(client.machine.patience.shortAppends == (isShort ? 3 : 0), "\(stored) of \(size)")
    }
    for count in [1, 5] {
      var client = ClientScript.created(1_000_000)
      client.sendAll()
      client.machine.patience.shortAppends = count
      client.interim(["Upload-Offset": "65535"])
      #expect(client.machine.patience.shortAppends == count)
      client.interim(["Upload-Offset": "65536"])
      #expect(client.machine.patience.shortAppends == 0)
    }
  }

  @Test("only the end of a stream that the server has stored is given up after many lost uploads")
  func lostEnds() {
    for (isFinished, acknowledged, detours, restarts, isLast) in [
      (true, 500, 8, 8, true), (true, 500, 8, 7, false), (true, 500, 7, 8, false), (true, 499, 8, 8, false),
      (false, 500, 8, 8, false),
    ] {
      var client = ClientScript.created(500, isFinished: isFinished)
      client.sendAll()
      client.interim(["Upload-Offset": "\(acknowledged)"])
      // 410 has come before.
      client.machine.patience.missing = 1
      (client.machine.patience.detours, client.machine.patience.restarts) = (detours, restarts)
      client.answer(410)
      #expect(client.next == (isLast ? "fail" : "CREATE"), "\(acknowledged) \(detours) \(restarts)")
    }
    // A file begins again.
    var client = ClientScript.created(500, isFinished: true) { $0.length = 500 }
    client.sendAll()
    client.interim(["Upload-Offset": "500"])
    client.machine.patience.missing = 1
    (client.machine.patience.detours, client.machine.patience.restarts) = (8, 8)
    client.answer(410)
    #expect(client.next == "CREATE")
  }

  @Test("a surplus that may still end is asked for three times in a row")
  func openSurplus() {
    var client = ClientScript.live(500)
    client.perform(client.machine.resume(url: ClientScript.upload, base: 0, version: .newest))
    for count in 1...3 {
      #expect(client.next == "HEAD" && client.machine.takeNotes().isEmpty)
      if client.answer(204, ["Upload-Offset": "900"]) == .wait { client.goOn() }
      #expect(client.machine.confirmedSurplus == (count == 2 ? 900 : nil), "\(count)")
    }
    #expect(client.machine.takeNotes() == [.impossibleOffset(900)])
  }
}
