// Tests a creation that a server answers with 409 because it can no longer store bytes of the stream at that offset.

import HTTPMessages
import Testing

@testable import ResumableUploads

@Suite("The client and a stream that other processes have continued") struct ClientPlacesTests {
  private static let upload = ClientScript.upload

  private static func refusal(_ stored: UInt64, stream: String = "s") -> HeaderFields {
    ["Stream-ID": stream, "Stream-Offset": "\(stored)"]
  }

  /// A stream of 500 bytes whose server joins its uploads, has acknowledged 200 bytes, and has lost the upload. The
  /// client creates another one at 200.
  private func creating(
    isFinished: Bool = false, _ change: (inout UploadClientStateMachine.Configuration) -> Void = { _ in }
  ) -> ClientScript {
    var client = ClientScript.live(500, isFinished: isFinished) {
      $0.streamID = "s"
      change(&$0)
    }
    client.start()
    client.answer(201, ["Stream-ID": "s"], location: Self.upload)
    client.send(upTo: 300)
    client.interim(["Upload-Offset": "200"])
    client.release(upTo: 200)
    client.lose()
    client.answer(410)
    #expect(client.next == "CREATE" && client.machine.base == 200)
    _ = client.machine.takeNotes()
    return client
  }

  /// The first 409. The client asks the former upload once more, which is still gone.
  private func askAgain(_ client: inout ClientScript, _ fields: HeaderFields) {
    #expect(client.answer(409, fields) == .wait, "no byte is discarded because of one response")
    missFormer(&client)
    #expect(client.machine.patience.placeRefusals == 1)
  }

  /// After the pause, the former upload is still gone.
  private func missFormer(_ client: inout ClientScript, thenAt base: UInt64 = 200) {
    client.goOn()
    #expect(client.next == "HEAD" && client.request?.url == Self.upload)
    client.insist(410)
    #expect(client.next == "CREATE" && client.machine.base == base)
  }

