// Tests details of the client's decisions that only appear in rare orders of events: exact offsets, notes and flags.

import HTTPMessages
import Testing

@testable import ResumableUploads

@Suite("The client in rare orders of events") struct ClientDetailTests {
  private static let upload = ClientScript.upload
  private static let portal = "http://portal/login"
  private static let third = "http://host/uploads/3"

  /// A stream of 500 bytes so far, of which 300 were sent and 200 are acknowledged.
  private func streaming(_ streamID: String? = nil, isFinished: Bool = false) -> ClientScript {
    var client = ClientScript.live(500, isFinished: isFinished) { $0.streamID = streamID }
    client.start()
    client.answer(201, streamID.map { ["Stream-ID": $0] } ?? [:], location: Self.upload)
    client.send(upTo: 300)
    client.interim(["Upload-Offset": "200"])
    _ = client.machine.takeNotes()
    return client
  }

  /// Its upload resource is gone, and the client creates another one.
  private func recreating() -> ClientScript {
    var client = streaming()
    client.release(upTo: 200)
    client.lose()
    client.answer(410)
    #expect(client.next == "CREATE" && client.machine.base == 200)
    return client
  }

  // MARK: Beginning

  @Test("a file that continues in a new upload resource counts only its rest, in each field and limit")
  func restOfFile() {
    var client = ClientScript.file(500) {
      ($0.streamID, $0.digestAlgorithm) = ("s", "sha-256")
      $0.digest = DigestField([("sha-256", [1, 2, 3])])
    }
    client.perform(client.machine.start(client.supply, after: 200))
    #expect(client.next == "CREATE" && client.request?.content == .bytes(from: 200, maximum: nil))
    #expect(client.fields["Upload-Length"] == "300" && client.fields["Stream-Offset"] == "200")
    #expect(client.fields["Repr-Digest"] == nil, "it is the digest of the whole file")
    #expect(client.fields["Want-Repr-Digest"] == "sha-256=10")
    #expect(client.interim(["Upload-Limit": "max-append-size=300"], location: Self.upload) == nil)
    #expect(!client.machine.exceedsAppendSize)
    client.interim(["Upload-Limit": "max-append-size=299"])
    #expect(client.machine.exceedsAppendSize)
    #expect(client.interim(["Upload-Limit": "max-size=300"]) == nil)
    #expect(client.interim(["Upload-Limit": "max-size=299"]) == .tooLarge(limit: 299))
  }

  @Test("only a whole stream or a file can be sent to a plain server")
  func unsupportedRest() {
    for isFile in [false, true] {
      for start in [0, 1, 200] as [UInt64] {
        var client = ClientScript.live(500, isFinished: isFile) {
          $0.discovers = true
          if isFile { $0.length = 500 }
        }
        client.perform(client.machine.start(client.supply, after: start))
        #expect(client.next == "OPTIONS")
        client.answer(405, ["Allow": "GET, POST"])
        if isFile || start == 0 {
          #expect(client.next == "unsupported")
        } else {
          #expect(client.failure == .refused(status: 405))
        }
        #expect(client.machine.state == .ended)
      }
    }
  }

  @Test("the version is settled by a 104, a creation, an append, or the upload of another process")
  func settledVersion() {
    var client = ClientScript.live(500)
    client.start()
    #expect(!client.machine.isVersionSettled)
    client.interim(["Upload-Limit": "min-size=0"])
    #expect(client.machine.isVersionSettled)
    #expect(client.answer(400) == .fail(.refused(status: 400)), "the 400 is not about the version")
    #expect(ClientScript.created(500).machine.isVersionSettled)
    client = .live(500)
    client.perform(client.machine.resume(url: Self.upload, base: 0, version: .newest))
    #expect(client.machine.isVersionSettled)
    // A portal may have named the upload resource.
    client = .file(500) { $0.requiresProtocol = true }
    client.start()
    client.sendAll()
    client.answer(200, location: Self.upload)
    client.answer(204, ["Upload-Offset": "0", "Upload-Complete": "?0"])
    #expect(client.next == "PATCH 0" && !client.machine.isVersionSettled)
    client.sendAll()
    client.answer(200)
    #expect(client.next == "completed" && client.machine.isVersionSettled && client.machine.isForgotten)
  }

