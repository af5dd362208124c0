// Tests an upload that another process has begun, with a server that has stored fewer, exactly as many, or more bytes.

import HTTPMessages
import PropertyTesting
import Testing

@testable import ResumableUploads

@Suite("The client ends the upload of another process at any offset of the server") struct ClientSurplusTests {
  /// An upload resource that follows the protocol as far as a client can see.
  private struct Resource {
    var count: UInt64
    var isComplete = false
    /// The numbers of the requests whose answers are lost.
    var lost: Set<Int> = []
    /// The numbers of the HEAD requests whose answers are damaged.
    var spoiled: Set<Int> = []
    /// Whether the server forgets the upload once it is complete.
    var forgets = false
    var requests: [String] = []

    mutating func answer(_ client: inout ClientScript, base: UInt64) {
      let request = client.next
      requests.append(request)
      client.sendAll()
      let version = client.machine.version
      var fields: HeaderFields = [:]
      version.setVersion(&fields)
      var status = 204
      if forgets, isComplete {
        status = 404
      } else if request == "HEAD" {
        let isSpoiled = spoiled.contains(requests.count - 1)
        fields.append("Upload-Offset", "\(isSpoiled ? count + 7777 : count)")
        version.setCompleteness(isComplete && !isSpoiled, &fields)
      } else {
        let start = client.fields["Upload-Offset"].flatMap { UInt64($0) }
        if start != count || isComplete && client.maximum != 0 {
          status = 409
        } else {
          count += client.sentUpTo - base - count
          isComplete = isComplete || version.completeness(client.fields) == true
          status = isComplete ? 200 : Int(version.statuses.appended)
        }
        fields.append("Upload-Offset", "\(count)")
        version.setCompleteness(isComplete, &fields)
      }
      if lost.contains(requests.count - 1) {
        client.lose()
      } else if client.answer(status, fields) == .wait {
        client.goOn()
      }
    }
  }

  private static func isOver(_ client: ClientScript) -> Bool { ["completed", "fail", "CREATE"].contains(client.next) }

  private static func resumed(
    _ supply: Supply, base: UInt64, _ version: InteropVersion
  ) -> ClientScript {
    var client = ClientScript(supply)
    client.perform(client.machine.resume(url: ClientScript.upload, base: base, version: version))
    return client
  }

  @Test("a stream that another process has left with a gap ends its part only if the server does not join parts")
  func leftWithGap() {
    for joinsParts in [false, true] {
      var client = ClientScript.live(500, isFinished: true) { $0.streamID = "cam" }
      client.supply = Supply(oldest: 300, head: 500, isFinished: true, restart: 300)
      client.perform(
        client.machine.resume(
          url: ClientScript.upload, base: 0, version: .newest, acknowledged: 100, joinsParts: joinsParts))
      #expect(client.machine.joinsParts == joinsParts)
      client.answer(204, ["Upload-Offset": "100"])
      if !joinsParts {
        #expect(client.next == "PATCH 100" && client.fields["Upload-Complete"] == "?1" && client.maximum == 0)
        client.answer(204)
      }
      #expect(client.next == "CREATE" && client.machine.base == 300, "\(client.next), \(joinsParts)")
    }
  }

