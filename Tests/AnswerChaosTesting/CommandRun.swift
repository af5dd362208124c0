// One case with the real command: `sluice mic`, `pipe` or `put`, possibly a signal, its exit code, its summary, and
// each line on its terminal.

import CommandTesting
import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import TestRigs

/// A process and the server of its case. Used on one thread.
final class CommandRun {
  /// No command takes this long, unless it hangs.
  private static let limit = Duration.seconds(120)
  /// From SIGTERM to the end of the process: one second of `--finish-timeout`, plus the delays of a busy machine.
  private static let finishLimit = Duration.seconds(21)
  private static let patience = Duration.seconds(3)

  private let plan: AnswerCase
  private let server: CaseServer
  private let directory: TemporaryDirectory
  private let terminal: TestTerminal
  private let microphone = TestMicrophone()
  /// Whether it prints JSON on standard output, or a line that changes in place.
  private let showsJSON: Bool
  /// The number of odd answers before SIGTERM, which is sent after ``patience`` if they do not occur; nil for no
  /// signal.
  private let signalAfter: Int?
  private var signalledAt: MonotonicInstant?

  /// Whether the command supports the case. It has no HTTP/2 without TLS.
  static func canRun(_ plan: AnswerCase) -> Bool { !plan.usesHTTP2 || plan.cell.route.isSecure }

  init(_ plan: AnswerCase, seed: UInt64, _ identity: CaseIdentity) throws {
    var random = SplitMix64(state: seed ^ UInt64(plan.index) &* 0xD1B5_4A32_D192_ED03)
    _ = random.next()
    self.plan = plan
    directory = try TemporaryDirectory()
    server = try CaseServer(plan, identity, tokenFile: "\(directory.path)/token")
    showsJSON = random.chance(50)
    signalAfter = random.chance(60) ? random.size(upTo: 4) - 1 : nil
    terminal = try TestTerminal(columns: [60, 80, 120].randomElement(using: &random) ?? 80)
  }

  // MARK: The command

  private func arguments() throws -> [String] {
    let url = server.url + "/take"
    var words: [String]
    switch plan.cell.source {
    case .mic:
      words = ["mic", url, "--device", microphone.name(), "--container", "raw", "--buffer", "64KiB"]
      if signalAfter == nil { words += ["--duration", "1s"] }
    case .pipe: words = ["pipe", url, "--buffer", "\(plan.bufferSize)B"]
    case .put: words = ["put", try directory.write("file", OffsetNoise.bytes(from: 0, count: plan.size)), url]
    }
    if plan.cell.source != .put { words += ["--finish-timeout", "1s"] }
    words += ["--progress", showsJSON ? "json" : "bar", "--method", plan.method]
    words += ["--bearer-token-file", "\(directory.path)/token", "--retry-ceiling", "60ms"]
    words += ["--response-timeout", "\(Int(plan.responseLimit / .milliseconds(1)))ms", "--roll-over-after", "40ms"]
    words += ["--roll-over-bytes", plan.size > 1 << 20 ? "2MiB" : "4KiB"]
    if plan.cell.wire == .plain, !plan.asks { words += ["--resumable", "never"] }
    if !plan.usesHTTP2 { words.append("--http1") }
    if let proxy = server.proxy { words += ["--proxy", proxy] }
    if plan.cell.route.isSecure { words += ["--ca-file", server.identity.authority] }
    // As in the same process. An announced upload that does not exist is only left after twelve failed connections.
    words += ["--connect-timeout", "5s"]
    if plan.isPermanent { words += ["--give-up", "300ms"] }
    if let limit = plan.refusalLimit { words += ["--give-up-on-refusal", "\(Int(limit / .milliseconds(1)))ms"] }
    return words
  }

  /// Runs it to its end. Returns its exit code, and the violation with the transcript.
  func run() throws -> (code: Int32?, violation: AnswerViolation?) {
    defer { server.close() }
    let words = try arguments()
    let output = try directory.write("output", "")
    let (reading, writing) = try fifo("input")
    let pid = try start(words, input: reading, output: output)
    close(reading)
    terminal.startReading()
    let feeder = try NamedThread("test input") { [plan, server] in Self.feed(writing, plan, server) }
    let code = wait(for: pid)
    server.close()
    feeder.join()
    terminal.waitUntilRead()
    let text = terminal.text
    let found =
      code.map { judge($0, try? FlatOutput(directory.contents("output")), text) }
      ?? (signalledAt == nil ? "the command does not end" : "the command does not end after SIGTERM")
    guard let found else { return (code, nil) }
    let log = server.state.withLock { $0.log.prefix(40).joined(separator: "\n  server: ") }
    let events = String(decoding: (try? directory.contents("output")) ?? [], as: UTF8.self)
    let violation = AnswerViolation(
      kind: "the command: " + String(found.prefix { !$0.isNumber && $0 != ":" }),
      detail: "\(found)\n  \(plan.description)\n  sluice \(words.joined(separator: " "))\n"
        + "  SIGTERM \(signalledAt == nil ? "never" : "after \(signalAfter ?? 0) odd answers"), exit code \(code ?? -1)\n"
        + "  server: \(log)\n\(events.suffix(3000))\n\(text.suffix(2000).debugDescription)")
    return (code, violation)
  }