  @Test("a server that names the client's own version with its 400 is asked in the next older one")
  func ownVersion() throws {
    var client = ClientScript.live(500) { $0.discovers = true }
    client.start()
    client.answer(400, [InteropVersion.fieldName: "8"])
    #expect(client.next == "OPTIONS" && client.fields[InteropVersion.fieldName] == "7")
    let older = try #require(InteropVersion(number: 7))
    #expect(client.machine.takeNotes() == [.steppedDown(to: older)])
  }

  @Test("min-size=1 requires the length of a stream, and min-size=0 does not", arguments: [400, 411, 422])
  func smallestMinimum(_ status: Int) {
    for minimum in [0, 1] {
      var client = ClientScript.live(500) { $0.discovers = true }
      client.start()
      client.answer(200, ["Upload-Limit": "min-size=\(minimum)"])
      client.answer(status)
      #expect(client.next == (minimum == 0 ? "fail" : "unsupported"))
    }
    // After an acknowledged byte, something else answers.
    var client = ClientScript.live(500) { $0.discovers = true }
    client.start()
    client.answer(200, ["Upload-Limit": "min-size=1000"])
    client.answer(201, location: Self.upload)
    client.send(upTo: 300)
    client.interim(["Upload-Offset": "200"])
    client.lose()
    client.answer(410)
    #expect(client.next == "CREATE" && client.answer(status) == .wait)
    client.goOn()
    #expect(client.next == "HEAD" && client.request?.url == Self.upload)
  }

  @Test(
    "a question for the limits alone ends with its answer, and a later OPTIONS asks for support",
    arguments: [false, true])
  func limitsAlone(isAnswered: Bool) {
    var client = ClientScript.file(500) { $0.discovers = true }
    client.start()
    client.interim(location: Self.upload)
    client.lose()
    client.answer(204, ["Upload-Offset": "0", "Upload-Complete": "?0"])
    #expect(client.next == "PATCH 0" && client.maximum == 500)
    client.sendAll()
    client.answer(413)
    #expect(client.next == "OPTIONS")
    if isAnswered {
      client.answer(200, ["Upload-Limit": "min-size=0"])
    } else {
      client.perform(client.machine.questionIsUnanswered(client.supply))
    }
    #expect(client.next == "HEAD")
    client.answer(204, ["Upload-Offset": "0", "Upload-Complete": "?0"])
    #expect(client.next == "PATCH 0" && client.maximum == 250)
    client.answer(410)
    #expect(client.next == "CREATE" && client.request?.content == .bytes(from: 0, maximum: nil))
    client.lose()
    #expect(client.next == "OPTIONS")
    client.answer(405, ["Allow": "GET, POST"])
    #expect(client.next == "unsupported")
    // Without an upload resource, it creates one.
    client = .file(10_000)
    client.start()
    client.answer(413, isEarly: true)
    #expect(client.next == "OPTIONS")
    client.perform(client.machine.questionIsUnanswered(client.supply))
    #expect(client.next == "CREATE" && client.request?.content == .empty)
  }

  @Test("a stream that is sent with its creation also becomes resumable after a lost 104 and after a 413")
  func optimisticStream() {
    var client = ClientScript.live(500) { ($0.isOptimistic, $0.discovers) = (true, true) }
    client.start()
    client.interim(location: Self.upload)
    client.send(upTo: 300)
    client.interim(["Upload-Offset": "200"])
    client.lose()
    client.answer(204, ["Upload-Offset": "300", "Upload-Complete": "?1"])
    #expect(client.next == "CREATE" && client.request?.content == .bytes(from: 300, maximum: nil))
    client.lose()
    // The server has supported uploads before, so something else answers now.
    for _ in 0..<2 {
      #expect(client.next == "OPTIONS")
      client.answer(404)
    }
    #expect(client.next == "wait")
    client.goOn()
    #expect(client.next == "OPTIONS")

    client = .live(300_000) { $0.isOptimistic = true }
    client.perform(client.machine.start(client.supply, after: 100_000))
    client.send(upTo: 170_000)
    client.answer(413)
    #expect(client.next == "OPTIONS")
    client.answer(405)
    #expect(client.next == "CREATE" && client.request?.content == .empty)
    client.answer(201, location: Self.upload)
    #expect(client.next == "PATCH 0" && client.maximum == 35_000)
  }

