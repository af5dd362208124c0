// Tests how `sluice load` ends: exit codes, no connection after a usage error, and a report of what was measured.

import CommandTesting
import Glibc
import LoadReports
import NetworkTesting
import Testing

@testable import sluice

@Suite("sluice load as a process", .serialized)
struct LoadExitTests {
  @Test("thresholds: 3 and each failed one by name, with the report written; 0 if none fails")
  func thresholds() throws {
    let server = try StreamServer()
    let options = ["-n", "2", "-d", "500ms"] + LoadProcess.tenASecond
    let failed = try LoadProcess(
      server.url,
      options + ["--fail-if", "ack.p99 > 1ns", "--fail-if", "errors > 0", "--fail-if", "connect.count >= 2"])
    #expect(try failed.report(code: 3).totals.messages.acknowledged == 10)
    let lines = failed.output.text.filter { $0.hasPrefix("failed: ") }
    #expect(lines.count == 2 && lines[0].hasPrefix("failed: ack.p99 is "), "\(lines)")
    #expect(lines.last == "failed: connect.count is 2, but must be below 2")
    let kept = try LoadProcess(server.url, options + ["--fail-if", "ack.count < 10", "--fail-if", "errors > 0"])
    #expect(try kept.report(code: 0).totals.errorCount == 0)
    #expect(!kept.output.text.contains { $0.hasPrefix("failed: ") })
  }

  @Test(
    "each invalid input is refused with its code before a connection, in a line with a remedy",
    arguments: [
      (["--fail-if", "ack.p98x > 1s"], 64, "\"ack.p98x\" is an unknown metric. The nearest is \"ack.p90\""),
      (["--fail-if", "ack.p99 > 5 bananas"], 64, "bananas"), (["--part", "3/2"], 64, "--part \"3/2\": invalid part"),
      (["--ramp", "11s"], 64, "ramp"),
      (["--request-per-message", "--arrival-rate", "0.0001/s"], 64, "0.001/s to 10000000/s"),
      (["--request-per-message", "--arrival-rate", "5/s", "--chunk", "1s"], 64, "--arrival-rate and --chunk"),
      (
        ["--request-per-message", "--arrival-rate", "5/s", "--stage", "5s:5", "-d", "1s"], 64, "--stage and --duration"
      ),
      (["--arrival-rate", "5/s"], 64, "requires --request-per-message"),
      (["--stage", "5s:0"], 64, "no stage has a stream"),
      (["--request-per-message", "--arrival-rate", "0/s", "--stage", "5s:0"], 64, "no stage has a request"),
      (["--stage", "20d:1", "--stage", "20d:1"], 64, "more than 30d"),
      (["--chunk", "1us"], 64, "--chunk \"1us\": invalid time. Write a time from 1ms to 1h."),
      (["--slow-fraction", "1.5"], 64, "0% to 100%"), (["--profile", "mick"], 64, "mic, heartbeat, bulk"),
      (["--body", "/nonexistent/body"], 66, "/nonexistent/body"), (["--seed", "-1"], 64, "--seed"),
      (["-n", "3", "--max-connections", "2"], 64, "and 2 are allowed. Raise --max-connections."),
      (["--json", "/nonexistent/report.json"], 74, "cannot write --json \"/nonexistent/report.json\": No such file"),
      (["--json", "/dev"], 74, "cannot write --json \"/dev\": it is a directory. Choose a file."),
      (["--html", "/tmp/"], 74, "cannot write --html \"/tmp/\": it is a directory. Choose a file."),
    ] as [([String], Int32, String)])
  func refused(_ options: [String], _ code: Int32, _ says: String) throws {
    let connections = try EventLog<Int>()
    let server = try ScriptedServer(inTurn: true) { _, number in connections.append(number) }
    let process = try sluice(["load", server.url] + options)
    #expect(try process.wait() == code)
    #expect(process.errors.count == 1 && process.errors[0].contains(says), "\(process.errors)")
    #expect(process.output.isEmpty)
    // The server accepts an earlier connection before this one, which it then closes.
    _ = try ServerConnection(connectingTo: "127.0.0.1:\(server.port)").readToEnd()
    #expect(connections.all == [0])
    withExtendedLifetime(server) {}
  }

