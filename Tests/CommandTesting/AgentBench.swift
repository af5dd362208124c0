// An agent with its own database and socket, for one test.

internal import EventLoops
internal import Glibc
package import NetworkTesting
internal import TestRigs
package import TransferClient

/// Starts the agent when it is needed, and kills it with its last reference.
package final class AgentBench {
  package let directory: TemporaryDirectory
  package let location: AgentLocation
  /// The command.
  package let program = "\(AlsaConfiguration.productDirectory)/sluice"

  package init() throws {
    directory = try TemporaryDirectory()
    location = AgentLocation(
      directory: "\(directory.path)/state/sluice", socket: "\(directory.path)/run/sluice/agent.sock")
  }

  deinit { _ = try? killAgent() }

  /// Makes a command use this agent.
  package var environment: [String: String?] {
    [
      "XDG_STATE_HOME": "\(directory.path)/state", "XDG_RUNTIME_DIR": "\(directory.path)/run",
      "SLUICE_BEARER_TOKEN": nil, "http_proxy": nil, "https_proxy": nil, "all_proxy": nil,
    ]
  }

  /// A connection to the agent, which is started if it does not run.
  package func connection() throws -> AgentConnection { try AgentLaunch.connection(location, program: program) }

  /// Runs the command with this agent.
  package func command(_ arguments: [String]) throws -> TestProcess {
    try TestProcess(program, arguments, environment: environment)
  }

  /// Runs the command to its end, which must have the exit code `code`.
  ///
  /// - Returns: both of its outputs.
  @discardableResult
  package func run(_ arguments: [String], code: Int32 = 0) throws -> String {
    let process = try command(arguments)
    let ended = try process.wait()
    let text = process.lines.all.map(\.text).joined(separator: "\n")
    guard ended == code else { throw TestFailure("\(arguments) ended with \(ended) and not \(code): \(text)") }
    return text
  }

  /// Sends SIGKILL and waits for the end. Returns false if no agent runs.
  @discardableResult
  package func killAgent() throws -> Bool {
    guard let connection = try? AgentConnection(location), let process = connection.agentProcess else { return false }
    kill(process, SIGKILL)
    // The kernel closes its end of the connection when the process has ended.
    do throws(AgentError) { while true { _ = try connection.receive(within: .seconds(60)) } } catch {
      guard error == .disconnected else { throw TestFailure("the agent does not end: \(error)") }
    }
    // It also closes the listening socket and its lock, at nearly the same time.
    try waitUntil("nobody listens there, and nobody has the lock") {
      (try? AgentConnection(location)) == nil && !isLocked
    }
    return true
  }

  /// Whether a process has the agent's lock.
  private var isLocked: Bool {
    let lock = open("\(location.directory)/agent.lock", O_RDONLY | O_CLOEXEC)
    defer { close(lock) }
    return lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK
  }

  /// All transfers, as the agent lists them.
  package func transfers() throws -> [TransferStatus] {
    while true {
      do throws(AgentError) {
        var all: [TransferStatus] = []
        let connection = try AgentLaunch.connection(location, program: program)
        _ = try connection.order(.list(session: nil)) { if case .transfer(_, let status) = $0 { all.append(status) } }
        return all
      } catch {
        // That agent was idle and about to end.
        guard error == .disconnected else { throw error }
      }
    }
  }

  /// Waits until a transfer satisfies `isWanted`.
  @discardableResult
  package func transfer(
    _ id: Int64, _ what: String, limit: Duration = .seconds(30), where isWanted: (TransferStatus) -> Bool
  ) throws -> TransferStatus {
    let deadline = MonotonicInstant.now + limit
    var last: TransferStatus?
    while MonotonicInstant.now < deadline {
      last = try transfers().first { $0.id == id }
      if let last, isWanted(last) { return last }
      poll(nil, 0, 5)
    }
    throw TestFailure("transfer \(id) never \(what): \(last.map { "\($0)" } ?? "it is gone")")
  }

  /// Waits for the end of a transfer.
  package func ended(_ id: Int64, limit: Duration = .seconds(60)) throws -> TransferResult {
    // Not nil, because an ended transfer has a result.
    try transfer(id, "ended", limit: limit) { $0.state == .ended }.result!
  }

  /// Submits a request, until it is accepted.
  package func submit(_ request: TransferRequest) throws -> Int64 {
    let answer = try connection().order(.submit(request))
    guard case .accepted(_, let id) = answer else { throw TestFailure("not accepted: \(answer)") }
    return id
  }

  package func order(_ kind: AgentOrder.Kind) throws {
    let answer = try connection().order(kind)
    guard case .done = answer else { throw TestFailure("\(kind): \(answer)") }
  }
}
