// A command in a process that may have little memory: at some limit it cannot even start a thread to write its message.

import NetworkTesting
import Testing

@Suite("A command under a limit of memory", .serialized)
struct MemoryLimitTests {
  @Test(
    "whatever the limit, a command that fails says why",
    arguments: [
      ["pipe", "http://127.0.0.1:1/x", "--resumable", "never", "--give-up", "1ms", "--retry-ceiling", "1ms"],
      ["put", "/proc/self/exe", "http://127.0.0.1:1/x", "--resumable", "never", "--give-up", "1ms"],
    ], stride(from: 44_000, through: 136_000, by: 2_000).map { $0 + Int.random(in: 0..<2_000) })
  func message(command: [String], kibibytes: Int) throws {
    let limited = ["-c", "ulimit -v \(kibibytes); exec \"$@\"", "sh", try sluicePath()]
    let process = try TestProcess(
      "sh", limited + command, input: .nothing,
      // What prints the backtraces of Swift needs more memory than there is, and then never ends.
      environment: ["SWIFT_BACKTRACE": "enable=no"])
    let code = try process.wait()
    let crashed = code > 128
    #expect(code != 0 && !crashed && !process.errors.joined().isEmpty, "exit code \(code)")
  }
}