  @Test("a stream whose bytes the server has from other uploads is complete, and nothing counts as lost")
  func storedByOthers() {
    for stored in [nil, 499, 500, 610] as [Int?] {
      for streamID in ["cam", "other"] {
        var client = ClientScript.live(500, isFinished: true) { $0.streamID = "cam" }
        client.supply = Supply(oldest: 500, head: 500, isFinished: true, restart: 500)
        client.perform(
          client.machine.resume(
            url: ClientScript.upload, base: 0, version: .newest, acknowledged: 500, joinsParts: true))
        // An intermediary has sent the first bytes once more, in an upload that is behind the others.
        for _ in 0..<9 where client.next == "HEAD" || client.fields["Upload-Complete"] == "?0" {
          if client.answer(204, ["Upload-Offset": "16", "Upload-Complete": "?0"]) == .wait { client.goOn() }
        }
        #expect(client.next == "PATCH 16" && client.fields["Upload-Complete"] == "?1" && client.maximum == 0)
        var fields: HeaderFields = ["Upload-Offset": "16", "Upload-Complete": "?1", "Stream-ID": streamID]
        if let stored { fields.append("Stream-Offset", "\(stored)") }
        client.answer(200, fields)
        let isThere = (stored ?? 0) >= 500 && streamID == "cam"
        let gaps = client.machine.takeNotes().compactMap { note -> Range<UInt64>? in
          if case .gap(let start, let end, _) = note { start..<end } else { nil }
        }
        #expect(client.next == "completed" && gaps == (isThere ? [] : [16..<500]), "\(stored ?? 0), \(gaps)")
      }
    }
  }

  @Test("a gap is released when an upload resource after it exists, so that another process finds it again")
  func gapIsReleasedLate() {
    var client = ClientScript.live(500, isFinished: true) { $0.streamID = "cam" }
    client.supply = Supply(oldest: 300, head: 500, isFinished: true, restart: 300)
    client.perform(
      client.machine.resume(
        url: ClientScript.upload, base: 0, version: .newest, acknowledged: 100, joinsParts: true))
    #expect(client.machine.releasable == 100)
    // HEAD shows that the server has stored more than it had acknowledged.
    client.answer(204, ["Upload-Offset": "120"])
    #expect(client.next == "CREATE" && client.machine.base == 300)
    #expect(client.machine.acknowledged == 120 && client.machine.releasable == 120, "the gap begins there")
    client.answer(201, location: ClientScript.other)
    #expect(client.machine.acknowledged == 300 && client.machine.releasable == 300)
  }

