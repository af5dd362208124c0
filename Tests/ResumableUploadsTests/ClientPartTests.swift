// Tests the exact offsets and lengths at which the client begins, continues and ends a part of a stream.

import HTTPMessages
import Testing

@testable import ResumableUploads

@Suite("The client and the exact sizes of parts")
struct ClientPartTests {
  private static let upload = ClientScript.upload

  // MARK: Sizes

  @Test("a limit that leaves room for exactly the smallest append is used")
  func smallestRoom() {
    for (limits, size) in [("max-size=100, min-append-size=100", 100), ("max-size=1", 1)] as [(String, UInt64)] {
      let client = ClientScript.created(500, limits: limits)
      #expect(client.next == "PATCH 0" && client.maximum == size && client.fields["Upload-Complete"] == "?0")
    }
    let client = ClientScript.created(1, isFinished: true)
    #expect(client.next == "PATCH 0" && client.maximum == 1 && client.fields["Upload-Length"] == "1")
  }

  @Test("a pause of the source ends an upload only if bytes precede it")
  func pauses() {
    for head in [0, 50] as [UInt64] {
      var client = ClientScript.live(head)
      client.supply.pausesAtHead = true
      client.start()
      client.answer(201, ["Upload-Limit": "min-append-size=100"], location: Self.upload)
      guard head > 0 else {
        #expect(client.next == "await 100")
        continue
      }
      client.sendAll()
      client.answer(200)
      #expect(client.next == "CREATE" && client.newParts() == [.pause] && client.machine.base == 50)
    }
  }

  @Test("a response confirms an offset that an interim response has acknowledged before")
  func acknowledgedBefore() {
    var client = ClientScript.created(500)
    client.sendAll()
    client.interim(["Upload-Offset": "500"])
    client.answer(204)
    #expect(client.next == "await 501" && client.machine.acknowledged == 500)
  }

  @Test("HEAD that repeats an offset acknowledges nothing, as long as there is something to append")
  func repeatedOffset() {
    var client = ClientScript.created(500)
    client.send(upTo: 300)
    for _ in 0..<5 {
      client.lose()
      client.answer(204, ["Upload-Offset": "200"])
      #expect(client.next == "PATCH 200" && client.machine.acknowledged == 0)
    }
  }

  @Test("bytes count as sent as soon as they are handed over")
  func wrote() {
    var client = ClientScript.created(500)
    client.machine.wrote(upTo: 300)
    #expect(client.machine.sent == 300)
    client.machine.wrote(upTo: 100)
    #expect(client.machine.sent == 300)
    client.lose()
    client.answer(204, ["Upload-Offset": "300"])
    #expect(client.next == "PATCH 300")
  }

  // MARK: Ends of parts

  @Test("a part that is full continues at the oldest byte, although a margin would be preferred")
  func fullPartWithoutGap() {
    var client = ClientScript.live(500) { $0.streamID = "s" }
    client.start()
    client.answer(201, ["Stream-ID": "s", "Upload-Limit": "max-size=200"], location: Self.upload)
    client.sendAll()
    client.lose()
    client.release(upTo: 200, restart: 280)
    _ = client.machine.takeNotes()
    client.answer(204, ["Upload-Offset": "200"])
    #expect(client.next == "CREATE" && client.machine.base == 200)
    #expect(client.machine.takeNotes() == [.newPart(.size, previous: Self.upload, from: 200)])
  }

  @Test("a server that does not join parts receives an empty one behind bytes that it has lost at the end")
  func emptyLastPart() {
    var client = ClientScript.created(500, isFinished: true) { $0.streamID = "s" }
    client.sendAll()
    client.interim(["Upload-Offset": "500"])
    client.release(upTo: 500)
    client.lose()
    for _ in 0..<2 where client.next == "HEAD" {
      if client.answer(204, ["Upload-Offset": "150", "Upload-Complete": "?0"]) == .wait { client.goOn() }
    }
    #expect(client.next == "PATCH 150" && client.fields["Upload-Complete"] == "?1")
    client.answer(200, ["Upload-Complete": "?1"])
    #expect(client.next == "CREATE" && client.machine.base == 500)
  }

  @Test("bytes that left the buffer before the end of a stream are a gap that is not the server's fault")
  func gapAtEnd() {
    var client = ClientScript.live(500, isFinished: true) { $0.streamID = "s" }
    client.start()
    client.answer(201, ["Stream-ID": "s"], location: Self.upload)
    client.send(upTo: 300)
    client.interim(["Upload-Offset": "100"])
    client.lose()
    client.release(upTo: 500)
    _ = client.machine.takeNotes()
    client.answer(204, ["Upload-Offset": "200", "Upload-Complete": "?0"])
    #expect(client.next == "PATCH 200" && client.maximum == 0 && client.fields["Upload-Complete"] == "?1")
    client.answer(200, ["Upload-Complete": "?1"])
    #expect(client.next == "completed")
    #expect(client.machine.takeNotes() == [.gap(from: 200, to: 500, isServersFault: false)])
  }

