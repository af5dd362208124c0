// Tests how the client begins an upload in rare orders of events: the rest of a file or stream, questions for support
// and limits, and creations with content.

import HTTPMessages
import Testing

@testable import ResumableUploads

@Suite("The client begins an upload, in rare orders of events")
struct ClientBeginningTests {
  private static let upload = ClientScript.upload

  // MARK: The first request

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
      var client = ClientScript.creatingFile()
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
    var client = ClientScript.creatingFile()
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
      client.answer(201, ["Stream-ID": "s"], location: ClientScript.other)
      // The bytes that only HEAD has reported are stored.
      #expect(
        client.machine.takeNotes() == [
          .gap(from: 200, to: 400, isServersFault: false), .newPart(.gap, previous: Self.upload, from: 400),
          .created(url: ClientScript.other, base: 400),
        ])
    }
  }
}