  /// Both ends of a pipe that no other process inherits.
  private func fifo(_ name: String) throws -> (reading: Int32, writing: Int32) {
    let path = "\(directory.path)/\(name)"
    guard mkfifo(path, 0o600) == 0 else { throw TestFailure("mkfifo: \(String(cString: strerror(errno)))") }
    // Without waiting for the other end.
    let reading = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC)
    let writing = open(path, O_WRONLY | O_CLOEXEC)
    guard reading >= 0, writing >= 0 else { throw TestFailure("open: \(String(cString: strerror(errno)))") }
    _ = fcntl(reading, F_SETFL, fcntl(reading, F_GETFL) & ~O_NONBLOCK)
    return (reading, writing)
  }

  private func start(_ words: [String], input: Int32, output: String) throws -> pid_t {
    _ = AlsaConfiguration.path
    let program = "\(AlsaConfiguration.productDirectory)/sluice"
    var actions = posix_spawn_file_actions_t()
    posix_spawn_file_actions_init(&actions)
    defer { posix_spawn_file_actions_destroy(&actions) }
    posix_spawn_file_actions_adddup2(&actions, input, 0)
    posix_spawn_file_actions_addopen(&actions, 1, output, O_WRONLY, 0)
    posix_spawn_file_actions_adddup2(&actions, terminal.inner, 2)
    var vector: [UnsafeMutablePointer<CChar>?] = ([program] + words).map { strdup($0) } + [nil]
    defer { for text in vector { free(text) } }
    var pid = pid_t()
    let code = posix_spawn(&pid, program, &actions, nil, &vector, environ)
    guard code == 0 else { throw TestFailure("\(program): \(String(cString: strerror(code)))") }
    return pid
  }

  /// Feeds the bytes into a pipe, the last ones when the odd answers are over.
  private static func feed(_ descriptor: Int32, _ plan: AnswerCase, _ server: CaseServer) {
    defer { close(descriptor) }
    guard plan.cell.source == .pipe else { return }
    func give(from: Int, count: Int) -> Bool {
      var rest = OffsetNoise.bytes(from: UInt64(from), count: count)[...]
      while !rest.isEmpty {
        let written = rest.withUnsafeBytes { write(descriptor, $0.baseAddress, $0.count) }
        guard written > 0 else { return false }
        rest = rest.dropFirst(written)
      }
      return true
    }
    guard give(from: 0, count: plan.size) else { return }
    for _ in 0..<300 where !server.isSpent && !server.state.withLock({ $0.isOver }) { poll(nil, 0, 10) }
    _ = give(from: plan.size, count: 500)
  }

  /// The exit code, or 128 and the signal that ended it; nil if it hangs.
  private func wait(for pid: pid_t) -> Int32? {
    let start = MonotonicInstant.now
    var deadline = start + Self.limit
    var status: Int32 = 0
    while waitpid(pid, &status, WNOHANG) == 0 {
      // The signal handler is installed before the first request.
      if let signalAfter, signalledAt == nil, server.state.withLock({ $0.requests > 0 }),
        server.oddCount >= signalAfter || MonotonicInstant.now > start + Self.patience
      {
        signalledAt = .now
        deadline = .now + Self.finishLimit
        kill(pid, SIGTERM)
      }
      if MonotonicInstant.now > deadline {
        kill(pid, SIGKILL)
        waitpid(pid, &status, 0)
        return nil
      }
      poll(nil, 0, 5)
    }
    return status & 0x7F == 0 ? status >> 8 & 0xFF : 128 + status & 0x7F
  }

  // MARK: The judgement

  private func judge(_ code: Int32, _ output: FlatOutput?, _ text: String) -> String? {
    let allowed: Set<Int32> = [0, 4, 69, 76, 77]
    let isStopped = code == 130 && signalledAt != nil && plan.cell.source == .put
    guard allowed.contains(code) || isStopped else { return "an exit code that no answer leads to: \(code)" }
    if plan.cell.source != .mic, let difference = server.state.withLock({ $0.stored.locatedByBytes().difference }) {
      return "wrong bytes at the server: \(difference)"
    }
    if CaseServer.secrets.contains(where: { text.contains($0) || output?.text.contains($0) == true }) {
      return "a secret in the output"
    }
    if let line = TerminalLines(text).tooWide(terminal.columns) {
      return "a status line does not fit into the terminal: \(terminal.columns) columns, \(line.debugDescription)"
    }
    if let line = TerminalLines(text).unprintable {
      return "a control character on the terminal: \(line.debugDescription)"
    }
    return showsJSON ? output?.fault(code) ?? (output == nil ? "no output" : nil) : nil
  }
}

/// The JSON Lines of a command.
struct FlatOutput {
  let text: String
  private let events: [FlatObject]

  init(_ bytes: [UInt8]) {
    text = String(decoding: bytes, as: UTF8.self)
    events = text.split(separator: "\n").compactMap { FlatObject($0) }
  }

  /// The contradiction in the summary, by itself or with this exit code.
  func fault(_ code: Int32) -> String? {
    guard events.count == text.split(separator: "\n").count else { return "a line that is not JSON" }
    guard let last = events.last, last.event == "ended" else { return "no summary" }
    func count(_ key: String) -> Int { last.integer(key) ?? 0 }
    if count("captured") != count("acknowledged") + count("lost") + count("unsent") {
      return "the summary contradicts itself: \(last)"
    }
    let losses = ["lost", "source_lost_frames", "missing_at_server", "unconfirmed"]
    let hasLoss = losses.contains { count($0) > 0 }
    let hasError = last.text("error") != nil
    if !hasError, code != (hasLoss ? 4 : 0) { return "the exit code contradicts the summary: \(code), \(last)" }
    if hasError, code == 0 || code == 4 && !hasLoss && count("unsent") == 0 {
      return "the exit code contradicts the summary: \(code), \(last)"
    }
    return nil
  }
}
