// Tests, without a disk, what the server knows of an upload, and which of this the upload's record contains.

import EventLoops
import HTTPMessages
import PropertyTesting
import ResumableUploads
import Testing

@testable import HTTPServer
@testable import ResumableServing
@testable import StreamServing

@Suite("The ledger of an upload")
struct UploadLedgerTests {
  private static let owner = UploadOwner(credential: [1], address: "192.0.2.1")

  private func head(_ target: String, _ fields: HeaderFields) throws -> RequestHead {
    let octets = Array(target.utf8)
    return RequestHead(
      method: "POST", target: try RequestTarget(octets.span, method: "POST"), minorVersion: 1, fields: fields,
      framing: .chunked, expectsContinue: false, keepsAlive: true)
  }

  private func new(
    length: UInt64? = nil, needed: Set<String>? = nil, boot: String? = nil, awaitsDisk: Bool = false
  ) throws -> UploadLedger {
    let request = UploadTransferRequest(
      version: .newest, offset: 0, completes: false, content: .unsized, uploadLength: length)
    let state = try UploadResourceState(creating: request, limits: UploadLimits(), awaitsDisk: awaitsDisk)
    return UploadLedger(
      state, try head("/x?secret=1", ["content-type": "audio/wav", "x-extra": "1", "repr-digest": "sha-256=:AA==:"]),
      of: Self.owner, settled: ["stream-id": "s"], needed: needed, created: WallClock(seconds: 7), unsyncedSince: boot)
  }

  private func restored(
    _ ledger: UploadLedger, boot: String = "b", awaitsDisk: Bool = false,
    _ change: (inout UploadRecord) -> Void = { _ in }
  ) -> UploadLedger {
    var ledger = ledger
    var record = ledger.entry()
    change(&record)
    return UploadLedger(restoring: record, maximumAge: 60, boot: boot, awaitsDisk: awaitsDisk)
  }

  @Test("a record has the fields that the handler requires and its results, and no secret of the query")
  func fields() throws {
    let request = try #require(try new(needed: ["content-type"]).request)
    #expect(request.target.text == "/x")
    #expect(Set(request.fields.all.map(\.name)) == ["content-type", "repr-digest", "stream-id"])
    #expect(request.credential == [1])
    let all = try #require(try new().request)
    #expect(all.target.text == "/x?secret=1" && all.fields.count("x-extra") == 1)
    var over = try new()
    over.forgetFields()
    #expect(over.entry().fields.all.isEmpty && over.method == "POST")
  }

  @Test("an upload without a length is live from its creation on")
  func live() throws {
    #expect(try new().isLive)
    var sized = try new(length: 5)
    #expect(!sized.isLive && sized.entry().length == 5)
  }

  @Test("a restored upload has the offset of its record, and of its bytes")
  func restoring() throws {
    let ledger = try new()
    #expect(restored(ledger) { $0.deactivation = .expired }.state.phase == .inactive(.expired))
    let answered = restored(ledger) { $0.response = .init(status: 201, fields: [:], body: []) }
    #expect(answered.state.phase == .complete && answered.response?.status == 201)
    #expect(restored(ledger) { $0.unsyncedBoot = "a" }.state.phase == .inactive(.unsynced))
    var growing = restored(ledger) {
      $0.unsyncedBoot = "b"
      $0.promised = 3
    }
    #expect(growing.state.phase == .incomplete && growing.state.offset == 3 && growing.state.durable == 0)
    growing.restored(.bytes(9))
    #expect(growing.state.offset == 9 && growing.state.promised == 3 && growing.state.durable == 0)
    // The disk has all promised bytes.
    var synced = restored(ledger) { $0.promised = 3 }
    synced.restored(.bytes(9))
    #expect(synced.state.durable == 3)
    for (extent, cause) in [
      (KeptExtent.gone, Deactivation.stateLost), (.closed, .interrupted), (.overtaken, .overtaken),
      (.misplaced, .misplaced),
    ] {
      var lost = restored(ledger) { $0.promised = 3 }
      lost.restored(extent)
      #expect(lost.state.phase == .inactive(cause))
    }
    var short = restored(ledger) { $0.promised = 3 }
    short.restored(.bytes(2))
    #expect(short.state.phase == .inactive(.stateLost), "fewer bytes than were promised")
  }

  @Test("the record contains the offset once it is written")
  func ownOffset() throws {
    var ledger = try new()
    #expect(ledger.isOwnOffsetWritten)
    ledger.state.kept(4)
    ledger.setOwnOffset(isInside: true)
    #expect(ledger.ownOffset == 4 && !ledger.isOwnOffsetWritten)
    let entry = ledger.entry()
    ledger.state.kept(1)
    ledger.setOwnOffset(isInside: true)
    ledger.written(entry)
    #expect(!ledger.isOwnOffsetWritten, "what was written is older")
    ledger.written(ledger.entry())
    #expect(ledger.isOwnOffsetWritten)
    ledger.setOwnOffset(isInside: false)
    #expect(ledger.ownOffset == nil && !ledger.isOwnOffsetWritten)
  }

