// Many sequences on one server, with one event for all.

internal import EventLoops
internal import Glibc
internal import NetworkTesting
internal import PropertyTesting

/// Sequences with one setting and one event (or none), each with its own streams and tokens.
struct ChaosBatch {
  private static let workers = 8

  let sequences: [ChaosSequence]
  let program: String

  private var setting: ServerSetting { sequences[0].setting }
  private var event: Operation? { sequences[0].event }

  /// Runs all sequences, and returns the runs in order.
  func run() throws -> [SequenceRun] {
    let scratch = try ScratchDirectory()
    defer { scratch.remove() }
    var random = SplitMix64(state: sequences[0].seed &+ UInt64(sequences[0].index) &* 31)
    var options = ServerOptions(
      setting, directory: scratch.path + "/streams", tokenFile: scratch.path + "/tokens", seed: random.next())
    options.quota = 1 << 20
    options.parkMicroseconds = [500, 20_000, 60_000_000].randomElement(using: &random) ?? 0
    if event == .expire { (options.maximumAge, options.finishAfter) = (1, 1) }
    if event == .powerCut, setting.storage == .directory {
      (options.journal, options.bootID) = (scratch.path + "/journal", scratch.path + "/boot")
      try scratch.write("boot", Array("\(PowerCut.bootBefore)\n".utf8))
    }
    mkdir(options.directory, 0o700)
    options.hasAttributes = try PowerCut.hasAttributes(options.directory)
    let runs = sequences.map { sequence in
      SequenceRun(
        sequence, options, tokens: ["a", "b"].map { "\($0)-\(sequence.seed)-\(sequence.index)-\(sequence.copy)" })
    }
    try scratch.write("tokens", Array(runs.flatMap(\.owners).map { $0 + "\n" }.joined().utf8))
    let log = setting.storage.isLog ? try ChaosLog(setting) : nil
    if let log { (options.broker, options.monitor) = (log.url, log.monitor) }
    try perform(runs, &options, scratch, log, &random)
    return runs
  }

  private func perform(
    _ runs: [SequenceRun], _ options: inout ServerOptions, _ scratch: ScratchDirectory, _ log: ChaosLog?,
    _ random: inout SplitMix64
  ) throws {
    var servers: [ServerProcess] = []
    for _ in 0..<setting.storage.serverCount { servers.append(try ServerProcess(program, options)) }
    for run in runs { run.ports = servers.map(\.port) }
    try each(runs) { $0.before() }
    if let event {
      if event == .expire {
        try expire(runs)
      } else {
        try strike(event, &servers, runs, &options, scratch, log, &random)
      }
      let ports = servers.map(\.port)
      try each(runs) { $0.continued(on: ports) }
    }
    try each(runs) { $0.end() }
    for server in servers { try stop(server, SIGTERM, SIGTERM, runs) }
    switch setting.storage {
    case .directory:
      let files = try StoredFiles(options.directory)
      for run in runs { run.check(files) }
    case .discarding: break
    case .log, .twoServers: if let log { try check(runs, in: StoredLog(log)) }
    }
  }

  private func check(_ runs: [SequenceRun], in log: StoredLog) throws {
    let known = Set(runs.flatMap { $0.streams.map(\.id) })
    let unknown = log.damaged + log.streamIDs.subtracting(known).map { "stream \($0)" }
    for run in runs {
      run.check(log)
      // The batch is at fault, and not one of its sequences.
      if let first = unknown.first {
        run.failed(Violation(kind: "the log has messages that no request has caused", detail: first))
      }
    }
  }

  /// Runs a part of each sequence, several at the same time.
  private func each(_ runs: [SequenceRun], _ body: @escaping @Sendable (SequenceRun) -> Void) throws {
    // Only one thread at a time uses each run.
    nonisolated(unsafe) let runs = runs
    let count = min(Self.workers, runs.count)
    let threads = try (0..<count).map { first in
      try NamedThread("chaos-\(first)") {
        for index in stride(from: first, to: runs.count, by: count) { body(runs[index]) }
      }
    }
    for thread in threads { thread.join() }
  }

  // MARK: Events

  /// Leaves all uploads idle for their whole lifetime. Some receive a request at the moment when it ends.
  private func expire(_ runs: [SequenceRun]) throws {
    let inOrder = runs.sorted { ($0.deadline ?? .now) < ($1.deadline ?? .now) }
    try each(inOrder) { run in
      if let deadline = run.deadline { Self.sleep(until: deadline) }
      run.launch()
      run.collect()
    }
    // The duration is the purpose: no request is sent until all lifetimes are over.
    Self.sleep(until: .now + .milliseconds(1200))
  }

