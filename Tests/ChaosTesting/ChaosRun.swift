// One chaos run: the real server, the real client, a continuous stream, and faults one after another.

internal import CommandTesting
internal import EventLoops
internal import Glibc
package import NetworkTesting
internal import PropertyTesting

/// Streams through a proxy that breaks connections, to a server that is killed, until the requested number of faults
/// has occurred. Then it ends the stream, and compares the stored bytes with the sent ones.
package final class ChaosRun {
  package struct Options: Sendable {
    package var seed: UInt64
    /// The number of faults, including those at the creation and at the completion of the upload.
    package var faults: Int
    package var kinds = ChaosFault.Kind.allCases
    /// The rate of the source; nil to derive it from the seed.
    package var bytesPerSecond: Int?

    package init(seed: UInt64, faults: Int) {
      self.seed = seed
      self.faults = faults
    }
  }

  /// How long to wait for a fault to strike, or for the client to recover: many times longer than either takes.
  private static let limit = Duration.seconds(30)
  /// In percent: how often another fault strikes during a recovery.
  private static let compoundShare = 15
  private static let clientEnded = "the client has ended"

  let options: Options
  let directory: TemporaryDirectory
  let pattern: StampedPattern
  let pace: ChaosPace
  private var random: SplitMix64
  private let address: String
  private(set) var servers: [ServeProcess] = []
  let proxy: ChaosProxy
  let client: StreamProcess
  private let input: PacedInput
  /// How many of the proxy's events were processed.
  private var cursor = 0
  private var struck = 0
  private(set) var peakMemory = 0

  /// Starts server, proxy and client.
  package init(_ options: Options) throws {
    self.options = options
    random = SplitMix64(state: options.seed)
    pace = ChaosPace.drawn(options.bytesPerSecond, using: &random)
    pattern = StampedPattern(seed: options.seed)
    directory = try TemporaryDirectory()
    guard mkdir("\(directory.path)/stored", 0o700) == 0 else { throw SystemError.last("mkdir stored") }
    let server = try Self.serve(directory, nil)
    servers = [server]
    address = server.address
    proxy = try ChaosProxy(to: address, listen: "\(ServeProcess.freshHost()):0")
    input = try PacedInput("\(directory.path)/input", pattern, bytesPerSecond: pace.bytesPerSecond)
    if let fault = Self.draw(options, .start, pace, &random) { try proxy.arm(fault) }
    try input.start()
    client = try StreamProcess("pipe", "\(proxy.url)/chaos.bin", more: pace.clientOptions, input: input.path)
  }

  private static func serve(_ directory: TemporaryDirectory, _ address: String?) throws -> ServeProcess {
    // SIGKILL does not destroy the page cache. This run does not test power failures.
    try ServeProcess("\(directory.path)/stored", address: address, more: ["--durability", "none"])
  }

  /// Runs to the end.
  ///
  /// - Throws: ``TestFailure`` after a broken promise. All logs are then kept, and the error names their directory.
  package func perform() throws -> ChaosReport {
    do {
      return try run()
    } catch {
      directory.keep()
      writeLogs()
      throw TestFailure(
        "seed \(options.seed), after \(struck) faults: \(error)\nlogs and what was stored: \(directory.path)")
    }
  }

  private func run() throws -> ChaosReport {
    let start = MonotonicInstant.now
    try client.event("connecting")
    input.isBeingRead()
    try watchClient()
    // The fault at the start is already armed, and the one at the completion comes last.
    if Self.hasKind(options, .start) { try strike(nil) }
    while struck < lastBeforeCompletion { try strike(Self.draw(options, .steady, pace, &random)) }
    let length = try finish()
    let duration = MonotonicInstant.now - start
    return try check(length, duration)
  }

  /// The client's end wakes any wait for the proxy.
  private func watchClient() throws {
    let (output, events) = (client.output, proxy.events)
    try NamedThread("chaos client") {
      try? output.waitUntilEnd(limit: .seconds(24 * 3600))
      events.append(.failed(Self.clientEnded))
    }.detach()
  }

  // MARK: Faults

  /// The number of faults before the stream is asked to end.
  private var lastBeforeCompletion: Int { options.faults - (Self.hasKind(options, .completion) ? 1 : 0) }

  private static func hasKind(_ options: Options, _ moment: ChaosFault.Moment) -> Bool {
    var random = SplitMix64(state: 0)
    let scale = ChaosFault.Scale(span: 1, patience: .milliseconds(1))
    return options.kinds.contains { ChaosFault.draw($0, at: moment, scale: scale, using: &random) != nil }
  }

  /// A fault of a kind that fits this moment; nil if no requested kind does.
  private static func draw(
    _ options: Options, _ moment: ChaosFault.Moment, _ pace: ChaosPace, _ random: inout SplitMix64
  ) -> ChaosFault? {
    guard hasKind(options, moment) else { return nil }
    while let kind = options.kinds.randomElement(using: &random) {
      if let fault = ChaosFault.draw(kind, at: moment, scale: pace.scale, using: &random) { return fault }
    }
    return nil
  }

  /// Arms this fault, or uses the armed one. Returns when the client has recovered from it, and possibly from another
  /// one that struck meanwhile.
  private func strike(_ fault: ChaosFault?) throws {
    if let fault { try proxy.arm(fault) }
    try waitUntilStruck()
    if struck < lastBeforeCompletion, random.chance(Self.compoundShare),
      let second = Self.draw(options, .recovery, pace, &random)
    {
      try proxy.arm(second)
      if try waitUntilStruckOrRecovered() { return try waitUntilRecovered() }
      // The client had recovered before it met this fault. It may meet it now, at the last moment.
      try proxy.disarm()
      if try hasStruck() { try waitUntilRecovered() }
      return
    }
    try waitUntilRecovered()
  }

  private func waitUntilStruck() throws {
    let fault = try next("a fault that was armed to strike") { event -> ChaosFault? in
      if case .applied(_, let fault, _, _) = event { fault } else { nil }
    }
    try haveStruck(fault)
  }

  private func waitUntilRecovered() throws {
    let number = struck
    try next("the recovery from fault \(number)") { event -> Bool? in
      if case .recovered(number, _, _, _) = event { true } else { nil }
    }
  }

  /// Returns true when the armed fault has struck, and false when the client has recovered from the previous one.
  private func waitUntilStruckOrRecovered() throws -> Bool {
    let number = struck
    let fault = try next("another fault, or the recovery from \(number)") { event -> ChaosFault?? in
      switch event {
      case .applied(_, let fault, _, _): .some(fault)
      case .recovered(number, _, _, _): .some(nil)
      default: nil
      }
    }
    guard let fault else { return false }
    try haveStruck(fault)
    return true
  }

  /// Whether another fault is among the events so far.
  private func hasStruck() throws -> Bool {
    for event in proxy.events.all.dropFirst(cursor) {
      if case .applied = event {
        try waitUntilStruck()
        return true
      }
    }
    return false
  }

  private func haveStruck(_ fault: ChaosFault) throws {
    struck += 1
    guard fault.kind == .serverKill, let server = servers.last else { return }
    server.kill()
    try proxy.awaitRecovery()
    // The duration of its absence is the fault itself.
    elapse(.milliseconds(Int.random(in: 0...200, using: &random)))
    servers.append(try Self.serve(directory, address))
  }

  /// The next unprocessed event for which `find` returns a value.
  @discardableResult
  private func next<Found>(_ what: String, _ find: (ChaosProxy.Event) -> Found?) throws -> Found {
    var failure: String?
    let (found, end) = try proxy.events.wait(what, within: Self.limit, from: cursor) { events -> (Found?, Int)? in
      for (index, event) in zip(events.indices, events) {
        if case .failed(let reason) = event {
          failure = reason
          return (nil, index)
        }
        if let found = find(event) { return (found, index + 1) }
      }
      return nil
    }
    cursor = end
    guard let found else {
      let last = client.events("ended").last?.text("error") ?? client.output.text.last ?? ""
      throw TestFailure("\(failure ?? "") while waiting for \(what): \(last)")
    }
    return found
  }

  // MARK: The end

  /// Ends the stream, with a fault at the completion of the upload. Returns its length.
  private func finish() throws -> UInt64 {
    let fault = struck < options.faults ? Self.draw(options, .completion, pace, &random) : nil
    if let fault { try proxy.arm(fault) }
    peakMemory = max(peakMemory, try memory())
    let length = input.finish()
    if fault != nil { try waitUntilStruck() }
    try proxy.events.wait("the client's end", within: Self.limit, from: cursor) { events in
      events.contains { if case .failed(Self.clientEnded) = $0 { true } else { false } } ? true : nil
    }
    return length
  }

  /// The client's VmHWM, in bytes; proc(5).
  private func memory() throws -> Int {
    let text = String(decoding: try fileContents("/proc/\(client.identifier)/status"), as: UTF8.self)
    for line in text.split(separator: "\n") where line.hasPrefix("VmHWM:") {
      if let kilobytes = line.split(whereSeparator: { $0 == " " || $0 == "\t" }).dropFirst().first.flatMap({ Int($0) })
      {
        return kilobytes << 10
      }
    }
    throw TestFailure("/proc does not report the client's memory")
  }

  private func writeLogs() {
    func write(_ name: String, _ lines: [String]) {
      _ = try? directory.write(name, lines.joined(separator: "\n") + "\n")
    }
    write("client.log", client.output.text + client.output.events.map(\.description))
    for (index, server) in servers.enumerated() {
      write("server-\(index).log", server.output.text + server.output.events.map(\.description))
    }
    write("proxy.log", proxy.events.all.map { "\($0)" })
  }
}
