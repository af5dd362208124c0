// The required content of a spool file after any sequence of calls, failures and power failures.

import PropertyTesting
import Testing

@testable import Spool

/// The state of each position, and the promises.
struct SpoolModel {
  enum State: UInt8 {
    /// Never appended.
    case absent
    case present
    /// Appended by a failed call, joined with a hole, or affected by a failed sync.
    case possible
  }

  /// The promise of a commit.
  struct Promise {
    var head: UInt64 = 0
    /// The head in its checkpoint, which is lower than the other if blocks were synced after it.
    var checkpointHead: UInt64 = 0
    var released: UInt64 = 0
    var oldest: UInt64 = 0
    var text = ""
  }

  private(set) var states: [State] = []
  private(set) var promise = Promise()
  /// The last successful commit with `sync`, the last commit of any kind, and the texts of all since the first of them.
  private(set) var durable = Promise()
  private(set) var latest = Promise()
  private(set) var texts: Set<String> = [""]
  private var holeStart: UInt64?
  private(set) var hasFailedSync = false

  var head: UInt64 { promise.head }
  var oldest: UInt64 { promise.oldest }
  var released: UInt64 { promise.released }

  private static let payload = UInt64(SpoolFormat.payloadSize)

  private mutating func set(_ range: Range<UInt64>, _ state: State) {
    while UInt64(states.count) < range.upperBound { states.append(.absent) }
    for position in range where state != .possible || states[Int(position)] == .absent { states[Int(position)] = state }
  }

  /// A successful call.
  mutating func append(_ range: Range<UInt64>) {
    var range = range
    // If nothing before it is needed, the block starts again.
    let isFresh = range.lowerBound > head && oldest == head
    if isFresh { holeStart = nil }
    if !isFresh, range.lowerBound > head, head % Self.payload != 0,
      range.lowerBound / Self.payload == head / Self.payload
    {
      if holeStart != nil {
        // A second hole in one block extends to its end.
        let next = (head / Self.payload + 1) * Self.payload
        guard range.upperBound > next else { return }
        range = next..<range.upperBound
      } else {
        holeStart = head
      }
    }
    if isFresh { promise.oldest = range.lowerBound }
    if range.upperBound / Self.payload != head / Self.payload { holeStart = nil }
    set(range, .present)
    promise.head = range.upperBound
  }

  /// A failed call may have written any of its blocks.
  mutating func appendFailed(_ range: Range<UInt64>) { set(range, .possible) }

  mutating func release(upTo position: UInt64) {
    promise.released = max(released, min(position, head))
    promise.oldest = max(oldest, released)
  }

  mutating func evict(upTo position: UInt64) { promise.oldest = max(oldest, min(position, head)) }

  mutating func commitBegins(_ text: String) {
    promise.text = text
    texts.insert(text)
  }

  mutating func commitSucceeded(sync: Bool) {
    promise.checkpointHead = head
    latest = promise
    if sync {
      durable = promise
      texts = [promise.text]
      hasFailedSync = false
    }
  }

  /// The blocks before the head's are on the disk, and so is the last checkpoint.
  mutating func blocksSynchronized() {
    durable = latest
    // The last of them may end in a hole.
    let blocks = states.prefix(Int(head / Self.payload * Self.payload))
    durable.head = max(latest.head, UInt64(blocks.lastIndex(of: .present).map { $0 + 1 } ?? 0))
    texts = [latest.text, promise.text]
  }

  /// fdatasync(2) failed: blocks that were completed since the last good one may be lost with their pages.
  mutating func syncFailed() {
    hasFailedSync = true
    for position in durable.head..<max(durable.head, head) where states[Int(position)] == .present {
      states[Int(position)] = .possible
    }
  }

  // MARK: Judging

  /// Checks a file that this process has used all the time.
  func check(_ file: SpoolFile, _ pattern: OffsetPattern) throws {
    #expect((file.head, file.oldest, file.released) == (head, oldest, released))
    try checkBytes(file, pattern, mustHave: oldest..<head)
    let holes = absentRuns(in: oldest..<head).filter { $0.count >= SpoolFormat.smallestHole }
    let most = holes.reduce(head - oldest) { $0 - UInt64($1.count) }
    #expect(file.keptByteCount <= most, "long holes do not count: \(holes)")
  }

  /// How many positions have a byte for certain.
  func presentCount(in range: Range<UInt64>) -> UInt64 {
    range.reduce(0) { states[Int($1)] == .present ? $0 + 1 : $0 }
  }

  private func absentRuns(in range: Range<UInt64>) -> [Range<UInt64>] {
    range.filter { states[Int($0)] == .absent }.map { $0..<$0 + 1 }.withJoinedNeighbors
  }

  /// Checks a file that was recovered.
  func checkRecovered(_ file: SpoolFile, _ pattern: OffsetPattern, afterPowerCut: Bool) throws {
    let base = afterPowerCut || hasFailedSync ? durable : latest
    // Newer blocks may have replaced those after the checkpoint, if none of them is needed.
    #expect(file.head >= (oldest < base.head ? base.head : base.checkpointHead))
    #expect(file.head <= UInt64(states.count))
    #expect(file.released >= base.released)
    #expect(file.released <= released)
    #expect(file.oldest >= base.oldest)
    #expect(file.oldest <= oldest)
    #expect(texts.contains(file.checkpoint.state))
    try checkBytes(file, pattern, mustHave: min(oldest, base.head)..<base.head)
  }

  private func checkBytes(_ file: SpoolFile, _ pattern: OffsetPattern, mustHave: Range<UInt64>) throws {
    let (bytes, missing) = try file.readAll(from: file.oldest)
    var count: UInt64 = 0
    var isWrong = false
    for (position, piece) in bytes {
      count += UInt64(piece.count)
      if !piece.withUnsafeBytes({ pattern.matches($0, at: position) }) { isWrong = true }
      for offset in position..<position + UInt64(piece.count)
      where offset >= UInt64(states.count) || states[Int(offset)] == .absent { isWrong = true }
    }
    #expect(file.keptByteCount >= count && file.keptByteCount <= file.head - file.oldest)
    #expect(!isWrong, "bytes that were never appended at these positions")
    var silent: [UInt64] = []
    for range in missing {
      for position in range.clamped(to: mustHave) where states[Int(position)] == .present { silent.append(position) }
    }
    #expect(
      silent.count == 0,
      "\(silent.count) bytes are missing from \(silent.first ?? 0) on, of \(mustHave); \(file.damage)")
    // All missing bytes are reported.
    let verification = try file.verify()
    #expect(verification.intactByteCount == count)
    var named: [Range<UInt64>] = []
    for range in (verification.holes + verification.damage.map(\.lostPositions)).map({
      $0.clamped(to: file.oldest..<file.head)
    })
    .filter({ !$0.isEmpty }).sorted(by: { $0.lowerBound < $1.lowerBound }) {
      if let last = named.last, last.upperBound >= range.lowerBound {
        named[named.count - 1] = last.lowerBound..<max(last.upperBound, range.upperBound)
      } else {
        named.append(range)
      }
    }
    #expect(named == missing.withJoinedNeighbors)
  }
}

extension [Range<UInt64>] {
  /// The same positions, with each range joined to the next one if that begins where it ends.
  var withJoinedNeighbors: [Range<UInt64>] {
    reduce(into: []) { joined, range in
      if let last = joined.last, last.upperBound == range.lowerBound {
        joined[joined.count - 1] = last.lowerBound..<range.upperBound
      } else {
        joined.append(range)
      }
    }
  }
}
