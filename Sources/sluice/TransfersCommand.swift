// sluice transfers ACTION [ID…]

internal import EventLoops
internal import Glibc
internal import JSONLines
internal import TransferClient

enum TransfersCommand {
  enum Action: String, CaseIterable {
    case list, pause, resume, cancel, wait, forget

    var summary: String {
      switch self {
      case .list: "list all transfers, including those that have ended"
      case .pause: "stop transfers until they are resumed"
      case .resume: "continue paused transfers, and retry others now"
      case .cancel: "end transfers, and delete their partial data"
      case .wait: "wait until transfers end, and exit with their exit code"
      case .forget: "remove transfers that have ended from the list"
      }
    }
  }

  static let syntax = CommandLineSyntax(
    name: "transfers", summary: "Lists and controls the transfers of the agent.", operands: ["ACTION", "ID…"],
    actions: Action.allCases.map { ($0.rawValue, $0.summary) },
    options: [
      Option("all", "apply to all transfers of the sluice command, instead of ID…"),
      Option("json", "print one JSON object per line"),
    ],
    example: "sluice transfers pause 12",
    requiredOperands: 1)

  static func run(_ values: CommandLineSyntax.Values) throws(CommandError) -> ExitCode {
    guard let action = Action(rawValue: values.operands[0]) else {
      let names = Action.allCases.map(\.rawValue).joined(separator: ", ")
      throw .usage("sluice transfers \(values.operands[0].shown): no such action. Choose one of: \(names).")
    }
    var ids: [Int64] = []
    for text in values.operands.dropFirst() {
      guard let id = Int64(text), id > 0 else {
        throw .usage(
          "sluice transfers \(action.rawValue) \(text.shown): not the number of a transfer. See: sluice transfers list")
      }
      ids.append(id)
    }
    guard action == .list || values.has("all") != !ids.isEmpty else {
      throw .usage("sluice transfers \(action.rawValue) requires the numbers of transfers, or --all.")
    }
    guard action != .list || !values.has("all") else {
      throw .usage("--all does not apply to sluice transfers list. Leave it out.")
    }
    let report = TransferReport(isJSON: values.has("json"))
    do throws(AgentError) {
      guard let location = AgentLocation.current else { throw AgentError.noLocation }
      var connection = try AgentLaunch.connection(location, program: AgentCommand.program)
      let all = try AgentLaunch.ask(&connection, location, program: AgentCommand.program) {
        (connection) throws(AgentError) in try list(connection)
      }
      if action == .list {
        for status in all where ids.isEmpty || ids.contains(status.id) { report.show(status) }
        return .done
      }
      if values.has("all") { ids = all.filter { $0.session.isEmpty && concerns(action, $0) }.map(\.id) }
      if action == .wait { return try wait(for: ids, connection, location, report) }
      return try order(action, ids, &connection, location)
    } catch {
      throw CommandError(error)
    }
  }

  /// Whether `--all` includes a transfer.
  private static func concerns(_ action: Action, _ status: TransferStatus) -> Bool {
    switch action {
    case .pause: status.state == .waiting || status.state == .running
    case .resume, .cancel: status.state != .ended
    case .forget: status.state == .ended
    case .list, .wait: true
    }
  }

  private static func list(_ connection: AgentConnection) throws(AgentError) -> [TransferStatus] {
    var all: [TransferStatus] = []
    _ = try connection.order(.list(session: nil)) { answer in
      if case .transfer(_, let status) = answer { all.append(status) }
    }
    return all
  }

  private static func order(
    _ action: Action, _ ids: [Int64], _ connection: inout AgentConnection, _ location: AgentLocation
  ) throws(AgentError) -> ExitCode {
    var code = ExitCode.done
    for id in ids {
      let kind: AgentOrder.Kind =
        switch action {
        case .pause: .pause(id: id)
        case .resume: .resume(id: id)
        case .cancel: .cancel(id: id, keeps: false)
        case .list, .wait, .forget: .acknowledge(id: id)
        }
      let answer = try AgentLaunch.ask(&connection, location, program: AgentCommand.program) {
        (connection) throws(AgentError) in try connection.order(kind)
      }
      if case .refused(_, let refusal, let message) = answer {
        Console.shared.say("sluice: \(message)")
        code = ExitCode(refusal)
      }
    }
    return code
  }

  /// Waits, and acknowledges each reported transfer, which is no longer listed then. An agent that ends in the meantime
  /// is started again.
  private static func wait(
    for ids: [Int64], _ first: AgentConnection, _ location: AgentLocation, _ report: TransferReport
  ) throws(AgentError) -> ExitCode {
    var connection = first
    var rest = Set(ids)
    var code = ExitCode.done
    func refuse(_ id: Int64, _ words: String) {
      Console.shared.say("sluice: \(words)")
      rest.remove(id)
      code = .usage
    }
    var known: Set<Int64> = []
    for status in try AgentLaunch.ask(
      &connection, location, program: AgentCommand.program, { (connection) throws(AgentError) in try list(connection) })
    {
      known.insert(status.id)
      // Only one program receives the events of a session's transfers.
      guard rest.contains(status.id), !status.session.isEmpty else { continue }
      refuse(status.id, "transfer \(status.id) belongs to the program \(status.session.shown), which waits for it")
    }
    for id in ids where !known.contains(id) { refuse(id, "transfer \(id) does not exist") }
    var isWatching = false
    // Reported, and perhaps acknowledged. An agent may end before it answers.
    var shown: Set<Int64> = []
    while !rest.isEmpty {
      do throws(AgentError) {
        var ended: [TransferStatus] = []
        if isWatching {
          if case .transfer(_, let status) = try connection.receive() { ended = [status] }
        } else {
          var there: Set<Int64> = []
          _ = try connection.order(.watch(session: "")) { answer in
            guard case .transfer(_, let status) = answer else { return }
            there.insert(status.id)
            ended.append(status)
          }
          isWatching = true
          for id in rest.subtracting(there) {
            if shown.contains(id) {
              rest.remove(id)
            } else {
              refuse(id, "another process has removed transfer \(id)")
            }
          }
        }
        var next = 0
        while next < ended.count {
          let status = ended[next]
          next += 1
          guard let result = status.result, rest.contains(status.id) else { continue }
          if shown.insert(status.id).inserted {
            report.show(status)
            if code == .done { code = ExitCode(result) }
          }
          // No one has read the output. The transfer stays for a later wait.
          guard Console.shared.outputFailure == nil else { return code }
          _ = try connection.order(.acknowledge(id: status.id)) { answer in
            // Others end in the meantime.
            if case .transfer(_, let status) = answer { ended.append(status) }
          }
          rest.remove(status.id)
        }
      } catch {
        guard error == .disconnected else { throw error }
        connection = try AgentLaunch.connection(location, program: AgentCommand.program)
        isWatching = false
      }
    }
    return code
  }
}

extension ExitCode {
  /// The exit code for the result of a transfer.
  init(_ result: TransferResult) {
    switch (result.outcome, result.cause) {
    case (.completed, _): self = .done
    case (.cancelled, _): self = .interrupted
    case (.failed, "notPermitted"): self = .notPermitted
    case (.failed, "fileUnreadable"): self = .noInput
    case (.failed, "fileChanged"), (.failed, "file"), (.failed, "exists"): self = .inputOutput
    case (.failed, "timedOut"), (.failed, "unreachable"): self = .unavailable
    case (.failed, "invalidRequest"): self = .usage
    case (.failed, _): self = .protocolBroken
    }
  }
}
