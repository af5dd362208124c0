// Programs that a test runs: started by name, ended by process id, and never longer than the test.

internal import Glibc
internal import ProcessStarting

/// A running program. It is killed with its last reference, and by the kernel if the test itself dies.
package final class ChildProcess: @unchecked Sendable {
  package let identifier: Int32
  private var status: Int32?

  /// The reason why a program cannot be started.
  package struct Missing: Error, CustomStringConvertible {
    package let program: String
    package let package: String
    package var description: String {
      "\(program) is not installed; it is in the Debian package \(package): apt-get install \(package)"
    }
  }

  /// Starts `arguments[0]`, found in PATH. Standard output and error go to `output`, or to the test's own.
  ///
  /// - Parameters:
  ///   - package: the Debian package that has the program, for the error.
  ///   - environment: added to the test's own.
  package init(
    _ arguments: [String], package: String, environment: [String: String] = [:], output: String? = nil
  ) throws {
    guard Self.isInstalled(arguments[0]) else { throw Missing(program: arguments[0], package: package) }
    // setpriv (util-linux) makes the kernel end the program when the test process dies in any way.
    let command = ["setpriv", "--pdeathsig", "KILL"] + arguments
    var variables: [String] = []
    var at = environ
    while let variable = at.pointee {
      let text = String(cString: variable)
      if environment[String(text.prefix { $0 != "=" })] == nil { variables.append(text) }
      at += 1
    }
    variables += environment.map { "\($0.key)=\($0.value)" }
    let argv = command.map { strdup($0) } + [nil]
    let envp = variables.map { strdup($0) } + [nil]
    defer { for text in argv + envp { free(text) } }
    var actions = posix_spawn_file_actions_t()
    posix_spawn_file_actions_init(&actions)
    defer { posix_spawn_file_actions_destroy(&actions) }
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0)
    if let output {
      posix_spawn_file_actions_addopen(&actions, 1, output, O_WRONLY | O_CREAT | O_TRUNC, 0o600)
      posix_spawn_file_actions_adddup2(&actions, 1, 2)
    }
    var pid = pid_t()
    var code: Int32 = 0
    StartingThread.shared.run { code = posix_spawnp(&pid, command[0], &actions, nil, argv, envp) }
    guard code == 0 else { throw Missing(program: command[0], package: "util-linux") }
    identifier = pid
  }

  deinit { end(SIGKILL) }

  package static func isInstalled(_ program: String) -> Bool {
    if program.contains("/") { return access(program, X_OK) == 0 }
    let path = getenv("PATH").map { String(cString: $0) } ?? "/usr/bin:/bin"
    return path.split(separator: ":").contains { access("\($0)/\(program)", X_OK) == 0 }
  }

  package func signal(_ number: Int32) {
    if status == nil { kill(identifier, number) }
  }

  /// Sends a signal and waits for the end.
  package func end(_ number: Int32 = SIGTERM) {
    signal(number)
    _ = waitUntilExit()
  }

  /// Waits for the end. Returns the exit code, or 128 + the signal that ended it.
  package func waitUntilExit() -> Int32 {
    if let status { return status }
    var raw: Int32 = 0
    while waitpid(identifier, &raw, 0) == -1, errno == EINTR {}
    let ended = raw & 0x7f == 0 ? (raw >> 8) & 0xff : 128 + (raw & 0x7f)
    status = ended
    return ended
  }
}
