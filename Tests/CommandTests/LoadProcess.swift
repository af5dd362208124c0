// `sluice load` as a process, and the report that it writes.

import Glibc
import LoadTesting
import NetworkTesting

/// A load test that waits as long as a loaded machine may take.
struct LoadProcess {
  /// 500 bytes every 100 ms of each stream.
  static let tenASecond = ["--rate", "5000", "--chunk", "100ms"]

  let process: TestProcess
  private let directory: TemporaryDirectory
  private let name: String

  /// - Parameters:
  ///   - prefix: a program that runs it in surroundings of its own.
  ///   - name: of the report's file.
  init(
    _ url: String, _ options: [String], prefix: [String] = [], in directory: TemporaryDirectory? = nil,
    report name: String = "report.json"
  ) throws {
    let directory = try directory ?? TemporaryDirectory()
    (self.directory, self.name) = (directory, name)
    let command =
      prefix + [
        try sluicePath(), "load", url, "--resumable", "always", "--progress", "json", "--grace", "60s", "--give-up",
        "60s", "--json", "\(directory.path)/\(name)",
      ] + options
    process = try TestProcess(
      command[0], Array(command.dropFirst()), environment: ["SLUICE_BEARER_TOKEN": nil, "http_proxy": nil])
  }

  /// Waits until the first second of the run has been told.
  func firstSecond() throws { try process.lines.first("a second's figures") { $0.text.hasPrefix("{") } }

  var hasReport: Bool { directory.names.contains(name) }

  /// Waits for its end, which has to have this code, and reads the report.
  func report(code: Int32 = 0) throws -> LoadReport {
    let actual = try process.wait()
    guard actual == code else { throw TestFailure("exit code \(actual) instead of \(code): \(process.errors)") }
    return try LoadReport(json: directory.contents(name), file: name)
  }
}

/// Stops a process for two seconds: the fault itself.
func stopForTwoSeconds(_ process: TestProcess) {
  process.signal(SIGSTOP)
  poll(nil, 0, 2000)
  process.signal(SIGCONT)
}
