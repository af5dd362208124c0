// Tests that a client pauses if the server stores only a small part of each append, so that it receives no flood of
// requests, and that it does not pause otherwise.

import HTTPMessages
import PropertyTesting
import Testing

@testable import ResumableUploads

@Suite("The client and servers that store only a part of each append") struct ClientShortAppendTests {
  /// How many bytes of an append the server stores.
  enum Share: Equatable, Sendable {
    case one, tenth, half, allButOne, all
    case exactly(UInt64)

    static let usual: [Share] = [.one, .tenth, .half, .allButOne, .all]

    func stored(of count: UInt64) -> UInt64 {
      switch self {
      case .one: 1
      case .tenth: count / 10
      case .half: count / 2
      case .allButOne: count - 1
      case .all: count
      case .exactly(let size): min(size, count)
      }
    }
  }

  /// How it answers such an append.
  enum Reply: Sendable {
    case success, early, conflict, badRequest, redirect
    /// The client then makes its appends smaller.
    case tooLarge

    static let ofAnySize: [Reply] = [.success, .early, .conflict, .badRequest, .redirect]
  }

  /// A client whose appends have the same size, and its server.
  private struct World {
    var client: ClientScript
    var share: Share
    var reply = Reply.success
    /// The server's bytes.
    var stored: UInt64 = 0
    var requests = 0
    var pauses = 0
    /// The most requests without a pause between them.
    var longestRun = 0
    private var run = 0

    init(_ share: Share, of size: UInt64, isFile: Bool = false, isServersLimit: Bool = false) {
      self.share = share
      let length = size * 1000
      client = .created(length, isFinished: isFile, limits: isServersLimit ? "max-append-size=\(size)" : nil) {
        if isFile { $0.length = length }
        if !isServersLimit { $0.appendSize = size }
      }
    }

    mutating func step() {
      if client.next == "wait" {
        pauses += 1
        run = 0
        client.goOn()
        return
      }
      requests += 1
      run += 1
      longestRun = max(longestRun, run)
      let isAppend = client.next == "PATCH \(stored)"
      if isAppend {
        client.sendAll()
        stored += share.stored(of: client.sentUpTo - stored)
      }
      let fields: HeaderFields = ["Upload-Offset": "\(stored)", "Upload-Complete": "?0"]
      switch reply {
      case .early where isAppend: client.answer(204, fields, isEarly: true)
      case .conflict where isAppend: client.answer(409, fields)
      case .badRequest where isAppend: client.answer(400)
      case .redirect where isAppend: client.answer(307, location: ClientScript.other)
      case .tooLarge where isAppend: client.answer(413)
      case .success, .early, .conflict, .badRequest, .redirect, .tooLarge: client.answer(204, fields)
      }
    }

    mutating func requestsUntilPause() -> Int {
      let before = requests
      while client.next != "wait", client.failure == nil, requests - before < 100 { step() }
      return requests - before
    }
  }

  @Test(
    "a server that stores little of each append is asked after pauses, and one that stores at least half without any",
    arguments: Seed.several(20))
  func shares(_ seed: Seed) {
    var random = seed.generator
    for share in Share.usual {
      for reply in Reply.ofAnySize {
        let size = UInt64.random(in: 20...60_000, using: &random)
        var world = World(share, of: size, isFile: random.chance(50), isServersLimit: random.chance(50))
        world.reply = reply
        for _ in 0..<300 { world.step() }
        let context = "\(seed): \(share) of \(size), \(reply): \(world.requests) requests, \(world.pauses) pauses"
        #expect(world.client.failure == nil && world.stored > 0, "\(context)")
        if share == .one || share == .tenth {
          // An append and a HEAD each time. The first five appends do not cause a pause.
          #expect(world.requests <= 11 + 2 * world.pauses && world.longestRun == 11, "\(context)")
        } else {
          #expect(world.pauses == 0, "\(context)")
        }
      }
    }
  }

  @Test("a server that stores a byte of each append, and answers 413, is asked after pauses")
  func tooLarge() {
    var world = World(.one, of: 60_000)
    world.reply = .tooLarge
    // Six appends, the offset after five of them, and the question for the limits.
    #expect(world.requestsUntilPause() == 12)
    for _ in 0..<300 { world.step() }
    let context = "\(world.requests) requests, \(world.pauses) pauses"
    #expect(world.client.failure == nil && world.stored > 20, "\(context)")
    // An append of a byte is not short. When it was refused, the size is not the reason, so after a pause and a HEAD,
    // the appends are large again.
    #expect(world.longestRun <= 13 && world.pauses > 50, "\(context), \(world.longestRun) in a row")
  }

