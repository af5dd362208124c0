// Many cases at the same time: the plan, the failures, and the count of each combination.

import EventLoops
import Glibc
import LiveStreaming
import NetworkTesting
import UploadClient

/// A run of many seeded cases.
package struct AnswerChaos: Sendable {
  package struct Options: Sendable {
    package var seed: UInt64
    package var count: Int
    /// Only the case of this number.
    package var only: Int?
    package var copies = 20
    /// Streams at the same time.
    package var jobs = 128
    package var stopsAtFirst = false
    /// The interval at which cases also run with the real command; nil for none.
    package var commandEvery: Int?
    /// Whether to run only cases with the command.
    package var isCommandOnly = false
    /// The maximum number of simultaneous commands.
    package var commandJobs = 8
    /// The combinations to run.
    package var isWanted: @Sendable (AnswerCell) -> Bool = { _ in true }

    package init(seed: UInt64, count: Int) { (self.seed, self.count) = (seed, count) }
  }

  /// Every combination once.
  package static var roundSize: Int { CasePlan.round }

  private let options: Options
  private let say: @Sendable (String) -> Void

  package init(_ options: Options, _ say: @escaping @Sendable (String) -> Void = { _ in }) {
    (self.options, self.say) = (options, say)
  }

  /// Cases that share a session. Afterwards, none of their resources may remain.
  private static let batchSize = 2000

  package func run() throws -> AnswerChaosReport {
    signal(SIGPIPE, SIG_IGN)
    say("chaos-answers --seed \(options.seed) --count \(options.count)")
    let files = try CaseFiles()
    let identity = try CaseIdentity()
    var report = AnswerChaosReport(options: options)
    let start = MonotonicInstant.now
    try runCommands(identity, &report)
    var indices =
      options.only.map { Array(repeating: $0, count: options.copies) }
      ?? (0..<options.count).filter { options.isWanted(CasePlan.plan($0).cell) }
    if options.isCommandOnly { indices = [] }
    let total = indices.count
    while !indices.isEmpty, !(options.stopsAtFirst && !report.findings.isEmpty) {
      let batch = Array(indices.prefix(Self.batchSize))
      indices.removeFirst(batch.count)
      try run(batch, files, identity, &report)
      let seconds = Int((MonotonicInstant.now - start) / .seconds(1))
      say(
        "\(total - indices.count) of \(total) cases, \(report.failed) failed, \(seconds) s, \(openDescriptors()) descriptors"
      )
    }
    report.duration = .now - start
    report.isFull = options.only == nil && report.count == options.count && options.count >= 60 * Self.roundSize
    return report
  }

  private func run(
    _ batch: [Int], _ files: CaseFiles, _ identity: CaseIdentity, _ report: inout AnswerChaosReport
  ) throws {
    let session = try UploadSession(lanes: 8)
    let outcomes = try EventLog<CaseOutcome>()
    let free = try Slots(options.jobs)
    for (number, index) in batch.enumerated() {
      try free.take()
      let plan = AnswerCase(seed: options.seed, index: index)
      let file = plan.cell.source == .put ? try files.file(plan.size) : nil
      try CaseRun(plan, session, identity, file: file, lane: number % 8) { run, trace in
        outcomes.append(CaseOutcome(run, trace))
        free.give()
      }.begin()
    }
    try free.takeAll()
    for outcome in outcomes.all where report.add(outcome) { say(outcome.text) }
    session.close()
  }

  // MARK: The real command

  private func runCommands(_ identity: CaseIdentity, _ report: inout AnswerChaosReport) throws {
    guard let every = options.commandEvery else { return }
    let indices =
      options.only.map { [$0] }
      ?? stride(from: 0, to: options.count, by: every).filter { options.isWanted(CasePlan.plan($0).cell) }
    let waiting = Lock(indices[...])
    let ended = Lock<[(index: Int, code: Int32?, violation: AnswerViolation?)]>([])
    let threads = try (0..<options.commandJobs).map { _ in
      try NamedThread("test command") { [options] in
        while let index = waiting.withLock({ $0.popFirst() }) {
          guard let plan = Self.commandCase(options.seed, index) else { continue }
          do {
            let (code, violation) = try CommandRun(plan, seed: options.seed, identity).run()
            ended.withLock { $0.append((index, code, violation)) }
          } catch {
            let violation = AnswerViolation(kind: "the command cannot be run", detail: "\(error)")
            ended.withLock { $0.append((index, nil, violation)) }
          }
        }
      }
    }
    for thread in threads { thread.join() }
    for (index, code, violation) in ended.withLock({ $0 }) where report.add(command: index, code, violation) {
      say(violation?.description ?? "")
    }
    say("\(report.commands) cases with the real command, \(report.failed) failed")
  }

  /// The case with this number, or the next one that the command can run.
  private static func commandCase(_ seed: UInt64, _ index: Int) -> AnswerCase? {
    (index..<index + 20).lazy.map { AnswerCase(seed: seed, index: $0) }.first(where: CommandRun.canRun)
  }

  private func openDescriptors() -> Int {
    guard let directory = opendir("/proc/self/fd") else { return 0 }
    defer { closedir(directory) }
    var count = -3
    while readdir(directory) != nil { count += 1 }
    return count
  }
}

