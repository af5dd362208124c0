// Tests a loss between two upload resources: the server refuses the second one while the buffer overflows.

import HTTPMessages
import Testing

@testable import ResumableUploads

@Suite("The client and an upload that is refused for long")
struct ClientLongRefusalTests {
  private static let portal = "http://portal/login"

  /// Why the stream continues in another upload resource.
  enum Leaving: CaseIterable, Sendable {
    /// The former one is answered with 404, with 410, or as a portal answers. The client asks it again after a refusal.
    case notFound, gone, unproven
    /// Its next byte is no longer kept. The former one is complete, or the server joins it with the next one.
    case gap, joinedGap

    var asksFormer: Bool { self != .gap && self != .joinedGap }

    /// The answer of the former upload resource.
    var status: Int {
      switch self {
      case .notFound: 404
      case .gone: 410
      case .unproven, .gap, .joinedGap: 503
      }
    }

    var reason: PartEnd {
      switch self {
      case .notFound, .gone: .gone
      case .unproven: .unproven
      case .gap, .joinedGap: .gap
      }
    }

    /// The offset up to which the server has the stream.
    var kept: UInt64 { self == .unproven ? 0 : 200 }
  }

  /// The buffer has discarded the bytes before `oldest`.
  private func overflow(_ client: inout ClientScript, before oldest: UInt64) {
    client.supply = Supply(oldest: oldest, head: oldest + 300, isFinished: false, restart: oldest + 50)
  }

  /// Lets the former upload resource answer until the client creates another one.
  private func miss(_ client: inout ClientScript, _ status: Int) {
    for _ in 0..<10 where client.next != "CREATE" { if client.answer(status) == .wait { client.goOn() } }
    #expect(client.next == "CREATE")
  }

  /// A stream that creates another upload resource, behind bytes that were discarded.
  private func creating(_ leaving: Leaving) -> ClientScript {
    var client = ClientScript.streaming(leaving == .gap ? nil : "s")
    if leaving == .unproven {
      client = .live(500)
      client.start()
      client.answer(201, location: Self.portal)
    } else {
      client.lose()
    }
    _ = client.machine.takeNotes()
    overflow(&client, before: 300)
    switch leaving {
    case .notFound, .gone, .unproven: break
    case .gap, .joinedGap:
      client.answer(204, ["Upload-Offset": "200", "Upload-Complete": "?0"])
      if leaving == .gap { client.answer(200, ["Upload-Complete": "?1"]) }
    }
    miss(&client, leaving.status)
    #expect(client.machine.base == 350 && client.machine.takeNotes().isEmpty)
    return client
  }

  /// The creation is refused, more bytes are discarded, and the client creates an upload resource again.
  private func refuse(_ client: inout ClientScript, _ leaving: Leaving, overflowBefore oldest: UInt64) {
    #expect(client.answer(503) == .wait)
    overflow(&client, before: oldest)
    client.goOn()
    #expect((client.next == "HEAD") == leaving.asksFormer)
    miss(&client, leaving.status)
  }

  private func gaps(_ client: inout ClientScript) -> [Range<UInt64>] {
    client.machine.takeNotes().compactMap { note in
      if case .gap(let start, let end, _) = note { start..<end } else { nil }
    }
  }

