// A store that keeps no bytes. It shows the cost of a server that only receives and acknowledges.

internal import DiskFiles
package import EventLoops
internal import Glibc
internal import HTTPMessages
package import StreamServing

/// Remembers in memory how long each unfinished stream is, and forgets it once it is complete. Only on the loop's
/// thread.
package final class CountingStore: StreamStore {
  fileprivate final class Entry {
    var length: UInt64 = 0
    var gaps = GapRecord.Summary()
    var credential: [UInt8]?
    /// How many of its requests are in progress.
    var users = 0
    var lastUse = MonotonicInstant.now
  }

  private var entries: [StreamName: Entry] = [:]
  private let maximumCount: Int
  private let maximumAge: Duration

  /// - Parameters:
  ///   - maximumCount: the number of streams beyond which those without a request are forgotten, the longest unused
  ///     first.
  ///   - maximumAge: how long such a stream is remembered when others need the space.
  package init(maximumCount: Int, maximumAge: Duration) {
    self.maximumCount = maximumCount
    self.maximumAge = maximumAge
  }

  package func admits(_ credential: [UInt8]?, to name: StreamName) -> Bool {
    guard let credential, let owner = entries[name]?.credential else { return true }
    return owner == credential
  }

  package func open(_ name: StreamName, for purpose: StreamPurpose) -> (any StoredStream)? {
    let entry = entries[name]
    guard case .request(let credential, _, let creating, _) = purpose else {
      return entry.map { CountedStream(name, .growing, $0, self) }
    }
    if let entry {
      entry.credential = entry.credential ?? credential
      return CountedStream(name, .growing, entry, self)
    }
    guard creating else { return nil }
    makeRoom()
    let new = Entry()
    new.credential = credential
    entries[name] = new
    return CountedStream(name, .new, new, self)
  }

  package func measure(_ name: StreamName) -> StreamExtent {
    entries[name].map { .stored(start: 0, length: $0.length, $0.gaps) } ?? .absent
  }

  package func synchronize(_ name: StreamName, on loop: EventLoop, _ completion: @escaping (SystemError?) -> Void) {
    completion(nil)
  }

  // No stream outlives the server, and without a disk there is no quota.
  package func note(_ note: RecordingNote, on name: StreamName) {}

  package func discard(
    _ remains: StreamRemains, of name: StreamName, on loop: EventLoop, _ ended: @escaping (SystemError?) -> Void
  ) -> Bool {
    if case .record = remains { return false }
    forget(name)
    ended(nil)
    return true
  }

  fileprivate func forget(_ name: StreamName) { entries[name] = nil }

  /// Removes many at a time, so that a full table costs each new stream little.
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
  let standing: StreamStanding
  private let entry: CountingStore.Entry
  private let store: CountingStore
  private var beforeHole: (length: UInt64, gaps: GapRecord.Summary)?

  init(_ name: StreamName, _ standing: StreamStanding, _ entry: CountingStore.Entry, _ store: CountingStore) {
    self.name = name
    self.standing = standing
    self.entry = entry
    self.store = store
    entry.users += 1
  }

  deinit {
    entry.users -= 1
    entry.lastUse = .now
  }

  var extent: RecordingExtent { RecordingExtent(length: entry.length, gaps: entry.gaps) }
  var contentCount: UInt64 { entry.length - min(entry.length, missing) }
  var size: UInt64 { entry.length }
  var place: FilePlace? { nil }
  func stretches(of range: Range<UInt64>) -> [FileStretch]? { nil }
  func check() {}

  func write(
    _ bytes: Span<UInt8>, _ pieces: [Range<Int>], skipping skipped: Int, at offset: UInt64, maySplit: Bool
  ) -> StoredBytes {
    let count = pieces.reduce(0) { $0 + $1.count } - skipped
    if offset > entry.length { makeHole(length: offset - entry.length) }
    entry.length = offset + UInt64(count)
    return StoredBytes(count: count)
  }

  /// Nothing is stored for a comparison, so repeated bytes are accepted.
  func matches(_ bytes: Span<UInt8>, _ pieces: [Range<Int>], count: Int, at offset: UInt64) -> Bool { true }

  func truncate(to length: UInt64) {
    if let beforeHole, length <= beforeHole.length { entry.gaps = beforeHole.gaps }
    entry.length = length
  }

  func removedRefused() -> Bool { true }

  func makeHole(length hole: UInt64) {
    beforeHole = (entry.length, entry.gaps)
    entry.gaps.missing += hole
    entry.length += hole
    entry.gaps.holesEnd = entry.length
  }

  func synchronize(on loop: EventLoop, _ completion: @escaping (SystemError?) -> Void) { completion(nil) }

  func describe(_ description: StreamDescription) {}

  func finish(_ ending: StreamEnding, on loop: EventLoop, _ completion: @escaping (UnfinishedStream?) -> Void) {
    store.forget(name)
    completion(nil)
  }
}
