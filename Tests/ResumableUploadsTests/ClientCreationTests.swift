// Tests how a client creates an upload resource, and how it reacts to each answer (draft, section Upload Creation).

import HTTPMessages
import Testing

@testable import ResumableUploads

@Suite("The client creates an upload") struct ClientCreationTests {
  private static let upload = ClientScript.upload

  // MARK: What is sent

  @Test(
    "a stream of unknown length is created empty and incomplete (draft, sections Upload Creation, Careful Upload Creation)"
  )
  func careful() {
    var client = ClientScript.live(500)
    client.start()
    #expect(client.request?.purpose == .creation && client.request?.content == .empty && client.request?.url == nil)
    #expect(client.fields["Upload-Complete"] == "?0" && client.fields["Upload-Length"] == nil)
    #expect(client.fields["Upload-Offset"] == nil && client.fields["Content-Type"] == nil)
  }

  @Test(
    "a creation with the whole representation states its length and that it is complete (draft, section Upload Creation)"
  )
  func optimistic() {
    var client = ClientScript.file(500)
    client.start()
    #expect(client.request?.content == .bytes(from: 0, maximum: nil) && client.request?.method == nil)
    #expect(client.fields["Upload-Complete"] == "?1")
    // Content-Length is the same because the client sends exactly the file.
    #expect(client.fields["Upload-Length"] == "500")
  }

  @Test("upgrading adds only the fields of the protocol (draft, section Upgrading To Resumable Uploads)")
  func upgrade() {
    var client = ClientScript.file(500)
    client.start()
    let own = client.fields.without(UploadFields.all).all
    #expect(own.isEmpty, "\(own)")
  }

  @Test("an empty representation is complete at once (draft, section Upload Creation)")
  func empty() {
    var client = ClientScript.file(0)
    client.start()
    #expect(client.fields["Upload-Complete"] == "?1" && client.fields["Upload-Length"] == "0")
    client.answer(200)
    #expect(client.next == "completed")
  }

  @Test("each request of any kind states the interop version (draft, section Draft Version Identification)")
  func version() {
    var client = ClientScript.live(10) { $0.discovers = true }
    var methods: Set<String> = []
    func look() {
      #expect(client.fields["Upload-Draft-Interop-Version"] == "8", "\(client.next)")
      methods.insert(client.request?.method ?? "creation")
    }
    client.start()
    look()
    client.answer(204, ["Upload-Limit": "min-size=0"])
    look()
    client.answer(201, location: Self.upload)
    look()
    client.lose()
    look()
    client.perform(client.machine.cancel())
    look()
    #expect(methods == ["OPTIONS", "creation", "PATCH", "HEAD", "DELETE"])
  }

  @Test("stream identifier, digest and the request for a digest are sent with the creation")
  func metadata() {
    var client = ClientScript.file(3) {
      $0.streamID = "kitchen"
      $0.digestAlgorithm = "sha-256"
      $0.digest = DigestField([("sha-256", [1, 2, 3])])
    }
    client.start()
    #expect(client.fields["Stream-ID"] == "kitchen" && client.fields["Stream-Offset"] == "0")
    #expect(client.fields["Want-Repr-Digest"] == "sha-256=10" && client.fields["Repr-Digest"] == "sha-256=:AQID:")
  }

  // MARK: 2xx

  @Test(
    "after a 2xx to the whole, the upload is complete (draft, section Upload Creation)", arguments: [200, 201, 204])
  func whole(_ status: Int) {
    var client = ClientScript.file(500)
    client.start()
    client.sendAll()
    client.answer(status)
    #expect(client.next == "completed" && client.machine.acknowledged == 500)
  }

  @Test("a 206 to the whole completes nothing, unless the server uses the protocol")
  func partial() {
    var client = ClientScript.file(500)
    client.start()
    client.sendAll()
    #expect(client.answer(206) == .fail(.refused(status: 206)))
    for fields in [
      ["Upload-Complete": "?1"], ["Upload-Offset": "500"], ["Upload-Draft-Interop-Version": "8"],
    ] as [HeaderFields] {
      client = .file(500)
      client.start()
      client.sendAll()
      client.answer(206, fields)
      #expect(client.next == "completed", "\(fields)")
    }
    client = .file(500)
    client.start()
    client.interim(location: Self.upload)
    client.sendAll()
    client.answer(206)
    #expect(client.next == "HEAD")
  }

