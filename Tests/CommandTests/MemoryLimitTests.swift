// Runs a command with little memory. At some limits it cannot even start a thread to write its message.

import NetworkTesting
import PropertyTesting
import Testing

@Suite("A command under a limit of memory", .serialized)
struct MemoryLimitTests {
  /// One limit out of each 2,000, in units of 1,024 bytes.
  private static let limits = {
    var random = Seed.several(1)[0].generator
    return stride(from: 44_000, through: 136_000, by: 2_000).map { Int.random(in: $0..<$0 + 2_000, using: &random) }
  }()

  @Test(
    "a command that fails reports why, whatever the limit",
    arguments: [
      ["pipe", "http://127.0.0.1:1/x", "--resumable", "never", "--give-up", "1ms", "--retry-ceiling", "1ms"],
      ["put", "/proc/self/exe", "http://127.0.0.1:1/x", "--resumable", "never", "--give-up", "1ms"],
    ], limits)
  func message(command: [String], kibibytes: Int) throws {
    let process = try start(command, kibibytes)
    let code = try process.wait()
    // If the limit is so low that the libraries load but Swift's runtime cannot start, not even the version is printed.
    // None of our code has run yet.
    if code > 128, try start(["--version"], kibibytes).wait() > 128 { return }
    let crashed = code > 128
    #expect(code != 0 && !crashed && !process.errors.joined().isEmpty, "exit code \(code)")
  }

  private func start(_ command: [String], _ kibibytes: Int) throws -> TestProcess {
    let limited = ["-c", "ulimit -v \(kibibytes); exec \"$@\"", "sh", try sluicePath()]
    return try TestProcess(
      "sh", limited + command, input: .nothing,
      // The program that prints the backtraces of Swift needs more memory than is available, and then never ends.
      environment: ["SWIFT_BACKTRACE": "enable=no"])
  }
}
