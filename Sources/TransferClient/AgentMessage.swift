// The messages between programs and the agent: one flat JSON object per line, in both directions.

internal import EventLoops
package import JSONLines

/// An order of a program. Each is answered by ``AgentAnswer`` with the same number.
package struct AgentOrder: Equatable, Sendable {
  package enum Kind: Equatable, Sendable {
    case submit(TransferRequest)
    /// All transfers of a session, or of all sessions for nil.
    case list(session: String?)
    case pause(id: Int64)
    case resume(id: Int64)
    /// - Parameter keeps: whether the program receives the part of a download with the result, instead of its removal.
    case cancel(id: Int64, keeps: Bool = false)
    /// The program has received the result and does not need it again.
    case acknowledge(id: Int64)
    /// All transfers of a session now, and then each one that changes. Another connection that watches the session
    /// receives ``AgentAnswer/replaced(session:)``, and nothing more. The command's session can have any number of
    /// them.
    case watch(session: String)

    /// The same order after the wall clock was set forward by this many milliseconds. The deadline of a transfer moves,
    /// because the time that is left is a duration. Its earliest beginning is a date, which stays.
    package func moved(by step: Int64) -> Kind {
      guard case .submit(var request) = self, let deadline = request.deadline else { return self }
      request.deadline = deadline.addingSaturated(step)
      return .submit(request)
    }
  }

  package var number: Int64
  package var kind: Kind

  package init(number: Int64, _ kind: Kind) { (self.number, self.kind) = (number, kind) }

  /// The line without its line feed.
  package var line: String {
    func order(_ name: String, _ id: Int64? = nil, session: String? = nil) -> JSONLine {
      var line = JSONLine(event: name)
      line.add("number", number)
      line.add("id", id)
      line.add("session", session)
      return line
    }
    switch kind {
    case .submit(let request):
      var line = order("submit")
      request.add(to: &line)
      return line.line
    case .list(let session): return order("list", session: session).line
    case .pause(let id): return order("pause", id).line
    case .resume(let id): return order("resume", id).line
    case .cancel(let id, let keeps):
      var line = order("cancel", id)
      line.add("keeps", keeps)
      return line.line
    case .acknowledge(let id): return order("acknowledge", id).line
    case .watch(let session): return order("watch", session: session).line
    }
  }

  /// Nil if the line is not an order.
  package init?(_ line: FlatJSON) {
    guard let number = line.integer("number", as: Int64.self) else { return nil }
    let id = line.integer("id", as: Int64.self)
    func order(_ make: (Int64) -> Kind) -> Kind? { id.map(make) }
    let kind: Kind? =
      switch line.string("event") {
      case "submit": TransferRequest(line).map { .submit($0) }
      case "list": .list(session: line.string("session"))
      case "pause": order { .pause(id: $0) }
      case "resume": order { .resume(id: $0) }
      case "cancel": order { .cancel(id: $0, keeps: line.flag("keeps") ?? false) }
      case "acknowledge": order { .acknowledge(id: $0) }
      case "watch": line.string("session").map { .watch(session: $0) }
      default: nil
      }
    guard let kind else { return nil }
    self.init(number: number, kind)
  }
}

/// A message from the agent to a program.
package enum AgentAnswer: Equatable, Sendable {
  /// The transfer is in the database, and will not be forgotten.
  case accepted(number: Int64, id: Int64)
  /// The order is carried out, now or before.
  case done(number: Int64)
  /// The order is refused. The values are one word for programs, and the reason and remedy in words.
  case refused(number: Int64, Refusal, String)
  /// A transfer of a list, or a changed one of a watched session.
  case transfer(number: Int64?, TransferStatus)
  /// Another connection now watches the session.
  case replaced(session: String)

  package enum Refusal: String, CaseIterable, Sendable {
    /// The order is invalid, or can never be carried out.
    case invalid
    /// The file cannot be read.
    case file
    /// There is no such transfer.
    case unknown
    /// The database cannot be written. Nothing has changed.
    case database
  }

  /// The line without its line feed.
  package var line: String {
    var line: JSONLine
    switch self {
    case .accepted(let number, let id):
      line = JSONLine(event: "accepted")
      line.add("number", number)
      line.add("id", id)
    case .done(let number):
      line = JSONLine(event: "done")
      line.add("number", number)
    case .refused(let number, let refusal, let message):
      line = JSONLine(event: "refused")
      line.add("number", number)
      line.add("refusal", refusal.rawValue)
      line.add("message", message)
    case .transfer(let number, let status):
      line = JSONLine(event: "transfer")
      line.add("number", number)
      status.add(to: &line)
    case .replaced(let session):
      line = JSONLine(event: "replaced")
      line.add("session", session)
    }
    return line.line
  }

  /// Nil for anything else, such as messages of a later agent.
  package init?(_ line: FlatJSON) {
    let number = line.integer("number", as: Int64.self)
    switch (line.string("event"), number) {
    case ("accepted", let number?):
      guard let id = line.integer("id", as: Int64.self) else { return nil }
      self = .accepted(number: number, id: id)
    case ("done", let number?): self = .done(number: number)
    case ("refused", let number?):
      self = .refused(
        number: number, line.string("refusal").flatMap(Refusal.init) ?? .invalid, line.string("message") ?? "")
    case ("transfer", _):
      guard let status = TransferStatus(line) else { return nil }
      self = .transfer(number: number, status)
    case ("replaced", _):
      guard let session = line.string("session") else { return nil }
      self = .replaced(session: session)
    default: return nil
    }
  }
}
