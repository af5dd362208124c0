// Tests answers to HEAD that come from a cache and contradict the upload resource's own answers to appends.

import HTTPMessages
import PropertyTesting
import Testing

@testable import ResumableUploads

@Suite("Contradictions between HEAD and 409") struct ClientConflictTests {
  /// The successive answers to HEAD. The last one is repeated. nil stands for the true offset.
  private typealias Heads = [UInt64?]

  /// A correct upload resource, behind an intermediary that answers HEAD in its place.
  private struct Server {
    var stored: UInt64
    var heads: Heads
    var requests = 0
    /// Whether the upload is complete, or the client has turned to another upload resource.
    var hasEnded = false

    mutating func answer(_ client: inout ClientScript) {
      requests += 1
      guard let request = client.request else { return void(client.goOn()) }
      switch request.purpose {
      case .offsetRetrieval:
        let told = heads[0]
        if heads.count > 1 { heads.removeFirst() }
        client.answer(204, ["Upload-Offset": "\(told ?? stored)", "Upload-Complete": "?0"])
      case .append:
        guard UploadFields.offset(request.fields) == stored else {
          return void(client.answer(409, ["Upload-Offset": "\(stored)", "Upload-Complete": "?0"]))
        }
        client.sendAll()
        stored = client.sentUpTo
        let completes = request.fields["Upload-Complete"] == "?1"
        if completes { hasEnded = true }
        client.answer(204, ["Upload-Offset": "\(stored)", "Upload-Complete": completes ? "?1" : "?0"])
      case .creation, .cancellation, .discovery: hasEnded = true
      }
    }

    private func void(_: UploadClientStateMachine.Action) {}
  }

  /// A client that has sent 500 bytes, of which 200 are acknowledged, and has lost its connection.
  private func interrupted(isFile: Bool, joinsParts: Bool, oldest: UInt64) -> ClientScript {
    var client: ClientScript
    if isFile {
      client = ClientScript.file(500)
      client.start()
      client.sendAll()
      client.interim(["Upload-Offset": "200"], location: ClientScript.upload)
    } else {
      client = ClientScript.live(500, isFinished: true) { $0.streamID = "s" }
      client.start()
      client.answer(201, joinsParts ? ["Stream-ID": "s"] : [:], location: ClientScript.upload)
      client.sendAll()
      client.interim(["Upload-Offset": "200"])
      client.release(upTo: oldest)
    }
    _ = client.machine.takeNotes()
    client.lose()
    return client
  }

  private func isBreak(_ note: ClientNote) -> Bool {
    switch note {
    case .gap, .newPart: true
    default: false
    }
  }

