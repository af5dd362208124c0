// Decides which records of finished uploads are kept, for clients that did not see the response. Their number and bytes
// are limited, so that no client can fill the disk or displace the others. Pure.

internal import EventLoops
internal import StreamServing

/// The accounts of those records. It decides which to forget, and the caller removes them.
package struct FinishedUploads {
  package struct Limits: Equatable {
    var count: Int
    var countPerClient: Int
    var bytes: Int
    var bytesPerClient: Int

    package init(
      count: Int = .max, countPerClient: Int = .max, bytes: Int = .max, bytesPerClient: Int = .max
    ) {
      (self.count, self.countPerClient) = (count, countPerClient)
      (self.bytes, self.bytesPerClient) = (bytes, bytesPerClient)
    }
  }

  private struct Entry {
    var owner: UploadOwner
    var bytes: Int
    var since: MonotonicInstant
  }

  private struct Account {
    var count = 0
    var bytes = 0
    /// Its uploads, the oldest first. Some may be gone, or may have been added again with another time.
    var order: [(since: MonotonicInstant, token: String)] = []
    /// The index of the oldest one.
    var first = 0

    mutating func insert(_ token: String, since: MonotonicInstant) {
      if first > 1024, first > order.count / 2 {
        order.removeFirst(first)
        first = 0
      }
      var (low, high) = (first, order.count)
      // The new one is nearly always the newest.
      if let last = order.last, last.since <= since { low = high }
      while low < high {
        let middle = (low + high) / 2
        if order[middle].since <= since { low = middle + 1 } else { high = middle }
      }
      order.insert((since, token), at: low)
    }

    /// The minimum number of entries in ``order`` that are gone.
    var staleCount: Int { order.count - first - count }

    mutating func keep(_ isCurrent: ((since: MonotonicInstant, token: String)) -> Bool) {
      order = order[first...].filter(isCurrent)
      first = 0
    }

    mutating func takeOldest() -> (since: MonotonicInstant, token: String)? {
      guard first < order.count else { return nil }
      defer { first += 1 }
      return order[first]
    }

    func fits(_ count: Int, _ bytes: Int) -> Bool { self.count <= count && self.bytes <= bytes }
  }

  /// The maximum number forgotten at once, because requests wait while files are removed.
  private static let slice = 64

  private let limits: Limits
  private var entries: [String: Entry] = [:]
  private var owners: [UploadOwner: Account] = [:]
  private var total = Account()

  init(_ limits: Limits) { self.limits = limits }

  var count: Int { total.count }
  /// The number of entries for uploads, including those that are gone.
  var placeCount: Int { owners.values.reduce(0) { $0 + $1.order.count } }
  var bytes: Int { total.bytes }

  /// Adds the record of an upload that is over since then. Returns the uploads to forget: a few of the oldest of its
  /// owner, or of the owner with the most. The new one is never among them.
  mutating func add(_ token: String, of owner: UploadOwner, bytes: Int, since: MonotonicInstant) -> [String] {
    remove(token)
    entries[token] = Entry(owner: owner, bytes: max(0, bytes), since: since)
    change(owner, by: 1, max(0, bytes))
    owners[owner]?.insert(token, since: since)
    // Nothing else takes out those that have expired.
    if let own = owners[owner], own.staleCount > own.count + Self.slice {
      owners[owner]?.keep { place in
        entries[place.token].map { $0.since == place.since && $0.owner == owner } ?? false
      }
    }
    var forgotten: [String] = []
    while let own = owners[owner], !own.fits(limits.countPerClient, limits.bytesPerClient) {
      guard shrink(owner, sparing: token, &forgotten) else { break }
    }
    while !total.fits(limits.count, limits.bytes) {
      let byBytes = total.count <= limits.count
      let others = owners.filter { $0.key != owner || $0.value.count > 1 }
      let largest = others.max { byBytes ? $0.value.bytes < $1.value.bytes : $0.value.count < $1.value.count }
      guard let largest, shrink(largest.key, sparing: token, &forgotten) else { break }
    }
    return forgotten
  }

  /// An upload's record is gone.
  mutating func remove(_ token: String) {
    guard let entry = entries.removeValue(forKey: token) else { return }
    change(entry.owner, by: -1, -entry.bytes)
  }

  /// Drops the oldest few of an account. Returns false if there is nothing to drop.
  private mutating func shrink(_ owner: UploadOwner, sparing token: String, _ forgotten: inout [String]) -> Bool {
    guard let own = owners[owner] else { return false }
    let count = min(own.count / Self.slice + 1, Self.slice)
    var spared: MonotonicInstant?
    var dropped = 0
    while dropped < count, let oldest = owners[owner]?.takeOldest() {
      guard let entry = entries[oldest.token], entry.since == oldest.since, entry.owner == owner else { continue }
      if oldest.token == token {
        spared = oldest.since
        continue
      }
      remove(oldest.token)
      forgotten.append(oldest.token)
      dropped += 1
    }
    if let spared { owners[owner]?.insert(token, since: spared) }
    return dropped > 0
  }

  private mutating func change(_ owner: UploadOwner, by count: Int, _ bytes: Int) {
    total.count += count
    total.bytes += bytes
    owners[owner, default: Account()].count += count
    owners[owner, default: Account()].bytes += bytes
    if owners[owner]?.count == 0 { owners[owner] = nil }
  }
}
