// Tests what becomes of removals and of divided recordings that the disk refuses at first. The disk is simulated.

import EventLoops
import Glibc
import NetworkTesting
import Testing

@testable import StreamServing
@testable import StreamStore

/// A store without streams, whose removals end when the test says so.
private final class PausedStore: StreamStore {
  /// Ends the removals that have begun, in their order.
  var ends: [(SystemError?) -> Void] = []
  /// Whether there is something to remove.
  var hasRemains = true
  /// Whether a removal ends before the call returns.
  var isImmediate = false

  func admits(_ credential: [UInt8]?, to name: StreamName) throws(SystemError) -> Bool { true }
  func measure(_ name: StreamName) throws(SystemError) -> StreamExtent { .absent }
  func open(_ name: StreamName, for purpose: StreamPurpose) throws(SystemError) -> (any StoredStream)? { nil }
  func synchronize(_ name: StreamName, on loop: EventLoop, _ completion: @escaping (SystemError?) -> Void) {
    completion(nil)
  }
  func note(_ note: RecordingNote, on name: StreamName) throws(SystemError) {}
  func discard(
    _ remains: StreamRemains, of name: StreamName, on loop: EventLoop, _ ended: @escaping (SystemError?) -> Void
  ) -> Bool {
    guard hasRemains else { return false }
    if isImmediate { ended(nil) } else { ends.append(ended) }
    return true
  }
}

@Suite("Attempts that are repeated")
struct RepeatedAttemptTests {
  private let loop: EventLoop
  private let store = PausedStore()
  private let events: EventLog<ServerEvent>
  private let name = StreamName(path: "/t.txt", streamID: "a", mediaType: "text/plain")
  private let refusal = SystemError(operation: "unlink", code: EIO)

  init() throws {
    loop = try EventLoop()
    events = try EventLog<ServerEvent>()
  }

  private func makeRemovals() -> StreamRemovals { StreamRemovals(store, loop) { [events] in events.append($0) } }

  @Test("all who ask for the removal of a stream learn the result of the same attempts")
  func observers() throws {
    let removals = makeRemovals()
    var results: [String] = []
    for observer in ["first", "second"] {
      let begins = removals.begin(.growingRecording, of: name) { results.append("\(observer) \($0?.code ?? 0)") }
      #expect(begins)
    }
    #expect(store.ends.count == 1 && results.isEmpty)
    let end = try #require(store.ends.first)
    end(refusal)
    #expect(results == ["first \(EIO)", "second \(EIO)"])
    #expect(events.all.count == 1)
    removals.stop()
  }

  @Test(
    "a request repeats a removal after a pause, and does not wait if that ends at once or nothing is left",
    arguments: [true, false])
  func atOnce(hasRemains: Bool) throws {
    let removals = makeRemovals()
    var results: [Int32] = []
    removals.begin(.growingRecording, of: name) { results.append($0?.code ?? 0) }
    let end = try #require(store.ends.first)
    end(refusal)
    #expect(results == [EIO])
    (store.hasRemains, store.isImmediate) = (hasRemains, true)
    var count = 0
    // The disk has just refused one, so the first requests cause no attempt.
    try waitUntil("a request causes an attempt") { removals.waits(for: name) { count += 1 } }
    #expect(count == 1 && results == [EIO, 0])
    let waits = removals.waits(for: name) { count += 1 }
    #expect(!waits && count == 1, "it is removed")
    removals.stop()
  }

  @Test("a part that could not be finished is finished later, unless the server stops", arguments: [true, false])
  func splitLater(stops: Bool) throws {
    let finishing = FinishingRecordings(loop, DistrustedRecordings(store) { _ in }) { [events, loop] in
      events.append($0)
      if $0.kind == .split { loop.stop() }
    }
    var count = 0
    let full = SystemError(operation: "rename", code: ENOSPC)
    let split = SplitRecording(name: name, start: 0, length: 3, missing: 0) { _, completion in
      count += 1
      completion(count < 3 ? .failed(full, isDataLost: false) : .finished)
    }
    finishing.finishSplit(split, peer: "", pauses: RetryPauses(.milliseconds(1)...(.milliseconds(2))))
    if stops { finishing.stop() }
    // Comes after the attempts, or ends the test if there are none.
    loop.schedule(after: stops ? .milliseconds(100) : .seconds(60)) { [loop] in loop.stop() }
    withExtendedLifetime(finishing) { loop.run() }
    #expect(count == (stops ? 1 : 3))
    // The same reason is reported once.
    let kinds: [ServerEvent.Kind] = stops ? [.warning] : [.warning, .split]
    #expect(events.all.map(\.kind) == kinds)
  }
}