  @Test(
    "an outdated HEAD loses no byte and ends nothing, for any offset: the 409 counts",
    arguments: [false, true], [false, true])
  func outdated(isFile: Bool, joinsParts: Bool) {
    let values: [UInt64?] = [nil, 0, 100, 199, 200, 250, 300, 301, 400, 500]
    for stored in [200, 300, 500] as [UInt64] {
      for oldest in (isFile ? [0] : [0, 150, 200]) as [UInt64] {
        for first in values {
          for second in values {
            for heads in [
              [first, second], [first, first, first, second], [first, second, first, second, first, second, first],
            ] {
              var client = interrupted(isFile: isFile, joinsParts: joinsParts, oldest: oldest)
              var server = Server(stored: stored, heads: heads)
              while !server.hasEnded, client.failure == nil, server.requests < 60 { server.answer(&client) }
              let notes = client.machine.takeNotes().filter(isBreak)
              #expect(
                client.next == "completed" && server.stored == 500 && notes.isEmpty,
                "stored \(stored), oldest \(oldest), HEAD \(heads): \(client.next) \(notes) \(server.requests)")
            }
          }
        }
      }
    }
  }

  @Test("an impossible offset in every HEAD does not end the upload of a file: an append without content verifies it")
  func impossible() {
    for stored in [200, 300, 500] as [UInt64] {
      for told in [501, 10_000] as [UInt64] {
        // The resource is proven to be an upload resource because it has reported progress on an append.
        var client = ClientScript.created(500, isFinished: true) { $0.length = 500 }
        client.sendAll()
        client.interim(["Upload-Offset": "200"])
        client.lose()
        var server = Server(stored: stored, heads: [told])
        while !server.hasEnded, client.failure == nil, server.requests < 60 { server.answer(&client) }
        #expect(client.next == "completed" && server.stored == 500, "\(stored) \(told): \(client.next)")
      }
    }
  }

  @Test("bytes that the server has really lost are a gap, once it has confirmed that itself", arguments: [false, true])
  func lost(joinsParts: Bool) {
    for stored in [0, 50, 199] as [UInt64] {
      var client = interrupted(isFile: false, joinsParts: joinsParts, oldest: 200)
      var server = Server(stored: stored, heads: [nil])
      while !server.hasEnded, server.requests < 20 { server.answer(&client) }
      client.answer(201, location: ClientScript.other)
      let gaps = client.machine.takeNotes().filter { if case .gap = $0 { true } else { false } }
      #expect(gaps == [.gap(from: stored, to: 200, isServersFault: true)], "\(stored): \(gaps)")
    }
  }

  /// A stream of 600 bytes so far, of which 500 were sent and 200 are acknowledged. The append at `offset`, which HEAD
  /// has reported, is under way.
  private func appending(at offset: UInt64) -> ClientScript {
    var client = ClientScript.created(600)
    client.send(upTo: 500)
    client.interim(["Upload-Offset": "200"])
    client.lose()
    _ = client.machine.takeNotes()
    told(&client, offset)
    #expect(client.next == "PATCH \(offset)")
    return client
  }

  private func told(_ client: inout ClientScript, _ offset: UInt64) {
    #expect(client.next == "HEAD")
    client.answer(204, ["Upload-Offset": "\(offset)", "Upload-Complete": "?0"])
  }

  /// The append is refused because the upload resource is at this offset.
  private func refuse(_ client: inout ClientScript, _ offset: UInt64) {
    if client.answer(409, ["Upload-Offset": "\(offset)", "Upload-Complete": "?0"]) == .wait { client.goOn() }
  }

  @Test("one 409 with a higher offset counts if HEAD repeats the refused one, or an outdated or impossible one")
  func higherConflict() {
    for (offset, used) in [
      (250, 300), (280, 280), (299, 299), (300, 300), (301, 301), (499, 499), (500, 500), (501, 300), (100, 300),
      (199, 300), (200, 200),
    ] as [(UInt64, UInt64)] {
      var client = appending(at: 250)
      refuse(&client, 300)
      told(&client, offset)
      #expect(client.next == "PATCH \(used)", "\(offset): \(client.next)")
    }
    // The highest believable offset.
    var client = appending(at: 250)
    refuse(&client, 500)
    told(&client, 250)
    #expect(client.next == "PATCH 500")
  }

  @Test("a lower offset counts if the same append is refused twice with it, and an impossible one changes nothing")
  func lowerConflict() {
    var client = appending(at: 300)
    for (refusal, next) in [(250, 300), (9999, 300), (260, 300), (250, 300), (250, 250)] as [(UInt64, UInt64)] {
      refuse(&client, refusal)
      told(&client, 300)
      #expect(client.next == "PATCH \(next)", "\(refusal)")
    }
    client = appending(at: 300)
    for (refusal, next) in [(250, 300), (9999, 300), (250, 250)] as [(UInt64, UInt64)] {
      refuse(&client, refusal)
      told(&client, 300)
      #expect(client.next == "PATCH \(next)", "\(refusal)")
    }
  }

  @Test("a conflict is forgotten when an append elsewhere is refused as well, or succeeds")
  func outdatedConflict() {
    var client = appending(at: 250)
    refuse(&client, 300)
    told(&client, 250)
    #expect(client.next == "PATCH 300")
    var refused = client
    refuse(&refused, 300)
    told(&refused, 250)
    #expect(refused.next == "PATCH 250")

    client.send(upTo: 400)
    client.answer(204)
    #expect(client.next == "PATCH 400" && client.machine.acknowledged == 400)
    client.lose()
    for _ in 0..<2 where client.next == "HEAD" {
      if client.answer(204, ["Upload-Offset": "250", "Upload-Complete": "?0"]) == .wait { client.goOn() }
    }
    #expect(client.next == "PATCH 250")
    #expect(client.machine.takeNotes() == [.serverWentBack(from: 400, to: 250)])
  }

  @Test("an outdated HEAD yields to a conflict at exactly the acknowledged offset")
  func conflictAtAcknowledged() {
    var client = appending(at: 250)
    for _ in 0..<2 {
      #expect(client.next == "PATCH 250")
      refuse(&client, 200)
      told(&client, 250)
    }
    #expect(client.next == "PATCH 200")
    client.lose()
    told(&client, 100)
    #expect(client.next == "PATCH 200")
  }
}
