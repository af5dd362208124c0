// Tests sluice report: which reports belong together, what it writes, and its exit codes.

import Glibc
import LoadReports
import NetworkTesting
import Testing

@testable import sluice

@Suite("sluice report")
struct ReportTests {
  /// A report of part `index` of `count`, with this many messages, each acknowledged after this delay.
  private func report(
    part index: Int = 1, of count: Int = 1, streams: Int = 10, at time: String = "2026-01-31T12:00:00.250Z",
    messages: UInt64 = 100, delay: Int64 = 5_000_000
  ) -> LoadReport {
    var report = LoadReport()
    report.sluiceVersion = "0.1.0"
    report.target = "http://127.0.0.1/x"
    report.startedAt = time
    report.measured = 60_000_000_000
    report.plan.streams = streams
    report.plan.profile = "heartbeat"
    var part = LoadPart()
    (part.index, part.count, part.host) = (index, count, "generator-\(index)")
    report.parts = [part]
    report.totals.messages.acknowledged = messages
    report.histograms[.acknowledged].record(delay, count: messages)
    return report
  }

  private func subject(_ reports: [LoadReport], _ mode: Report.Mode = .automatic) throws(CommandError) -> Report.Subject
  {
    try Report.subject(of: reports.enumerated().map { ("\($0.offset + 1).json", $0.element) }, mode: mode)
  }

  private func refusal(_ reports: [LoadReport], _ mode: Report.Mode = .automatic) -> CommandError? {
    do throws(CommandError) {
      _ = try subject(reports, mode)
      return nil
    } catch {
      return error
    }
  }

  // MARK: Which belong together

  @Test("one report is shown, parts of one run are merged, and two whole runs are compared, without an option")
  func automatic() throws {
    let whole = report()
    #expect(try subject([whole]) == .run(whole))
    let merged = try subject([report(part: 2, of: 2), report(part: 1, of: 2, messages: 50)])
    guard case .run(let run) = merged else { throw TestFailure("\(merged)") }
    #expect(run.totals.messages.acknowledged == 150 && run.missingParts.isEmpty)
    let later = report(at: "2026-02-01T12:00:00Z", delay: 9_000_000)
    #expect(try subject([whole, later]) == .comparison(before: whole, after: later), "the same plan, run twice")
    let other = report(streams: 20)
    #expect(try subject([whole, other]) == .comparison(before: whole, after: other))
    let parts = [report(part: 1, of: 2), report(part: 1, of: 3)]
    #expect(try subject(parts) == .comparison(before: parts[0], after: parts[1]))
    // The same part of two runs.
    var otherSeed = parts[0]
    otherSeed.plan.seed = 7
    #expect(try subject([parts[0], otherSeed]) == .comparison(before: parts[0], after: otherSeed))
  }

