// A command in a process that may have little memory: at some limit it cannot even start a thread to write its message.

import NetworkTesting
import Testing

@Suite("A command under a limit of memory", .serialized)
struct MemoryLimitTests {
  @Test(
    "whatever the limit, a command that fails says why",
    arguments: Array(stride(from: 50_000, through: 130_000, by: 5_000)))
  func message(kibibytes: Int) throws {
    let process = try TestProcess(
      "sh",
      [
        "-c", "ulimit -v \(kibibytes); exec \"$@\"", "sh", try sluicePath(), "pipe", "http://127.0.0.1:1/x",
        "--resumable", "never", "--give-up", "1ms", "--retry-ceiling", "1ms",
        // What prints the backtraces of Swift needs more memory than there is, and then never ends.
      ], input: .nothing, environment: ["SWIFT_BACKTRACE": "enable=no"])
    let code = try process.wait()
    #expect(code != 0 && !process.errors.joined().isEmpty, "exit code \(code)")
  }
}
