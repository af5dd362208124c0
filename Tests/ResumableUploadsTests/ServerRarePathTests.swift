// Tests an upload resource when the server fails it: deferred processing, bytes that the disk has lost, and the status
// of each refusal.

import HTTPMessages
import Testing

@testable import ResumableUploads

@Suite("An upload resource of a failing server")
struct ServerRarePathTests {
  private static func request(
    _ offset: UInt64 = 0, completes: Bool = false, hasDigest: Bool = false
  ) -> UploadTransferRequest {
    var request = UploadTransferRequest(
      version: .newest, offset: offset, completes: completes, content: .unsized, uploadLength: nil)
    request.hasDigest = hasDigest
    return request
  }

  @Test("an upload with postponed processing keeps its state, and an ended one stays ended")
  func postponed() throws {
    for completes in [false, true] {
      var state = try UploadResourceState(
        creating: Self.request(completes: completes), limits: UploadLimits(), awaitsDisk: false)
      state.kept(7)
      if completes { #expect(state.contentEnded(1) == .process) }
      state.processingPostponed()
      #expect(state.phase == .incomplete && state.offset == 7 && state.transfer == nil)
      #expect(state.append(Self.request(7, completes: true)) == .begin(replacing: nil))
      #expect(state.contentEnded(2) == .process)
      #expect(state.responded() == 2)
      state.processingPostponed()
      #expect(state.phase == .complete)
    }
    var inactive = try UploadResourceState(creating: Self.request(), limits: UploadLimits(), awaitsDisk: false)
    let ended = try inactive.deactivate(.abandoned)
    #expect(ended == 1)
    inactive.processingPostponed()
    #expect(inactive.phase == .inactive(.abandoned))
  }

  @Test(
    "bytes that the disk has lost do not count later, with or without a pending digest", arguments: [false, true])
  func lost(hasDigest: Bool) throws {
    for synced in [0, 4, 10] as [UInt64] {
      var state = try UploadResourceState(
        creating: Self.request(), limits: UploadLimits(), awaitsDisk: true)
      state.kept(10)
      state.synced(to: synced)
      #expect(state.contentEnded(1) == .acknowledge)
      #expect(state.append(Self.request(10, hasDigest: hasDigest)) == .begin(replacing: nil))
      state.kept(5)
      #expect(state.lostUnsynced() == synced)
      #expect(state.offset == synced && state.keptCount == synced)
      let wasAtWork = state.interrupted(2)
      #expect(wasAtWork && state.offset == synced && state.announceOffset() == synced)
    }
  }

  /// The rules of the drafts and the RFCs for versions 3, 6 and 8, written down independently of the code.
  private static let statuses: [(UploadRefusal, [Int])] = [
    (.unsupportedVersion, [400]), (.missingOffset, [400]), (.missingCompleteness, [400]), (.appendFields, [400]),
    (.mediaType, [415]), (.mismatchingOffset(expected: 1, provided: 2), [409]), (.inconsistentLength, [400]),
    (.representationTooLarge, [413]), (.contentTooLarge, [413]), (.contentTooSmall, [400]),
    (.deactivated(.abandoned), [404, 404, 410]), (.unknownResource, [404]), (.methodNotAllowed, [405]),
    (.tooManyUploads, [503]), (.quotaExhausted, [507]), (.notStored("no space left on device", isFull: true), [507]),
    (.notStored("input/output error", isFull: false), [500]), (.outOfResources("too many open files"), [503]),
    (.contentDigest, [400]), (.tooSlow, [408]), (.serverStops, [503]), (.notAuthorized, [401]),
    (.handlerNotReady(status: 502, reason: "no broker"), [502]),
  ]

  @Test("each refusal has the status of the standards, and a reason", arguments: [3, 6, 8])
  func statuses(number: Int) throws {
    let version = try #require(InteropVersion.drafts.first { $0.number == number })
    for (refusal, expected) in Self.statuses {
      let index = expected.count == 1 ? 0 : [3, 6, 8].firstIndex(of: number) ?? 0
      #expect(refusal.status(version) == expected[index], "\(refusal)")
      #expect(!refusal.reason.isEmpty)
    }
  }

  @Test("no record contains a credential, and its other contents are read back")
  func secrets() throws {
    let names = ["Authorization", "Cookie", "X-Api-Key", "Proxy-Authorization", "Private-Token", "X-Session-ID"]
    for name in names {
      let fields = HeaderFields(received: [
        (name: "Content-Type", value: "audio/wav"), (name: name, value: "xyzzy-\(name)"),
        (name: "X-Room", value: "kitchen"),
      ])
      let record = UploadRecord(
        method: "POST", target: "/kitchen", fields: fields, created: 1_700_000_000, credential: nil, client: "somebody",
        limits: UploadLimits())
      let text = try #require(record.text)
      #expect(!text.contains("xyzzy") && text.contains("kitchen"))
      let read = try #require(UploadRecord(parsing: text))
      #expect(read.fields["Content-Type"] == "audio/wav" && read.fields["X-Room"] == "kitchen")
      #expect(read.fields[name] == nil)
    }
  }
}
