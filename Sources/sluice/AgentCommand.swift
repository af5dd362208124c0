// sluice agent

internal import EventLoops
internal import Glibc
internal import TransferAgent
internal import TransferClient

enum AgentCommand {
  /// The program that starts an agent: this command itself.
  static let program = "/proc/self/exe"

  static let syntax = CommandLineSyntax(
    name: "agent", summary: "Performs background transfers, which continue after their program exits.", operands: [],
    options: [
      Option("detach", "run in the background, and return when the agent listens"),
      Option("state-directory", value: "DIR", "directory of the database (default: $XDG_STATE_HOME/sluice)"),
      Option("socket", value: "PATH", "path of the socket to listen on (default: $XDG_RUNTIME_DIR/sluice/agent.sock)"),
      Option(
        "idle-exit", value: "T",
        "exit after T without transfers and connected programs (default: never; --detach: 1min)"),
    ],
    example: "sluice agent --detach")

  /// Set in the environment of an agent that was started with `--detach`.
  private static let detached = "SLUICE_AGENT_DETACHED"

  static func run(_ values: CommandLineSyntax.Values) throws(CommandError) -> ExitCode {
    let location = try location(values)
    var settings = TransferAgent.Settings()
    settings.idleLimit = try values["idle-exit"].map { (text) throws(CommandError) in
      try Units.duration(text, of: "idle-exit", atLeast: .milliseconds(1))
    }
    if values.has("detach") { return try detach(location, values["idle-exit"] ?? "1min") }
    let isDetached = getenv(detached) != nil
    if isDetached { closeInherited() }
    settings.listener = activatedListener
    settings.log = { Console.shared.say("sluice: \($0)") }
    do {
      // Comes before the first thread, so that no thread takes a signal from this one.
      let signals = try Signals()
      try Console.shared.beginQueueing()
      let ended = try EventCounter()
      let agent = try TransferAgent(location, settings)
      let failure = Lock<SystemError?>(nil)
      let thread = try NamedThread("sluice-agent") {
        do throws(SystemError) { try agent.run() } catch { failure.withLock { $0 = error } }
        ended.signal()
      }
      if isDetached {
        leave()
      } else {
        Console.shared.say("listening on \(location.socket)")
      }
      ServiceManager.current.isReady("listening on \(location.socket)")
      signals.wait(for: ended) { count in
        ServiceManager.current.isStopping()
        if count > 1 { _exit(ExitCode.interrupted.rawValue) }
        agent.stop()
        return .finishes
      }
      thread.join()
      if let error = failure.withLock({ $0 }) { throw error }
      return .done
    } catch let error as AgentError {
      throw CommandError(error)
    } catch {
      throw CommandError(machine: error)
    }
  }

  static func location(_ values: CommandLineSyntax.Values) throws(CommandError) -> AgentLocation {
    var location = AgentLocation.current
    if let directory = values["state-directory"] {
      let socket = values["socket"] ?? location?.socket ?? directory + "/agent.sock"
      location = AgentLocation(directory: Self.absolute(directory), socket: socket)
    }
    if let socket = values["socket"] { location?.socket = absolute(socket) }
    guard let location else { throw CommandError(AgentError.noLocation) }
    return location
  }

  static func absolute(_ path: String) -> String {
    guard path.utf8.first != UInt8(ascii: "/"), let directory = getcwd(nil, 0) else { return path }
    defer { free(directory) }
    return String(cString: directory) + "/" + path
  }

  // MARK: Detached

