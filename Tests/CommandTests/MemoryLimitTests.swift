// A command in a process that may have little memory: at some limit it cannot even start a thread to write its message.

import NetworkTesting
import PropertyTesting
import Testing

@Suite("A command under a limit of memory", .serialized)
struct MemoryLimitTests {
  /// One of each 2,000, in units of 1,024 bytes.
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
    // Between the limits at which libraries are loaded and those at which Swift's runtime has begun, no program of ours
    // has run yet: then not even the version is printed.
    if code > 128, try start(["--version"], kibibytes).wait() > 128 { return }
    let crashed = code > 128
    #expect(code != 0 && !crashed && !process.errors.joined().isEmpty, "exit code \(code)")
  }

  private func start(_ command: [String], _ kibibytes: Int) throws -> TestProcess {
    let limited = ["-c", "ulimit -v \(kibibytes); exec \"$@\"", "sh", try sluicePath()]
    return try TestProcess(
      "sh", limited + command, input: .nothing,
      // What prints the backtraces of Swift needs more memory than there is, and then never ends.
      environment: ["SWIFT_BACKTRACE": "enable=no"])
  }
}
