// sluice spool remove: removes acknowledged data and, on request, unacknowledged data.

internal import Spool
internal import SpooledStreams

/// Removes stretches. Nothing is removed if a process uses one of them or if, unless this is forced, the server lacks
/// bytes of one. A stretch whose removal fails does not affect the others.
struct SpoolRemoval {
  private let entries: [SpoolEntry]
  private let others: [StretchInMemory]
  private let isForced: Bool
  private let report: StretchReport

  /// - Parameter others: the stretches without a file.
  init(_ entries: [SpoolEntry], _ others: [StretchInMemory], isForced: Bool, isJSON: Bool) {
    (self.entries, self.others) = (entries, others)
    self.isForced = isForced
    report = StretchReport(isJSON: isJSON)
  }

  func run() throws(CommandError) -> ExitCode {
    // The locks are kept until everything is removed.
    var folders: [String: SpoolFolder] = [:]
    do throws(SpoolError) {
      for entry in entries + others.map(\.entry) where folders[entry.folder] == nil {
        // A full disk is a reason to remove something. A stretch that is only in memory needs no folder.
        folders[entry.folder] = try SpoolFolder(
          directory: entry.directory, stream: entry.stream, mayLackSpace: true, makesFolder: false)
      }
    } catch { throw Self.commandError("lock", error) }
    // Another process may have used it before this one had the lock. Its memory has what the file lacks.
    for stretch in others where stretch.hasFile {
      throw CommandError(.busy, "cannot remove \(stretch.entry.path.shown): it has a file now. Try again.")
    }
    if !isForced {
      for entry in entries { try checkIsAcknowledged(entry) }
      for stretch in others { try checkIsAcknowledged(stretch) }
    }
    var code = ExitCode.done
    for entry in entries {
      do throws(SpoolError) {
        let file = try? SpoolFile.open(entry.path, access: .readOnly)
        try entry.remove { file?.removeFromMemory() }
        report.removed(entry, wasOnlyInMemory: false)
      } catch {
        let failure = Self.commandError("remove", error)
        report.failed(entry, error, failure)
        if code == .done { code = failure.code }
      }
    }
    for stretch in others {
      stretch.remove()
      report.removed(stretch.entry, wasOnlyInMemory: true)
    }
    withExtendedLifetime(folders) {}
    return code
  }

  private static func commandError(_ operation: String, _ error: SpoolError) -> CommandError {
    guard case .inUse = error.cause else { return SpoolCommand.commandError(operation, error) }
    return CommandError(
      .busy, "cannot remove \(error.path.shown): \(SpoolCommand.reason(error)). End that process, and try again.")
  }

  private func checkIsAcknowledged(_ entry: SpoolEntry) throws(CommandError) {
    let isAcknowledged: Bool
    let mayLackBytes: Bool
    do throws(SpoolError) {
      let file = try SpoolFile.open(entry.path, access: .readOnly)
      try file.settleDoubt()
      isAcknowledged = file.oldest == file.head && file.byteCountInMemory == 0
      mayLackBytes = file.mayLackBytes
    } catch { throw Self.unreadable(entry, error) }
    guard isAcknowledged else { throw Self.unacknowledged(entry) }
    guard !mayLackBytes else { throw Self.damaged(entry) }
  }

  private func checkIsAcknowledged(_ stretch: StretchInMemory) throws(CommandError) {
    switch stretch.content() {
    case .remains(let remains) where remains.byteCount == 0: break
    case .remains: throw Self.unacknowledged(stretch.entry)
    case .lost: throw Self.damaged(stretch.entry)
    case .unreadable(let error): throw Self.unreadable(stretch.entry, error)
    }
  }

  private static func unreadable(_ entry: SpoolEntry, _ error: SpoolError) -> CommandError {
    // --force does not remove it either.
    if error.cause == .notARegularFile { return SpoolCommand.commandError("remove", error) }
    return CommandError(
      .inputOutput, "cannot remove \(entry.path.shown): \(SpoolCommand.reason(error)). Use --force to remove it.")
  }

  private static func unacknowledged(_ entry: SpoolEntry) -> CommandError {
    CommandError(
      .notPermitted,
      "cannot remove \(entry.path.shown): the server has not acknowledged all of it. Use --force to remove it and lose the rest."
    )
  }

  private static func damaged(_ entry: SpoolEntry) -> CommandError {
    CommandError(
      .notPermitted,
      "cannot remove \(entry.path.shown): it is damaged, and bytes may be lost. Use --force to remove what is left of it."
    )
  }
}