  /// Starts an agent that is detached from this process, and waits until the agent listens.
  private static func detach(_ location: AgentLocation, _ idleLimit: String) throws(CommandError) -> ExitCode {
    var ends: [Int32] = [-1, -1]
    guard pipe(&ends) == 0 else { throw CommandError(.inputOutput, SystemError.last("pipe").description) }
    for end in ends { _ = fcntl(end, F_SETFD, FD_CLOEXEC) }
    var actions = posix_spawn_file_actions_t()
    posix_spawn_file_actions_init(&actions)
    defer { posix_spawn_file_actions_destroy(&actions) }
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0)
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO)
    var attributes = posix_spawnattr_t()
    posix_spawnattr_init(&attributes)
    defer { posix_spawnattr_destroy(&attributes) }
    // POSIX_SPAWN_SETSID, which Glibc's module omits. It keeps the signals of this terminal from the agent.
    posix_spawnattr_setflags(&attributes, 0x80)
    let arguments = [
      "sluice", "agent", "--state-directory", location.directory, "--socket", location.socket, "--idle-exit", idleLimit,
    ]
    var vector: [UnsafeMutablePointer<CChar>?] = arguments.map { strdup($0) } + [nil]
    defer { for text in vector { free(text) } }
    setenv(detached, "1", 1)
    var process = pid_t()
    let code = posix_spawn(&process, program, &actions, &attributes, &vector, environ)
    close(ends[1])
    guard code == 0 else {
      throw CommandError(.inputOutput, "cannot start the agent: \(String(cString: strerror(code))).")
    }
    var sign: UInt8 = 0
    let count = (try? retryingInterrupts("read") { read(ends[0], &sign, 1) }) ?? 0
    if count == 1 { return .done }
    // The agent has ended and has reported why.
    var status: Int32 = 0
    _ = try? retryingInterrupts("waitpid") { waitpid(process, &status, 0) }
    return status & 0x7F == 0 ? ExitCode(rawValue: status >> 8 & 0xFF) ?? .inputOutput : .inputOutput
  }

  /// Closes the descriptors that the agent inherited from the program that started it. Otherwise, a reader that waits
  /// for the end of such a pipe would wait for the agent.
  private static func closeInherited() {
    guard let directory = opendir("/proc/self/fd") else { return }
    defer { closedir(directory) }
    while let entry = readdir(directory) {
      let name = withUnsafeBytes(of: &entry.pointee.d_name) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) }
      if let descriptor = Int32(name), descriptor > STDERR_FILENO, descriptor != dirfd(directory) { close(descriptor) }
    }
  }

  /// Reports to the program that started the agent that it listens, and detaches its outputs and its directory.
  private static func leave() {
    unsetenv(detached)
    var sign: UInt8 = 1
    _ = write(STDOUT_FILENO, &sign, 1)
    let nothing = open("/dev/null", O_RDWR | O_CLOEXEC)
    for descriptor in [STDOUT_FILENO, STDERR_FILENO] { dup2(nothing, descriptor) }
    close(nothing)
    chdir("/")
  }

  // MARK: systemd

  /// The socket that the service manager opened (sd_listen_fds(3)), or nil.
  private static var activatedListener: Int32? {
    func variable(_ name: String) -> Int32? { getenv(name).flatMap { Int32(String(cString: $0)) } }
    guard variable("LISTEN_PID") == getpid(), variable("LISTEN_FDS") == 1 else { return nil }
    let first: Int32 = 3
    _ = fcntl(first, F_SETFD, FD_CLOEXEC)
    _ = fcntl(first, F_SETFL, fcntl(first, F_GETFL) | O_NONBLOCK)
    return first
  }
}

extension CommandError {
  /// The message for an agent that cannot start or cannot be reached.
  init(_ error: AgentError) {
    switch error {
    case .noLocation:
      self.init(
        .inputOutput,
        "cannot find a directory for the agent's database: the environment names none. Set HOME or XDG_STATE_HOME.")
    case .system(let path, let error): self.init(.inputOutput, "cannot use \(path.shown): \(error.reason).")
    case .notPrivate(let path, let reason):
      self.init(
        .notPermitted,
        "cannot use \(path.shown): \(reason). Only its user may have access. Change its owner with chown, and run chmod 700."
      )
    case .inUse(let path):
      self.init(.busy, "cannot start the agent: another agent already uses \(path.shown). Use that agent.")
    case .database(let path, let reason): self.init(.inputOutput, "cannot use \(path.shown): \(reason).")
    case .databaseMoved(let path):
      self.init(.inputOutput, "cannot use \(path.shown): it was moved, removed or replaced. Move it back.")
    case .notRunning(let socket):
      self.init(.unavailable, "cannot reach the agent: none listens on \(socket.shown). Start it with: sluice agent")
    case .notStarted(let reason): self.init(.unavailable, "cannot start the agent: \(reason)")
    case .disconnected: self.init(.unavailable, "the agent ended before it answered. Try again.")
    case .refused(let refusal, let message): self.init(ExitCode(refusal), message)
    case .noAnswer: self.init(.unavailable, "the agent does not answer. Try again, or restart it.")
    }
  }
}

extension ExitCode {
  /// The exit code for an order that the agent refuses.
  init(_ refusal: AgentAnswer.Refusal) {
    switch refusal {
    case .file: self = .noInput
    case .database: self = .inputOutput
    case .invalid, .unknown: self = .usage
    }
  }
}
