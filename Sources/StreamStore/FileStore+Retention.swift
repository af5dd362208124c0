// Selects the recordings that an operator's rules remove. See `FileStore+RetainedRemoval.swift` for the removal.

internal import CLinux
internal import DiskFiles
package import EventLoops
internal import Glibc
internal import Recordings
package import StreamServing
internal import Synchronization

/// The state of retention. On the worker's thread only.
package final class RetentionState: @unchecked Sendable {
  package struct Clock: Sendable {
    var now: @Sendable () -> WallClock
    var isSynchronized: @Sendable () -> Bool?

    package init(
      now: @escaping @Sendable () -> WallClock = { .now },
      isSynchronized: @escaping @Sendable () -> Bool? = { WallClock.isSynchronized }
    ) {
      (self.now, self.isSynchronized) = (now, isSynchronized)
    }
  }

  let rules: RecordingRetention
  let clock: Clock
  /// Whether each owner's recordings count alone. Otherwise all count together, even those that an earlier server has
  /// accepted from an owner.
  let isPerOwner: Bool
  var ledger = RetentionLedger()
  enum Listing { case wanted, begun, done }
  /// Whether the ledger contains all recordings of an earlier server.
  fileprivate var listing = Listing.wanted
  var isAtWork = false
  /// The number of consecutive looks that found nothing to remove.
  fileprivate var idleLooks = 0
  /// The last reported reason why nothing can be removed. Each reason is reported once.
  fileprivate var complaint: String?
  /// The recordings that could not be removed, without extension. Each is reported once.
  var refused: Set<String> = []
  /// The files that were moved away and could not be removed, with the reasons. A reason is reported when it changes.
  var unpurged: [String: SystemError] = [:]
  var emit: @Sendable (ServerEvent) -> Void = { _ in }

  package init(_ rules: RecordingRetention, _ clock: Clock, isPerOwner: Bool = true) {
    (self.rules, self.clock, self.isPerOwner) = (rules, clock, isPerOwner)
  }
}

extension FileStore {
  /// How many files are examined in one slice.
  static let retentionSlice = 200
  /// After this many idle looks, about an hour, the ledger is compared with the directory.
  static let idleLooks = 60

  // MARK: Beginning

  /// Restores the recordings that a killed server was about to remove, and lists all recordings if any rule exists. Any
  /// thread.
  ///
  /// - Parameter emit: called with each removal, on the worker's thread.
  package func beginRetention(_ emit: @escaping @Sendable (ServerEvent) -> Void) {
    worker.executeSlice { [self] in
      retention?.emit = emit
      guard unlessEnded({ restoreHalfRemoved() }) else { return }
      purge {}
      if let retention { list(retention) }
    }
  }

  private func list(_ retention: RetentionState) {
    do throws(SystemError) {
      retention.listing = .begun
      listSlice(retention, try DirectoryNames(of: directory))
    } catch {
      cannotList(retention, error)
    }
  }

  private func cannotList(_ retention: RetentionState, _ error: SystemError) {
    retention.listing = .wanted
    complain(retention, "recordings cannot be listed, and none is removed: \(error)")
  }

  private func listSlice(_ retention: RetentionState, _ names: DirectoryNames) {
    worker.executeSlice { [self] in
      guard !isEnded.load(ordering: .acquiring) else { return }
      do throws(SystemError) {
        let files = try names.next(Self.retentionSlice)
        for file in files where file.first != "." {
          guard let (base, ending) = StreamName.parts(ofFile: file[...]), ending == RecordingSidecar.fileExtension,
            let (recording, _) = try removable(String(base), retention)
          else { continue }
          retention.ledger.insert(recording)
        }
        guard files.isEmpty else { return listSlice(retention, names) }
        retention.listing = .done
        applyRetention()
      } catch {
        cannotList(retention, error)
      }
    }
  }

  /// Counts a recording that has got its sidecar. On the worker's thread.
  func countRetained(_ name: StreamName) {
    guard let retention else { return }
    do throws(SystemError) {
      if let (recording, _) = try removable(name.fileBase, retention) { retention.ledger.insert(recording) }
    } catch {
      // All recordings are listed again.
      if retention.listing == .done { retention.listing = .wanted }
    }
  }

