// `sluice load` as a process: its progress, and its report.

internal import Glibc
package import LoadReports
package import NetworkTesting

/// A load test with time limits for a heavily loaded machine.
package final class LoadProcess: SluiceProcess {
  /// 500 bytes every 100 ms from each stream.
  package static let tenASecond = ["--rate", "5000", "--chunk", "100ms"]

  private let directory: TemporaryDirectory
  private let name: String

  /// - Parameters:
  ///   - prefix: a program that runs it in a separate environment.
  ///   - directory: the directory for its report; by default a new one.
  ///   - name: the name of the report's file.
  package init(
    _ url: String, _ options: [String], resumable: String = "always", prefix: [String] = [],
    in directory: TemporaryDirectory? = nil, report name: String = "report.json"
  ) throws {
    let directory = try directory ?? TemporaryDirectory()
    let patience = options.contains("--request-per-message") ? [] : ["--give-up", "60s"]
    (self.directory, self.name) = (directory, name)
    try super.init(
      [
        "load", url, "--resumable", resumable, "--progress", "json", "--grace", "60s", "--json",
        "\(directory.path)/\(name)",
      ] + patience + options,
      // The user who runs the tests may have a proxy and a token.
      prefix: prefix + ["env", "-u", "SLUICE_BEARER_TOKEN", "-u", "http_proxy", "-u", "https_proxy", "-u", "all_proxy"])
  }

  /// Waits until the first second of the run was reported.
  package func firstSecond() throws { try event("progress") }

  /// Waits for one of the lines that are printed every second.
  package func progress(_ what: String, where isWanted: (FlatObject) -> Bool) throws {
    let seen = output.events.count
    do {
      try output.wait(for: what) { events, _ in
        events.dropFirst(seen).contains { $0.event == "progress" && isWanted($0) } ? () : nil
      }
    } catch {
      // The report says why. The events do not.
      signal(SIGINT)
      _ = try? exitCode()
      throw TestFailure(
        "\(error): \(output.text.filter { !$0.hasPrefix("{") }.joined(separator: "\n"))")
    }
  }

  package var hasReport: Bool { directory.names.contains(name) }

  /// Waits for its end, which must have this exit code, and reads the report.
  package func report(code: Int32 = 0) throws -> LoadReport {
    let actual = try exitCode(limit: .seconds(180))
    guard actual == code else { throw TestFailure("exit code \(actual) instead of \(code): \(output.text)") }
    return try LoadReport(json: directory.contents(name), file: name)
  }

  /// Presses Ctrl-C. Returns the report of the measurements so far.
  package func stop() throws -> LoadReport {
    signal(SIGINT)
    return try report(code: 130)
  }
}
