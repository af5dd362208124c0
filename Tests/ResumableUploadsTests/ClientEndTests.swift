// Tests the ways in which an upload ends: complete, gone, or in parts.

import HTTPMessages
import Testing

@testable import ResumableUploads

@Suite("The end of the client's upload") struct ClientEndTests {
  // MARK: Gone

  @Test(
    "404 or 410 in the middle: a new upload continues from the oldest byte in the buffer, and the break is reported",
    arguments: [404, 410])
  func gone(_ status: Int) {
    for asks in [true, false] {
      var client = ClientScript.created(500) { $0.streamID = "s" }
      client.send(upTo: 300)
      client.interim(["Upload-Offset": "200"])
      client.release(upTo: 180)
      _ = client.machine.takeNotes()
      if asks { client.lose() }
      if status == 404 {
        #expect(client.answer(404) == .wait, "a proxy that is being reconfigured responds with this, too")
        client.goOn()
      }
      client.insist(status)
      #expect(client.next == "CREATE" && client.machine.base == 180 && client.machine.acknowledged == 180)
      #expect(client.fields["Stream-ID"] == "s" && client.fields["Stream-Offset"] == "180")
      #expect(client.machine.takeNotes().isEmpty, "the old upload is not left before there is a new one")
      client.answer(201, location: ClientScript.other)
      #expect(
        client.machine.takeNotes() == [
          .newPart(.gone, previous: ClientScript.upload, from: 180), .created(url: ClientScript.other, base: 180),
        ])
    }
  }

  @Test("unacknowledged bytes that left the buffer are lost and reported, and the new upload begins with a margin")
  func goneWithGap() {
    var client = ClientScript.created(500)
    client.send(upTo: 300)
    client.interim(["Upload-Offset": "200"])
    client.release(upTo: 250, restart: 280)
    _ = client.machine.takeNotes()
    client.insist(404)
    #expect(client.machine.base == 280)
    client.answer(201, location: ClientScript.other)
    #expect(
      client.machine.takeNotes() == [
        .gap(from: 200, to: 280, isServersFault: false), .newPart(.gone, previous: ClientScript.upload, from: 280),
        .created(url: ClientScript.other, base: 280),
      ])
  }

  @Test("a new upload that is refused repeatedly begins with a margin each time, and all lost bytes are one gap")
  func goneWithGapAndRefused() {
    var client = ClientScript.created(500)
    client.send(upTo: 300)
    client.interim(["Upload-Offset": "200"])
    client.release(upTo: 250, restart: 280)
    _ = client.machine.takeNotes()
    client.insist(404)
    #expect(client.next == "CREATE" && client.machine.base == 280)
    for (oldest, restart) in [(280, 320), (280, 330), (300, 340), (340, 350)] as [(UInt64, UInt64)] {
      client.answer(401)
      #expect(client.next == "wait")
      client.goOn()
      client.release(upTo: oldest, restart: restart)
      client.insist(404)
      #expect(client.next == "CREATE" && client.machine.base == restart)
      #expect(client.machine.takeNotes().isEmpty)
    }
    client.answer(201, location: ClientScript.other)
    #expect(
      client.machine.takeNotes() == [
        .gap(from: 200, to: 350, isServersFault: false), .newPart(.gone, previous: ClientScript.upload, from: 350),
        .created(url: ClientScript.other, base: 350),
      ])
  }

  @Test("a new upload skips no byte of the buffer, although a margin would be preferred")
  func goneWithoutGap() {
    var client = ClientScript.created(500)
    client.send(upTo: 300)
    client.interim(["Upload-Offset": "200"])
    client.release(upTo: 200, restart: 280)
    _ = client.machine.takeNotes()
    client.insist(404)
    #expect(client.machine.base == 200)
    client.answer(201, location: ClientScript.other)
    #expect(
      client.machine.takeNotes() == [
        .newPart(.gone, previous: ClientScript.upload, from: 200), .created(url: ClientScript.other, base: 200),
      ])
  }

  @Test("a file begins again at its first byte")
  func fileGone() {
    var client = ClientScript.file(500)
    client.start()
    client.interim(location: ClientScript.upload)
    client.sendAll()
    client.interim(["Upload-Offset": "400"])
    client.lose()
    client.insist(404)
    #expect(client.request?.content == .bytes(from: 0, maximum: nil) && client.fields["Upload-Length"] == "500")
  }

  @Test(
    "a server that forgets the same upload at the same byte each time makes progress only once",
    arguments: [404, 410])
  func goneForEver(_ status: Int) {
    var client = ClientScript.file(500)
    client.start()
    var advances: [UInt64] = []
    for _ in 0..<20 {
      client.interim(location: ClientScript.upload)
      client.send(upTo: 400)
      client.interim(["Upload-Offset": "300"])
      client.lose()
      client.insist(status)
      #expect(client.next == "CREATE")
      advances.append(client.machine.advances)
    }
    #expect(advances.first == 1 && advances.dropFirst().allSatisfy { $0 == 2 }, "\(advances)")
  }

  @Test("the client gives up a server that accepts nothing, and forgets each upload")
  func goneBeforeAnything() {
    var client = ClientScript.live(500)
    client.start()
    var count = 0
    while client.failure == nil, count < 200 {
      client.answer(client.next == "CREATE" ? 201 : 404, location: ClientScript.upload)
      count += 1
    }
    #expect(client.failure == .noProgress(status: 404) && count < 30)
  }

  @Test("a 404 of a finished upload is its end if it was completed and all bytes are acknowledged")
  func forgottenWhenComplete() {
    var client = ClientScript.created(500, isFinished: true)
    client.sendAll()
    client.interim(["Upload-Offset": "500"])
    client.lose()
    #expect(client.answer(404) == .wait, "this may be the response of a proxy")
    client.goOn()
    client.insist(404)
    #expect(client.next == "completed")
  }

  @Test("a 404 that reports the upload as incomplete is not a success, in any version", arguments: 3...8)
  func endedWithoutCompletion(_ version: Int) throws {
    let version = try #require(InteropVersion(number: Int64(version)))
    let inactive = UploadRefusal.deactivated(.stateLost).status(version)
    let answer = ServerAnswer.refused(.deactivated(.stateLost), version, limits: UploadLimits())
    #expect(answer.status == inactive)
    var client = ClientScript.created(500, isFinished: true) { $0.version = version }
    client.sendAll()
    client.interim(["Upload-Offset": "500"])
    client.lose()
    for _ in 0..<10 where client.next == "HEAD" || client.next == "wait" {
      if client.answer(answer.status, answer.fields) == .wait { client.goOn() }
    }
    #expect(client.next == "CREATE", "\(answer)")
  }

  @Test(
    "an upload that HEAD reported as complete is complete, even if it is forgotten before its final response is repeated"
  )
  func forgottenAfterHead() {
    var client = ClientScript.created(500, isFinished: true)
    client.sendAll()
    client.interim(["Upload-Offset": "500"])
    #expect(client.answer(503) == .wait)
    client.goOn()
    client.answer(204, ["Upload-Offset": "500", "Upload-Complete": "?1"])
    #expect(client.next == "PATCH 500" && client.maximum == 0)
    #expect(client.answer(503) == .wait)
    client.goOn()
    client.insist(404)
    #expect(client.next == "completed")
  }

  @Test("without that, a lost upload is not complete, although all bytes were acknowledged")
  func forgottenBeforeComplete() {
    // The server refuses the very request that would complete the upload.
    var client = ClientScript.created(500)
    client.sendAll()
    client.supply.isFinished = true
    client.answer(204)
    #expect(client.next == "PATCH 500" && client.fields["Upload-Complete"] == "?1")
    client.insist(404)
    #expect(client.next == "CREATE")
    // No request has tried to complete it yet.
    client = .created(500)
    client.sendAll()
    client.interim(["Upload-Offset": "500"])
    client.supply.isFinished = true
    client.lose()
    client.insist(404)
    #expect(client.next == "CREATE")
    // The content of the request had not ended.
    client = .created(500, isFinished: true)
    client.send(upTo: 499)
    client.lose()
    client.answer(404)
    #expect(client.next == "CREATE")
  }

  // MARK: Early completion

  @Test(
    "if a server completes a stream's upload by itself, the rest goes into another upload (draft, section Completeness)"
  )
  func completedEarly() {
    var client = ClientScript.created(500)
    client.send(upTo: 300)
    client.answer(200, ["Upload-Complete": "?1"])
    #expect(client.next == "CREATE" && client.machine.base == 300 && client.newParts() == [.completed])
  }

  @Test("before the content's end, it has the offset in this or an earlier response (draft, section Completeness)")
  func completedInTheMiddle() {
    for (fields, base) in [(["Upload-Complete": "?1"], 100), (["Upload-Complete": "?1", "Upload-Offset": "150"], 150)]
      as [(HeaderFields, UInt64)]
    {
      var client = ClientScript.created(500)
      client.send(upTo: 300)
      client.interim(["Upload-Offset": "100"])
      client.answer(200, fields, isEarly: true)
      #expect(client.next == "CREATE" && client.machine.base == base)
    }
  }

  @Test("a final response with less than the acknowledged bytes is a loss: HEAD confirms it, and it is reported")
  func completedWithLess() {
    for isFinished in [true, false] {
      for isEarly in [true, false] {
        for isKept in [true, false] {
          for completes in [true, false] {
            let name = "finished \(isFinished), early \(isEarly), kept \(isKept), complete \(completes)"
            var client = ClientScript.created(500, isFinished: isFinished)
            client.send(upTo: isEarly ? 300 : 500)
            client.interim(["Upload-Offset": "200"])
            if !isKept { client.release(upTo: 200) }
            _ = client.machine.takeNotes()
            var fields: HeaderFields = ["Upload-Offset": "100"]
            if completes { fields.append("Upload-Complete", "?1") }
            client.answer(200, fields, isEarly: isEarly)
            #expect(client.next == "HEAD", "\(name): \(client.next)")
            for _ in 0..<2 where client.next == "HEAD" {
              if client.answer(204, ["Upload-Offset": "100", "Upload-Complete": "?1"]) == .wait { client.goOn() }
            }
            #expect(client.next == "CREATE" && client.machine.base == (isKept ? 100 : 200), "\(name): \(client.next)")
            client.answer(201, location: ClientScript.other)
            let notes = client.machine.takeNotes()
            #expect(notes.first == .serverWentBack(from: 200, to: 100), "\(name): \(notes)")
            #expect(notes.contains(.gap(from: 100, to: 200, isServersFault: true)) == !isKept, "\(name): \(notes)")
          }
        }
      }
    }
  }

  @Test("the client does not append to an upload that HEAD reports as complete (draft, section Completeness)")
  func completeByHead() {
    var client = ClientScript.created(500)
    client.send(upTo: 300)
    client.lose()
    client.answer(204, ["Upload-Offset": "300", "Upload-Complete": "?1"])
    #expect(client.next == "CREATE" && client.machine.base == 300)
  }

  @Test("only bytes that the server withdrew are lost with them, even if it then reports the upload as complete")
  func tookBackAndCompleted() {
    var client = ClientScript.created(1000)
    client.send(upTo: 300)
    client.answer(204, ["Upload-Complete": "?0"])
    #expect(client.machine.acknowledged == 300)
    client.release(upTo: 300, restart: 800)
    client.lose()
    for _ in 0..<2 where client.next == "HEAD" {
      if client.answer(204, ["Upload-Offset": "200", "Upload-Complete": "?0"]) == .wait { client.goOn() }
    }
    // The end of the part has arrived, but its answer is lost.
    #expect(client.next == "PATCH 200" && client.fields["Upload-Complete"] == "?1")
    _ = client.machine.takeNotes()
    client.lose()
    client.answer(204, ["Upload-Offset": "200", "Upload-Complete": "?1"])
    #expect(client.next == "CREATE" && client.machine.base == 300)
    client.answer(201, location: ClientScript.other)
    #expect(client.machine.takeNotes().contains(.gap(from: 200, to: 300, isServersFault: true)))
  }

  @Test("an upload that ends in the middle of its file is a failure")
  func fileCompletedEarly() {
    var client = ClientScript.file(500)
    client.start()
    client.interim(location: ClientScript.upload)
    client.send(upTo: 300)
    client.lose()
    // It may be a passing error because the server has acknowledged bytes.
    for _ in 0..<10 where client.failure == nil {
      if client.answer(204, ["Upload-Offset": "300", "Upload-Complete": "?1"]) == .wait { client.goOn() }
    }
    #expect(client.failure == .completedEarly)
  }

  @Test("a server that always completes everything at once does not receive uploads forever")
  func completedForEver() {
    var client = ClientScript.live(500)
    client.start()
    var count = 0
    while client.failure == nil, count < 200 {
      _ = client.endEarly()
      count += 1
    }
    #expect(client.failure == .completedEarly && count < 50)
  }

  // MARK: Gaps

  @Test("if due bytes have left the buffer, the part is completed, the gap reported, and the stream continues after it")
  func gap() {
    var client = ClientScript.created(500)
    client.send(upTo: 200)
    client.lose()
    client.release(upTo: 350, restart: 400)
    _ = client.machine.takeNotes()
    client.answer(204, ["Upload-Offset": "200"])
    #expect(client.next == "PATCH 200" && client.maximum == 0 && client.fields["Upload-Complete"] == "?1")
    client.answer(200, ["Upload-Complete": "?1"])
    #expect(client.next == "CREATE" && client.machine.base == 400 && client.machine.takeNotes().isEmpty)
    // The client does not wait forever for a server that accepts only creations.
    let before = client.machine.advances
    client.interim(["Upload-Offset": "0"], location: ClientScript.other)
    #expect(
      client.machine.takeNotes() == [
        .gap(from: 200, to: 400, isServersFault: false), .newPart(.gap, previous: ClientScript.upload, from: 400),
        .created(url: ClientScript.other, base: 400),
      ])
    client.answer(201, ["Upload-Offset": "0"], location: ClientScript.other)
    #expect(client.next == "PATCH 0" && client.machine.advances == before)
    client.sendAll()
    client.answer(204, ["Upload-Offset": "100"])
    #expect(client.machine.advances == before + 1 && client.machine.acknowledged == 500)
  }

  @Test(
    "a server that joins the parts of a stream keeps its unfinished ones, whether or not a later byte is kept",
    arguments: [(350, 400), (500, 500)] as [(UInt64, UInt64)])
  func gapWhereJoined(_ oldest: UInt64, _ start: UInt64) {
    var client = ClientScript.live(500) { $0.streamID = "s" }
    client.start()
    client.answer(201, ["Stream-ID": "s"], location: ClientScript.upload)
    client.send(upTo: 200)
    client.lose()
    client.release(upTo: oldest, restart: start)
    client.answer(204, ["Upload-Offset": "200"])
    #expect(client.next == "CREATE" && client.fields["Stream-Offset"] == "\(start)")
  }

  @Test("the end of a part is reliable: after a loss, the client asks and sends it again")
  func partEndLost() {
    var client = ClientScript.created(500, limits: "max-size=200")
    client.sendAll()
    client.answer(204)
    #expect(client.next == "PATCH 200" && client.maximum == 0)
    client.lose()
    #expect(client.next == "HEAD")
    client.answer(204, ["Upload-Offset": "200", "Upload-Complete": "?0"])
    #expect(client.next == "PATCH 200" && client.maximum == 0 && client.fields["Upload-Complete"] == "?1")
    client.lose()
    client.answer(204, ["Upload-Offset": "200", "Upload-Complete": "?1"])
    #expect(client.next == "CREATE" && client.machine.base == 200)
  }

  // MARK: A source that fails

  @Test("an upload whose source failed stays incomplete when the server has every byte")
  func cutOff() {
    var client = ClientScript.created(500)
    client.send(upTo: 300)
    client.supply = Supply(oldest: 0, head: 700, isFinished: true, isCutOff: true)
    client.answer(204)
    #expect(client.next == "PATCH 300" && client.fields["Upload-Complete"] == "?0")
    client.sendAll()
    client.answer(204)
    #expect(client.next == "left incomplete" && client.machine.acknowledged == 700)
    #expect(client.machine.uploadURL == ClientScript.upload && !client.machine.isForgotten)
  }

  @Test(
    "an offset that only HEAD has reported is confirmed before the upload stays incomplete",
    arguments: [nil, "min-append-size=50"])
  func cutOffAfterLoss(_ limits: String?) {
    var client = ClientScript.created(500, limits: limits)
    client.sendAll()
    client.supply = Supply(oldest: 0, head: 500, isFinished: true, isCutOff: true)
    client.lose()
    client.answer(204, ["Upload-Offset": "500", "Upload-Complete": "?0"])
    if limits == nil {
      #expect(client.next == "PATCH 500" && client.maximum == 0 && client.fields["Upload-Complete"] == "?0")
      client.answer(204)
    } else {
      #expect(client.next == "HEAD")
      client.answer(204, ["Upload-Offset": "500", "Upload-Complete": "?0"])
    }
    #expect(client.next == "left incomplete" && client.machine.acknowledged == 500)
  }

  @Test("the last bytes of a failed source complete the upload only if the server accepts no smaller append")
  func cutOffBelowMinimum() {
    var client = ClientScript.created(100, limits: "min-append-size=50")
    client.sendAll()
    client.supply = Supply(oldest: 0, head: 130, isFinished: true, isCutOff: true)
    client.answer(204)
    #expect(client.next == "PATCH 100" && client.maximum == 30 && client.fields["Upload-Complete"] == "?1")
  }

  @Test("where parts are joined, a failed source whose last bytes are lost also leaves the upload incomplete")
  func cutOffInGap() {
    var client = ClientScript.live(500) { $0.streamID = "s" }
    client.start()
    client.answer(201, ["Stream-ID": "s"], location: ClientScript.upload)
    client.send(upTo: 200)
    client.lose()
    client.supply = Supply(oldest: 500, head: 500, isFinished: true, isCutOff: true)
    client.answer(204, ["Upload-Offset": "200"])
    #expect(client.next == "PATCH 200" && client.fields["Upload-Complete"] == "?0")
    client.answer(204)
    #expect(client.next == "left incomplete" && client.machine.acknowledged == 500)
    #expect(client.machine.takeNotes().contains(.gap(from: 200, to: 500, isServersFault: false)))
  }
}
