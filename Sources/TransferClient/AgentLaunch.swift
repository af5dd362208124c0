// The agent is started on demand, by the first program that requires it.

internal import EventLoops
internal import Glibc

package enum AgentLaunch {
  /// How long an agent that another program has started may take until it listens, because it checks its database
  /// first.
  private static let limit = Duration.seconds(20)
  /// The exit code of an agent that ends because another one runs.
  private static let busyCode: Int32 = 75

  /// Connects to the agent, and starts it if nothing listens. If two programs start it at once, one of the two agents
  /// ends, and both programs connect to the other.
  ///
  /// - Parameter program: the path of `sluice`; nil for the one that `$SLUICE` names, or the first on `PATH`.
  package static func connection(
    _ location: AgentLocation, program: String? = nil
  ) throws(AgentError) -> AgentConnection {
    do throws(AgentError) {
      return try AgentConnection(location)
    } catch {
      guard case .notRunning = error else { throw error }
    }
    let program = program ?? getenv("SLUICE").map { String(cString: $0) } ?? "sluice"
    let deadline = MonotonicInstant.now + limit
    while true {
      let (code, words) = try run(program, location)
      guard code == 0 || code == busyCode else {
        throw .notStarted(words.split(separator: "\n").last.map(String.init) ?? "it ended with exit code \(code)")
      }
      do throws(AgentError) {
        return try AgentConnection(location)
      } catch {
        // Another agent that was started at the same time has the lock, and is about to listen or to end.
        guard case .notRunning = error, MonotonicInstant.now < deadline else { throw error }
        poll(nil, 0, 20)
      }
    }
  }

  /// How many agents are asked one after another. An idle one may end at any moment, but several in a row do not.
  private static let mostAgents = 5

  /// Asks an agent, and the next one if it ends before it answers. The next one has the same transfers, and may already
  /// have processed the order, so the order must be repeatable.
  ///
  /// - Parameters:
  ///   - connection: the agent to ask first, and afterwards the one that has answered.
  ///   - program: see ``connection(_:program:)``.
  package static func ask<Answer>(
    _ connection: inout AgentConnection, _ location: AgentLocation, program: String? = nil,
    _ question: (AgentConnection) throws(AgentError) -> Answer
  ) throws(AgentError) -> Answer {
    for _ in 1..<mostAgents {
      do throws(AgentError) {
        return try question(connection)
      } catch {
        guard error == .disconnected else { throw error }
        connection = try Self.connection(location, program: program)
      }
    }
    return try question(connection)
  }

  /// Runs `sluice agent --detach`, which returns when the agent listens.
  ///
  /// - Returns: its exit code, and its output on standard error.
  private static func run(_ program: String, _ location: AgentLocation) throws(AgentError) -> (Int32, String) {
    var ends: [Int32] = [-1, -1]
    guard pipe(&ends) == 0 else { throw .notStarted(SystemError.last("pipe").reason) }
    defer { close(ends[0]) }
    for end in ends { _ = fcntl(end, F_SETFD, FD_CLOEXEC) }
    var actions = posix_spawn_file_actions_t()
    posix_spawn_file_actions_init(&actions)
    defer { posix_spawn_file_actions_destroy(&actions) }
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0)
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0)
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO)
    var attributes = posix_spawnattr_t()
    posix_spawnattr_init(&attributes)
    defer { posix_spawnattr_destroy(&attributes) }
    // The signals that this process blocks or ignores must not affect the agent.
    var (none, all) = (sigset_t(), sigset_t())
    sigemptyset(&none)
    sigfillset(&all)
    posix_spawnattr_setsigmask(&attributes, &none)
    posix_spawnattr_setsigdefault(&attributes, &all)
    posix_spawnattr_setflags(&attributes, Int16(POSIX_SPAWN_SETSIGMASK) | Int16(POSIX_SPAWN_SETSIGDEF))
    let arguments = [
      program, "agent", "--detach", "--state-directory", location.directory, "--socket", location.socket,
    ]
    var vector: [UnsafeMutablePointer<CChar>?] = arguments.map { strdup($0) } + [nil]
    defer { for text in vector { free(text) } }
    var process = pid_t()
    let code = posix_spawnp(&process, program, &actions, &attributes, &vector, environ)
    close(ends[1])
    guard code == 0 else {
      throw .notStarted(
        "cannot run \(program): \(String(cString: strerror(code))). Set SLUICE to the path of the sluice command.")
    }
    var text: [UInt8] = []
    var chunk = [UInt8](repeating: 0, count: 4096)
    while let count = try? retryingInterrupts("read", { read(ends[0], &chunk, chunk.count) }), count > 0 {
      if text.count < 1 << 16 { text += chunk[..<count] }
    }
    var status: Int32 = 0
    do throws(SystemError) {
      try retryingInterrupts("waitpid") { waitpid(process, &status, 0) }
    } catch {
      // A program may ignore SIGCHLD, so that its children are reaped automatically. The connection attempt shows the
      // result.
      status = 0
    }
    return (status & 0x7F == 0 ? status >> 8 & 0xFF : 128 + status & 0x7F, String(decoding: text, as: UTF8.self))
  }
}