  @Test("at the second 409, the client continues where the server can store bytes, and reports the gap once")
  func continuesBehind() {
    for place in [201, 300, 499, 500] as [UInt64] {
      var client = creating()
      askAgain(&client, Self.refusal(place))
      client.answer(409, Self.refusal(place))
      #expect(client.next == "CREATE" && client.machine.base == place && client.machine.acknowledged == place)
      #expect(client.fields["Stream-Offset"] == "\(place)" && client.fields["Stream-ID"] == "s")
      let gap = ClientNote.gap(from: 200, to: place, isServersFault: true)
      #expect(client.machine.takeNotes() == [gap])
      client.answer(201, Self.refusal(place), location: ClientScript.other)
      #expect(
        client.machine.takeNotes() == [
          .newPart(.gone, previous: Self.upload, from: place), .created(url: ClientScript.other, base: place),
        ])
      #expect(client.next == (place == 500 ? "await 501" : "PATCH 0") && client.machine.patience.placeRefusals == 0)
    }
  }

  @Test("bytes before that place that were discarded here are not the server's fault")
  func discardedBeforePlace() {
    var client = creating()
    askAgain(&client, Self.refusal(300))
    client.release(upTo: 260)
    client.answer(409, Self.refusal(300))
    #expect(client.next == "CREATE" && client.machine.base == 300)
    let gaps = client.machine.takeNotes().filter { if case .gap = $0 { true } else { false } }
    #expect(
      gaps == [.gap(from: 200, to: 260, isServersFault: false), .gap(from: 260, to: 300, isServersFault: true)],
      "\(gaps)")
  }

  @Test("a gap that was reported for a place is not reported again for a later one")
  func laterPlace() {
    var client = creating()
    askAgain(&client, Self.refusal(300))
    client.answer(409, Self.refusal(300))
    #expect(client.machine.takeNotes() == [.gap(from: 200, to: 300, isServersFault: true)])
    // After an outage, the client asks the former upload again.
    client.answer(503)
    missFormer(&client, thenAt: 300)
    #expect(client.machine.takeNotes().isEmpty)
    // The refusals count until an upload exists.
    client.answer(409, Self.refusal(400))
    #expect(client.next == "CREATE" && client.machine.base == 400)
    #expect(client.machine.takeNotes() == [.gap(from: 300, to: 400, isServersFault: true)])
    client.answer(409, Self.refusal(400))
    #expect(client.failure == .refused(status: 409), "the stream has ended there")
  }

  @Test("bytes before the upload that is refused are in earlier ones, and are no gap")
  func gapBeginsAtUpload() {
    var client = ClientScript.live(500) { $0.streamID = "s" }
    client.start()
    client.answer(201, ["Stream-ID": "s", "Upload-Limit": "max-size=300"], location: Self.upload)
    client.send(upTo: 300)
    client.interim(["Upload-Offset": "100"])
    client.lose()
    // Only HEAD has reported the next 200 bytes.
    client.release(upTo: 250)
    client.answer(204, ["Upload-Offset": "300", "Upload-Complete": "?0"])
    #expect(client.next == "CREATE" && client.machine.base == 250)
    #expect(client.answer(409, Self.refusal(400)) == .wait)
    client.goOn()
    _ = client.machine.takeNotes()
    #expect(client.next == "CREATE")
    client.answer(409, Self.refusal(400))
    #expect(client.next == "CREATE" && client.machine.base == 400)
    #expect(client.machine.takeNotes().contains(.gap(from: 250, to: 400, isServersFault: true)))
  }

  @Test(
    "the stream has ended before the upload, or the client ends before the place: the refusal is final",
    arguments: [false, true])
  func finalRefusal(isFinished: Bool) {
    for (place, isFinal) in [(0, true), (199, true), (200, true), (201, false), (500, false), (501, isFinished)]
      as [(UInt64, Bool)]
    {
      var client = creating(isFinished: isFinished)
      askAgain(&client, Self.refusal(place))
      client.answer(409, Self.refusal(place))
      #expect((client.failure == .refused(status: 409)) == isFinal, "\(place): \(client.next)")
      // A place that the stream has not reached yet is awaited.
      if place == 501, !isFinished { #expect(client.next == "wait" && client.machine.base == 0) }
    }
  }

  @Test("a 409 that does not name the stream or its end is an outage, and is not counted")
  func otherConflicts() {
    let others: [HeaderFields] = [
      [:], ["Stream-Offset": "300"], ["Stream-ID": "s"], Self.refusal(300, stream: "t"),
      ["Stream-ID": "s", "Stream-Offset": "-1"],
    ]
    for fields in others {
      var client = creating()
      #expect(client.answer(409, fields) == .wait)
      client.goOn()
      #expect(client.next == "HEAD" && client.request?.url == Self.upload)
      #expect(client.machine.patience.placeRefusals == 0, "\(fields.all)")
    }
    // The whole file must be stored, and not only what follows.
    var client = creating(isFinished: true) { $0.length = 500 }
    for _ in 0..<3 {
      #expect(client.answer(409, Self.refusal(300)) == .wait && client.machine.patience.placeRefusals == 0)
      missFormer(&client)
    }
    // Before the first acknowledged byte, it is a refusal.
    client = .live(500) { $0.streamID = "s" }
    client.start()
    #expect(client.answer(409, Self.refusal(300)) == .fail(.refused(status: 409)))
  }

  @Test("an append that is refused because the stream has other bytes there ends the stream")
  func appendRefused() {
    var client = ClientScript.created(500) { $0.streamID = "s" }
    client.send(upTo: 300)
    var named = client
    #expect(named.answer(409, ["Stream-ID": "s"]) == .fail(.refused(status: 409)))
    named = client
    named.answer(409, ["Stream-ID": "t"])
    #expect(named.next == "HEAD")
    client.answer(409, ["Stream-ID": "s", "Upload-Offset": "100"])
    #expect(client.next == "HEAD", "this is about the offset")
  }
}