  @Test("an append that is stored completely ends the pauses")
  func recovery() {
    var world = World(.one, of: 1000)
    #expect(world.requestsUntilPause() == 11)
    for _ in 0..<10 {
      world.step()
      #expect(world.requestsUntilPause() == 2)
    }
    world.step()
    world.step()
    #expect(world.client.next == "PATCH \(world.stored)" && world.client.machine.storesLittle)
    world.share = .all
    world.step()
    #expect(!world.client.machine.storesLittle)
    world.share = .one
    #expect(world.requestsUntilPause() == 11)
  }

  @Test("a redirect of an append is followed after a pause, and one of the HEAD at once", arguments: [307, 308])
  func redirects(_ status: Int) {
    let third = "http://host/uploads/3"
    var world = World(.one, of: 1000)
    #expect(world.requestsUntilPause() == 11)
    world.step()
    world.step()
    #expect(world.client.next == "PATCH \(world.stored)" && world.client.request?.url == ClientScript.upload)
    world.client.sendAll()
    world.client.answer(status, location: ClientScript.other)
    #expect(world.client.next == "wait")
    world.client.goOn()
    #expect(world.client.next == "HEAD" && world.client.request?.url == ClientScript.other)
    world.client.answer(status, location: third)
    #expect(world.client.next == "HEAD" && world.client.request?.url == third)
    let offset = world.stored + 1
    world.client.answer(204, ["Upload-Offset": "\(offset)", "Upload-Complete": "?0"])
    #expect(world.client.next == "PATCH \(offset)" && world.client.request?.url == third)
    // The target stores everything.
    world.client.sendAll()
    world.client.answer(204, ["Upload-Offset": "\(world.client.sentUpTo)", "Upload-Complete": "?0"])
    #expect(world.client.next == "PATCH \(offset + 1000)" && !world.client.machine.storesLittle)
  }

  @Test("an append that continues for long ends the pauses before its final response")
  func recoveryByInterim() {
    var world = World(.one, of: 1_000_000)
    #expect(world.requestsUntilPause() == 11)
    world.step()
    world.step()
    world.client.sendAll()
    world.client.interim(["Upload-Offset": "\(world.stored + 65_535)"])
    #expect(world.client.machine.storesLittle)
    world.client.interim(["Upload-Offset": "\(world.stored + 65_536)"])
    #expect(!world.client.machine.storesLittle)
  }

  @Test("a server that stores 64 KiB of each request is not flooded, however large the requests are")
  func worthwhile() {
    for (size, pauses) in [(65_535, true), (65_536, false)] as [(UInt64, Bool)] {
      var world = World(.exactly(size), of: 10_000_000)
      #expect((world.requestsUntilPause() < 100) == pauses)
    }
  }

  @Test("lost connections are not short appends, because a pause follows each of them anyway")
  func lostConnections() {
    var client = ClientScript.created(100_000)
    for offset in 1...20 {
      client.sendAll()
      client.lose()
      client.answer(204, ["Upload-Offset": "\(offset)", "Upload-Complete": "?0"])
      #expect(client.next == "PATCH \(offset)" && !client.machine.storesLittle)
    }
  }

  @Test("a server that ends each upload after one byte gets new ones after pauses", arguments: [200, 410])
  func parts(_ status: Int) {
    var client = ClientScript.created(1_000_000) { $0.appendSize = 1000 }
    var (requests, pauses) = (0, 0)
    for number in 0..<300 {
      switch client.next {
      case "wait":
        pauses += 1
        client.goOn()
        continue
      case "CREATE": client.answer(201, location: "http://host/uploads/\(number)")
      default:
        #expect(client.next == "PATCH 0")
        client.sendAll()
        client.interim(["Upload-Offset": "1"])
        client.release(upTo: client.machine.acknowledged)
        client.answer(status, status == 200 ? ["Upload-Offset": "1", "Upload-Complete": "?1"] : [:])
      }
      requests += 1
    }
    #expect(pauses > 50 && requests <= 10 + 2 * pauses, "\(requests) requests, \(pauses) pauses")
    #expect(client.failure == nil && client.machine.acknowledged > 50)
  }
}