  @Test("a part that the server has completed earlier than HEAD reported ends where the server says")
  func completedBelowHEAD() {
    var client = ClientScript.created(500)
    client.send(upTo: 400)
    client.lose()
    client.answer(204, ["Upload-Offset": "300"])
    client.release(upTo: 200, restart: 250)
    _ = client.machine.takeNotes()
    client.answer(200, ["Upload-Complete": "?1", "Upload-Offset": "100"])
    #expect(client.next == "CREATE" && client.machine.base == 250)
    client.answer(201, location: ClientScript.other)
    #expect(
      client.machine.takeNotes() == [
        .gap(from: 100, to: 250, isServersFault: false), .newPart(.completed, previous: Self.upload, from: 250),
        .created(url: ClientScript.other, base: 250),
      ])
  }

  @Test("a server that joins parts and returned to the oldest byte in the buffer receives it without a question")
  func joinedWentBackToOldest() {
    var client = ClientScript.streaming("s")
    client.release(upTo: 100)
    client.lose()
    for _ in 0..<2 where client.next == "HEAD" {
      if client.answer(204, ["Upload-Offset": "100", "Upload-Complete": "?0"]) == .wait { client.goOn() }
    }
    #expect(client.next == "PATCH 100" && client.request?.content == .bytes(from: 100, maximum: nil))
    #expect(client.machine.takeNotes() == [.serverWentBack(from: 200, to: 100)])
  }

  /// A full upload of 200 bytes. The request that completes it is under way.
  private func ending() -> ClientScript {
    var client = ClientScript.created(500, limits: "max-size=200")
    client.sendAll()
    client.answer(204)
    #expect(client.next == "PATCH 200" && client.maximum == 0 && client.fields["Upload-Complete"] == "?1")
    return client
  }

  @Test("a refused end of a part is left, after a question if it may be about the offset")
  func refusedEnd() {
    var client = ending()
    client.answer(400)
    #expect(client.next == "CREATE" && client.machine.base == 200)
    // The second 409 counts, unless it proves another offset than HEAD.
    for (second, next) in [(nil, "CREATE"), ("9999", "CREATE"), ("150", "CREATE"), ("200", "CREATE")]
      as [(String?, String)]
    {
      client = ending()
      client.answer(409)
      #expect(client.next == "HEAD")
      client.answer(204, ["Upload-Offset": "200", "Upload-Complete": "?0"])
      #expect(client.next == "PATCH 200")
      client.answer(409, second.map { ["Upload-Offset": $0] } ?? [:])
      #expect(client.next == next, "\(second ?? "none")")
    }
    for (detours, next) in [(0, "HEAD"), (7, "wait"), (8, "wait"), (9, "CREATE")] {
      client = ending()
      let lower: HeaderFields = ["Upload-Offset": "150", "Upload-Complete": "?0"]
      client.answer(409, lower)
      #expect(client.next == "HEAD")
      client.answer(204, ["Upload-Offset": "200", "Upload-Complete": "?0"])
      #expect(client.next == "PATCH 200")
      client.machine.patience.detours = detours
      client.answer(409, lower)
      #expect(client.next == next, "\(detours)")
    }
  }

  @Test("if the server has more than it had reported, the upload continues in spite of a gap or a pause")
  func gapWithdrawn() {
    for pause in [nil, 200..<350] as [Range<UInt64>?] {
      var client = ClientScript.created(500)
      client.send(upTo: 400)
      client.lose()
      client.supply = Supply(oldest: 350, head: 500, isFinished: false, pause: pause)
      client.answer(204, ["Upload-Offset": "200", "Upload-Complete": "?0"])
      #expect(client.next == "PATCH 200" && client.fields["Upload-Complete"] == "?1" && client.maximum == 0)
      client.lose()
      client.answer(204, ["Upload-Offset": "400", "Upload-Complete": "?0"])
      #expect(client.next == "PATCH 400" && client.fields["Upload-Complete"] == "?0" && client.maximum == nil)
    }
  }

  @Test("a finished stream that does not fit continues in a part whose length counts from its own beginning")
  func lastParts() {
    var client = ClientScript.created(500, isFinished: true, limits: "max-size=200")
    #expect(client.maximum == 200 && client.fields["Upload-Complete"] == "?0")
    client.sendAll()
    client.answer(204)
    #expect(client.next == "PATCH 200" && client.maximum == 0 && client.fields["Upload-Complete"] == "?1")
    client.answer(200)
    #expect(client.next == "CREATE" && client.machine.base == 200)
    client.answer(201, ["Upload-Limit": "max-size=1000"], location: ClientScript.other)
    #expect(client.next == "PATCH 0" && client.maximum == 300 && client.fields["Upload-Length"] == "300")
  }
}
