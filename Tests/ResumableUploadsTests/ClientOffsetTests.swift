// Tests how a client retrieves the offset, and which answers it accepts (draft, section Offset Retrieval).

import HTTPMessages
import Testing

@testable import ResumableUploads

@Suite("The client requests the offset") struct ClientOffsetTests {
  /// A stream of 500 bytes, of which 300 were sent before the connection was lost. HEAD is under way.
  private func interrupted(acknowledged: UInt64 = 0, isFinished: Bool = false) -> ClientScript {
    var client = ClientScript.created(500, isFinished: isFinished)
    client.send(upTo: 300)
    if acknowledged > 0 {
      client.interim(["Upload-Offset": "\(acknowledged)"])
      client.release(upTo: acknowledged)
    }
    client.lose()
    _ = client.machine.takeNotes()
    return client
  }

  @Test("the client requests the offset with HEAD, without content (draft, section Offset Retrieval)")
  func request() {
    let client = interrupted()
    #expect(client.next == "HEAD" && client.request?.content == .absent && client.request?.url == ClientScript.upload)
    #expect(client.fields.without([InteropVersion.fieldName]).all.isEmpty, "some servers refuse any other field")
  }

  @Test(
    "the client continues at the offset that the server reports (draft, section Offset Retrieval)",
    arguments: [200, 204])
  func goesOn(_ status: Int) {
    for offset in [0, 1, 299, 300] {
      var client = interrupted()
      client.answer(status, ["Upload-Offset": "\(offset)", "Upload-Complete": "?0"])
      #expect(client.next == "PATCH \(offset)" && client.request?.content == .bytes(from: UInt64(offset), maximum: nil))
    }
  }

  @Test("the offset is enough: without Upload-Complete, Upload-Length and Upload-Limit, it continues as well")
  func bare() {
    var client = interrupted()
    client.answer(200, ["Upload-Offset": "200"])
    #expect(client.next == "PATCH 200")
  }

  @Test("bytes are freed when an append confirms the offset, because a response can be corrupted")
  func confirmed() {
    var client = interrupted()
    client.answer(204, ["Upload-Offset": "200"])
    #expect(client.machine.acknowledged == 0)
    client.interim(["Upload-Offset": "200"])
    #expect(client.machine.acknowledged == 200)
  }

  @Test("without data to append, an append without content confirms it, because a full buffer would wait forever")
  func confirmedWithoutBytes() {
    var client = ClientScript.created(500)
    client.sendAll()
    client.lose()
    client.answer(204, ["Upload-Offset": "500"])
    #expect(client.next == "PATCH 500" && client.maximum == 0 && client.fields["Upload-Complete"] == "?0")
    client.answer(204)
    #expect(client.machine.acknowledged == 500 && client.next == "await 501")
  }

  @Test("if min-append-size prevents that, a repeated offset confirms it (draft, section Limits)")
  func confirmedTwice() {
    var client = ClientScript.created(500, limits: "min-append-size=10")
    client.sendAll()
    client.lose()
    client.answer(204, ["Upload-Offset": "500"])
    #expect(client.next == "HEAD" && client.machine.acknowledged == 0)
    client.answer(204, ["Upload-Offset": "500"])
    #expect(client.machine.acknowledged == 500 && client.next == "await 510")
  }

  // MARK: What cannot be

  @Test(
    "if the reported offset exceeds the sent bytes, the client asks once more, and then ends the stream (draft, section Offset Retrieval)"
  )
  func beyondSent() {
    var client = interrupted()
    var count = 0
    while client.answer(204, ["Upload-Offset": "301"]) == .wait, count < 100 {
      #expect(client.machine.takeNotes() == [.impossibleOffset(301)])
      client.goOn()
      #expect(client.next == "HEAD")
      count += 1
    }
    #expect(client.failure == .offsetBeyondSent(offset: 301, sent: 300) && (1..<10).contains(count))
    #expect(client.machine.isForgotten, "a process that resumed it would continue behind bytes that nobody sent")
  }

