// A store that keeps no byte: what a server costs that only receives and acknowledges can be measured with it.

package import DiskFiles
package import EventLoops
package import Glibc
package import HTTPMessages
package import StreamServing

/// Remembers how long each unfinished stream is, in memory, and forgets it once it is complete. Only on the loop's
/// thread.
package final class CountingStore: StreamStore {
  fileprivate final class Entry {
    var length: UInt64 = 0
    var gaps = GapRecord.Summary()
    var credential: [UInt8]?
    /// How many requests are at work on it.
    var users = 0
    var lastUse = MonotonicInstant.now
  }

  private var entries: [StreamName: Entry] = [:]
  private let maximumCount: Int
  private let maximumAge: Duration

  /// - Parameters:
  ///   - maximumCount: beyond so many streams those that no request is at work on are forgotten, the longest unused
  ///     first.
  ///   - maximumAge: how long such a stream is remembered when others need the room.
  package init(maximumCount: Int, maximumAge: Duration) {
    self.maximumCount = maximumCount
    self.maximumAge = maximumAge
  }

  package func admits(_ credential: [UInt8]?, to name: StreamName) -> Bool {
    guard let credential, let owner = entries[name]?.credential else { return true }
    return owner == credential
  }

  package func open(
    _ name: StreamName, for credential: [UInt8]?, at offset: UInt64, creating: Bool
  ) throws(SystemError) -> any StoredStream {
    if let entry = entries[name] {
      entry.credential = entry.credential ?? credential
      return CountedStream(name, isNew: false, entry, self)
    }
    guard creating else { throw SystemError(operation: "open a stream", code: ENOENT) }
    makeRoom()
    let entry = Entry()
    entry.credential = credential
    entries[name] = entry
    return CountedStream(name, isNew: true, entry, self)
  }

  package func openUnfinished(_ name: StreamName) -> (any StoredStream)? {
    entries[name].map { CountedStream(name, isNew: false, $0, self) }
  }

  package func measure(_ name: StreamName) -> StreamExtent {
    entries[name].map { .stored(start: 0, length: $0.length, $0.gaps) } ?? .absent
  }

  // There are no files.
  package func finishSplit(
    _ split: SplitRecording, loop: EventLoop, completion: @escaping (SystemError?, _ isDataLost: Bool) -> Void
  ) {
    completion(nil, false)
  }

  package func synchronize(_ name: StreamName, on loop: EventLoop, _ completion: @escaping (SystemError?) -> Void) {
    completion(nil)
  }

  package func remove(_ name: StreamName) { entries[name] = nil }

  // Nothing of a stream outlives the server.
  package func noteDistrusted(_ name: StreamName) {}
  package func noteUnfinished(_ name: StreamName, owner: UploadOwner?) {}
  package func forgetClosed(_ name: StreamName) {}

  package func attribute(_ name: StreamName, to owner: UploadOwner) {}

  /// Many at a time, so that a full table costs each newcomer little.
  private func makeRoom() {
    guard entries.count >= maximumCount else { return }
    let now = MonotonicInstant.now
    let idle = entries.filter { $0.value.users == 0 }.sorted { $0.value.lastUse < $1.value.lastUse }
    let surplus = entries.count - maximumCount * 3 / 4
    for (rank, entry) in idle.enumerated() where rank < surplus || now - entry.value.lastUse >= maximumAge {
      entries[entry.key] = nil
    }
  }
}

/// A stream of which only the length is known.
private final class CountedStream: StoredStream {
  let name: StreamName
  let isNew: Bool
  var isNameRefused: Bool { false }
  private let entry: CountingStore.Entry
  private let store: CountingStore
  private var beforeHole: (length: UInt64, gaps: GapRecord.Summary)?

  init(_ name: StreamName, isNew: Bool, _ entry: CountingStore.Entry, _ store: CountingStore) {
    self.name = name
    self.isNew = isNew
    self.entry = entry
    self.store = store
    entry.users += 1
  }

  deinit {
    entry.users -= 1
    entry.lastUse = .now
  }

  var isComplete: Bool { false }
  var length: UInt64 {
    get { entry.length }
    set { entry.length = newValue }
  }
  var gaps: GapRecord.Summary { entry.gaps }
  var file: OpenFile? { nil }
  var contentCount: UInt64 { entry.length - min(entry.length, missing) }
  var start: UInt64 { 0 }
  var seriesStart: UInt64 { 0 }
  var maySplit = false
  var splitFailure: SystemError? { nil }
  func takeSplits() -> [SplitRecording] { [] }
  func position(of offset: UInt64) -> UInt64 { offset }
  func check() {}

  func write(
    _ bytes: Span<UInt8>, _ pieces: [Range<Int>], skipping skipped: Int, at offset: UInt64
  ) -> (written: Int, error: SystemError?) {
    (pieces.reduce(0) { $0 + $1.count } - skipped, nil)
  }

  /// There is nothing to compare with: whoever sends bytes again is believed.
  func matches(_ bytes: Span<UInt8>, _ pieces: [Range<Int>], count: Int, at offset: UInt64) -> Bool { true }

  func truncate(to length: UInt64) {
    if let beforeHole, length <= beforeHole.length { entry.gaps = beforeHole.gaps }
  }

  func makeHole(length hole: UInt64) {
    beforeHole = (entry.length, entry.gaps)
    entry.gaps.missing += hole
    entry.length += hole
    entry.gaps.holesEnd = entry.length
  }

  func synchronize(on loop: EventLoop, _ completion: @escaping (SystemError?) -> Void) { completion(nil) }

  func describe(_ description: StreamDescription) {}

  func finish(isLive: Bool, on loop: EventLoop, _ completion: @escaping (SystemError?) -> Void) {
    store.remove(name)
    completion(nil)
  }

  func closeInterrupted(
    for owner: UploadOwner?, isTrusted: Bool, on loop: EventLoop, _ completion: @escaping (SystemError?) -> Void
  ) { finish(isLive: true, on: loop, completion) }
}
