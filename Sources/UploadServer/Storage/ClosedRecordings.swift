// What the server has closed although nobody had ended it: it takes room that only an operator can give back.

internal import EventLoops
internal import Glibc

/// The recordings of interrupted streams, which count against the quotas until their files are removed. Any thread.
///
/// Nobody tells the server of a removal. It looks for the files when a quota is used up, a few at a time.
final class ClosedRecordings: Sendable {
  private struct Entry {
    var owner: UploadOwner
    var count: UInt64
  }

  private struct State {
    var entries: [String: Entry] = [:]
    /// The files in the order in which they are looked for.
    var files: [String] = []
    var lastLook: MonotonicInstant?
  }

  /// How many files one look is for, and how much time is between two.
  private static let slice = 1000
  private static let pause = Duration.seconds(1)

  private let directory: Int32
  private let usage: UploadUsage
  private let state = Lock(State())

  /// - Parameter directory: of the recordings; stays open for longer than this.
  init(in directory: Int32, _ usage: UploadUsage) {
    self.directory = directory
    self.usage = usage
  }

  /// - Parameters:
  ///   - file: relative to the directory.
  ///   - owner: nil if that is not known: then only the quota of all counts it.
  ///   - count: how many bytes came for it.
  func add(_ file: String, of owner: UploadOwner?, count: UInt64) {
    let owner = owner ?? UploadOwner(credential: nil, address: "")
    let isNew = state.withLock { state in
      guard state.entries[file] == nil else { return false }
      state.entries[file] = Entry(owner: owner, count: count)
      state.files.append(file)
      return true
    }
    if isNew { usage.hold(count, for: owner) }
  }

  /// Looks for some of the files and gives back what those that are gone have taken. Returns whether any was.
  func look() -> Bool {
    let now = MonotonicInstant.now
    let due = state.withLock { state -> [String] in
      if let last = state.lastLook, now < last + Self.pause { return [] }
      state.lastLook = now
      let due = Array(state.files.prefix(Self.slice))
      state.files.removeFirst(due.count)
      return due
    }
    var gone: [Entry] = []
    for file in due {
      let isThere = faccessat(directory, file, F_OK, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT
      state.withLock { state in
        if isThere {
          state.files.append(file)
        } else if let entry = state.entries.removeValue(forKey: file) {
          gone.append(entry)
        }
      }
    }
    for entry in gone { usage.release(entry.count, for: entry.owner) }
    return !gone.isEmpty
  }
}