  @Test(
    "if the protocol is required, a 2xx to the whole without any of its fields completes nothing",
    arguments: [200, 201, 202, 204], [0, 500] as [UInt64])
  func silentAlthoughRequired(_ status: Int, _ length: UInt64) {
    func started() -> ClientScript {
      var client = ClientScript.file(length) { $0.requiresProtocol = true }
      client.start()
      return client
    }
    for isEarly in [false, true] {
      var client = started()
      client.sendAll()
      client.answer(status, isEarly: isEarly)
      #expect(client.failure == .noLocation, "early \(isEarly): \(client.next)")
      // Another version's field is no field of this client's protocol.
      client = started()
      client.sendAll()
      client.answer(status, ["Upload-Draft-Interop-Version": "99"], isEarly: isEarly)
      #expect(client.failure == .noLocation, "early \(isEarly): \(client.next)")
    }
    var client = started()
    client.sendAll()
    client.answer(status, location: Self.upload)
    #expect(client.next == "HEAD" && client.request?.url == Self.upload)
    var portal = client
    portal.insist(200)
    #expect(portal.failure == .noOffset, "\(portal.next)")
    portal = client
    portal.answer(404)
    #expect(portal.next == "CREATE" && portal.request?.content == .empty)
    client.answer(204, ["Upload-Offset": "\(length)", "Upload-Complete": "?0"])
    #expect(client.next == "PATCH \(length)" && client.fields["Upload-Complete"] == "?1")
    // A server of the protocol need not report completeness.
    for fields in [
      ["Upload-Draft-Interop-Version": "8"], ["Upload-Complete": "?1"], ["Upload-Incomplete": "?0"],
      ["Upload-Offset": "\(length)"],
    ] as [HeaderFields] {
      client = started()
      client.sendAll()
      client.answer(status, fields)
      #expect(client.next == "completed", "\(fields)")
    }
    client = started()
    client.interim(["Upload-Limit": "min-size=0"])
    client.sendAll()
    client.answer(status)
    #expect(client.next == "completed", "a 104 has shown that the server supports the protocol")
    client = started()
    client.interim(location: Self.upload)
    client.sendAll()
    client.answer(status)
    #expect(client.next == "HEAD" && client.request?.url == Self.upload)
  }

  @Test("after a 2xx to a part, the client continues at Location (draft, section Upload Creation)")
  func part() {
    var client = ClientScript.live(500)
    client.start()
    client.answer(201, ["Upload-Complete": "?0"], location: Self.upload)
    #expect(client.next == "PATCH 0" && client.request?.url == Self.upload)
    #expect(client.machine.takeNotes() == [.created(url: Self.upload, base: 0)])
  }

  @Test("after a 2xx to a part without Location, the client continues at the Location of an earlier 104")
  func announced() {
    var client = ClientScript.live(500)
    client.start()
    client.interim(location: Self.upload)
    client.answer(201)
    #expect(client.next == "PATCH 0" && client.request?.url == Self.upload)
  }

  @Test("a 2xx without any Location is an error")
  func noLocation() {
    var client = ClientScript.live(500)
    client.start()
    client.answer(201)
    #expect(client.failure == .noLocation)
  }

  enum Offer: CaseIterable, Sendable { case limits, version, silence }

  @Test(
    "after a portal's 2xx without fields of the protocol, a stream with offered resumable uploads stays resumable",
    arguments: Offer.allCases, [1, 2, 4, 5])
  func portal(_ offer: Offer, _ answers: Int) {
    var client = ClientScript.live(500) { $0.discovers = true }
    client.start()
    #expect(client.next == "OPTIONS")
    switch offer {
    case .limits: client.answer(204, ["Upload-Limit": "max-age=100"])
    case .version: client.answer(200, ["Upload-Draft-Interop-Version": "8"])
    case .silence: client.perform(client.machine.questionIsUnanswered(client.supply))
    }
    for number in 1...answers {
      #expect(client.next == "CREATE")
      client.answer([200, 201, 204][number % 3], silent: true)
      let isBelieved = offer == .silence || number == 5
      #expect(client.next == (isBelieved ? "unsupported" : "wait"))
      if isBelieved { return }
      client.goOn()
    }
    client.answer(201, location: Self.upload)
    #expect(client.next == "PATCH 0")
  }