  /// The recording of that name if it may be removed: its sidecar states that it is complete, and no request for it is
  /// in progress.
  ///
  /// - Throws: ``SystemError`` if this cannot be determined now, because descriptors or memory are short.
  func removable(
    _ fileBase: String, _ retention: RetentionState
  ) throws(SystemError) -> (RetentionLedger.Recording, RecordingSidecar)? {
    guard let (sidecar, room) = try completeSidecar(ofFiles: fileBase, in: directory), let stored = sidecar.stored,
      !isThere(fileBase + ".part"), !isThere(".\(fileBase).sidecar"),
      let stream = fileBase.split(separator: "~").first
    else { return nil }
    let owner: [UInt8]?
    // If the owner is unknown, the recording stays. A client that only continued another one's stream must not decide
    // by its own recordings which of these is removed.
    do throws(SystemError) {
      owner = retention.isPerOwner ? try owners.beginner(ofStream: String(stream)) : nil
    } catch {
      if error.isShortage { throw error }
      return nil
    }
    let now = retention.clock.now().sinceEpoch
    var since: Int64?
    if let seen = sidecar.firstSeen.flatMap({ WallClock(iso8601: $0) }) {
      since = seen.sinceEpoch
    } else if sidecar.isClockSynchronized == true, let ended = sidecar.ended.flatMap({ WallClock(iso8601: $0) }),
      ended.sinceEpoch <= now
    {
      since = ended.sinceEpoch
    }
    return (.init(fileBase: fileBase, owner: owner, since: since, size: stored.bytes, room: room), sidecar)
  }

  /// The sidecar of an existing recording whose length matches, and how many bytes of the disk the recording takes.
  private func completeSidecar(
    ofFiles fileBase: String, in directory: Int32
  ) throws(SystemError) -> (RecordingSidecar, room: UInt64)? {
    guard let sidecar = try readSidecar(fileBase + RecordingSidecar.fileExtension, in: directory),
      let stored = sidecar.stored, sidecar.isFinished,
      let (base, ending) = StreamName.parts(ofFile: sidecar.file[...]), base == fileBase,
      ![".part", ".gaps", RecordingSidecar.fileExtension].contains(String(ending)),
      let status = try? knownStatus(sidecar.file, in: directory), UInt64(status.st_size) == stored.bytes
    else { return nil }
    // Holes take no space. The unit is 512 bytes (stat(2)).
    return (sidecar, UInt64(status.st_blocks).multipliedSaturated(by: 512))
  }

  // MARK: Choosing

  /// Removes the recordings that the rules select. Any thread.
  package func applyRetention() {
    worker.executeSlice { [self] in
      guard let retention, !retention.isAtWork, !isEnded.load(ordering: .acquiring) else { return }
      if retention.listing == .wanted { list(retention) }
      guard retention.listing == .done else { return }
      let isSynchronized = retention.clock.isSynchronized()
      if isSynchronized == true, trustClock(retention) { return applyRetention() }
      // Recordings without a trusted time would be due some day. Without a synchronized clock nothing is removed, and
      // this is reported.
      let untoldSince = isSynchronized == true ? nil : retention.clock.now().sinceEpoch
      let removals = dueRemovals(retention, untoldSince: untoldSince)
      let hasUndated =
        isSynchronized != true && retention.rules.longestAge != nil
        && retention.ledger.recordings.values.contains { $0.since == nil }
      guard !removals.isEmpty || hasUndated else {
        if lackingSpace(retention.rules) > 0 {
          complain(retention, "the disk has less free space than it should, and no recording may be removed")
        } else {
          retention.complaint = nil
        }
        return forgetVanished(retention)
      }
      guard isSynchronized == true else {
        return complain(
          retention,
          "no recording is removed, because "
            + (isSynchronized == nil
              ? "this process is not permitted to query whether the machine's clock is synchronized. Permit the system call clock_adjtime."
              : "the machine's clock is not synchronized. Run an NTP client such as systemd-timesyncd or chrony."))
      }
      retention.complaint = nil
      recount(retention, removes: true)
    }
  }

