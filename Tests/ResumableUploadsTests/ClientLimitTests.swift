// Tests how a client respects the limits of a server (draft, section Limits).

import HTTPMessages
import Testing

@testable import ResumableUploads

@Suite("The client respects the server's limits") struct ClientLimitTests {
  // MARK: max-append-size

  @Test("each append is at most max-append-size (draft, section Limits)")
  func maximumAppend() {
    var client = ClientScript.created(500, limits: "max-append-size=200")
    #expect(client.maximum == 200)
    client.sendAll()
    #expect(client.sentUpTo == 200)
    client.answer(204)
    #expect(client.next == "PATCH 200" && client.maximum == 200)
    client.supply.isFinished = true
    client.sendAll()
    client.answer(204)
    #expect(client.maximum == 100 && client.fields["Upload-Complete"] == "?1")
  }

  @Test("the user's own size applies if it is smaller")
  func ownSize() {
    #expect(ClientScript.created(500, limits: "max-append-size=200") { $0.appendSize = 50 }.maximum == 50)
    #expect(ClientScript.created(500, limits: "max-append-size=200") { $0.appendSize = 350 }.maximum == 200)
  }

  @Test(
    "if a 104 allows fewer bytes than the creation carries, the client aborts it and continues with appends (draft, section Limits)"
  )
  func creationTooLarge() {
    var client = ClientScript.file(500)
    client.start()
    client.interim(["Upload-Limit": "max-append-size=500"], location: ClientScript.upload)
    #expect(!client.machine.exceedsAppendSize)
    client.interim(["Upload-Limit": "max-append-size=200"])
    #expect(client.machine.exceedsAppendSize)
    client.send(upTo: 60)
    client.lose()
    client.answer(204, ["Upload-Offset": "40"])
    #expect(client.next == "PATCH 40" && client.maximum == 200)
  }

  @Test("without an upload resource, there is no reason to abort")
  func creationTooLargeWithoutPlace() {
    var client = ClientScript.file(500)
    client.start()
    client.interim(["Upload-Limit": "max-append-size=200"])
    #expect(!client.machine.exceedsAppendSize)
  }

  // MARK: min-append-size

  @Test("each append is at least min-append-size, unless it completes the upload (draft, section Limits)")
  func minimumAppend() {
    var client = ClientScript.created(50, limits: "min-append-size=100")
    #expect(client.next == "await 100")
    client.grow(to: 99)
    #expect(client.next == "await 100")
    client.grow(to: 130)
    #expect(client.next == "PATCH 0")
    if case .appending(let append) = client.machine.state {
      #expect(append.minimum == 100, "it must have this many before it may roll over")
    }
    client.sendAll()
    client.answer(204)
    #expect(client.next == "await 230")
    client.grow(to: 131, isFinished: true)
    #expect(client.next == "PATCH 130" && client.fields["Upload-Complete"] == "?1" && client.maximum == 1)
  }

  @Test("a smaller append size of the user does not override min-append-size (draft, section Limits)")
  func minimumAboveOwnSize() {
    #expect(ClientScript.created(500, limits: "min-append-size=100") { $0.appendSize = 10 }.maximum == 100)
  }

  @Test("an empty creation is not an append (draft, section Limits)")
  func emptyCreation() {
    var client = ClientScript.live(500) { $0.discovers = true }
    client.start()
    client.answer(200, ["Upload-Limit": "min-append-size=1000000"])
    #expect(client.next == "CREATE" && client.request?.content == .empty)
  }

  @Test("if no append can satisfy the limits, the client cancels the upload (draft, section Limits)")
  func contradiction() {
    let contradictions: [(String, UInt64, UInt64)] = [
      ("min-append-size=100, max-append-size=50", 100, 50), ("max-append-size=0", 1, 0),
    ]
    for (limits, minimum, maximum) in contradictions {
      var client = ClientScript.created(500, limits: limits)
      #expect(client.next == "DELETE", "\(limits)")
      client.answer(204)
      #expect(client.failure == .limitsContradict(minimum: minimum, maximum: maximum))
    }
  }

  // MARK: max-size