  @Test("the offset of a 2xx to an empty creation is verified, and not trusted")
  func offsetOfNothing() {
    var client = ClientScript.live(500)
    client.start()
    client.answer(201, ["Upload-Offset": "17"], location: Self.upload)
    #expect(client.next == "HEAD")
  }

  @Test("after a 2xx that reports incomplete for the whole, the client requests the offset, and appends the rest")
  func incomplete() {
    var client = ClientScript.file(500)
    client.start()
    client.sendAll()
    client.answer(201, ["Upload-Complete": "?0"], location: Self.upload)
    #expect(client.next == "HEAD")
    client.answer(204, ["Upload-Offset": "300", "Upload-Complete": "?0"])
    #expect(client.next == "PATCH 300" && client.fields["Upload-Complete"] == "?1" && client.maximum == 200)
  }

  @Test("a 2xx with an offset before the end is not a success, whatever other fields it lacks")
  func lessThanSent() {
    var client = ClientScript.file(500)
    client.start()
    client.interim(location: Self.upload)
    client.sendAll()
    client.answer(200, ["Upload-Offset": "300"])
    #expect(client.next == "HEAD")
  }

  @Test(
    "a 2xx with Location and an offset before the end is verified, and one without a Location is an error",
    arguments: [200, 201, 204], [false, true])
  func lessThanSentWithoutInterim(status: Int, isEarly: Bool) {
    var client = ClientScript.file(500)
    client.start()
    client.send(upTo: isEarly ? 400 : 500)
    client.answer(status, ["Upload-Offset": "300"], location: Self.upload, isEarly: isEarly)
    #expect(client.next == "HEAD" && client.request?.url == Self.upload)
    client = .file(500)
    client.start()
    client.send(upTo: isEarly ? 400 : 500)
    #expect(client.answer(status, ["Upload-Offset": "300"], isEarly: isEarly) == .fail(.completedEarly))
  }

  @Test(
    "a 2xx to the whole that reports more bytes than were sent is an error that names both numbers",
    arguments: [200, 201, 204], [false, true])
  func moreThanSent(status: Int, completes: Bool) {
    for isEarly in [false, true] {
      var client = ClientScript.file(500)
      client.start()
      client.send(upTo: isEarly ? 400 : 500)
      var fields: HeaderFields = ["Upload-Offset": "600"]
      if completes { fields.append("Upload-Complete", "?1") }
      client.answer(status, fields, isEarly: isEarly)
      #expect(client.failure == .offsetBeyondSent(offset: 600, sent: isEarly ? 400 : 500), "\(client.next)")
      #expect(client.machine.isForgotten)
    }
  }

  @Test("an early 2xx without completeness is verified if there is an upload resource, and an error if not")
  func early() {
    var client = ClientScript.file(500)
    client.start()
    client.send(upTo: 100)
    #expect(client.answer(200, isEarly: true) == .fail(.completedEarly))
    client = .file(500)
    client.start()
    client.interim(location: Self.upload)
    client.send(upTo: 100)
    client.answer(200, isEarly: true)
    #expect(client.next == "HEAD")
  }

  @Test(
    "an early 2xx with Upload-Complete: ?1 is the target's response, and the client does not resume (draft, section Completeness)"
  )
  func earlyComplete() {
    var client = ClientScript.file(500)
    client.start()
    client.interim(location: Self.upload)
    client.send(upTo: 100)
    #expect(client.answer(200, ["Upload-Complete": "?1"], isEarly: true) == .fail(.completedEarly))
    #expect(client.machine.isForgotten)
  }

