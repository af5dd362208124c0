// Another program, with its output lines, its signals and its exit status.

internal import EventLoops
public import Glibc
internal import ProcessStarting

/// A child process. Killed when it is released.
public final class TestProcess: Sendable {
  /// The source of its standard input.
  public enum Input: Sendable {
    case nothing
    /// Not open at all, as with `<&-`.
    case closed
    case file(String)
    /// Written by ``send(_:)``, and ended by ``endInput()``.
    case pipe
  }

  public enum Line: Equatable, Sendable, CustomStringConvertible {
    case output(String)
    case error(String)

    public var text: String {
      switch self {
      case .output(let text), .error(let text): text
      }
    }

    public var description: String { text }
  }

  public let pid: pid_t
  /// Complete lines of both outputs, as they arrive.
  public let lines: EventLog<Line>
  private let inputEnd: Lock<Int32>
  private let readers: [NamedThread]
  private let status = Lock<Int32?>(nil)

  /// - Parameter environment: added to this process's own. A nil value removes a variable.
  public init(
    _ program: String, _ arguments: [String] = [], input: Input = .nothing, environment: [String: String?] = [:]
  ) throws {
    let (outputs, inputPipe) = (try [Self.pipe(), Self.pipe()], try Self.pipe())
    var actions = posix_spawn_file_actions_t()
    posix_spawn_file_actions_init(&actions)
    defer { posix_spawn_file_actions_destroy(&actions) }
    switch input {
    case .nothing: posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0)
    case .file(let path): posix_spawn_file_actions_addopen(&actions, 0, path, O_RDONLY, 0)
    case .pipe: posix_spawn_file_actions_adddup2(&actions, inputPipe.reading, 0)
    case .closed: posix_spawn_file_actions_addclose(&actions, 0)
    }
    posix_spawn_file_actions_adddup2(&actions, outputs[0].writing, 1)
    posix_spawn_file_actions_adddup2(&actions, outputs[1].writing, 2)
    // Like a shell. This thread may belong to Dispatch, whose threads block signals.
    var attributes = posix_spawnattr_t()
    posix_spawnattr_init(&attributes)
    defer { posix_spawnattr_destroy(&attributes) }
    var noSignals = sigset_t()
    sigemptyset(&noSignals)
    posix_spawnattr_setsigmask(&attributes, &noSignals)
    posix_spawnattr_setflags(&attributes, Int16(POSIX_SPAWN_SETSIGMASK))
    var argumentVector: [UnsafeMutablePointer<CChar>?] = ([program] + arguments).map { strdup($0) } + [nil]
    var environmentVector: [UnsafeMutablePointer<CChar>?] = Self.environment(environment).map { strdup($0) } + [nil]
    defer { for pointer in argumentVector + environmentVector { free(pointer) } }
    var pid = pid_t()
    var code: Int32 = 0
    StartingThread.shared.run {
      code = posix_spawnp(&pid, program, &actions, &attributes, &argumentVector, &environmentVector)
    }
    for pipe in outputs { close(pipe.writing) }
    close(inputPipe.reading)
    guard code == 0 else { throw TestFailure("\(program): \(String(cString: strerror(code)))") }
    self.pid = pid
    if case .pipe = input {
      inputEnd = Lock(inputPipe.writing)
    } else {
      close(inputPipe.writing)
      inputEnd = Lock(-1)
    }
    let lines = try EventLog<Line>()
    self.lines = lines
    readers = try [
      NamedThread("test output") { Self.readLines(outputs[0].reading) { lines.append(.output($0)) } },
      NamedThread("test error") { Self.readLines(outputs[1].reading) { lines.append(.error($0)) } },
    ]
  }

  deinit {
    endInput()
    // Not after a successful wait, because its number may then belong to another process.
    signal(SIGKILL)
    _ = try? wait()
  }

  public func signal(_ number: Int32) { if status.withLock({ $0 }) == nil { kill(pid, number) } }

  /// Whether it has ended, even without a wait.
  package var hasEnded: Bool {
    if status.withLock({ $0 }) != nil { return true }
    var info = siginfo_t()
    return waitid(P_PID, id_t(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_signo == SIGCHLD
  }

  /// Writes to the standard input. Returns false if it is closed.
  @discardableResult
  public func send(_ bytes: [UInt8]) -> Bool {
    let descriptor = inputEnd.withLock { $0 }
    var rest = bytes[...]
    while !rest.isEmpty {
      let count = rest.withUnsafeBytes { Glibc.write(descriptor, $0.baseAddress, $0.count) }
      if count <= 0 { return false }
      rest = rest.dropFirst(count)
    }
    return true
  }

  public func endInput() {
    inputEnd.withLock { descriptor in
      if descriptor >= 0 { close(descriptor) }
      descriptor = -1
    }
  }

  /// Waits for its end, and returns its exit status, or 128 and the number of the signal that ended it. Afterwards, all
  /// of its lines are in ``lines``.
  @discardableResult
  public func wait() throws -> Int32 {
    try status.withLock { known in
      if let known { return known }
      var raw: Int32 = 0
      while waitpid(pid, &raw, 0) == -1 {
        guard errno == EINTR else { throw TestFailure("waitpid: \(String(cString: strerror(errno)))") }
      }
      for reader in readers { reader.join() }
      let result = raw & 0x7F == 0 ? raw >> 8 & 0xFF : 128 + raw & 0x7F
      known = result
      return result
    }
  }

  /// The lines on standard output.
  public var output: [String] { lines.all.compactMap { if case .output(let text) = $0 { text } else { nil } } }
  /// The lines on standard error.
  public var errors: [String] { lines.all.compactMap { if case .error(let text) = $0 { text } else { nil } } }

  // MARK: Set-up

  private static func pipe() throws -> (reading: Int32, writing: Int32) {
    var ends: [Int32] = [-1, -1]
    guard Glibc.pipe(&ends) == 0 else { throw TestFailure("pipe: \(String(cString: strerror(errno)))") }
    for end in ends { setCloseOnExec(end) }
    return (ends[0], ends[1])
  }

  private static func environment(_ changes: [String: String?]) -> [String] {
    var result: [String] = []
    var next = environ
    while let entry = next.pointee {
      let text = String(cString: entry)
      if changes[String(text.prefix { $0 != "=" })] == nil { result.append(text) }
      next += 1
    }
    return result + changes.compactMap { name, value in value.map { "\(name)=\($0)" } }
  }

  private static func readLines(_ descriptor: Int32, _ tell: (String) -> Void) {
    var pending: [UInt8] = []
    var buffer = [UInt8](repeating: 0, count: 65_536)
    while case let count = read(descriptor, &buffer, buffer.count), count > 0 {
      pending += buffer[..<count]
      while let end = pending.firstIndex(of: 0x0A) {
        tell(String(decoding: pending[..<end], as: UTF8.self))
        pending.removeFirst(end + 1)
      }
    }
    if !pending.isEmpty { tell(String(decoding: pending, as: UTF8.self)) }
    close(descriptor)
  }
}

/// Keeps a descriptor from child processes; fcntl(2).
func setCloseOnExec(_ descriptor: Int32) {
  _ = fcntl(descriptor, F_SETFD, FD_CLOEXEC)
}
