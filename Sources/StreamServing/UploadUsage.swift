// How much of a server's limits its unfinished uploads and streams take, in total and by owner: one account for all
// loops.

internal import EventLoops
package import ResumableUploads
internal import Synchronization

/// How many uploads are unfinished or at work, and how many bytes of unfinished streams are stored. Any thread: owners
/// come and go under a lock, bytes, which are counted with each piece that comes, are atomics.
///
/// No limit is exceeded for a moment, whatever several loops do at the same time: bytes are reserved before they are
/// stored.
package final class UploadUsage: Sendable {
  /// The part of one owner.
  package final class Share: Sendable {
    fileprivate let owner: UploadOwner?
    fileprivate let count = Atomic<Int>(0)
    fileprivate let bytes = Atomic<UInt64>(0)

    fileprivate init(_ owner: UploadOwner?) { self.owner = owner }
  }

  private struct Entry {
    let share: Share
    /// Whoever may still count something here. Without any the share is forgotten.
    var references = 0
  }

  private let limits: UploadLimitsConfiguration
  private let owners = Lock<[UploadOwner: Entry]>([:])
  private let total = Share(nil)
  /// Of bytes that were there before, and nobody knows whose they are.
  private let nobody = Share(nil)

  package init(_ limits: UploadLimitsConfiguration) { self.limits = limits }

  /// Whether there is a limit that bytes are counted for.
  package var limitsBytes: Bool { limits.quota != nil || limits.quotaPerClient != nil }

  // MARK: Uploads and requests

  /// Takes in a new upload of that owner's, if the limits leave room for it.
  ///
  /// - Parameter needsRoom: whether it is of no use without a byte of the quotas.
  package func admit(_ owner: UploadOwner, needsRoom: Bool = true) throws(UploadRefusal) -> Share {
    try owners.withLock { owners throws(UploadRefusal) in
      let own = owners[owner]?.share
      guard total.count.load(ordering: .relaxed) < limits.maximumCount,
        (own?.count.load(ordering: .relaxed) ?? 0) < limits.maximumCountPerClient ?? .max
      else { throw .tooManyUploads }
      guard !needsRoom || room(of: own) > 0 else { throw .quotaExhausted }
      return enter(owner, &owners)
    }
  }

  /// Takes in an upload that was there before.
  package func add(_ owner: UploadOwner) -> Share { owners.withLock { enter(owner, &$0) } }

  private func enter(_ owner: UploadOwner, _ owners: inout [UploadOwner: Entry]) -> Share {
    let share = refer(to: owner, &owners)
    share.count.wrappingAdd(1, ordering: .relaxed)
    total.count.wrappingAdd(1, ordering: .relaxed)
    return share
  }

  /// An upload is unfinished no more, or a request is over.
  package func leave(_ share: Share) {
    share.count.wrappingSubtract(1, ordering: .relaxed)
    total.count.wrappingSubtract(1, ordering: .relaxed)
    release(share)
  }

  // MARK: Shares

  /// The part of an owner, or of bytes that are nobody's, until ``release(_:)``.
  package func share(of owner: UploadOwner?) -> Share {
    guard let owner else { return nobody }
    return owners.withLock { refer(to: owner, &$0) }
  }

  package func retain(_ share: Share) {
    guard let owner = share.owner else { return }
    owners.withLock { $0[owner]?.references += 1 }
  }

  package func release(_ share: Share) {
    guard let owner = share.owner else { return }
    owners.withLock { owners in
      owners[owner]?.references -= 1
      if owners[owner]?.references == 0 { owners[owner] = nil }
    }
  }

  /// Whether bytes of that part are nobody's.
  package func isNobodys(_ share: Share) -> Bool { share === nobody }

  private func refer(to owner: UploadOwner, _ owners: inout [UploadOwner: Entry]) -> Share {
    owners[owner, default: Entry(share: Share(owner))].references += 1
    // The line above has put it there.
    return owners[owner]?.share ?? nobody
  }

  // MARK: Bytes

  /// How many bytes more that owner's uploads may keep.
  package func room(of share: Share?) -> UInt64 {
    let own = share?.bytes.load(ordering: .relaxed) ?? 0
    return min(
      limits.quota.map { $0 - min($0, total.bytes.load(ordering: .relaxed)) } ?? .max,
      limits.quotaPerClient.map { $0 - min($0, own) } ?? .max)
  }

  /// Counts as many of `count` bytes as the limits leave room for, and returns how many that are.
  package func reserve(_ count: UInt64, for share: Share) -> UInt64 {
    let inTotal = Self.take(count, of: total.bytes, upTo: limits.quota)
    let own = Self.take(inTotal, of: share.bytes, upTo: share === nobody ? nil : limits.quotaPerClient)
    if own < inTotal { total.bytes.wrappingSubtract(inTotal - own, ordering: .relaxed) }
    return own
  }

  /// Counts bytes that are stored already, whatever the limits say.
  package func charge(_ count: UInt64, to share: Share) {
    share.bytes.wrappingAdd(count, ordering: .relaxed)
    total.bytes.wrappingAdd(count, ordering: .relaxed)
  }

  /// Bytes that were counted are not stored, or not unfinished any more.
  package func refund(_ count: UInt64, of share: Share) {
    share.bytes.wrappingSubtract(count, ordering: .relaxed)
    total.bytes.wrappingSubtract(count, ordering: .relaxed)
  }

  private static func take(_ count: UInt64, of counter: borrowing Atomic<UInt64>, upTo limit: UInt64?) -> UInt64 {
    guard let limit else {
      counter.wrappingAdd(count, ordering: .relaxed)
      return count
    }
    var current = counter.load(ordering: .relaxed)
    while true {
      let granted = min(count, limit - min(limit, current))
      if granted == 0 { return 0 }
      let (exchanged, original) = counter.compareExchange(
        expected: current, desired: current &+ granted, ordering: .relaxed)
      if exchanged { return granted }
      current = original
    }
  }
}
