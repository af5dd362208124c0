// sluice spool list|show|verify|drain|remove DIR

internal import EventLoops
internal import Glibc
internal import JSONLines
internal import Spool
internal import SpooledStreams

enum SpoolCommand {
  static let syntax = CommandLineSyntax(
    name: "spool", summary: "Lists, shows, verifies, sends or removes the contents of a spool.",
    operands: ["ACTION", "DIR"], actions: Action.allCases.map { ($0.rawValue, $0.summary) },
    options: [
      Option("json", "print one JSON object per line (drain: --progress json)"),
      Option("force", "remove: include bytes that the server has not acknowledged"),
    ], topics: [sending], refusals: refusals,
    example: "sluice spool list /var/lib/sluice/spool")

  /// Options of streams that have no effect on the data in a spool.
  private static let refusals: [(option: String, reason: String)] = [
    ("metrics", "only a running stream has metrics"),
    ("finish-timeout", "a signal ends it at once, and the rest stays in the spool"),
    ("stream-id", "each stretch keeps the name that its stream began with"),
    ("digest", "a digest covers bytes that are no longer in the spool"),
  ]

  private static let sending = HelpTopic(
    name: "draining", title: "Options of sluice spool drain",
    options: StreamOptions.shown + [
      Option("catch-up-rate", value: "SIZE", "highest sending rate in bytes per second (default: as fast as possible)")
    ]
      + (StreamOptions.resuming.options + StreamOptions.connection.options).filter { option in
        !refusals.contains { $0.option == option.name }
      })

  enum Action: String, CaseIterable {
    case list, show, verify, drain, remove

    var summary: String {
      switch self {
      case .list: "list the stretches in DIR, in DIR/STREAM, or one file"
      case .show: "print the checkpoint and the description of each stretch"
      case .verify: "read all blocks, and print each damaged block and each loss"
      case .drain: "send all unacknowledged bytes to their URLs, and capture nothing"
      case .remove: "remove stretches whose bytes are all acknowledged"
      }
    }
  }

  static func run(_ values: CommandLineSyntax.Values) throws(CommandError) -> ExitCode {
    let (word, path) = (values.operands[0], values.operands[1])
    guard let action = Action(rawValue: word) else {
      let names = Action.allCases.map(\.rawValue).joined(separator: ", ")
      throw .usage("sluice spool \(word.shown): no such action. Choose one of: \(names).")
    }
    guard action == .remove || !values.has("force") else {
      throw .usage("--force requires sluice spool remove. Leave it out.")
    }
    for option in syntax.topics.flatMap(\.options) where action != .drain && values.has(option.name) {
      throw .usage("--\(option.name) requires sluice spool drain. Leave it out.")
    }
    guard action != .drain || !values.has("json") else {
      throw .usage("--json does not apply to sluice spool drain. Use --progress json.")
    }
    if action == .drain { try SpoolDrain.check(values) }
    // The path as the kernel resolves it. "." does not contain the stream's name.
    let place = SpoolFolder.resolved(path)
    let others = StretchInMemory.all(at: place)
    let code = access(path, F_OK) == 0 ? 0 : errno
    // The disk may have had no space for the folders of a stretch that is only in memory.
    guard code == 0 || code == ENOENT && !others.isEmpty else {
      throw CommandError(.noInput, "cannot open \(path.shown): \(String(cString: strerror(code))).")
    }
    var entries: [SpoolEntry] = []
    var folders: [String] = []
    var failures: [SpoolError] = []
    do throws(SpoolError) {
      // Nothing is removed if a stream cannot be read. The other actions do without it.
      if action == .remove, code == 0 {
        entries = try SpoolEntry.all(at: place)
      } else if code == 0 {
        entries = try SpoolEntry.all(at: place, unreadable: { failures.append($0) })
      }
      if action == .drain, code == 0 { folders = try SpoolEntry.folders(at: place) }
    } catch {
      throw commandError("read", error)
    }
    if entries.isEmpty, failures.isEmpty, others.isEmpty, !values.has("json") {
      Console.shared.say("the spool \(path.shown) is empty")
    }
    // Their folders may be missing.
    for folder in others.map(\.entry.folder) where !folders.contains(folder) { folders.append(folder) }
    if action == .drain { return try SpoolDrain(folders: folders, values: values).run() }
    if action == .remove {
      return try SpoolRemoval(entries, others, isForced: values.has("force"), isJSON: values.has("json")).run()
    }
    let report = StretchReport(isJSON: values.has("json"))
    var result = examine(entries, action, report)
    let ofOthers = examine(others, action, report)
    if result == .done || ofOthers == .inputOutput { result = ofOthers }
    for failure in failures {
      report.failed(SpoolEntry(folder: failure.path), failure, commandError("read", failure))
      result = .inputOutput
    }
    return result
  }

  /// Prints the stretches for an action that only reads.
  static func examine(_ entries: [SpoolEntry], _ action: Action, _ report: StretchReport) -> ExitCode {
    var code = ExitCode.done
    for entry in entries {
      do throws(SpoolError) {
        let file = try SpoolFile.open(entry.path, access: .readOnly)
        try file.settleDoubt(isInUse: SpoolFolder.user(of: entry.folder) != .nobody)
        switch action {
        case .list: try report.list(entry, file)
        case .show: try report.show(entry, file)
        case .verify: if try report.verify(entry, file), code == .done { code = .dataLost }
        case .drain, .remove: break
        }
      } catch {
        // The server has received all of it meanwhile, and its process has removed it.
        if error.code == ENOENT { continue }
        // An error in one stretch makes the others more important, so the loop continues.
        report.failed(entry, error, commandError("read", error))
        if code != .inputOutput { code = error.code != nil ? .inputOutput : action == .verify ? .dataLost : .badData }
      }
    }
    return code
  }

  /// Lists the stretches that are only in memory, for an action that only reads.
  private static func examine(_ stretches: [StretchInMemory], _ action: Action, _ report: StretchReport) -> ExitCode {
    var code = ExitCode.done
    for stretch in stretches {
      let content = stretch.user == .nobody ? stretch.content() : nil
      if case .unreadable(let error)? = content {
        report.failed(stretch.entry, error, commandError("read", error))
        code = .inputOutput
        continue
      }
      report.list(stretch, content)
      if action == .verify, report.verify(stretch, content), code == .done { code = .dataLost }
    }
    return code
  }

  static func commandError(_ verb: String, _ error: SpoolError) -> CommandError {
    let (path, reason) = (error.path.shown, reason(error))
    let isMissing = error.code == ENOENT || error.code == ENOTDIR
    let remedy = [.foreignLock, .notARegularFile].contains(error.cause) ? " Move it away." : ""
    return CommandError(isMissing ? .noInput : .inputOutput, "cannot \(verb) \(path): \(reason).\(remedy)")
  }

  /// The reason without the path.
  static func reason(_ error: SpoolError) -> String {
    if case .system(let error) = error.cause { return error.reason }
    return String(error.description.dropFirst(error.path.count + 2))
  }
}