/// Counts how many cases may still begin.
private final class Slots: Sendable {
  private let count: Int
  private let free: EventLog<Bool>
  private let taken = Lock(0)

  init(_ count: Int) throws {
    self.count = count
    free = try EventLog()
  }

  func give() { free.append(true) }

  func take() throws {
    let number = taken.withLock { taken in
      taken += 1
      return taken
    }
    guard number > count else { return }
    try free.wait("the end of a case", within: .seconds(600)) { $0.count >= number - count ? true : nil }
  }

  func takeAll() throws {
    let number = taken.withLock { $0 }
    try free.wait("the end of all cases", within: .seconds(600)) { $0.count >= number ? true : nil }
  }
}

/// The files of all `put` cases, which never change.
final class CaseFiles {
  private let directory: TemporaryDirectory
  private var files: [Int: UploadFile] = [:]

  init() throws { directory = try TemporaryDirectory() }

  func path(_ size: Int) throws -> String {
    try directory.write("\(size)", OffsetNoise.bytes(from: 0, count: size))
    return "\(directory.path)/\(size)"
  }

  func file(_ size: Int) throws -> UploadFile {
    if let file = files[size] { return file }
    let file = try UploadFile(path: try path(size))
    files[size] = file
    return file
  }
}

/// The result of one case.
struct CaseOutcome: Sendable {
  var index: Int
  var cell: AnswerCell
  var violation: AnswerViolation?
  var wasReached: Bool
  var statuses: [Int]
  var end: String
  var text: String

  init(_ run: CaseRun, _ trace: CaseTrace) {
    let state = run.server.state.withLock { $0 }
    (index, cell) = (run.plan.index, run.plan.cell)
    violation = CaseJudgement(run.plan, trace, state).violation()
    wasReached = !state.given.isEmpty
    statuses = state.given.compactMap { given in
      if case .status(let status, _, _) = given.odd.change { status } else { nil }
    }
    end = trace.summary.map { $0.error?.kind.rawValue ?? "complete" } ?? "none"
    if let violation {
      let ranges = state.stored.ranges.map { "\($0)" }.joined(separator: " ")
      text =
        (["\(run.plan.description)"] + state.log.prefix(60).map { "  server: \($0)" }
        + trace.events.filter { if case .progress = $0 { false } else { true } }.suffix(60).map {
          "  client: \(String("\($0)".prefix(400)))"
        } + ["  stored: \(ranges)", "  VIOLATION: \(violation)"]).joined(separator: "\n")
    } else {
      text = ""
    }
  }
}