  @Test("in that case, the client cancels the upload of a file (draft, section Offset Retrieval)")
  func beyondSentOfFile() {
    var client = ClientScript.file(500)
    client.start()
    client.interim(location: ClientScript.upload)
    client.send(upTo: 300)
    client.lose()
    while client.next == "HEAD" { if client.answer(204, ["Upload-Offset": "400"]) == .wait { client.goOn() } }
    #expect(client.next == "DELETE")
    client.answer(204)
    #expect(client.failure == .offsetBeyondSent(offset: 400, sent: 300))
  }

  @Test("a single corrupted response costs only another request")
  func beyondSentOnce() {
    var client = interrupted()
    client.answer(204, ["Upload-Offset": "5000"])
    client.goOn()
    client.answer(204, ["Upload-Offset": "300"])
    #expect(client.next == "PATCH 300")
  }

  @Test(
    "fewer bytes than acknowledged, but in the buffer: this is reported, and they are sent again (draft, section Offset)"
  )
  func wentBack() {
    var client = interrupted(acknowledged: 200)
    client.supply.oldest = 100
    #expect(client.answer(204, ["Upload-Offset": "150"]) == .wait, "asked twice: an answer can be spoiled on its way")
    client.goOn()
    client.answer(204, ["Upload-Offset": "150"])
    #expect(client.machine.takeNotes() == [.serverWentBack(from: 200, to: 150)])
    #expect(client.next == "PATCH 150" && client.machine.acknowledged == 150, "what it lost is to be kept again")
  }