  @Test(
    "the loss before it is reported when it exists, as one loss, however often it was refused",
    arguments: Leaving.allCases)
  func oneLoss(_ leaving: Leaving) {
    var client = creating(leaving)
    for oldest in [340, 700, 720] as [UInt64] {
      refuse(&client, leaving, overflowBefore: oldest)
      #expect(client.machine.base == oldest + 50 && client.machine.takeNotes().isEmpty)
      // Another process, or a plain upload, may still need to find the loss.
      #expect(client.machine.acknowledged == leaving.kept && client.machine.releasable == leaving.kept)
    }
    client.answer(201, location: ClientScript.other)
    #expect(client.next == "PATCH 0" && client.machine.acknowledged == 770)
    #expect(
      client.machine.takeNotes() == [
        .gap(from: leaving.kept, to: 770, isServersFault: false),
        .newPart(leaving.reason, previous: leaving == .unproven ? Self.portal : ClientScript.upload, from: 770),
        .created(url: ClientScript.other, base: 770),
      ])
  }

  @Test(
    "at the end of the stream, each lost byte is reported once, whether or not a byte is left",
    arguments: Leaving.allCases, [true, false])
  func end(_ leaving: Leaving, _ isByteLeft: Bool) {
    var client = creating(leaving)
    refuse(&client, leaving, overflowBefore: 700)
    #expect(client.answer(503) == .wait)
    let oldest: UInt64 = isByteLeft ? 760 : 1000
    client.supply = Supply(oldest: oldest, head: 1000, isFinished: true)
    client.goOn()
    miss(&client, leaving.status)
    var losses: [Range<UInt64>] = []
    for _ in 0..<6 where client.next != "completed" {
      if client.next == "CREATE" {
        client.answer(201, location: ClientScript.other)
      } else {
        client.sendAll()
        client.answer(200, ["Upload-Complete": "?1"])
      }
      losses += gaps(&client)
    }
    #expect(client.next == "completed" && client.machine.acknowledged == 1000)
    // If no byte is left, an upload may exist before the rest of the loss is reported.
    let parts = isByteLeft || leaving.asksFormer ? [leaving.kept..<oldest] : [leaving.kept..<750, 750..<oldest]
    #expect(losses == parts, "\(losses)")
  }

  @Test("if the former upload exists after all, its offset decides what is lost")
  func formerExists() {
    for offset in [220, 300] as [UInt64] {
      var client = creating(.gone)
      #expect(client.answer(503) == .wait)
      client.goOn()
      client.answer(204, ["Upload-Offset": "\(offset)", "Upload-Complete": "?0"])
      #expect(client.machine.takeNotes().isEmpty)
      if offset == 300 {
        #expect(client.request?.content == .bytes(from: 300, maximum: nil) && client.machine.base == 0)
        continue
      }
      #expect(client.next == "CREATE" && client.machine.base == 350)
      client.answer(201, location: ClientScript.other)
      #expect(
        client.machine.takeNotes() == [
          .gap(from: 220, to: 350, isServersFault: false), .newPart(.gap, previous: ClientScript.upload, from: 350),
          .created(url: ClientScript.other, base: 350),
        ])
    }
  }

  @Test("if the server refuses bytes behind the loss, both are reported, and what is behind them follows")
  func placeRefused() {
    var client = creating(.gone)
    let refusal: HeaderFields = ["Stream-ID": "s", "Stream-Offset": "400"]
    #expect(client.answer(409, refusal) == .wait)
    client.goOn()
    miss(&client, 410)
    #expect(client.machine.base == 350 && client.machine.takeNotes().isEmpty)
    client.answer(409, refusal)
    #expect(client.next == "CREATE" && client.machine.base == 400)
    #expect(client.machine.acknowledged == 400 && client.machine.releasable == 200)
    #expect(
      client.machine.takeNotes() == [
        .gap(from: 200, to: 350, isServersFault: false), .gap(from: 350, to: 400, isServersFault: true),
      ])
  }

  @Test("pauses of the source in the middle of the loss are no part of it")
  func pause() {
    var client = creating(.gone)
    #expect(client.answer(503) == .wait)
    client.supply = Supply(oldest: 5000, head: 5300, isFinished: false, restart: 5050, pause: 600..<4500)
    client.goOn()
    miss(&client, 410)
    #expect(client.answer(503) == .wait)
    client.supply = Supply(oldest: 9000, head: 9300, isFinished: false, restart: 9000, pause: 5300..<9000)
    client.goOn()
    miss(&client, 410)
    client.answer(201, location: ClientScript.other)
    #expect(gaps(&client) == [200..<600, 4500..<5300] && client.machine.base == 9000)
  }
}