  /// Operators remove files, too. The ledger must not keep their recordings forever if nothing is to be removed here.
  private func forgetVanished(_ retention: RetentionState) {
    retention.idleLooks += 1
    // Recordings that become due in the meantime wait for the next look, which checks the clock.
    if retention.idleLooks >= Self.idleLooks { recount(retention, removes: false) }
  }

  private func recount(_ retention: RetentionState, removes: Bool) {
    (retention.isAtWork, retention.idleLooks) = (true, 0)
    recount(retention, ArraySlice(Array(retention.ledger.recordings.keys)), removes: removes)
  }

  func dueRemovals(_ retention: RetentionState, untoldSince: Int64? = nil) -> [RetentionLedger.Removal] {
    retention.ledger.removals(
      retention.rules, at: retention.clock.now().sinceEpoch, lacking: lackingSpace(retention.rules),
      untoldSince: untoldSince)
  }

  /// How many more bytes the disk would need to have free.
  func lackingSpace(_ rules: RecordingRetention) -> UInt64 {
    var status = statvfs()
    guard let space = rules.freeSpace, fstatvfs(directory, &status) == 0 else { return 0 }
    let unit = UInt64(status.f_frsize)
    let wanted = space.bytes(of: UInt64(status.f_blocks).multipliedSaturated(by: unit))
    return wanted - min(wanted, UInt64(status.f_bavail).multipliedSaturated(by: unit))
  }

  func complain(_ retention: RetentionState, _ complaint: String) {
    guard retention.complaint != complaint else { return }
    retention.complaint = complaint
    retention.emit(ServerEvent(.warning, reason: complaint))
  }

  /// Marks recordings without a trusted time as kept from now on, some at a time, and writes this to their sidecars.
  /// Returns false if there are none.
  private func trustClock(_ retention: RetentionState) -> Bool {
    let now = retention.clock.now()
    let untold = retention.ledger.recordings.values.filter { $0.since == nil }.prefix(Self.retentionSlice)
    for var recording in untold {
      recording.since = now.sinceEpoch
      retention.ledger.insert(recording)
      guard let name = StreamName(partialFile: recording.fileBase + ".part"),
        var (sidecar, _) = try? completeSidecar(ofFiles: recording.fileBase, in: directory)
      else { continue }
      sidecar.firstSeen = now.iso8601
      // If the disk refuses this, the next server begins to count later.
      try? replaceSidecar(by: sidecar, name)
    }
    return !untold.isEmpty
  }

  /// Replaces the sidecar of a finished recording, so that a power failure leaves one of both. On the worker's thread.
  private func replaceSidecar(by sidecar: RecordingSidecar, _ name: StreamName) throws(SystemError) {
    // The next server uses the same temporary name.
    guard try unlessEnded({ () throws(SystemError) in try writeNew(sidecar, name) }) else { return }
    do throws(SystemError) {
      if durability != .none { try syncNew(name) }
      try unlessEnded { () throws(SystemError) in try nameNewSidecar(of: name) }
    } catch {
      unlessEnded { _ = unlinkat(directory, name.newSidecar, 0) }
      throw error
    }
  }

  private func syncNew(_ name: StreamName) throws(SystemError) {
    let descriptor = try files.openRegular(name.newSidecar, in: directory, O_RDONLY)
    defer { close(descriptor) }
    try retryingInterrupts("fdatasync \(name.newSidecar)") { fdatasync(descriptor) }
  }

  /// Operators remove files too, so only existing files count.
  private func recount(_ retention: RetentionState, _ fileBases: ArraySlice<String>, removes: Bool) {
    worker.executeSlice { [self] in
      guard !isEnded.load(ordering: .acquiring) else { return }
      for fileBase in fileBases.prefix(Self.retentionSlice) {
        do throws(SystemError) {
          if var (recording, _) = try removable(fileBase, retention) {
            recording.since = recording.since ?? retention.ledger.recordings[fileBase]?.since
            retention.ledger.insert(recording)
          } else {
            retention.ledger.remove(fileBase)
          }
        } catch {
          // The earlier value stays.
        }
      }
      let rest = fileBases.dropFirst(Self.retentionSlice)
      guard rest.isEmpty else { return recount(retention, rest, removes: removes) }
      remove((removes ? dueRemovals(retention) : [])[...], retention)
    }
  }
}
