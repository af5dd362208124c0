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
    // The same recordings must give the same order.
    var owners = Dictionary(grouping: dated, by: \.owner).sorted { a, b in
      (a.key ?? []).lexicographicallyPrecedes(b.key ?? [])
    }.map { Queue($0.value) }
    var removals: [Removal] = []
    for index in owners.indices {
      let isDue =
        rules.longestAge.map { age in owners[index].hasRecording { Self.isOlder($0, than: age, at: now) } } == true
        || rules.largestSize.map { owners[index].size > $0 } == true
      // To put many recordings in order takes longer than a client should wait.
      guard isDue else { continue }
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
      var candidates: [Int] = []
      for index in owners.indices where owners[index].next(leaving: rules.leastSize) != nil { candidates.append(index) }
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

  /// One owner's recordings, the oldest first. They are put in order when the first one is requested.
  private struct Queue {
    private var recordings: [Recording]
    private var isOrdered = false
    private var first = 0
    /// The total size of the remaining recordings, in bytes. No sum of 64-bit sizes overflows it.
    private(set) var size: UInt128

    init(_ recordings: [Recording]) {
      self.recordings = recordings
      size = recordings.reduce(0) { $0 + UInt128($1.size) }
    }

    /// Whether the known time of a recording meets the condition.
    func hasRecording(_ condition: (Int64) -> Bool) -> Bool {
      recordings.contains { recording in recording.since.map(condition) == true }
    }

    /// The oldest recording, if it can be removed and that many bytes are left.
    mutating func next(leaving least: UInt64) -> Recording? {
      order()
      guard first < recordings.count, recordings[first].since != nil,
        size - UInt128(recordings[first].size) >= least
      else { return nil }
      return recordings[first]
    }

    private mutating func order() {
      guard !isOrdered else { return }
      isOrdered = true
      // A recording without a trusted time counts as the newest. The keys are computed once for each recording, because
      // a comparison needs them many times.
      let keys = recordings.map { (since: $0.since ?? .max, place: $0.place) }
      let sorted = keys.indices.sorted { a, b in
        keys[a].since != keys[b].since ? keys[a].since < keys[b].since : keys[a].place < keys[b].place
      }
      recordings = sorted.map { recordings[$0] }
    }

    mutating func removeNext() {
      size -= UInt128(recordings[first].size)
      first += 1
    }
  }
}