  // MARK: Creations with content

  @Test("an early response to a creation is an error if it neither names an upload resource nor reports an offset")
  func earlyResponses() {
    let cases: [(HeaderFields, String?)] = [
      (HeaderFields(), Self.upload), (["Upload-Offset": "300"], nil), (["Upload-Complete": "?1"], nil),
      (["Upload-Complete": "?1", "Upload-Offset": "300"], Self.upload),
    ]
    for (fields, location) in cases {
      var client = ClientScript.file(500)
      client.start()
      client.send(upTo: 300)
      #expect(client.answer(200, fields, location: location, isEarly: true) == .fail(.completedEarly), "\(fields.all)")
    }
  }

  @Test("after an acknowledged byte, an early response without an upload resource is an outage, unless it is complete")
  func earlyResponsesLater() {
    for isComplete in [false, true] {
      var client = ClientScript.file(500)
      client.start()
      client.interim(location: Self.upload)
      client.send(upTo: 300)
      client.interim(["Upload-Offset": "200"])
      client.lose()
      client.answer(410)
      #expect(client.next == "CREATE" && client.request?.content == .bytes(from: 0, maximum: nil))
      client.send(upTo: 300)
      if isComplete {
        #expect(client.answer(200, ["Upload-Complete": "?1"], isEarly: true) == .fail(.completedEarly))
      } else {
        #expect(client.answer(200, ["Upload-Offset": "300"], isEarly: true) == .wait)
        client.goOn()
        #expect(client.next == "HEAD" && client.request?.url == Self.upload)
        // From now on, creations are careful.
        client.answer(410)
        #expect(client.next == "CREATE" && client.request?.content == .empty)
      }
    }
  }

  @Test("a creation with content whose response is lost is complete if the server forgets it with all bytes")
  func lostCreation() {
    for acknowledged in [499, 500] {
      var client = ClientScript.file(500)
      client.start()
      client.interim(location: Self.upload)
      client.sendAll()
      client.interim(["Upload-Offset": "\(acknowledged)"])
      client.lose()
      client.insist(404)
      #expect(client.next == (acknowledged == 500 ? "completed" : "CREATE"))
    }
    // A creation without content completes nothing, even if there is no byte.
    var client = ClientScript.file(0) { $0.isOptimistic = false }
    client.start()
    #expect(client.fields["Upload-Complete"] == "?0")
    client.interim(location: Self.upload)
    client.lose()
    client.answer(404)
    #expect(client.next == "CREATE")
  }

  @Test("a size limit that equals the server's bytes may be true, and one below them is not")
  func sizeOfStoredBytes() {
    var client = ClientScript.file(500)
    client.start()
    client.interim(location: Self.upload)
    client.send(upTo: 300)
    client.interim(["Upload-Offset": "200"])
    #expect(client.interim(["Upload-Limit": "max-size=199"]) == nil)
    #expect(client.interim(["Upload-Limit": "max-size=200"]) == .tooLarge(limit: 200))
  }