  @Test("a report that cannot be written affects neither the other outputs nor the thresholds: 74")
  func unwritable() throws {
    let server = try StreamServer()
    let directory = try TemporaryDirectory()
    let load = try sluice(
      ["load", server.url, "-n", "1", "-d", "300ms", "--json", "/dev/full", "--html", "\(directory.path)/page.html"]
        + ["--fail-if", "ack.count < 1000"] + LoadProcess.tenASecond)
    #expect(try load.wait() == 74, "\(load.errors)")
    #expect(directory.names == ["page.html"])
    #expect(load.errors.contains { $0.hasPrefix("failed: ack.count is ") }, "\(load.errors)")
    #expect(load.errors.last?.hasPrefix("sluice: cannot write \"/dev/full\": ") == true, "\(load.errors)")
  }

  @Test("a run that lost data: 4, unless a threshold limits the loss", arguments: [nil, "lost > 1000MB"])
  func lost(_ threshold: String?) throws {
    let directory = try TemporaryDirectory()
    let server = try ServeProcess(directory.path)
    let load = try LoadProcess(
      server.url,
      ["-n", "2", "-d", "4s", "--rate", "1000000", "--chunk", "50ms", "--buffer", "64KiB", "--send-buffer", "16KiB"]
        + (threshold.map { ["--fail-if", $0] } ?? []))
    try load.firstSecond()
    // The pause is so long that the buffers fill.
    server.pause(for: .seconds(1))
    let report = try load.report(code: threshold == nil ? 4 : 0)
    #expect(report.totals.bytes.lost > 0)
  }

  @Test("another machine is loaded only if it is named, even if its name resembles this one: 77, with the option")
  func notPermitted() throws {
    for (url, host) in [
      ("http://example.com/", "example.com"), ("http://127.0.0.1.example.com/", "127.0.0.1.example.com"),
      ("http://0.0.0.0:9/", "0.0.0.0"), ("http://127.0.0.1@192.0.2.1/", "192.0.2.1"),
    ] {
      let process = try sluice(["load", url, "--i-may-load-this", "localhost"])
      #expect(try process.wait() == 77, "\(url)")
      #expect(process.errors.first?.contains("--i-may-load-this \(host)") == true, "\(process.errors)")
    }
  }

