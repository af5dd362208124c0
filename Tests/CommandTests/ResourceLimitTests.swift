// Runs a command that may open only a few descriptors, or write only small files.

import NetworkTesting
import Testing

@Suite("A command under a limit of descriptors or of file sizes")
struct ResourceLimitTests {
  /// Starts the command with a limit of ulimit(1). Only its three standard descriptors are open. A child also inherits
  /// those that libcurl has open for other tests.
  private func start(_ option: String, _ limit: Int, _ arguments: [String]) throws -> TestProcess {
    let script = """
      for d in /proc/self/fd/*; do d=${d##*/}; [ "$d" -le 2 ] || eval "exec $d>&-"; done
      ulimit "$1" "$2" && shift 2 && exec "$@"
      """
    return try TestProcess("bash", ["-c", script, "bash", option, "\(limit)", sluicePath()] + arguments)
  }

  private static let hasty = ["http://127.0.0.1:1/x", "--resumable", "never", "--give-up", "1ms"]

  @Test(
    "too few descriptors to begin: 74, with the limit to raise", arguments: [["put", "/proc/self/exe"], ["pipe"]],
    [4, 5, 6, 7])
  func descriptors(command: [String], limit: Int) throws {
    let process = try start("-n", limit, command + Self.hasty)
    let code = try process.wait()
    #expect(code == 74, "\(process.errors)")
    let message = process.errors.joined(separator: "\n")
    #expect(message.contains("Too many open files") && message.contains("ulimit -n"), "\(message)")
    #expect(!message.contains("Name a file"), "\(message)")
  }

  @Test("a buffer larger than the largest file: 74, with the limit and the option")
  func buffer() throws {
    // bash counts in units of 1,024 bytes.
    let process = try start("-f", 1024, ["pipe"] + Self.hasty)
    #expect(try process.wait() == 74)
    let message = process.errors.joined(separator: "\n")
    #expect(message.contains("ulimit -f") && message.contains("--buffer"), "\(message)")
  }
}