  @Test("a server that went back has lost only what it had acknowledged, and not what was discarded here")
  func wentBackBeforeGap() {
    var client = ClientScript.live(500, isFinished: true) { $0.streamID = "cam" }
    client.supply = Supply(oldest: 300, head: 500, isFinished: true, restart: 300)
    client.perform(client.machine.resume(url: ClientScript.upload, base: 0, version: .newest, acknowledged: 100))
    for _ in 0..<2 where client.next == "HEAD" {
      if client.answer(204, ["Upload-Offset": "40"]) == .wait { client.goOn() }
    }
    #expect(client.next == "PATCH 40" && client.fields["Upload-Complete"] == "?1")
    client.answer(204)
    #expect(client.next == "CREATE" && client.machine.base == 300)
    client.answer(201, location: ClientScript.other)
    let gaps = client.machine.takeNotes().filter { if case .gap = $0 { true } else { false } }
    #expect(
      gaps == [.gap(from: 40, to: 100, isServersFault: true), .gap(from: 100, to: 300, isServersFault: false)],
      "\(gaps)")
  }

  @Test(
    "a stream that another process left without an upload resource continues after the acknowledged or the kept bytes"
  )
  func withoutResource() {
    for (oldest, head, lost) in [(1000, 3000, 0), (1500, 3000, 500), (0, 1000, 0), (0, 600, 0), (600, 600, 0)]
      as [(UInt64, UInt64, UInt64)]
    {
      var client = ClientScript(Supply(oldest: oldest, head: head, isFinished: true)) {
        ($0.streamID, $0.discovers) = ("s", true)
      }
      client.perform(client.machine.start(client.supply, after: 1000))
      let start = min(head, 1000)
      for _ in 0..<3 {
        // Before the server can be reached, too.
        #expect(client.next == "OPTIONS" && client.machine.acknowledged == start)
        client.lose()
      }
      client.answer(204, ["Upload-Limit": "min-size=0"])
      // No upload resource begins before bytes that are not kept.
      #expect(client.fields["Stream-Offset"] == "\(oldest < head ? max(start, oldest) : start)")
      client.answer(201, location: ClientScript.upload)
      for _ in 0..<6 where client.next != "completed" {
        if client.next == "CREATE" {
          client.answer(201, location: ClientScript.other)
        } else {
          client.sendAll()
          let end = client.sentUpTo - client.machine.base
          client.answer(200, ["Upload-Offset": "\(end)", "Upload-Complete": "?1"])
        }
      }
      let gaps = client.machine.takeNotes().compactMap { note -> UInt64? in
        if case .gap(let start, let end, _) = note { end - start } else { nil }
      }
      #expect(gaps.reduce(0, +) == lost, "\(gaps)")
      #expect(client.next == "completed" && client.machine.acknowledged == head)
    }
  }

  @Test(
    "the upload is completed at the server's offset, or at the end of the buffer if that is higher",
    arguments: InteropVersion.drafts)
  func completes(_ version: InteropVersion) throws {
    for base: UInt64 in [0, 100] {
      for kept: Range<UInt64> in [0..<0, 0..<500, 200..<500, 500..<500] {
        let (oldest, head) = (base + kept.lowerBound, base + kept.upperBound)
        for count in Set([kept.lowerBound, kept.upperBound, kept.upperBound + 1, kept.upperBound + 200_000]) {
          for isComplete in [false, true] where !isComplete || count >= kept.upperBound {
            for (lost, spoiled) in [([], []), ([1], []), ([2], []), ([3], []), ([], [0]), ([], [1]), ([2], [0])]
              as [(Set<Int>, Set<Int>)]
            {
              let supply = Supply(oldest: oldest, head: head, isFinished: true)
              var client = Self.resumed(supply, base: base, version)
              var server = Resource(count: count, isComplete: isComplete, lost: lost, spoiled: spoiled)
              for _ in 0..<40 where !Self.isOver(client) { server.answer(&client, base: base) }
              let row: Comment =
                "base \(base), kept \(kept), server \(count) \(isComplete), lost \(lost), spoiled \(spoiled): \(server.requests)"
              #expect(client.next == "completed" && server.isComplete, row)
              #expect(server.count == max(count, kept.upperBound), row)
              #expect(client.machine.acknowledged == base + server.count, row)
              let told = client.machine.takeNotes().filter { if case .serverHasMore = $0 { true } else { false } }
              #expect(told == (base + count > head ? [.serverHasMore(offset: base + count, kept: head)] : []), row)
            }
          }
        }
      }
    }
  }

  @Test(
    "late bytes of the earlier process: the client follows the server", arguments: Seed.several(40))
  func arrivesLate(_ seed: Seed) throws {
    var random = seed.generator
    for _ in 0..<50 {
      let head = UInt64.random(in: 1...1000, using: &random)
      var server = Resource(count: UInt64.random(in: 0...head, using: &random))
      var client = Self.resumed(Supply(oldest: 0, head: head, isFinished: true), base: 0, .newest)
      var late = (0..<Int.random(in: 0...3, using: &random)).map { _ in UInt64.random(in: 1...600, using: &random) }
      for _ in 0..<60 where !Self.isOver(client) {
        if !late.isEmpty, !server.isComplete, random.chance(50) { server.count += late.removeLast() }
        server.answer(&client, base: 0)
      }
      #expect(client.next == "completed" && server.isComplete && server.count >= head, "\(seed) \(server.requests)")
    }
  }

  @Test("one HEAD alone moves no end, because the next one may withdraw it")
  func spoiledOnce() {
    var client = Self.resumed(Supply(oldest: 0, head: 500, isFinished: true), base: 0, .newest)
    client.answer(204, ["Upload-Offset": "900"])
    #expect(client.next == "HEAD" && client.machine.confirmedSurplus == nil && client.machine.isAskingForSurplus)
    client.answer(204, ["Upload-Offset": "300"])
    #expect(client.next == "PATCH 300" && !client.machine.isAskingForSurplus && client.machine.takeNotes().isEmpty)
  }

  @Test("an upload that another process has completed behind the last append of this one is complete")
  func completedBehind() {
    var client = Self.resumed(Supply(oldest: 0, head: 500, isFinished: true), base: 0, .newest)
    client.answer(204, ["Upload-Offset": "300"])
    #expect(client.next == "PATCH 300")
    client.sendAll()
    client.lose()
    for _ in 0..<10 where client.next == "HEAD" {
      if client.answer(204, ["Upload-Offset": "900", "Upload-Complete": "?1"]) == .wait { client.goOn() }
    }
    #expect(client.next == "PATCH 900" && client.maximum == 0)
    client.answer(200, ["Upload-Offset": "900", "Upload-Complete": "?1"])
    #expect(client.next == "completed" && client.machine.acknowledged == 900)
  }

  @Test("the upload resource's own 409 overrides a repeated HEAD")
  func conflict() {
    var client = Self.resumed(Supply(oldest: 0, head: 500, isFinished: true), base: 0, .newest)
    for _ in 0..<20 where client.next != "PATCH 300" {
      if client.next == "HEAD" {
        if client.answer(204, ["Upload-Offset": "900"]) == .wait { client.goOn() }
      } else {
        #expect(client.next == "PATCH 900" && client.maximum == 0)
        if client.answer(409, ["Upload-Offset": "300"]) == .wait { client.goOn() }
      }
    }
    #expect(client.next == "PATCH 300" && client.maximum == 200)
  }

  @Test(
    "while the stretch may continue after a pause, the client asks, and completes nothing", arguments: [true, false])
  func notFinished(hasPause: Bool) {
    var client = Self.resumed(Supply(oldest: 0, head: 500, isFinished: false, pausesAtHead: hasPause), base: 0, .newest)
    var count = 0
    while client.next == "HEAD", count < 40 {
      if count == 2 { #expect(client.machine.confirmedSurplus == 900, "the pauses before it can be passed") }
      if hasPause, count == 3 { client.supply = Supply(oldest: 800, head: 950, isFinished: true, pause: 500..<800) }
      if client.answer(204, ["Upload-Offset": "900"]) == .wait { client.goOn() }
      count += 1
    }
    if hasPause {
      #expect(client.next == "PATCH 900" && client.maximum == 50)
    } else {
      #expect(client.failure == .offsetBeyondSent(offset: 900, sent: 500), "\(client.next)")
    }
  }

  @Test("a file that is longer on the server is another file")
  func file() {
    var client = ClientScript.file(500)
    client.perform(client.machine.resume(url: ClientScript.upload, base: 0, version: .newest))
    while client.next == "HEAD" { if client.answer(204, ["Upload-Offset": "501"]) == .wait { client.goOn() } }
    #expect(client.next == "DELETE")
    client.answer(204)
    #expect(client.failure == .offsetBeyondSent(offset: 501, sent: 500))
  }

  @Test("a server that refuses to complete it ends the attempt, and nothing is sent again", arguments: [400, 409])
  func refused(_ status: Int) {
    var client = Self.resumed(Supply(oldest: 0, head: 500, isFinished: true), base: 0, .newest)
    for _ in 0..<60 where client.failure == nil && client.next != "CREATE" {
      let action = client.next == "HEAD" ? client.answer(204, ["Upload-Offset": "900"]) : client.answer(status)
      if action == .wait { client.goOn() }
    }
    #expect(client.failure == .offsetBeyondSent(offset: 900, sent: 500), "\(client.next)")
  }

  @Test("an upload that is forgotten after its completion has ended", arguments: [500, 900])
  func forgotten(_ count: UInt64) {
    var client = Self.resumed(Supply(oldest: 500, head: 500, isFinished: true), base: 0, .newest)
    var server = Resource(count: count, forgets: true)
    for _ in 0..<40 where !Self.isOver(client) {
      if case .appending = client.machine.state { server.lost.insert(server.requests.count) }
      server.answer(&client, base: 0)
    }
    #expect(client.next == "completed" && server.isComplete, "\(server.requests)")
  }
}