  @Test(
    "too few descriptors: 74, with the required number and the command; that number is enough, and one less is not")
  func descriptors() throws {
    let server = try StreamServer()
    let options = ["-n", "100", "-d", "1s"] + LoadProcess.tenASecond
    // Only the named descriptors are open. A child also inherits the descriptors that libcurl has open for other tests.
    let script = """
      for d in /proc/self/fd/*; do d=${d##*/}; [ "$d" -le 2 ] || eval "exec $d>&-"; done
      for ((d = 3; d < 3 + $1; d++)); do eval "exec $d</dev/null"; done
      ulimit -n "$2" && shift 2 && exec "$@"
      """
    func load(limit: Int, given: Int = 0) throws -> LoadProcess {
      try LoadProcess(server.url, options, prefix: ["bash", "-c", script, "bash", "\(given)", "\(limit)"])
    }
    let refused = try load(limit: 64)
    #expect(try refused.exitCode() == 74)
    let message = try #require(refused.output.text.first)
    #expect(message.contains("the process may open 64") && message.contains("--part"), "\(message)")
    let number = message.split(separator: "`ulimit -n ").last?.prefix { $0.isNumber }
    let needed = try #require(number.flatMap { Int($0) }, "\(message)")
    #expect(message.contains("the test requires \(needed) descriptors"))
    #expect(try load(limit: needed - 1).exitCode() == 74)
    let given = try load(limit: needed, given: 20)
    #expect(try given.exitCode() == 74)
    #expect(
      given.output.text.first?.contains("the test requires \(needed + 20) descriptors") == true,
      "what it was given counts")
    let report = try load(limit: needed).report()
    #expect(report.totals.streams.peakLive == 100 && report.totals.streams.finished == 100)
    #expect(report.totals.errorCount == 0, "\(report.totals.errors)")
  }

  @Test(
    "a run without an acknowledgement exits with 69 if no server listens, with 77 if it is not permitted, else with 3",
    arguments: [(nil, 69), ("404 Not Found", 3), ("401 Unauthorized", 77)] as [(String?, Int32)])
  func nothing(_ status: String?, _ code: Int32) throws {
    let server = try ScriptedServer { connection, _ in
      while let status {
        _ = try connection.head()
        try connection.respond(status)
      }
    }
    let url = status == nil ? "http://127.0.0.1:\(try freePort())" : server.url
    let load = try sluice(["load", url, "-n", "2", "-d", "500ms", "--grace", "100ms"])
    #expect(try load.wait() == code, "\(load.errors)")
    #expect(load.errors.contains { $0.hasPrefix("nothing was acknowledged: ") }, "\(load.errors)")
  }

  @Test("a run that a cap ended, without an acknowledgement of its bytes, exits with 3")
  func capped() throws {
    let server = try ScriptedServer { connection, _ in _ = connection.readToEnd() }
    let load = try sluice(
      ["load", server.url, "-n", "1", "-d", "30s", "--grace", "100ms", "--resumable", "never", "--max-bytes", "1000"]
        + LoadProcess.tenASecond)
    #expect(try load.wait() == 3, "\(load.errors)")
    let reason = "ended early: the limit of 1000 bytes (--max-bytes) was reached"
    #expect(load.errors.contains(reason), "\(load.errors)")
    #expect(load.errors.contains("nothing was acknowledged"), "\(load.errors)")
  }

  @Test(
    "if no server listens, the run exits with 69, whatever its streams are, and so does its report with a threshold",
    arguments: [
      ["-n", "4", "--slow-fraction", "100%"], ["-n", "8", "--slow-fraction", "50%"],
      ["-n", "50", "--request-per-message", "--arrival-rate", "10/s"], ["-n", "2"],
    ])
  func unreached(_ options: [String]) throws {
    let directory = try TemporaryDirectory()
    let report = "\(directory.path)/report.json"
    let load = try sluice(
      ["load", "http://127.0.0.1:\(try freePort())", "-d", "500ms", "--grace", "100ms", "--json", report] + options
        + ["--fail-if", "lost > 1GB", "--fail-if", "stall.max > 5s"])
    #expect(try load.wait() == 69, "\(load.errors)")
    let judged = try sluice(["report", report, "--fail-if", "stall.max > 5s"])
    #expect(try judged.wait() == 69, "\(judged.errors)")
    #expect(try sluice(["report", report]).wait() == 0)
  }

  @Test("an arrival rate that only falls is accepted")
  func fallingRate() throws {
    let load = try sluice(
      ["load", "http://127.0.0.1:\(try freePort())", "--request-per-message", "--arrival-rate", "100/s"]
        + ["--stage", "300ms:0", "--grace", "100ms", "--fail-if", "lost > 1GB"])
    #expect(try load.wait() == 69, "\(load.errors)")
  }

  @Test(
    "a server with only HTTP/1.1 ends a run over HTTP/2 at once, with 76 and the reason, for streams and for messages",
    arguments: [[], ["--request-per-message"], ["--request-per-message", "--arrival-rate", "20/s"]] as [[String]])
  func http1Only(_ options: [String]) throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("400 Bad Request")
      _ = connection.readToEnd()
    }
    let load = try sluice(
      ["load", server.url, "--http2", "--streams-per-connection", "1", "--resumable", "never", "-d", "1min"] + options)
    #expect(try load.wait() == 76, "\(load.errors)")
    #expect(
      load.errors.contains { $0.hasPrefix("ended early: the server does not support HTTP/2: ") }, "\(load.errors)")
  }

  @Test("a report of some parts of a run fails its thresholds, and one that lost data exits with 4")
  func partialReport() throws {
    let directory = try TemporaryDirectory()
    let server = try StreamServer()
    let report = "\(directory.path)/report.json"
    let options = ["-n", "4", "-d", "500ms", "--part", "1/2", "--seed", "3", "--json", report] + LoadProcess.tenASecond
    #expect(try sluice(["load", server.url] + options).wait() == 0)
    let judged = try sluice(["report", report, "--fail-if", "errors > 0"])
    #expect(try judged.wait() == 3)
    #expect(judged.errors.contains { $0.contains("parts without a report: 2") }, "\(judged.errors)")
    #expect(try sluice(["report", report]).wait() == 0)
  }

  @Test("an untrusted certificate: 76, and the option for its authority; with it, the run succeeds")
  func notTrusted() throws {
    let server = try StreamServer()
    let nginx = try TLSFrontEnd(backend: "127.0.0.1:\(server.port)")
    let options = ["https://127.0.0.1:\(nginx.port)", "-n", "2", "-d", "500ms", "--resumable", "never"]
    let refused = try sluice(["load"] + options)
    #expect(try refused.wait() == 76, "\(refused.errors)")
    let reason = try #require(refused.errors.first { $0.hasPrefix("nothing was acknowledged: ") }, "\(refused.errors)")
    #expect(
      reason.contains("certificate is not trusted") && reason.contains("name its certificate authority"), "\(reason)")
    let trusted = try sluice(["load"] + options + ["--ca-file", nginx.authority])
    #expect(try trusted.wait() == 0, "\(trusted.errors)")
  }

  @Test("--json - prints only the report on standard output")
  func standardOutput() throws {
    let server = try StreamServer()
    let load = try sluice(["load", server.url, "-n", "2", "-d", "500ms", "--json", "-"] + LoadProcess.tenASecond)
    #expect(try load.wait() == 0, "\(load.errors)")
    let report = try LoadReport(json: Array(load.output.joined(separator: "\n").utf8), file: "standard output")
    #expect(report.totals.messages.acknowledged == 10)
  }

  // MARK: Signals

  @Test("Ctrl-C ends a run at once, with the report so far: 130")
  func interrupted() throws {
    let server = try StreamServer()
    let load = try LoadProcess(server.url, ["-n", "3", "-d", "10min"] + LoadProcess.tenASecond)
    try load.firstSecond()
    load.signal(SIGINT)
    let report = try load.report(code: 130)
    #expect(report.totals.messages.acknowledged > 0 && report.totals.streams.started == 3)
    #expect(report.totals.streams.failed == 0 && report.totals.bytes.lost == 0, "it was stopped: that is not a fault")
    #expect(report.measured < 600 * 1_000_000_000 && report.plan.duration == 600 * 1_000_000_000)
    #expect(load.output.text.contains("ended early: it was stopped"))
  }

  @Test("a second signal ends it at once, without a report: 130")
  func interruptedTwice() throws {
    let server = try StreamServer()
    let load = try LoadProcess(server.url, ["-n", "3", "-d", "10min"] + LoadProcess.tenASecond)
    try load.firstSecond()
    // Both signals are pending when the process continues, and SIGQUIT counts even if it arrives immediately.
    load.signal(SIGSTOP)
    load.signal(SIGINT)
    load.signal(SIGQUIT)
    load.signal(SIGCONT)
    #expect(try load.exitCode() == 130)
    #expect(!load.hasReport)
  }
}
