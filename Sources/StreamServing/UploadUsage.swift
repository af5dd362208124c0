// How much of a server's limits its unfinished uploads and streams use, in total and by owner. All loops share one
// account.

internal import EventLoops
package import ResumableUploads
internal import Synchronization

/// How many uploads are unfinished or active, and how many bytes of unfinished streams are stored. Any thread. Owners
/// are added and removed under a lock. Bytes are atomic counters, because every arriving piece changes them.
///
/// No limit is exceeded even for a moment, whatever several loops do at the same time, because bytes are reserved
/// before they are stored.
package final class UploadUsage: Sendable {
  /// The share of one owner.
  package final class Share: Sendable {
    fileprivate let owner: UploadOwner?
    fileprivate let count = Atomic<Int>(0)
    fileprivate let bytes = Atomic<UInt64>(0)

    fileprivate init(_ owner: UploadOwner?) { self.owner = owner }
  }

  private struct Entry {
    let share: Share
    /// How many users may still count bytes here. Without any, the share is removed.
    var references = 0
  }

  private let limits: UploadLimitsConfiguration
  private let owners = Lock<[UploadOwner: Entry]>([:])
  private let total = Share(nil)
  /// The share of earlier bytes whose owner is unknown.
  private let nobody = Share(nil)

  package init(_ limits: UploadLimitsConfiguration) { self.limits = limits }

  /// Whether any limit applies to bytes.
  package var limitsBytes: Bool { limits.quota != nil || limits.quotaPerClient != nil }

  // MARK: Uploads and requests

  /// Admits a new upload of that owner, if the limits allow it.
  ///
  /// - Parameter needsRoom: whether the upload is useless if the quotas have no byte left.
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

  /// Adds an upload that existed before.
  package func add(_ owner: UploadOwner) -> Share { owners.withLock { enter(owner, &$0) } }

  private func enter(_ owner: UploadOwner, _ owners: inout [UploadOwner: Entry]) -> Share {
    let share = refer(to: owner, &owners)
    share.count.wrappingAdd(1, ordering: .relaxed)
    total.count.wrappingAdd(1, ordering: .relaxed)
    return share
  }

  /// An upload has finished, or a request is over.
  package func leave(_ share: Share) {
    share.count.wrappingSubtract(1, ordering: .relaxed)
    total.count.wrappingSubtract(1, ordering: .relaxed)
    release(share)
  }

  // MARK: Shares

  /// The share of an owner, or of bytes without one, until ``release(_:)``.
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

  /// Whether the share is the one for bytes without an owner.
  package func isNobodys(_ share: Share) -> Bool { share === nobody }

  private func refer(to owner: UploadOwner, _ owners: inout [UploadOwner: Entry]) -> Share {
    owners[owner, default: Entry(share: Share(owner))].references += 1
    // The line above has added it.
    return owners[owner]?.share ?? nobody
  }

  // MARK: Bytes

  /// How many more bytes that owner's uploads may keep.
  package func room(of share: Share?) -> UInt64 {
    let own = share?.bytes.load(ordering: .relaxed) ?? 0
    return min(
      limits.quota.map { $0 - min($0, total.bytes.load(ordering: .relaxed)) } ?? .max,
      limits.quotaPerClient.map { $0 - min($0, own) } ?? .max)
  }

  /// Counts as many of `count` bytes as the limits allow, and returns that number.
  package func reserve(_ count: UInt64, for share: Share) -> UInt64 {
    let inTotal = Self.take(count, of: total.bytes, upTo: limits.quota)
    let own = Self.take(inTotal, of: share.bytes, upTo: share === nobody ? nil : limits.quotaPerClient)
    if own < inTotal { total.bytes.wrappingSubtract(inTotal - own, ordering: .relaxed) }
    return own
  }

  /// Counts bytes that are already stored, regardless of the limits.
  package func charge(_ count: UInt64, to share: Share) {
    share.bytes.wrappingAdd(count, ordering: .relaxed)
    total.bytes.wrappingAdd(count, ordering: .relaxed)
  }

  /// Counted bytes were not stored, or are no longer unfinished.
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
