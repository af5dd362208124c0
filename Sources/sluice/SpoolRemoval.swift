// sluice spool remove: removes acknowledged data and, on request, unacknowledged data.

internal import Spool
internal import SpooledStreams

/// Removes stretches: all of them, or none with an error.
struct SpoolRemoval {
  private let entries: [SpoolEntry]
  private let isForced: Bool
  private let report: StretchReport

  init(_ entries: [SpoolEntry], isForced: Bool, isJSON: Bool) {
    self.entries = entries
    self.isForced = isForced
    report = StretchReport(isJSON: isJSON)
  }

  func run() throws(CommandError) -> ExitCode {
    // The locks are kept until everything is removed.
    var folders: [String: SpoolFolder] = [:]
    do throws(SpoolError) {
      for entry in entries where folders[entry.folder] == nil {
        // A full disk is a reason to remove something.
        folders[entry.folder] = try SpoolFolder(directory: entry.directory, stream: entry.stream, mayLackSpace: true)
      }
    } catch { throw Self.commandError("lock", error) }
    if !isForced { for entry in entries { try checkIsAcknowledged(entry) } }
    for entry in entries {
      do throws(SpoolError) {
        let file = try? SpoolFile.open(entry.path, access: .readOnly)
        try entry.remove { file?.removeFromMemory() }
      } catch { throw Self.commandError("remove", error) }
      report.removed(entry)
    }
    return .done
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
    } catch {
      throw CommandError(
        .inputOutput, "cannot remove \(entry.path.shown): \(SpoolCommand.reason(error)). Use --force to remove it.")
    }
    guard isAcknowledged else {
      throw CommandError(
        .notPermitted,
        "cannot remove \(entry.path.shown): the server has not acknowledged all of it. Use --force to remove it and lose the rest."
      )
    }
    guard !mayLackBytes else {
      throw CommandError(
        .notPermitted,
        "cannot remove \(entry.path.shown): it is damaged, and bytes may be lost. Use --force to remove what is left of it."
      )
    }
  }
}
