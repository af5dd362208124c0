// How much of a server's limits its unfinished uploads take, in total and by owner: one account for all loops.

internal import EventLoops
internal import ResumableUploads
internal import Synchronization

/// How many uploads are unfinished and how many bytes they keep. Any thread: uploads come and go under a lock, their bytes,
/// which are counted with each piece that comes, are atomics.
final class UploadUsage: Sendable {
  /// The part of one owner.
  final class Share: Sendable {
    fileprivate let count = Atomic<Int>(0)
    fileprivate let bytes = Atomic<UInt64>(0)
    /// How many recordings of it stay although nobody adds to them.
    fileprivate let held = Atomic<Int>(0)
  }

  private let owners = Lock<[UploadOwner: Share]>([:])
  private let total = Share()

  /// Takes in a new upload of that owner's, if the limits leave room for it.
  func admit(
    _ owner: UploadOwner, _ limits: UploadServer.Configuration.Uploads
  ) throws(UploadRefusal) -> Share {
    try owners.withLock { owners throws(UploadRefusal) in
      let own = owners[owner]
      guard total.count.load(ordering: .relaxed) < limits.maximumCount,
        (own?.count.load(ordering: .relaxed) ?? 0) < limits.maximumCountPerClient ?? .max
      else { throw .tooManyUploads }
      guard room(of: own, limits) > 0 else { throw .quotaExhausted }
      return add(owner, to: &owners)
    }
  }

  /// Takes in an upload that was there before.
  func add(_ owner: UploadOwner, bytes: UInt64) -> Share {
    let share = owners.withLock { add(owner, to: &$0) }
    kept(bytes, by: share)
    return share
  }

  private func add(_ owner: UploadOwner, to owners: inout [UploadOwner: Share]) -> Share {
    let share = owners[owner] ?? Share()
    owners[owner] = share
    share.count.wrappingAdd(1, ordering: .relaxed)
    total.count.wrappingAdd(1, ordering: .relaxed)
    return share
  }

  /// An upload is unfinished no more.
  func remove(_ owner: UploadOwner, _ share: Share?, bytes: UInt64) {
    guard let share else { return }
    gaveBack(bytes, by: share)
    owners.withLock { owners in
      total.count.wrappingSubtract(1, ordering: .relaxed)
      let left = share.count.wrappingSubtract(1, ordering: .relaxed).newValue
      if left == 0, share.held.load(ordering: .relaxed) == 0, owners[owner] === share { owners[owner] = nil }
    }
  }

  /// Counts bytes that stay although their upload is over.
  func hold(_ count: UInt64, for owner: UploadOwner) {
    let share = owners.withLock { owners in
      let share = owners[owner] ?? Share()
      owners[owner] = share
      share.held.wrappingAdd(1, ordering: .relaxed)
      return share
    }
    kept(count, by: share)
  }

  /// Bytes that stayed are gone.
  func release(_ count: UInt64, for owner: UploadOwner) {
    guard let share = owners.withLock({ $0[owner] }) else { return }
    gaveBack(count, by: share)
    owners.withLock { owners in
      let left = share.held.wrappingSubtract(1, ordering: .relaxed).newValue
      if left == 0, share.count.load(ordering: .relaxed) == 0 { owners[owner] = nil }
    }
  }

  /// How many bytes more that owner's uploads may keep.
  func room(of share: Share?, _ limits: UploadServer.Configuration.Uploads) -> UInt64 {
    let own = share?.bytes.load(ordering: .relaxed) ?? 0
    return min(
      limits.quota.map { $0 - min($0, total.bytes.load(ordering: .relaxed)) } ?? .max,
      limits.quotaPerClient.map { $0 - min($0, own) } ?? .max)
  }

  func kept(_ count: UInt64, by share: Share?) {
    guard let share else { return }
    share.bytes.wrappingAdd(count, ordering: .relaxed)
    total.bytes.wrappingAdd(count, ordering: .relaxed)
  }

  func gaveBack(_ count: UInt64, by share: Share?) {
    guard let share else { return }
    // No more than there is: each upload's bytes are counted by one loop only, so nothing comes in between.
    let count = min(count, share.bytes.load(ordering: .relaxed))
    share.bytes.wrappingSubtract(count, ordering: .relaxed)
    total.bytes.wrappingSubtract(count, ordering: .relaxed)
  }
}
