// Which records of uploads that are over are kept, for clients that did not see the response: limited in number and bytes, so
// that no client fills the disk or pushes out the others. Pure.

internal import EventLoops

/// The accounts of those records. It says which to forget; the caller does.
struct FinishedUploads {
  struct Limits: Equatable {
    var count = Int.max
    var countPerClient = Int.max
    var bytes = Int.max
    var bytesPerClient = Int.max
  }

  private struct Entry {
    var owner: UploadOwner
    var bytes: Int
    var since: MonotonicInstant
  }

  private struct Account {
    var count = 0
    var bytes = 0

    func fits(_ count: Int, _ bytes: Int) -> Bool { self.count <= count && self.bytes <= bytes }
  }

  private let limits: Limits
  private var entries: [String: Entry] = [:]
  private var owners: [UploadOwner: Account] = [:]
  private var total = Account()

  init(_ limits: Limits) { self.limits = limits }

  var count: Int { total.count }
  var bytes: Int { total.bytes }

  /// Takes in the record of an upload that is over since then. Returns the uploads to be forgotten: the oldest of its owner, or
  /// of whoever has the most, and many at a time. The new one is never among them.
  mutating func add(_ token: String, of owner: UploadOwner, bytes: Int, since: MonotonicInstant) -> [String] {
    remove(token)
    entries[token] = Entry(owner: owner, bytes: max(0, bytes), since: since)
    change(owner, by: 1, max(0, bytes))
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

  /// Drops the older quarter of an account. False if there is nothing to drop.
  private mutating func shrink(_ owner: UploadOwner, sparing token: String, _ forgotten: inout [String]) -> Bool {
    let own = entries.filter { $0.value.owner == owner && $0.key != token }.sorted { $0.value.since < $1.value.since }
    guard !own.isEmpty else { return false }
    for entry in own.prefix(own.count / 4 + 1) {
      remove(entry.key)
      forgotten.append(entry.key)
    }
    return true
  }

  private mutating func change(_ owner: UploadOwner, by count: Int, _ bytes: Int) {
    total.count += count
    total.bytes += bytes
    owners[owner, default: Account()].count += count
    owners[owner, default: Account()].bytes += bytes
    if owners[owner]?.count == 0 { owners[owner] = nil }
  }
}
