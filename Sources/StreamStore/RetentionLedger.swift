// Decides which recordings are removed, and why. Pure: takes times and sizes, and returns names.

internal import DiskFiles
internal import EventLoops

/// The complete recordings of a directory, by their owners.
struct RetentionLedger {
  struct Recording: Equatable, Sendable {
    /// The name of its files without extension.
    var fileBase: String
    /// nil if the owner is unknown.
    var owner: [UInt8]?
    /// The time since which it is kept, in milliseconds since 1970; nil if no trusted clock has recorded it.
    var since: Int64?
    /// The size in bytes.
    var size: UInt64
    /// How many bytes of the disk it takes, which is fewer than ``size`` if it has holes.
    var room: UInt64

    /// Orders recordings of the same time, the parts of a stream one after another.
    var place: (stream: Substring, part: Int) {
      let pieces = fileBase.split(separator: "~", maxSplits: 1)
      return (pieces.first ?? "", pieces.count > 1 ? Int(pieces[1]) ?? 1 : 1)
    }
  }

  enum Cause: Equatable, Sendable { case age, size, freeSpace }

  struct Removal: Equatable, Sendable {
    var recording: Recording
    var cause: Cause
  }

  private(set) var recordings: [String: Recording] = [:]

  mutating func insert(_ recording: Recording) { recordings[recording.fileBase] = recording }
  mutating func remove(_ fileBase: String) { recordings[fileBase] = nil }

  /// The recordings to remove, in order.
  ///
  /// - Parameters:
  ///   - now: in milliseconds since 1970.
  ///   - lacking: how many more bytes the disk would need to have free.
  ///   - untoldSince: the time that is assumed for recordings without a trusted time; nil if these stay.
  func removals(
    _ rules: RecordingRetention, at now: Int64, lacking: UInt64, untoldSince: Int64? = nil
  ) -> [Removal] {
    let dated = recordings.values.map { recording in
      var recording = recording
      recording.since = recording.since ?? untoldSince
      return recording
    }
    var owners = Dictionary(grouping: dated, by: \.owner).values.map { Queue($0) }
    // The same recordings must give the same order.
    owners.sort { ($0.recordings.first?.fileBase ?? "") < ($1.recordings.first?.fileBase ?? "") }
    var removals: [Removal] = []
    for index in owners.indices {
      while let next = owners[index].next(leaving: rules.leastSize) {
        let cause: Cause
        if let age = rules.longestAge, let since = next.since, Self.isOlder(since, than: age, at: now) {
          cause = .age
        } else if let size = rules.largestSize, owners[index].size > size {
          cause = .size
        } else {
          break
        }
        removals.append(Removal(recording: next, cause: cause))
        owners[index].removeNext()
      }
    }
    let removed = removals.reduce(0) { $0 + UInt128($1.recording.room) }
    var lacking = UInt128(lacking) - min(UInt128(lacking), removed)
    while lacking > 0 {
      let candidates = owners.indices.filter { owners[$0].next(leaving: rules.leastSize) != nil }
      guard let index = candidates.max(by: { owners[$0].size < owners[$1].size }),
        let next = owners[index].next(leaving: rules.leastSize)
      else { break }
      removals.append(Removal(recording: next, cause: .freeSpace))
      owners[index].removeNext()
      lacking -= min(lacking, UInt128(next.room))
    }
    return removals
  }

  private static func isOlder(_ since: Int64, than age: Duration, at now: Int64) -> Bool {
    let (passed, overflow) = now.subtractingReportingOverflow(since)
    return !overflow && passed > age.nanoseconds / 1_000_000
  }

  /// One owner's recordings, the oldest first.
  private struct Queue {
    let recordings: [Recording]
    private var first = 0
    /// The total size of the remaining recordings, in bytes. No sum of 64-bit sizes overflows it.
    private(set) var size: UInt128

    init(_ recordings: [Recording]) {
      self.recordings = recordings.sorted { a, b in
        // A recording without a trusted time counts as the newest.
        let (left, right) = (a.since ?? .max, b.since ?? .max)
        return left != right ? left < right : a.place < b.place
      }
      size = recordings.reduce(0) { $0 + UInt128($1.size) }
    }

    /// The oldest recording, if it can be removed and that many bytes are left.
    func next(leaving least: UInt64) -> Recording? {
      guard first < recordings.count, recordings[first].since != nil,
        size - UInt128(recordings[first].size) >= least
      else { return nil }
      return recordings[first]
    }

    mutating func removeNext() {
      size -= UInt128(recordings[first].size)
      first += 1
    }
  }
}