  @Test("the next server announces as much as this one unless the written record has a smaller own offset")
  func announcedByNext() throws {
    var ledger = try new()
    func announce() { _ = ledger.state.announceOffset() }
    ledger.state.kept(4)
    announce()
    #expect(!ledger.isAnnouncedOffsetUnwritten, "all kept bytes count without an own offset")
    ledger.setOwnOffset(isInside: true)
    ledger.written(ledger.entry())
    ledger.state.kept(1)
    #expect(!ledger.isAnnouncedOffsetUnwritten, "the last byte was not announced")
    announce()
    #expect(ledger.isAnnouncedOffsetUnwritten)
    ledger.setOwnOffset(isInside: true)
    ledger.written(ledger.entry())
    #expect(!ledger.isAnnouncedOffsetUnwritten)
    #expect(ledger.lacksAnnounced)
    ledger.state.synced(to: 5)
    ledger.state.kept(1)
    #expect(!ledger.lacksAnnounced, "the bytes that the disk may lack were not announced")
  }

  @Test("the record marks bytes as unsynced before they arrive, and as synced when all are")
  func unsynced() throws {
    var ledger = try new(boot: "b")
    #expect(ledger.isUnsynced && !ledger.marksUnsynced(since: "b"), "a new record states this from the beginning")
    ledger.state.kept(4)
    #expect(!ledger.becomesClean() && ledger.isUnsynced)
    ledger.state.synced(to: 3)
    #expect(ledger.becomesClean() == false)
    ledger.state.synced(to: 4)
    #expect(ledger.becomesClean() && !ledger.isUnsynced && !ledger.becomesClean())
    #expect(ledger.marksUnsynced(since: nil) == false, "the disk has bytes before clients hear of them")
    #expect(ledger.marksUnsynced(since: "b") && ledger.isUnsynced)
  }

  @Test("an announcement counts the unreported bytes, and the age of the oldest")
  func announcing() throws {
    var ledger = try new(awaitsDisk: true)
    func at(_ milliseconds: Int64) -> MonotonicInstant { MonotonicInstant(nanoseconds: milliseconds * 1_000_000) }
    ledger.bytesCame(at: at(10))
    ledger.state.kept(4)
    ledger.bytesCame(at: at(20))
    #expect(ledger.announcing(at: at(30)) { $0.announceOffset() }.news == nil, "the disk has nothing yet")
    ledger.state.kept(3)
    ledger.state.synced(to: 4)
    let (offset, first) = ledger.announcing(at: at(40)) { $0.announceOffset() }
    #expect(offset == 4 && first == .init(count: 4, delay: .milliseconds(30)))
    ledger.state.synced(to: 7)
    // Bytes that arrived meanwhile are at most as old as the previous announcement.
    #expect(ledger.announcing(at: at(45)) { $0.announceOffset() }.news == .init(count: 3, delay: .milliseconds(5)))
    #expect(ledger.announcing(at: at(50)) { $0.announceOffset() }.news == nil)
    #expect(ledger.hasUnwrittenOffset && ledger.hasUnwrittenPromise)
    _ = ledger.entry()
    #expect(!ledger.hasUnwrittenOffset && !ledger.hasUnwrittenPromise)
  }

  @Test("the entry contains the result of the upload")
  func entry() throws {
    var ledger = try new()
    ledger.begin()
    ledger.beginningWritten(true)
    ledger.setOwnsFile(true)
    ledger.state.kept(6)
    ledger.complete(Response(201))
    let entry = ledger.entry()
    #expect(entry.hasBegun && entry.ownsFile && entry.promised == 6 && entry.response?.status == 201)
    #expect(ledger.isBeginningWritten && !ledger.isOver && ledger.recordLength == entry.text?.utf8.count)
    ledger.forgetResponse()
    _ = try ledger.state.deactivate(.cancelled)
    #expect(ledger.entry().deactivation == .cancelled && ledger.isOver && ledger.response == nil)
  }

  @Test("requests wait while anything waits for the disk, and continue in their order")
  func gate() {
    var gate = SettlingGate()
    #expect(gate.admits {})
    gate.close()
    gate.close()
    nonisolated(unsafe) var done: [Int] = []
    for number in 0..<3 { #expect(!gate.admits { done.append(number) }) }
    #expect(gate.open() == nil, "one still waits")
    for work in gate.open() ?? [] { work() }
    #expect(done == [0, 1, 2] && gate.admits {})
    gate.close()
    #expect(gate.open()?.isEmpty == true, "each continues once")
  }

  @Test("each request that waits for a comparison receives its end once")
  func comparison() {
    var comparison = WholeComparison()
    #expect(!comparison.waits {})
    comparison.begin(for: {})
    #expect(comparison.waits {})
    #expect(comparison.end().count == 2 && comparison.end().isEmpty)
    #expect(!comparison.waits {} && comparison.end().isEmpty)
  }

  @Test("the activity of an upload is recorded after a while, or if the record marks it as idle")
  func age() {
    let start = MonotonicInstant(nanoseconds: 1_000_000_000_000)
    var age = UploadAge(.zero, now: start)
    #expect(age.touch(now: start + .seconds(30)) == false)
    #expect(age.touch(now: start + .seconds(31)) == true)
    #expect(!age.touch(now: start + .seconds(40)) && age.lastActivity == start + .seconds(40))
    #expect(age.written(now: start + .seconds(45)) == .seconds(5))
    #expect(age.touch(now: start + .seconds(46)) && !age.touch(now: start + .seconds(47)))
    var old = UploadAge(.seconds(9), now: start)
    #expect(old.lastActivity == start + .seconds(-9) && old.touch(now: start))
  }
}