  @Test(
    "if the length exceeds max-size, the client stops at once and cancels (draft, sections Limits, Upload Creation)")
  func tooLong() {
    var client = ClientScript.file(500)
    client.start()
    #expect(client.interim(["Upload-Limit": "max-size=500"], location: ClientScript.upload) == nil)
    #expect(client.interim(["Upload-Limit": "max-size=499"]) == .tooLarge(limit: 499))
    // The limit comes in the same 104 that announces the upload resource.
    client = .file(500)
    client.start()
    #expect(client.interim(["Upload-Limit": "max-size=499"], location: ClientScript.upload) == .tooLarge(limit: 499))
    client.perform(client.machine.cancel())
    #expect(client.next == "DELETE" && client.request?.url == ClientScript.upload)
    // The limit comes in a final response.
    client = .file(500)
    client.start()
    client.sendAll()
    client.answer(201, ["Upload-Complete": "?0", "Upload-Limit": "max-size=400"], location: ClientScript.upload)
    client.answer(204, ["Upload-Offset": "500", "Upload-Complete": "?0"])
    #expect(client.next == "DELETE")
    client.answer(204)
    #expect(client.failure == .tooLarge(limit: 400) && client.machine.isForgotten)
  }

  @Test(
    "if the client knows beforehand that the length exceeds max-size, it does not begin the upload (draft, section Limits)"
  )
  func tooLongBeforehand() {
    var client = ClientScript.file(500) { $0.discovers = true }
    client.start()
    client.lose()
    client.answer(200, ["Upload-Limit": "max-size=499"])
    #expect(client.failure == .tooLarge(limit: 499))
  }

  @Test("an endless stream fills one upload after another: the full one is completed, and the break is reported")
  func fullUpload() {
    var client = ClientScript.created(500, limits: "max-size=200")
    #expect(client.maximum == 200)
    client.sendAll()
    client.answer(204)
    #expect(client.next == "PATCH 200" && client.fields["Upload-Complete"] == "?1" && client.maximum == 0)
    client.answer(200, ["Upload-Complete": "?1"])
    #expect(client.next == "CREATE" && client.machine.base == 200)
    #expect(client.newParts() == [.size])
    client.answer(201, location: ClientScript.other)
    #expect(client.request?.content == .bytes(from: 200, maximum: 200) && client.fields["Upload-Offset"] == "0")
  }

  @Test("a stream that just fits is completed, and no other upload is created")
  func fits() {
    var client = ClientScript.created(200, isFinished: true, limits: "max-size=200")
    #expect(client.maximum == 200 && client.fields["Upload-Complete"] == "?1")
    client = .created(200, limits: "max-size=200")
    client.sendAll()
    client.supply.isFinished = true
    client.answer(204)
    client.answer(200)
    #expect(client.next == "completed" && client.newParts() == [])
  }

  @Test("if the rest of max-size is below min-append-size, it stays empty (draft, section Limits)")
  func restTooSmall() {
    var client = ClientScript.created(500, limits: "max-size=250, min-append-size=100") { $0.appendSize = 200 }
    client.sendAll()
    client.answer(204)
    #expect(client.next == "PATCH 200" && client.maximum == 0 && client.fields["Upload-Complete"] == "?1")
  }

  @Test(
    "a max-size of zero bytes ends the stream, without a series of empty uploads",
    arguments: ["max-size=0", "max-size=5, min-append-size=6"])
  func nothingFits(_ limits: String) {
    var client = ClientScript.created(500, limits: limits)
    #expect(client.next == "DELETE")
    client.answer(204)
    #expect(client.failure?.isFinal == true)
  }

  @Test(
    "a limit that would cause a flood of requests ends the stream, before any byte is acknowledged",
    arguments: [0, 1, 100, 999, 1000] as [UInt64], ["max-size", "max-append-size"])
  func floor(_ limit: UInt64, _ key: String) {
    var client = ClientScript.created(5000, limits: "\(key)=\(limit)") { $0.smallestLimit = 1000 }
    if limit >= 1000 {
      #expect(client.maximum == limit)
    } else {
      #expect(client.next == "DELETE")
      client.answer(204)
      #expect(client.failure == .limitTooSmall(limit))
    }
    // A request that carries everything does not violate the limit.
    guard limit > 0 else { return }
    client = .created(limit, isFinished: true, limits: "\(key)=\(limit)") { $0.smallestLimit = 1000 }
    #expect(client.next == "PATCH 0" && client.maximum == limit)
    client.sendAll()
    client.answer(204, ["Upload-Complete": "?1"])
    #expect(client.next == "completed")
  }