  @Test(
    "fewer bytes than in the buffer: the loss is reported, the server's part is completed, and the buffer continues after it"
  )
  func lostForGood() {
    var client = interrupted(acknowledged: 200)
    client.supply.restart = 260
    client.answer(204, ["Upload-Offset": "150"])
    client.goOn()
    client.answer(204, ["Upload-Offset": "150"])
    #expect(client.next == "PATCH 150" && client.fields["Upload-Complete"] == "?1" && client.maximum == 0)
    client.answer(200, ["Upload-Complete": "?1"])
    #expect(client.next == "CREATE" && client.machine.base == 200, "not one byte that is kept is left out")
    client.answer(201, location: ClientScript.other)
    #expect(
      client.machine.takeNotes() == [
        .serverWentBack(from: 200, to: 150), .gap(from: 150, to: 200, isServersFault: true),
        .newPart(.serverWentBack, previous: ClientScript.upload, from: 200),
        .created(url: ClientScript.other, base: 200),
      ])
  }

  /// How the server answers the append that completes the upload.
  enum Completion: CaseIterable { case answered, lost, completeBefore }

  @Test(
    "if a server that joins parts has lost the end of the stream, this is reported, and its part is completed",
    arguments: Completion.allCases)
  func lostAtEnd(_ completion: Completion) {
    var client = ClientScript.live(500, isFinished: true) { $0.streamID = "s" }
    client.start()
    client.answer(201, ["Stream-ID": "s"], location: ClientScript.upload)
    client.sendAll()
    client.interim(["Upload-Offset": "500"])
    client.release(upTo: 500)
    client.lose()
    _ = client.machine.takeNotes()
    let isComplete: HeaderFields = ["Upload-Complete": completion == .completeBefore ? "?1" : "?0"]
    var notes: [ClientNote] = []
    for _ in 0..<10 where client.last != .completed {
      switch client.next {
      case "wait": client.goOn()
      case "HEAD":
        var fields = isComplete
        fields.append("Upload-Offset", "150")
        client.answer(204, fields)
      case "PATCH 150" where client.fields["Upload-Complete"] == "?0": client.answer(204, ["Upload-Complete": "?0"])
      case "PATCH 150" where completion == .lost && !notes.contains(.serverWentBack(from: 500, to: 150)):
        notes += client.machine.takeNotes()
        client.lose()
      case "PATCH 150": client.answer(200, ["Upload-Complete": "?1"])
      default: Issue.record("an upload resource without a byte follows: \(client.next)")
      }
    }
    #expect(client.last == .completed)
    notes += client.machine.takeNotes()
    #expect(
      notes == [.serverWentBack(from: 500, to: 150), .gap(from: 150, to: 500, isServersFault: true)], "\(notes)")
  }

  @Test("an upload that contains the bytes after all continues normally")
  func lostAndFound() {
    var client = interrupted(acknowledged: 200)
    for _ in 0..<2 { if client.answer(204, ["Upload-Offset": "150"]) == .wait { client.goOn() } }
    client.answer(409, ["Upload-Offset": "250"])
    client.answer(204, ["Upload-Offset": "250"])
    #expect(client.next == "PATCH 250" && client.fields["Upload-Complete"] == "?0")
  }

  @Test(
    "if Upload-Offset is missing or not a non-negative Integer, the client asks again, and then ends (draft, section Offset)"
  )
  func noOffset() {
    for fields in [[:], ["Upload-Offset": "-5"], ["Upload-Offset": "1.0"]] as [HeaderFields] {
      var client = interrupted()
      var count = 0
      while client.next == "HEAD", count < 100 {
        if client.answer(204, fields) == .wait { client.goOn() }
        count += 1
      }
      #expect(client.failure == .noOffset && count < 20)
    }
  }

  // MARK: Status

  @Test("307 and 308: the request goes to the new URI (draft, section Offset Retrieval)", arguments: [307, 308])
  func redirect(_ status: Int) {
    var client = interrupted()
    client.answer(status, location: ClientScript.other)
    #expect(client.next == "HEAD" && client.request?.url == ClientScript.other)
  }

  @Test("4xx are final (draft, section Offset Retrieval)", arguments: [405, 415])
  func refused(_ status: Int) {
    var client = interrupted()
    #expect(client.answer(status) == .fail(.refused(status: status)))
  }

  @Test("5xx, a locked upload, or no response: the client asks again after a pause (draft, section Offset Retrieval)")
  func retry() {
    for status in [400, 408, 409, 423, 429, 500, 502, 503, nil] {
      var client = interrupted()
      if let status {
        #expect(client.answer(status) == .wait)
        client.goOn()
      } else {
        client.lose()
      }
      #expect(client.next == "HEAD")
    }
  }

  @Test("permanent 400 and 409 end the upload", arguments: [400, 409])
  func refusedForEver(_ status: Int) {
    var client = interrupted()
    var count = 0
    while client.answer(status) == .wait, count < 100 {
      client.goOn()
      count += 1
    }
    #expect(client.failure == .noProgress(status: status) && count < 20)
  }

  // MARK: Lost final responses

  @Test("if the upload is complete, the client requests the final response again (draft, section Upload Append)")
  func lostFinalResponse() {
    var client = ClientScript.created(500, isFinished: true)
    client.sendAll()
    client.lose()
    client.answer(204, ["Upload-Offset": "500", "Upload-Complete": "?1"])
    #expect(client.next == "PATCH 500" && client.maximum == 0 && client.fields["Upload-Complete"] == "?1")
    client.answer(200, ["Upload-Complete": "?1"])
    #expect(client.next == "completed" && client.machine.acknowledged == 500)
  }

  @Test("if a server does not repeat it, the upload is complete nevertheless", arguments: [400, 404, 409, 410, 405])
  func notReplayed(_ status: Int) {
    for fields in [[:], ["Upload-Complete": "?0"]] as [HeaderFields] {
      var client = ClientScript.created(500, isFinished: true)
      client.sendAll()
      client.lose()
      let complete: HeaderFields = ["Upload-Offset": "500", "Upload-Complete": "?1"]
      client.answer(204, complete)
      client.answer(status, fields)
      // A server may forget a complete upload. After an error, the client does not accept the response to HEAD
      // immediately.
      if ![404, 410].contains(status) {
        #expect(client.next == "wait")
        client.goOn()
        client.answer(204, complete)
        #expect(client.next == "PATCH 500")
        client.answer(status, fields)
      }
      #expect(client.next == "completed")
    }
  }

  @Test(
    "a corrupted HEAD that reports complete ends nothing if the next response contradicts it",
    arguments: [200, 204, 400, 405, 409], [nil, "0", "300"])
  func spoiledCompletion(_ status: Int, _ offset: String?) {
    for isFile in [true, false] {
      var client = isFile ? ClientScript.file(500) : ClientScript.created(500, isFinished: true)
      if isFile {
        client.start()
        client.interim(location: ClientScript.upload)
      }
      client.sendAll()
      client.lose()
      client.answer(204, ["Upload-Offset": "500", "Upload-Complete": "?1"])
      #expect(client.next == "PATCH 500" && client.maximum == 0)
      var denial: HeaderFields = ["Upload-Complete": "?0"]
      if let offset { denial.append("Upload-Offset", offset) }
      client.answer(status, denial)
      #expect(client.next == "wait", "\(denial)")
      client.goOn()
      #expect(client.next == "HEAD")
      client.answer(204, ["Upload-Offset": "300", "Upload-Complete": "?0"])
      #expect(client.next == "PATCH 300" && client.machine.acknowledged < 500)
    }
  }

  @Test("a HEAD that reports complete repeatedly is trusted, whatever the responses to appends")
  func insistingCompletion() {
    var client = ClientScript.created(500, isFinished: true)
    client.sendAll()
    client.lose()
    var appends = 0
    while client.next != "completed", appends < 10 {
      client.answer(204, ["Upload-Offset": "500", "Upload-Complete": "?1"])
      #expect(client.next == "PATCH 500")
      appends += 1
      if client.answer(409, ["Upload-Offset": "300", "Upload-Complete": "?0"]) == .wait { client.goOn() }
    }
    #expect(client.next == "completed" && appends == 4)
  }

  @Test("a final response beyond the sent bytes is verified, and is not a success", arguments: [501, 10_000])
  func tooMuch(_ claim: UInt64) {
    for isFile in [true, false] {
      var client = isFile ? ClientScript.file(500) : ClientScript.created(500, isFinished: true)
      if isFile {
        client.start()
        client.interim(location: ClientScript.upload)
        client.lose()
        client.answer(204, ["Upload-Offset": "0"])
      }
      client.sendAll()
      client.answer(201, ["Upload-Offset": "\(claim)", "Upload-Complete": "?1"])
      #expect(client.next == "HEAD")
      for _ in 0..<10 where client.failure == nil && client.next != "DELETE" {
        if client.answer(204, ["Upload-Offset": "\(claim)", "Upload-Complete": "?1"]) == .wait { client.goOn() }
      }
      if client.next == "DELETE" { client.answer(204) }
      #expect(client.failure == .offsetBeyondSent(offset: claim, sent: 500), "\(client.next)")
    }
  }

  @Test("SwiftNIO answers the repeated request with 409, its offset, and ?1, which is not a processing failure")
  func conflictOnReplay() {
    var client = ClientScript.created(500, isFinished: true) { $0.version = InteropVersion(number: 6) ?? .newest }
    client.sendAll()
    client.lose()
    client.answer(204, ["Upload-Offset": "500", "Upload-Complete": "?1"])
    client.answer(409, ["Upload-Offset": "500", "Upload-Complete": "?1"])
    #expect(client.next == "completed")
  }

  @Test("a repeated final response that is an error ends the upload (draft, section Upload Append)")
  func failureOnReplay() {
    var client = ClientScript.created(500, isFinished: true)
    client.sendAll()
    client.lose()
    client.answer(204, ["Upload-Offset": "500", "Upload-Complete": "?1"])
    #expect(client.answer(422, ["Upload-Complete": "?1"]) == .fail(.processingFailed(status: 422)))
  }

  @Test(
    "an offset in HEAD that is too high loses no byte, because only an accepted append acknowledges",
    arguments: [true, false])
  func spoiledOffset(isConflict: Bool) {
    var client = ClientScript.created(1000)
    client.send(upTo: 900)
    client.lose()
    client.answer(204, ["Upload-Offset": "800"])
    #expect(client.next == "PATCH 800")
    if isConflict {
      client.answer(409, ["Upload-Offset": "300"])
    } else {
      client.lose()
    }
    client.answer(204, ["Upload-Offset": "300"])
    #expect(client.next == "PATCH 300" && client.machine.acknowledged == 0)
    #expect(client.machine.takeNotes().allSatisfy { if case .created = $0 { true } else { false } })
  }
}
