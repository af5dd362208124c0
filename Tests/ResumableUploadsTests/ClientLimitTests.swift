// How a client keeps to what the server allows (draft, section Limits).

import HTTPMessages
import Testing

@testable import ResumableUploads

@Suite("The client keeps to the server's limits") struct ClientLimitTests {
  // MARK: max-append-size

  @Test("no append is larger than max-append-size (draft, section Limits)")
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

  @Test("the user's own size counts where it is smaller")
  func ownSize() {
    #expect(ClientScript.created(500, limits: "max-append-size=200") { $0.appendSize = 50 }.maximum == 50)
    #expect(ClientScript.created(500, limits: "max-append-size=200") { $0.appendSize = 350 }.maximum == 200)
  }

  @Test("a 104 that allows less than the creation carries: broken off, and gone on in appends (draft, section Limits)")
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

  @Test("without a place to go on there is nothing to be broken off for")
  func creationTooLargeWithoutPlace() {
    var client = ClientScript.file(500)
    client.start()
    client.interim(["Upload-Limit": "max-append-size=200"])
    #expect(!client.machine.exceedsAppendSize)
  }

  // MARK: min-append-size

  @Test("no append is smaller than min-append-size, unless it completes (draft, section Limits)")
  func minimumAppend() {
    var client = ClientScript.created(50, limits: "min-append-size=100")
    #expect(client.next == "await 100")
    client.grow(to: 99)
    #expect(client.next == "await 100")
    client.grow(to: 130)
    #expect(client.next == "PATCH 0")
    if case .appending(let append) = client.machine.state {
      #expect(append.minimum == 100, "so many it has to have before it may roll over")
    }
    client.sendAll()
    client.answer(204)
    #expect(client.next == "await 230")
    client.grow(to: 131, isFinished: true)
    #expect(client.next == "PATCH 130" && client.fields["Upload-Complete"] == "?1" && client.maximum == 1)
  }

  @Test("the user's own size does not make appends smaller than that (draft, section Limits)")
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

  @Test("limits that no append can keep to: the upload is cancelled (draft, section Limits)")
  func contradiction() {
    for limits in ["min-append-size=100, max-append-size=50", "max-append-size=0"] {
      var client = ClientScript.created(500, limits: limits)
      #expect(client.next == "DELETE", "\(limits)")
      client.answer(204)
      #expect(client.failure == .appendTooLarge)
    }
  }

  // MARK: max-size

  @Test("a length beyond max-size: stop at once, and cancel (draft, sections Limits, Upload Creation)")
  func tooLong() {
    var client = ClientScript.file(500)
    client.start()
    #expect(client.interim(["Upload-Limit": "max-size=500"], location: ClientScript.upload) == nil)
    #expect(client.interim(["Upload-Limit": "max-size=499"]) == .tooLarge(limit: 499))
    // In the very 104 that says where the upload is.
    client = .file(500)
    client.start()
    #expect(client.interim(["Upload-Limit": "max-size=499"], location: ClientScript.upload) == .tooLarge(limit: 499))
    client.perform(client.machine.cancel())
    #expect(client.next == "DELETE" && client.request?.url == ClientScript.upload)
    // In a final response.
    client = .file(500)
    client.start()
    client.sendAll()
    client.answer(201, ["Upload-Complete": "?0", "Upload-Limit": "max-size=400"], location: ClientScript.upload)
    client.answer(204, ["Upload-Offset": "500", "Upload-Complete": "?0"])
    #expect(client.next == "DELETE")
    client.answer(204)
    #expect(client.failure == .tooLarge(limit: 400) && client.machine.isForgotten)
  }

  @Test("known beforehand, it is not even begun (draft, section Limits)")
  func tooLongBeforehand() {
    var client = ClientScript.file(500) { $0.discovers = true }
    client.start()
    client.lose()
    client.answer(200, ["Upload-Limit": "max-size=499"])
    #expect(client.failure == .tooLarge(limit: 499))
  }

  @Test("a stream without end fills one upload after another: the full one is completed, and the break is said")
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

  @Test("a stream that just fits is completed, and no other upload begun")
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

  @Test("a rest of max-size below min-append-size stays empty (draft, section Limits)")
  func restTooSmall() {
    var client = ClientScript.created(500, limits: "max-size=250, min-append-size=100") { $0.appendSize = 200 }
    client.sendAll()
    client.answer(204)
    #expect(client.next == "PATCH 200" && client.maximum == 0 && client.fields["Upload-Complete"] == "?1")
  }

  @Test(
    "a max-size that takes nothing is an end, not a row of empty uploads",
    arguments: ["max-size=0", "max-size=5, min-append-size=6"])
  func nothingFits(_ limits: String) {
    var client = ClientScript.created(500, limits: limits)
    #expect(client.next == "DELETE")
    client.answer(204)
    #expect(client.failure?.isFinal == true)
  }

  @Test(
    "a limit that a stream would flood with requests is an end, before any byte is acknowledged",
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
    // What needs no second request is not too much for anybody.
    guard limit > 0 else { return }
    client = .created(limit, isFinished: true, limits: "\(key)=\(limit)") { $0.smallestLimit = 1000 }
    #expect(client.next == "PATCH 0" && client.maximum == limit)
    client.sendAll()
    client.answer(204, ["Upload-Complete": "?1"])
    #expect(client.next == "completed")
  }

  @Test("once bytes are acknowledged, such a limit is not believed", arguments: ["max-size", "max-append-size"])
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
    "a server that wants to know the length of an upload gets a plain one of a stream (draft, section Limits)",
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

  @Test("a life that is told is counted from that response on (draft, section Limits)")
  func lifetime() {
    var client = ClientScript.created(500, limits: "max-age=3600")
    #expect(client.machine.takeLifetime() == 3600 && client.machine.takeLifetime() == nil)
    client.interim(["Upload-Offset": "0"])
    #expect(client.machine.takeLifetime() == nil)
    client.interim(["Upload-Limit": "max-age=100"])
    #expect(client.machine.takeLifetime() == 100)
  }

  @Test("version 6 calls it expires")
  func expires() {
    var client = ClientScript.created(500, limits: "expires=60, max-age=5") {
      $0.version = InteropVersion(number: 6) ?? .newest
    }
    #expect(client.machine.takeLifetime() == 60)
  }

  @Test("an upload whose life ends is completed in time, and not asked for afterwards (draft, section Limits)")
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

  @Test("one that got nowhere in its life is followed by none: a life of no seconds would go on for ever")
  func expiryWithoutProgress() {
    var client = ClientScript.created(500, limits: "max-age=0")
    #expect(client.machine.expiresSoon() == false)
  }

  @Test("an upload that is about to end anyway just ends")
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

  @Test("a file is one upload as long as it lives: nobody wants half of it completed")
  func expiryOfFile() {
    var client = ClientScript.file(500)
    client.start()
    client.interim(["Upload-Limit": "max-age=10", "Upload-Offset": "0"], location: ClientScript.upload)
    client.send(upTo: 200)
    client.interim(["Upload-Offset": "100"])
    #expect(client.machine.expiresSoon() == false)
  }

  // MARK: What is no limit

  @Test(
    "unknown members are ignored, and a known member of another type makes the field invalid (draft, section Limits)")
  func unknown() {
    #expect(ClientScript.created(500, limits: "max-append-size=50, colour=red, x").maximum == 50)
    #expect(ClientScript.created(500, limits: "max-append-size=50, max-size=\"5\"").maximum == nil)
  }

  @Test("a later message adds to what is known, and changes what it names")
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