  @Test("after an acknowledgement, such a limit is ignored", arguments: ["max-size", "max-append-size"])
  func floorAfterwards(_ key: String) {
    var client = ClientScript.created(5000) { $0.smallestLimit = 1000 }
    client.send(upTo: 2000)
    client.interim(["Upload-Offset": "2000"])
    client.lose()
    client.answer(204, ["Upload-Offset": "2000", "Upload-Limit": "\(key)=\(key == "max-size" ? 999 : 1)"])
    #expect(client.next == "PATCH 2000" && client.maximum == nil)
  }

  // MARK: min-size

  @Test(
    "a server that requires the length of an upload receives a stream as a plain one (draft, section Limits)",
    arguments: [400, 411, 422])
  func minimumSize(_ status: Int) {
    var client = ClientScript.live(500) { $0.discovers = true }
    client.start()
    client.answer(200, ["Upload-Limit": "min-size=1000"])
    #expect(client.next == "CREATE", "it might do it all the same")
    client.answer(status)
    #expect(client.next == "unsupported")
  }

  // MARK: max-age

  @Test("the client counts max-age from the response that contains it (draft, section Limits)")
  func lifetime() {
    var client = ClientScript.created(500, limits: "max-age=3600")
    #expect(client.machine.takeLifetime() == 3600 && client.machine.takeLifetime() == nil)
    client.interim(["Upload-Offset": "0"])
    #expect(client.machine.takeLifetime() == nil)
    client.interim(["Upload-Limit": "max-age=100"])
    #expect(client.machine.takeLifetime() == 100)
  }

  @Test("version 6 names it expires")
  func expires() {
    var client = ClientScript.created(500, limits: "expires=60, max-age=5") {
      $0.version = InteropVersion(number: 6) ?? .newest
    }
    #expect(client.machine.takeLifetime() == 60)
  }

  @Test("the client completes an upload before it expires, and sends no request afterwards (draft, section Limits)")
  func expiry() {
    var client = ClientScript.created(500, limits: "max-age=3600")
    client.send(upTo: 200)
    client.interim(["Upload-Offset": "100"])
    #expect(client.machine.expiresSoon() == true)
    client.answer(204)
    #expect(client.next == "PATCH 200" && client.maximum == 0 && client.fields["Upload-Complete"] == "?1")
    client.answer(200)
    #expect(client.next == "CREATE" && client.machine.base == 200 && client.newParts() == [.expiry])
  }

  @Test("an upload without progress in its lifetime has no successor, because a lifetime of 0 s would repeat forever")
  func expiryWithoutProgress() {
    var client = ClientScript.created(500, limits: "max-age=0")
    #expect(client.machine.expiresSoon() == false)
  }

  @Test("an upload that is about to end ends normally")
  func expiryAtEnd() {
    var client = ClientScript.created(500)
    client.sendAll()
    client.interim(["Upload-Offset": "100"])
    #expect(client.machine.expiresSoon() == true)
    client.supply.isFinished = true
    client.answer(204)
    client.answer(200)
    #expect(client.next == "completed" && client.newParts() == [])
  }

  @Test("a file is one upload as long as it lives, because half of it must not be completed")
  func expiryOfFile() {
    var client = ClientScript.file(500)
    client.start()
    client.interim(["Upload-Limit": "max-age=10", "Upload-Offset": "0"], location: ClientScript.upload)
    client.send(upTo: 200)
    client.interim(["Upload-Offset": "100"])
    #expect(client.machine.expiresSoon() == false)
  }

  // MARK: What is not a limit

  @Test(
    "unknown members are ignored, and a known member of another type makes the field invalid (draft, section Limits)")
  func unknown() {
    #expect(ClientScript.created(500, limits: "max-append-size=50, colour=red, x").maximum == 50)
    #expect(ClientScript.created(500, limits: "max-append-size=50, max-size=\"5\"").maximum == nil)
  }

  @Test("a later message adds limits, and changes the limits that it contains")
  func updates() {
    var client = ClientScript.created(500, limits: "max-append-size=200, max-age=5")
    client.sendAll()
    client.answer(204, ["Upload-Limit": "max-append-size=100"])
    #expect(client.maximum == 100)
    client.sendAll()
    client.answer(204, ["Upload-Limit": "min-size=0"])
    #expect(client.maximum == 100)
  }
}
