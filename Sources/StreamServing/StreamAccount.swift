// One stream's share of the quotas. Each stored byte, holes included, counts once, for the owner who stored it.

internal import EventLoops

/// The bytes of one unfinished stream, or of one spooled upload, by owner. One thread at a time.
package final class StreamAccount: @unchecked Sendable {
  private let usage: UploadUsage
  private var charges: [(share: UploadUsage.Share, bytes: UInt64)] = []
  package private(set) var bytes: UInt64 = 0

  package init(_ usage: UploadUsage) { self.usage = usage }

  deinit { shrink(to: 0) }

  /// Counts as many of `count` new bytes as the limits allow. Only these may be stored.
  package func reserve(_ count: UInt64, for share: UploadUsage.Share) -> UInt64 {
    let granted = usage.reserve(count, for: share)
    add(granted, share)
    return granted
  }

  /// Counts bytes that are already stored.
  package func charge(_ count: UInt64, to share: UploadUsage.Share) {
    usage.charge(count, to: share)
    add(count, share)
  }

  private func add(_ count: UInt64, _ share: UploadUsage.Share) {
    guard count > 0 else { return }
    bytes &+= count
    if let index = charges.firstIndex(where: { $0.share === share }) {
      charges[index].bytes &+= count
    } else {
      usage.retain(share)
      charges.append((share, count))
    }
  }

  /// Shortens the stream to that length. The bytes counted last are refunded first.
  package func shrink(to length: UInt64) {
    while bytes > length, let last = charges.last {
      let surplus = min(last.bytes, bytes - length)
      usage.refund(surplus, of: last.share)
      bytes -= surplus
      if surplus < last.bytes {
        charges[charges.count - 1].bytes -= surplus
      } else {
        charges.removeLast()
        usage.release(last.share)
      }
    }
  }

  /// Bytes without a known owner turn out to be that owner's.
  package func attribute(to share: UploadUsage.Share) {
    guard let index = charges.firstIndex(where: { usage.isNobodys($0.share) }) else { return }
    let nobodys = charges.remove(at: index)
    usage.refund(nobodys.bytes, of: nobodys.share)
    bytes -= nobodys.bytes
    charge(nobodys.bytes, to: share)
  }
}