  @Test("an ambiguous input is refused, with both options")
  func ambiguous() throws {
    let twice = try #require(refusal([report(part: 1, of: 2), report(part: 1, of: 2)]))
    #expect(twice.code == .badData && twice.message.contains("both part 1") && twice.message.contains("--compare"))
    let later = try #require(
      refusal([report(part: 1, of: 2), report(part: 2, of: 2, at: "2026-01-31T12:01:02Z")]))
    #expect(later.message.contains("2.json began after 1.json had ended"))
    #expect(later.code == .badData && later.message.contains("--merge") && later.message.contains("--compare"))
    // Machines do not start in the same second.
    #expect(refusal([report(part: 1, of: 2), report(part: 2, of: 2, at: "2026-01-31T12:00:58Z")]) == nil)
    var otherSeed = report(part: 2, of: 2)
    otherSeed.plan.seed = 7
    let seeds = try #require(refusal([report(part: 1, of: 2), otherSeed]))
    #expect(seeds.code == .badData && seeds.message.contains("the seed is 0 in one and 7 in the other"))
    #expect(seeds.message.contains("the same --seed") && seeds.message.contains("--compare"), "\(seeds.message)")
    let three = try #require(refusal([report(), report(streams: 20), report(streams: 30)]))
    #expect(three.code == .badData && three.message.contains("1.json is a complete run"))
  }

  @Test("each request is performed, or the obstacle is reported")
  func explicit() throws {
    let parts = [report(part: 1, of: 2), report(part: 2, of: 2, at: "2026-01-31T13:00:00Z")]
    guard case .run(let run) = try subject(parts, .merge) else { throw TestFailure("not merged") }
    #expect(run.totals.messages.acknowledged == 200)
    #expect(try subject(parts, .compare) == .comparison(before: parts[0], after: parts[1]))
    var otherSeed = parts[1]
    otherSeed.plan.seed = 7
    let runs = [parts[0], otherSeed]
    #expect(try subject(runs, .compare) == .comparison(before: parts[0], after: otherSeed))
    let different = try #require(refusal([report(part: 1, of: 2), report(part: 2, of: 2, streams: 20)], .merge))
    #expect(different.code == .badData && different.message.contains("number of streams is 10"))
    #expect(refusal([report()], .compare)?.code == .usage)
  }

  // MARK: As a process

  private func write(_ report: LoadReport, _ name: String, in directory: TemporaryDirectory) throws -> String {
    try directory.write(name, report.json)
  }

  @Test("parts become a table, a page and a report that can be read again, and no other file remains")
  func files() throws {
    let directory = try TemporaryDirectory()
    let parts = try (1...2).map { try write(report(part: $0, of: 2), "\($0).json", in: directory) }
    let (page, json) = ("\(directory.path)/page.html", "\(directory.path)/whole.json")
    let process = try sluice(["report"] + parts + ["--html", page, "--json", json])
    #expect(try process.wait() == 0)
    #expect(process.output.contains { $0.contains("200 acknowledged") } && process.errors.isEmpty)
    #expect(directory.names.sorted() == ["1.json", "2.json", "page.html", "whole.json"])
    let whole = try LoadReport(json: directory.contents("whole.json"), file: "whole.json")
    #expect(try directory.contents("page.html") == Array(whole.html.utf8))
    #expect(whole.totals.messages.acknowledged == 200)
  }

  @Test("a single part is shown, and labelled as a part")
  func part() throws {
    let directory = try TemporaryDirectory()
    let process = try sluice(["report", try write(report(part: 2, of: 3), "2.json", in: directory)])
    #expect(try process.wait() == 0)
    #expect(process.output.contains { $0.contains("of 3 parts these are missing: 1, 3") })
  }

  @Test("thresholds: the result of each, for the later of two runs; 3 if one fails, otherwise 0")
  func thresholds() throws {
    let directory = try TemporaryDirectory()
    let slow = try write(report(delay: 612_000_000), "slow.json", in: directory)
    let quick = try write(report(at: "2026-02-01T12:00:00Z"), "quick.json", in: directory)
    let conditions = ["--fail-if", "ack.p99 > 500ms", "--fail-if", "errors > 0", "--fail-if", "ack.max>=0.6s"]
    let failed = try sluice(["report", slow] + conditions)
    #expect(try failed.wait() == 3)
    #expect(
      failed.errors == [
        "failed: ack.p99 is 612 ms, but must be at most 500 ms", "met: errors is 0, and must be 0",
        "failed: ack.max is 612 ms, but must be below 600 ms",
      ])
    #expect(try sluice(["report", slow, quick] + conditions).wait() == 0)
    #expect(try sluice(["report", quick, slow] + conditions).wait() == 3)
  }

  @Test(
    "each invalid input is refused with its code, in a line that names it, and no file is written",
    arguments: [
      (["/nonexistent.json"], 66, "\"/nonexistent.json\": No such file"),
      (["/"], 66, "\"/\": Is a directory"), (["no-json"], 65, "no-json:1: not JSON"),
      (["other-json"], 65, "is not a report"), (["older"], 65, "is a report of format 0"),
      (["good", "--fail-if", "ack.p98x > 1s"], 64, "\"ack.p98x\" is an unknown metric. The nearest is \"ack.p90\""),
      (["good", "--merge", "--compare"], 64, "Choose one"), (["good", "--compare"], 64, "two reports"),
      (["good", "good", "--compare", "--json", "out"], 64, "--json requires a single report"),
      (["good", "--html", "missing/page.html"], 74, "missing/page.html\": No such file"),
      (["good", "--html", "."], 74, ": it is a directory. Choose a file."),
      (["good", "--csv", "new/"], 74, ": it is a directory. Choose a file."), ([], 64, "FILE… is missing"),
      (["good", "--json", "out", "--html", "out"], 64, "are the same file. Choose another file"),
      (["good", "--csv", "out", "--html", "./out"], 64, "are the same file. Choose another file"),
    ] as [([String], Int32, String)])
  func refused(_ arguments: [String], _ code: Int32, _ says: String) throws {
    let directory = try TemporaryDirectory()
    _ = try write(report(), "good", in: directory)
    try directory.write("no-json", "hello")
    try directory.write("other-json", "{\"a\": 1}")
    try directory.write(
      "older", report().json.replacing("\"sluice_load_report\": 1", with: "\"sluice_load_report\": 0"))
    let names = directory.names
    let process = try sluice(
      ["report"]
        + arguments.map { $0.hasPrefix("-") || $0.hasPrefix("/") || $0.contains(" ") ? $0 : "\(directory.path)/\($0)" })
    #expect(try process.wait() == code)
    #expect(process.errors.first?.hasPrefix("sluice: ") == true && process.output.isEmpty)
    #expect(process.errors.joined(separator: "\n").contains(says), "\(process.errors)")
    #expect(directory.names.sorted() == names.sorted())
  }

  @Test("a run that sent bytes and got no acknowledgement fails with a threshold, even if no stream failed")
  func unacknowledged() throws {
    let directory = try TemporaryDirectory()
    for (sent, code) in [(0, 0), (500, 3)] as [(UInt64, Int32)] {
      var run = report(messages: 0)
      run.totals.connects = 1
      run.totals.bytes.offered = 500
      run.totals.bytes.sent = sent
      let process = try sluice(["report", try write(run, "\(sent).json", in: directory), "--fail-if", "errors > 0"])
      #expect(try process.wait() == code, "\(sent) bytes: \(process.errors)")
      #expect(process.errors.contains("nothing was acknowledged") == (code == 3))
    }
  }

  // MARK: Files

  @Test("an output that cannot be written affects neither the other outputs nor the thresholds; the exit code is 74")
  func unwritable() throws {
    let directory = try TemporaryDirectory()
    let slow = try write(report(delay: 612_000_000), "slow.json", in: directory)
    #expect(symlink("/dev/full", "\(directory.path)/full") == 0)
    let (page, threshold) = ("\(directory.path)/page.html", ["--fail-if", "ack.p99 > 500ms"])
    let process = try sluice(
      ["report", slow, "--json", "/dev/full", "--csv", "\(directory.path)/full", "--html", page] + threshold)
    #expect(try process.wait() == 74)
    #expect(directory.names.sorted() == ["full", "page.html", "slow.json"])
    #expect(process.output.contains { $0.contains("100 acknowledged") })
    // The first error is the last line, because it ends the command.
    let errors = process.errors
    try #require(errors.count == 3, "\(errors)")
    #expect(errors[0].hasPrefix("sluice: cannot write \"\(directory.path)/full\": "), "\(errors)")
    #expect(errors[1].hasPrefix("failed: ack.p99 is 612 ms"), "\(errors)")
    #expect(errors[2].hasPrefix("sluice: cannot write \"/dev/full\": "), "\(errors)")
    let comparison = try sluice(["report", slow, slow, "--html", "/dev/full"] + threshold)
    #expect(try comparison.wait() == 74)
    #expect(!comparison.output.isEmpty && comparison.errors.count == 2, "\(comparison.errors)")
    #expect(comparison.errors.first?.hasPrefix("failed: ack.p99 is 612 ms") == true)
  }

  @Test(
    "a regular file is replaced as a whole, with its permissions and through a link; devices and pipes receive the text"
  )
  func replaced() throws {
    let directory = try TemporaryDirectory()
    let path = try directory.write("page", "old", mode: 0o640)
    // A reader that has the file open continues to read the old contents.
    let reader = open(path, O_RDONLY)
    defer { close(reader) }
    let link = "\(directory.path)/link"
    #expect(symlink("page", link) == 0)
    try ReplacedFile.write("new", to: link)
    #expect(try directory.contents("page") == Array("new".utf8) && directory.names.sorted() == ["link", "page"])
    var status = stat()
    #expect(lstat(link, &status) == 0 && status.st_mode & S_IFMT == S_IFLNK)
    #expect(stat(path, &status) == 0 && status.st_mode & 0o777 == 0o640)
    var old = [UInt8](repeating: 0, count: 8)
    #expect(read(reader, &old, 8) == 3 && old.prefix(3) == Array("old".utf8)[...])
    try ReplacedFile.write("nowhere", to: "/dev/null")
    #expect(stat("/dev/null", &status) == 0 && status.st_mode & S_IFMT == S_IFCHR)
  }

  @Test("a full disk keeps the existing file, and leaves no other")
  func fullDisk() throws {
    let directory = try TemporaryDirectory()
    let good = try write(report(), "good.json", in: directory)
    try directory.write("page.html", "old")
    // The file may not grow beyond 512 bytes. To the writer this looks like a full disk.
    let process = try TestProcess(
      "bash",
      [
        "-c", "trap '' XFSZ; ulimit -f 1; exec \"$@\"", "bash", try sluicePath(), "report", good, "--html",
        "\(directory.path)/page.html",
      ])
    #expect(try process.wait() == 74)
    #expect(
      process.errors.contains {
        $0.contains("page.html\": File too large. Raise the limit of file sizes with ulimit -f, or use a file")
      }, "\(process.errors)")
    #expect(try directory.contents("page.html") == Array("old".utf8))
    #expect(directory.names.sorted() == ["good.json", "page.html"])
  }

  private static let mayMount = (try? TestProcess("unshare", ["--mount", "true"]).wait()) == 0

  @Test(
    "an output in a folder that cannot be written is refused before any work, and a mounted file is overwritten",
    .enabled(if: mayMount))
  func mounted() throws {
    let directory = try TemporaryDirectory()
    let good = try write(report(), "good.json", in: directory)
    try directory.write("page", "old")
    #expect(mkdir(directory.path + "/in", 0o755) == 0 && symlink("in/page", directory.path + "/link") == 0)
    close(open(directory.path + "/in/page", O_WRONLY | O_CREAT, 0o644))
    func run(_ script: String, _ path: String) throws -> TestProcess {
      try TestProcess(
        "unshare",
        [
          "--mount", "sh", "-c", "cd \"$0\" && \(script) && exec \"$@\"", directory.path, try sluicePath(), "report",
          good, "--html", path,
        ])
    }
    // The file can be written, but none can be made beside it.
    let readOnly = "mount --bind in in && mount -o remount,ro,bind in && mount --bind page in/page"
    for path in ["\(directory.path)/in/page", "\(directory.path)/link"] {
      let process = try run(readOnly, path)
      #expect(try process.wait() == 74)
      #expect(
        process.errors == ["sluice: cannot write --html \"\(path)\": Read-only file system. Choose another file."])
      #expect(process.output.isEmpty)
    }
    #expect(try directory.contents("page") == Array("old".utf8))
    // No file can be renamed to one on which another is mounted.
    let process = try run("mount --bind page page", "\(directory.path)/page")
    #expect(try process.wait() == 0, "\(process.errors)")
    #expect(try directory.contents("page").starts(with: "<!doctype html>".utf8))
    #expect(directory.names.sorted() == ["good.json", "in", "link", "page"])
  }
}
