// The messages between programs and the agent, and the paths of its files.

import JSONLines
import PropertyTesting
import Testing

@testable import TransferClient

@Suite("Messages of the agent")
struct AgentMessageTests {
  @Test("every order is read again unchanged", arguments: Seed.several(20))
  func orders(seed: Seed) {
    var random = seed.generator
    for _ in 0..<20 {
      let (number, id) = (Int64.random(in: 0...Int64.max, using: &random), Int64.random(in: 1...999, using: &random))
      for kind in [
        .submit(Self.request(&random)), .list(session: nil), .list(session: "x\n"), .pause(id: id), .resume(id: id),
        .cancel(id: id, keeps: random.chance(50)), .acknowledge(id: id), .watch(session: ""),
      ] as [AgentOrder.Kind] {
        let order = AgentOrder(number: number, kind)
        #expect(!order.line.contains("\n"))
        #expect(FlatJSON(order.line.utf8).flatMap { AgentOrder($0) } == order)
      }
    }
  }

  @Test("after the clock was set, a repeated request has the same time left and the same earliest beginning")
  func moved() {
    var request = TransferRequest(key: "k", url: "http://h/", path: "/x")
    (request.deadline, request.earliestBegin) = (5000, 4000)
    var later = request
    later.deadline = 2000
    #expect(AgentOrder.Kind.submit(request).moved(by: -3000) == .submit(later))
    later.deadline = .max
    #expect(AgentOrder.Kind.submit(request).moved(by: .max) == .submit(later))
    (request.deadline, later.deadline) = (nil, nil)
    #expect(AgentOrder.Kind.submit(request).moved(by: 1) == .submit(later))
    #expect(AgentOrder.Kind.pause(id: 1).moved(by: 1) == .pause(id: 1))
  }

  @Test("every reply is read again unchanged", arguments: Seed.several(20))
  func answers(seed: Seed) {
    var random = seed.generator
    for _ in 0..<20 {
      var result = TransferResult(.failed, cause: random.word, message: random.word)
      result.body = (0..<random.size(upTo: 300)).map { _ in UInt8.random(in: 0...255, using: &random) }
      result.fields = (0..<3).map { _ in random.word }
      result.status = Int.random(in: 200...599, using: &random)
      (result.byteCount, result.ended, result.isVerified) = (77, 12, random.chance(50))
      result.resumeData = random.chance(50) ? random.word : nil
      let status = TransferStatus(
        id: 7, key: random.word, session: random.word, task: 3, kind: random.chance(50) ? .upload : .download,
        state: .ended, url: random.word, path: "/" + random.word,
        note: random.chance(50) ? random.word : nil, size: random.chance(50) ? 99 : nil, acknowledged: 5, created: 12,
        trouble: random.word,
        result: random.chance(50) ? result : nil)
      for answer in [
        .accepted(number: 1, id: 9), .done(number: 2), .refused(number: 3, .database, random.word),
        .transfer(number: nil, status), .transfer(number: 4, status), .replaced(session: random.word),
      ] as [AgentAnswer] {
        #expect(FlatJSON(answer.line.utf8).flatMap { AgentAnswer($0) } == answer)
      }
    }
  }

  @Test("a request without required members, or with a relative path, is invalid")
  func incomplete() throws {
    var random = Seed(1).generator
    var request = Self.request(&random)
    (request.kind, request.path) = (.upload, "/x")
    let line = AgentOrder(number: 1, .submit(request)).line
    for (from, to) in [
      (#""path":"/"#, #""path":"x"#), (#""key":"#, #""no-key":"#), (#""kind":"upload""#, #""kind":"other""#),
      (#""number":1"#, #""no-number":1"#), (#""event":"submit""#, #""event":"other""#),
    ] {
      let changed = line.replacing(from, with: to)
      #expect(changed != line)
      #expect(try AgentOrder(#require(FlatJSON(changed.utf8))) == nil, "\(from)")
    }
  }

  @Test("database and socket are in the XDG directories, and relative ones are ignored")
  func location() {
    func location(_ variables: [String: String]) -> AgentLocation? { AgentLocation { variables[$0] } }
    #expect(
      location(["XDG_STATE_HOME": "/s", "XDG_RUNTIME_DIR": "/r", "HOME": "/h"])
        == AgentLocation(directory: "/s/sluice", socket: "/r/sluice/agent.sock"))
    #expect(
      location(["HOME": "/h", "XDG_STATE_HOME": "s", "XDG_RUNTIME_DIR": "r"])
        == AgentLocation(directory: "/h/.local/state/sluice", socket: "/h/.local/state/sluice/agent.sock"))
    #expect(location([:]) == nil)
  }

  private static func request(_ random: inout SplitMix64) -> TransferRequest {
    var request = TransferRequest(key: random.word + "k", url: random.word, path: "/" + random.word)
    if random.chance(50) { (request.kind, request.path) = (.download, random.chance(50) ? "" : request.path) }
    (request.part, request.resumeData) = (random.word, random.word)
    (request.permissions, request.replaces) = (0o640, random.chance(50))
    (request.session, request.task, request.method) = (random.word, 5, random.word)
    request.fields = (0..<2).map { _ in random.word }
    (request.mayUsePOST, request.usesHTTP1, request.keepsOrigin) = (random.chance(50), true, random.chance(50))
    request.file = random.chance(50) ? random.word : nil
    request.note = random.chance(50) ? random.word : nil
    (request.tokenFile, request.token, request.netrcFile) = (random.word, random.word, random.word)
    (request.proxy, request.unixSocket, request.certificateAuthorities) = (random.word, random.word, random.word)
    (request.clientCertificate, request.clientKey, request.addressFamily) = (random.word, random.word, 6)
    (request.connectLimit, request.stallLimit, request.responseLimit) = (1, 2, 3)
    (request.resumable, request.streamID, request.digest) = ("never", random.word, random.word)
    (request.rollOverAfter, request.rollOverSize, request.giveUpOnRefusalAfter) = (4, 5, 6)
    (request.longestPause, request.earliestBegin, request.deadline) = (7, 8, 9)
    (request.allowsExpensive, request.allowsConstrained) = (random.chance(50), random.chance(50))
    (request.isDiscretionary, request.expectedToSend, request.expectedToReceive) = (random.chance(50), 10, 11)
    return request
  }
}

extension SplitMix64 {
  /// A string of arbitrary characters.
  fileprivate mutating func wordOfAny() -> String {
    String(
      String.UnicodeScalarView(
        (0..<size(upTo: 20)).compactMap { _ in Unicode.Scalar(UInt32.random(in: 1...0x2FFF, using: &self)) }))
  }

  fileprivate var word: String { mutating get { wordOfAny() } }
}