  @Test(
    "after a 104 with Location, a 2xx without fields of the protocol completes nothing: HEAD decides",
    arguments: [200, 201, 202, 204])
  func silentAfterAnnouncement(_ status: Int) {
    for (isAnnounced, isAcknowledged, hasLocation, isEarly) in product {
      for words in [
        HeaderFields(), ["Upload-Draft-Interop-Version": "8"], ["Upload-Complete": "?1"], ["Upload-Offset": "500"],
      ] {
        var client = ClientScript.file(500)
        client.start()
        if isAnnounced { client.interim(location: Self.upload) }
        client.send(upTo: isEarly ? 300 : 500)
        if isAcknowledged { client.interim(["Upload-Offset": "200"]) }
        client.answer(status, words, location: hasLocation ? "http://host/result" : nil, isEarly: isEarly)
        let isSilent = words.all.isEmpty
        let name = "announced \(isAnnounced), acknowledged \(isAcknowledged), early \(isEarly), \(words)"
        #expect((client.next == "completed") == (!isEarly && !(isSilent && isAnnounced)), "\(name): \(client.next)")
        guard isSilent, isAnnounced else { continue }
        #expect(client.next == "HEAD" && client.request?.url == Self.upload, "\(name): \(client.next)")
        var forgotten = client
        forgotten.insist(404)
        #expect((forgotten.next == "completed") == !isEarly, "\(name): \(forgotten.next)")
        client.answer(204, ["Upload-Offset": "300", "Upload-Complete": "?0"])
        #expect(client.next == "PATCH 300", "\(name)")
      }
    }
  }

  /// All combinations of four properties: a 104 announced the upload resource, a 104 acknowledged bytes, the response
  /// has a Location, and the response is early.
  private var product: [(Bool, Bool, Bool, Bool)] {
    let both = [false, true]
    return both.flatMap { announced in
      both.flatMap { acknowledged in
        both.flatMap { location in
          // A 104 without a Location acknowledges nothing.
          both.map { (announced, acknowledged && announced, location, $0) }
        }
      }
    }
  }

  // MARK: Location

  @Test(
    "a Location that differs from the announced one aborts and cancels the upload (draft, section Upload Creation)",
    arguments: [true, false])
  func locationChanged(isInterim: Bool) {
    var client = ClientScript.live(500)
    client.start()
    client.interim(location: Self.upload)
    if isInterim {
      #expect(client.interim(location: ClientScript.other) == .locationChanged)
      client.perform(client.machine.cancel())
    } else {
      client.answer(201, ["Upload-Complete": "?0"], location: ClientScript.other)
    }
    #expect(client.next == "DELETE" && client.request?.url == Self.upload)
    client.answer(204)
    let expected: ClientFailure = isInterim ? .cancelled : .locationChanged
    #expect(client.failure == expected)
    #expect(client.machine.isForgotten)
  }

  @Test("the final response of a complete upload may have its own Location (draft, section Upload Creation)")
  func locationOfResult() {
    var client = ClientScript.file(500)
    client.start()
    client.interim(location: Self.upload)
    client.sendAll()
    client.answer(201, ["Upload-Complete": "?1"], location: "http://host/files/7")
    #expect(client.next == "completed")
  }