  @Test("a 104 shows that the server joins the uploads of a stream, too")
  func joinsByInterim() {
    for streamID in ["s", "t"] {
      var client = ClientScript.live(500) { $0.streamID = "s" }
      client.start()
      client.interim(["Stream-ID": streamID], location: Self.upload)
      client.lose()
      client.answer(204, ["Upload-Offset": "0"])
      client.send(upTo: 200)
      client.lose()
      client.release(upTo: 350, restart: 400)
      _ = client.machine.takeNotes()
      client.answer(204, ["Upload-Offset": "200"])
      guard streamID == "s" else {
        #expect(client.next == "PATCH 200" && client.fields["Upload-Complete"] == "?1")
        continue
      }
      #expect(client.next == "CREATE" && client.fields["Stream-Offset"] == "400")
      // The bytes that only HEAD has reported are stored.
      #expect(
        client.machine.takeNotes() == [
          .gap(from: 200, to: 400, isServersFault: false), .newPart(.gap, previous: Self.upload, from: 400),
        ])
    }
  }

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
    var client = streaming()
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
    var client = streaming()
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
    #expect(
      client.machine.takeNotes() == [
        .gap(from: 100, to: 250, isServersFault: false), .newPart(.completed, previous: Self.upload, from: 250),
      ])
  }

  @Test("a server that joins parts and returned to the oldest byte in the buffer receives it without a question")
  func joinedWentBackToOldest() {
    var client = streaming("s")
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

  // MARK: Refusals

  @Test("a refusal is vague if it has no meaning in the protocol")
  func vagueRefusals() {
    let definite: [HeaderFields] = [
      ["Upload-Offset": "0"], ["Upload-Complete": "?0"], ["Upload-Draft-Interop-Version": "8"], ["Stream-ID": "s"],
      ["Stream-Offset": "1"],
    ]
    for status in 100..<600 {
      let isRetried = [408, 421, 423, 425, 429, 500, 502, 503, 504].contains(status) || status >= 506
      let isVague = status >= 300 && ![401, 403, 407, 413].contains(status) && !isRetried
      #expect(ClientAnswer(status: status, fields: ["X-A": "b"]).isVagueRefusal == isVague, "\(status)")
      for fields in definite {
        let answer = ClientAnswer(status: status, fields: fields)
        #expect(answer.isVagueRefusal == (isVague && status != 409 && status != 410), "\(status) \(fields.all)")
      }
      #expect(ClientAnswer(status: status, fields: [:]).isRefusal == [401, 403, 407].contains(status))
    }
  }

  @Test("the methods in Allow are separated by commas, spaces and tabs")
  func allowedMethods() {
    for text in ["PUT,POST", "PUT, POST", " PUT ,\tPOST ", "PUT\tPOST", ",PUT,,POST,"] {
      #expect(ClientAnswer(status: 405, fields: ["Allow": text]).allowedMethods == ["PUT", "POST"], "\(text)")
    }
    #expect(ClientAnswer(status: 405, fields: [:]).allowedMethods == [])
  }

  @Test("statuses from 300 on are no successes", arguments: [300, 301, 399])
  func noSuccess(_ status: Int) {
    var client = ClientScript.created(500)
    var asking = client
    #expect(client.answer(status) == .fail(.refused(status: status)))
    asking.lose()
    #expect(asking.answer(status) == .fail(.refused(status: status)))
    for version in [nil, "8"] {
      var cancelled = ClientScript.created(500)
      cancelled.perform(cancelled.machine.cancel())
      cancelled.answer(status, version.map { [InteropVersion.fieldName: $0] } ?? [:])
      #expect(cancelled.failure == .cancelled && !cancelled.machine.isForgotten)
    }
    // A question that something else answers is repeated if the caller limits the time of refusals.
    var question = ClientScript.live(500) { ($0.discovers, $0.retriesRefusals) = (true, true) }
    question.start()
    #expect(question.answer(status, [InteropVersion.fieldName: "8"]) == .wait)
  }

  @Test("a cancellation is confirmed by a success of the protocol", arguments: [200, 202, 299])
  func cancelledByVersion(_ status: Int) {
    for version in [nil, "8", "6"] {
      var client = ClientScript.created(500)
      client.perform(client.machine.cancel())
      client.answer(status, version.map { [InteropVersion.fieldName: $0] } ?? [:])
      #expect(client.failure == .cancelled && client.machine.isForgotten == (version != nil))
    }
  }

  @Test("a 400 to OPTIONS is a plain server's, and repeated 500s end the rest of a stream")
  func refusedQuestions() {
    var client = ClientScript.live(500) { ($0.discovers, $0.retriesRefusals) = (true, true) }
    client.start()
    client.answer(400, ["Allow": "POST"])
    #expect(client.next == "unsupported")
    client = .live(500) { $0.discovers = true }
    client.perform(client.machine.start(client.supply, after: 200))
    for _ in 0..<2 {
      #expect(client.answer(500) == .wait)
      client.goOn()
    }
    #expect(client.answer(500) == .fail(.refused(status: 500)))
  }

  @Test("after a 413 to the rest of a file, parts of half of this rest follow")
  func refusedRest() {
    var client = ClientScript.file(500)
    client.perform(client.machine.start(client.supply, after: 200))
    client.answer(413, isEarly: true)
    client.answer(405)
    client.answer(201, location: Self.upload)
    #expect(client.next == "PATCH 0" && client.request?.content == .bytes(from: 200, maximum: 150))
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

    client = streaming()
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