  private static func sleep(until time: MonotonicInstant) {
    var time = timespec(tv_sec: Int(time.nanoseconds / 1_000_000_000), tv_nsec: Int(time.nanoseconds % 1_000_000_000))
    while clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nil) == EINTR {}
  }

  /// Ends servers while requests arrive, and starts the next ones.
  ///
  /// Of two servers, often only one ends, and the other one serves all uploads. If the power is cut, both end, and the
  /// broker too.
  private func strike(
    _ event: Operation, _ servers: inout [ServerProcess], _ runs: [SequenceRun], _ options: inout ServerOptions,
    _ scratch: ScratchDirectory, _ log: ChaosLog?, _ random: inout SplitMix64
  ) throws {
    let delay = Duration.microseconds(Int.random(in: 0...4000, using: &random))
    let (strikesAll, isBrokerFirst) = (random.chance(50), random.chance(50))
    let one = Int.random(in: servers.indices, using: &random)
    let struck = event == .powerCut || strikesAll ? Array(servers.indices) : [one]
    let ending = struck.map { servers[$0] }
    let striker = try NamedThread("chaos-event") {
      Self.sleep(until: .now + delay)
      if event == .powerCut, isBrokerFirst { _ = try? log?.kill() }
      for server in ending {
        switch event {
        case .restart:
          server.signal(SIGTERM)
          server.signal(SIGTERM)
        case .terminate: server.signal(SIGTERM)
        default: server.signal(SIGKILL)
        }
      }
      if event == .powerCut, !isBrokerFirst { _ = try? log?.kill() }
    }
    try each(runs) { $0.launch() }
    striker.join()
    // This reports an error of the first attempt.
    if event == .powerCut { try log?.kill() }
    try each(runs) { $0.collect() }
    for server in ending { end(server, after: event, runs) }
    if event == .restart { options.setting.threads = 3 - options.setting.threads }
    if event == .powerCut { try log?.start() }
    if event == .powerCut, setting.storage == .directory {
      let cut = try PowerCut(journal: options.journal, root: options.directory)
      options.directory = scratch.path + "/after"
      // With `none`, the server promises nothing about the last bytes.
      try cut.write(to: options.directory, zeros: setting.durability != "none", &random)
      try scratch.write("boot", Array("00000000-0000-4000-8000-000000000002\n".utf8))
      options.journal = scratch.path + "/journal-after"
    }
    for index in struck { servers[index] = try ServerProcess(program, options) }
  }

  /// Waits for the end of a server.
  private func end(_ server: ServerProcess, after event: Operation, _ runs: [SequenceRun]) {
    let status = server.end()
    guard status != (event == .restart || event == .terminate ? 0 : 137) else { return }
    for run in runs {
      run.failed(
        Violation(
          kind: "the server does not end as it should",
          detail: "\(event.rawValue): \(status.map { "\($0)" } ?? "not at all"): \(server.output.text)"))
    }
    guard status == nil else { return }
    server.signal(SIGKILL)
    _ = server.end()
  }

  private func stop(_ server: ServerProcess, _ first: Int32, _ second: Int32, _ runs: [SequenceRun]) throws {
    server.signal(first)
    server.signal(second)
    let status = server.end()
    guard status != 0 else { return }
    for run in runs {
      run.failed(
        Violation(
          kind: "the server does not end as it should",
          detail: "at the end: \(status.map { "\($0)" } ?? "not at all"): \(server.output.text)"))
    }
  }
}

/// A directory in memory if possible. The forgetful disk simulates a disk's delays.
final class ScratchDirectory {
  let path: String

  init() throws {
    let parent = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp"
    var template = Array("\(parent)/sluice-chaos.XXXXXX".utf8CString)
    // The array has a base address, because it is not empty.
    guard let made = template.withUnsafeMutableBufferPointer({ mkdtemp($0.baseAddress!).map { String(cString: $0) } })
    else { throw TestFailure("mkdtemp: \(String(cString: strerror(errno)))") }
    path = made
  }

  func write(_ name: String, _ bytes: [UInt8]) throws {
    let file = open("\(path)/\(name)", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0o600)
    guard file >= 0, Glibc.write(file, bytes, bytes.count) == bytes.count else { throw TestFailure("writing \(name)") }
    close(file)
  }

  func remove() { Self.remove(path) }

  private static func remove(_ path: String) {
    guard let directory = opendir(path) else { return }
    while let entry = readdir(directory) {
      let name = withUnsafeBytes(of: &entry.pointee.d_name) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) }
      if name == "." || name == ".." { continue }
      let child = "\(path)/\(name)"
      if entry.pointee.d_type == UInt8(DT_DIR) { remove(child) } else { unlink(child) }
    }
    closedir(directory)
    rmdir(path)
  }
}