  @Test("a repeated Location changes nothing if it stays the same")
  func locationRepeated() {
    var client = ClientScript.live(500)
    client.start()
    for _ in 0..<3 { #expect(client.interim(location: Self.upload) == nil) }
    client.answer(201, location: Self.upload)
    #expect(client.next == "PATCH 0")
    #expect(client.machine.takeNotes().count == 1, "one upload resource was created, not several")
  }

  // MARK: Refusals, 5xx, nothing

  @Test(
    "4xx is final (draft, section Upload Creation)",
    arguments: [404, 405, 409, 410, 415, 422, 451])
  func refused(_ status: Int) {
    for client in [ClientScript.live(500), .file(500)] {
      var client = client
      client.start()
      #expect(client.answer(status) == .fail(.refused(status: status)))
    }
  }

  @Test("POST replaces the method if the server supports only POST, and if this is allowed")
  func otherMethod() {
    for (allowed, isReplaceable, takesPOST) in [
      ("POST, OPTIONS", true, true), ("POST,HEAD", true, true), ("PUT, POST", true, false), ("HEAD", true, false),
      ("POST", false, false),
    ] {
      for asks in [true, false] {
        var client = ClientScript.file(500) {
          if isReplaceable { $0.replaceableMethod = "PUT" }
          if asks { ($0.discovers, $0.isOptimistic) = (true, false) }
        }
        client.start()
        if asks {
          client.answer(200, ["Upload-Limit": "min-size=0", "Allow": allowed])
        } else {
          client.send(upTo: 200)
          client.answer(405, ["Allow": allowed], isEarly: true)
        }
        if !takesPOST, !asks {
          #expect(client.failure == .refused(status: 405))
        } else {
          #expect(client.request?.purpose == .creation && client.request?.method == (takesPOST ? "POST" : nil))
          #expect(client.answer(405, ["Allow": "POST"]) == .fail(.refused(status: 405)) || !takesPOST, "once")
        }
      }
    }
  }

  @Test("a Location that leaves TLS is a separate error")
  func insecureLocation() {
    var client = ClientScript.live(500) { $0.discovers = true }
    client.start()
    client.answer(200, ["Upload-Limit": "min-size=0"])
    var answer = ClientAnswer(status: 201, fields: [:])
    answer.isLocationInsecure = true
    #expect(client.machine.answered(answer, sentUpTo: 0, client.supply) == .fail(.insecureLocation))
  }

  @Test(
    "the client retries after a 4xx whose semantics allow it (draft, section Upload Creation)",
    arguments: [408, 421, 423, 425, 429])
  func retried(_ status: Int) {
    var client = ClientScript.live(500)
    client.start()
    #expect(client.answer(status) == .wait)
    client.goOn()
    #expect(client.next == "CREATE")
  }

  @Test(
    "after a 104 with Location, a 5xx or no response makes the client retrieve the offset (draft, section Upload Creation)",
    arguments: [500, 502, 503, 504, nil])
  func resumable(_ status: Int?) {
    for client in [ClientScript.live(500), .file(500)] {
      var client = client
      client.start()
      client.interim(location: Self.upload)
      client.send(upTo: 200)
      if let status {
        #expect(client.answer(status) == .wait)
        client.goOn()
      } else {
        client.lose()
      }
      #expect(client.next == "HEAD" && client.request?.url == Self.upload)
    }
  }

  @Test(
    "400, 409 and 410 after a 104 with Location may mean an interruption, and the client retrieves the offset",
    arguments: [400, 409, 410], [true, false])
  func refusedInTheMiddle(_ status: Int, isAcknowledged: Bool) {
    for client in [ClientScript.live(500), .file(500)] {
      var client = client
      client.start()
      client.interim(location: Self.upload)
      client.send(upTo: 200)
      if isAcknowledged { client.interim(["Upload-Offset": "100"]) }
      client.answer(status)
      #expect(client.next == "HEAD" && client.request?.url == Self.upload)
    }
    // With Upload-Complete the answer comes from the target (example D).
    var client = ClientScript.file(500)
    client.start()
    client.interim(location: Self.upload)
    #expect(client.answer(status, ["Upload-Complete": "?1"]) == .fail(.refused(status: status)))
  }

  @Test(
    "after an interrupted creation without a 104, the client creates the upload carefully (draft, section Optimistic Upload Creation)"
  )
  func lostWithoutTrace() {
    var client = ClientScript.file(500)
    client.start()
    client.send(upTo: 200)
    client.lose()
    #expect(client.next == "CREATE" && client.request?.content == .empty && client.fields["Upload-Complete"] == "?0")
    #expect(client.fields["Upload-Length"] == "500")
    client.answer(201, location: Self.upload)
    // With Upload-Complete: ?1 and a Content-Length the request fixes the length, which must be the same as before.
    #expect(client.next == "PATCH 0" && client.maximum == 500 && client.fields["Upload-Complete"] == "?1")
    #expect(client.fields["Upload-Length"] == nil, "some servers refuse it twice")
  }

  @Test("the same for a possibly plain server: the client sends OPTIONS before it creates anything")
  func lostAndAsked() {
    var client = ClientScript.file(500) { $0.discovers = true }
    client.start()
    client.send(upTo: 200)
    client.lose()
    #expect(client.next == "OPTIONS")
    client.answer(405, ["Allow": "GET, POST"])
    #expect(client.next == "unsupported")
  }
}
