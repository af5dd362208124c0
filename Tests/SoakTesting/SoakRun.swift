// A simulated week of `sluice mic`: the real command, the real server, the test microphone, and continuous faults.

internal import CommandTesting
internal import Glibc
internal import NetworkTesting
internal import TestDeviceControl
internal import TestRigs

/// Streams a microphone with accelerated time, samples both processes every simulated hour, and compares the stored
/// data with the recorded frames.
package final class SoakRun {
  package struct Options: Sendable {
    package var seed: UInt64
    package var hours = 168
    /// Simulated seconds per real second.
    package var factor = 1000
    /// nil for one fault per hour.
    package var chosenPace: SoakPace?
    package var planted: Set<PlantedDefect> = []
    /// The value of the client's `--split`. Nil for one recording.
    package var split: String?

    package init(seed: UInt64) { self.seed = seed }

    var pace: SoakPace { chosenPace ?? .hourly(hours) }

    /// A run for tests: `cycles` faults within minutes.
    package static func compressed(seed: UInt64, cycles: Int) -> Options {
      var options = Options(seed: seed)
      options.chosenPace = .compressed(cycles: cycles)
      options.factor = 150
      options.hours = 0
      options.cycles = cycles
      return options
    }

    /// The number of faults.
    package var cycles: Int?
  }

  /// 8 kHz, mono, S16_LE.
  static let bytesPerSecond = 16_000.0

  let options: Options
  // In memory, because a disk's sync is not accelerated with the clock.
  private let directory = ScratchDirectory(in: "/dev/shm")
  private let clientTime: SimulatedTime
  private let serverTime: SimulatedTime
  let microphone = TestMicrophone()
  private let address: String
  private let servers: Servers
  /// Precedes the commands of both programs.
  private let surroundings: [String]
  private let relay: SwitchedRelay
  let client: SoakClient
  private var deck: FaultDeck
  private(set) var timeline: StoredTimeline
  private(set) var counts: [SoakFault: Int] = [:]
  private(set) var steps: [Int] = []
  private var hasHole = false
  /// In simulated hours.
  private var serverBirth = 0.0
  private(set) var clientSamples: [ProcessSample] = []
  private(set) var serverSamples: [ProcessSample] = []
  /// Called with a line for each simulated day.
  private let tell: (String) -> Void

  package init(_ options: Options, tell: @escaping (String) -> Void) throws {
    self.options = options
    self.tell = tell
    deck = FaultDeck(seed: options.seed)
    let stored = directory.file("stored")
    guard mkdir(stored, 0o700) == 0 else { throw TestFailure("mkdir \(stored)") }
    let servers = Servers(stored)
    self.servers = servers
    timeline = StoredTimeline(stored) { servers.beginning(ofRecording: $0) }
    clientTime = try SimulatedTime(directory.file("client-clock"), factor: options.factor)
    serverTime = try SimulatedTime(directory.file("server-clock"), factor: options.factor)
    let leaks = options.planted.filter(\.isLeak).map(\.rawValue).joined(separator: ",")
    surroundings = leaks.isEmpty ? [] : ["env", "PLANTED_LEAKS=\(leaks)"]
    let server = try Self.serve(stored, "\(ServeProcess.freshHost()):0", surroundings + serverTime.prefix)
    servers.all = [server.process]
    address = server.address
    relay = try SwitchedRelay(to: address)
    let split: [String] = options.split.map { ["--split", $0] } ?? []
    client = try SoakClient(
      surroundings + clientTime.prefix + ["\(AlsaConfiguration.productDirectory)/sluice"]
        + [
          "mic", "http://\(relay.address)/soak.wav", "--device", microphone.name(), "--rate", "8000", "--period", "1s",
          "--device-buffer", "60s", "--progress", "json", "--buffer", "\(Int(options.pace.buffer))s",
          // A refusal that lasts longer because the machine is busy must not fail the run.
          "--give-up-on-refusal", options.chosenPace == nil ? "10m" : "24h",
          // Neither must a slow end.
          "--finish-timeout", "24h",
          // The server would compare its digest with a file whose beginning this run has removed.
          "--digest", "none",
        ] + split,
      fifo: directory.file("output"), forgetsLosses: options.planted.contains(.report))
  }

  deinit { timeline.close() }

  private static func serve(
    _ directory: String, _ address: String, _ prefix: [String]
  ) throws -> (process: SluiceProcess, address: String) {
    let process = try SluiceProcess(
      ["serve", "--listen", address, "--directory", directory], prefix: prefix)
    let address = try process.output.wait(for: "\"listening on\"") { _, text in
      text.first { $0.hasPrefix("listening on ") }.map { String($0.dropFirst("listening on ".count)) }
    }
    return (process, address)
  }

  /// Runs to the end. Returns the results, successful or not.
  ///
  /// - Throws: ``TestFailure`` if the run could not continue.
  package func perform() throws -> SoakReport {
    do {
      try awaitFlow()
      let cycles = options.cycles ?? options.hours
      var done = 0
      while options.cycles == nil ? clientTime.elapsed < Double(cycles) * 3600 : done < cycles {
        try cycle()
        done += 1
      }
      return try finish()
    } catch {
      let server = servers.last.output
      throw TestFailure(
        "seed \(options.seed), simulated hour \(clientTime.elapsed / 3600): \(error)\nthe client:\n"
          + client.events.suffix(50).map(\.description).joined(separator: "\n") + "\nthe server:\n"
          + (server.events.suffix(10).map(\.description) + server.text.suffix(10)).joined(separator: "\n"))
    }
  }

  private func cycle() throws {
    let (start, pace) = (clientTime.elapsed, options.pace)
    if Int(start / pace.day) >= steps.count {
      let step = deck.clockStep()
      steps.append(step)
      // The clocks of both machines, and not to the same time.
      clientTime.step(by: step)
      serverTime.step(by: -step / 2)
      tell("hour \(Int(start / 3600)): \(client.progress?.description ?? "")")
    }
    clientTime.pass(deck.seconds(pace.prelude))
    let (fault, seconds) = deck.draw()
    try strike(fault, seconds * pace.scale)
    counts[fault, default: 0] += 1
    try awaitFlow()
    clientTime.pass(pace.calm)
    clientTime.pass(until: (start / pace.cycle).rounded(.down) * pace.cycle + pace.cycle)
    try awaitFlow()
    try sample()
    if options.planted.contains(.hole) { try makeHole() }
    try timeline.advance()
  }

  /// Silences a range that was stored but not compared yet.
  private func makeHole() throws {
    guard !hasHole, let (path, compared) = timeline.newest else { return }
    let descriptor = open(path, O_WRONLY | O_CLOEXEC)
    defer { close(descriptor) }
    let zeros = [UInt8](repeating: 0, count: 4096)
    guard descriptor >= 0, pwrite(descriptor, zeros, zeros.count, off_t(compared + 65_536)) == zeros.count else {
      throw TestFailure("cannot make a hole in \(path): \(String(cString: strerror(errno)))")
    }
    hasHole = true
  }

  /// Waits until the client is connected and captured bytes arrive.
  private func awaitFlow() throws {
    let captured = client.progress?.integer("captured") ?? 0
    let options = options
    try client.wait("a stream that flows") { client in
      guard let progress = client.progress, progress.values["connected"] == .literal("true"),
        let now = progress.integer("captured"), let unsent = progress.integer("unsent"),
        now > captured + Int(30 * options.pace.scale.squareRoot() * Self.bytesPerSecond),
        unsent < Int(options.pace.buffer / 5 * Self.bytesPerSecond)
      else { return nil as Void? }
      return ()
    }
  }

  private func sample() throws {
    let hour = clientTime.elapsed / 3600
    func take(_ process: Int32, _ birth: Double) throws -> ProcessSample {
      try .take(process, hour: hour, birth: birth, looks: 8) { clientTime.pass(3) }
    }
    clientSamples.append(try take(client.identifier, 0))
    serverSamples.append(try take(servers.last.identifier, serverBirth))
  }

  /// How many recordings ended because the stream was split, as far as the servers have reported it.
  var splitCount: Int { servers.splitCount }

  // MARK: Faults

  private func strike(_ fault: SoakFault, _ seconds: Double) throws {
    let page = microphone.page
    switch fault {
    case .networkCut, .networkSilent, .bufferFull, .refused, .busy:
      // These have one.
      try relay.set(fault.relayMode!)
      clientTime.pass(seconds)
      try relay.set(.passes)
    case .serverKilled:
      servers.last.kill()
      clientTime.pass(seconds)
      servers.all.append(
        try Self.serve(directory.file("stored"), address, surroundings + serverTime.prefix).process)
      serverBirth = clientTime.elapsed / 3600
    case .unplugged:
      let (losses, returns) = (client.count("device-lost"), client.count("device-returned"))
      testmic_set_absent(page, true)
      try client.wait("the device's loss") { $0.count("device-lost") > losses ? () : nil }
      clientTime.pass(seconds)
      testmic_set_absent(page, false)
      try client.wait("the device's return") { $0.count("device-returned") > returns ? () : nil }
    case .overrun:
      testmic_order_overrun(page, UInt64(seconds * 1000))
      microphone.wait { testmic_orders_pending($0) == 0 }
    case .stopped:
      try stop()
      clientTime.pass(seconds)
      client.signal(SIGCONT)
    case .asleep:
      try stop()
      let start = clientTime.elapsed
      // Shorter in a short run.
      clientTime.pass(min(seconds, options.cycles.map { _ in options.pace.cycle * 0.6 } ?? Double(options.hours) * 300))
      clientTime.sleep(clientTime.elapsed - start)
      client.signal(SIGCONT)
    }
  }

  /// Stops the client, and waits until it is stopped.
  private func stop() throws {
    client.signal(SIGSTOP)
    for _ in 0..<20_000 {
      let status = String(decoding: try fileContents("/proc/\(client.identifier)/stat"), as: UTF8.self)
      // The state follows the program's name in parentheses.
      if status.split(separator: ")").last?.hasPrefix(" T") == true { return }
      poll(nil, 0, 1)
    }
    throw TestFailure("the client does not stop")
  }

  // MARK: The end

  private func finish() throws -> SoakReport {
    // A client that ends waits only for a moment until its last lines are written, and a busy machine needs more.
    try stop()
    clientTime.slowDown()
    client.signal(SIGINT)
    client.signal(SIGCONT)
    let summary = try client.wait("the end") { $0.events.last { $0.event == "ended" } }
    let code = client.waitUntilExit()
    // The recording gets its final name.
    let last = servers.last
    try last.event("ended")
    try timeline.advance(isLast: true)
    return try SoakReport(self, summary, code: code)
  }
}

/// The servers of a run, one after another.
private final class Servers {
  var all: [SluiceProcess] = []
  /// Where they store.
  private let directory: String

  init(_ directory: String) { self.directory = directory }

  /// There is always one.
  var last: SluiceProcess { all[all.count - 1] }

  /// How many recordings ended because the stream was split. A server may report a split again after a restart.
  var splitCount: Int { Set(all.flatMap { $0.events("split") }.compactMap { $0.text("file") }).count }

  /// The stream offset at which a part begins, as far as that is known.
  ///
  /// The event `continued` does not show this: the request may have begun in an earlier part, or in the middle of this
  /// one.
  func beginning(ofRecording name: String) -> Int? {
    guard let mark = name.lastIndex(of: "~"), let number = Int(name[name.index(after: mark)...]) else { return nil }
    func has(_ event: FlatObject, _ prefix: String) -> Bool { event.text("file")?.hasPrefix(prefix) == true }
    if let begun = all.flatMap({ $0.events("begun") }).last(where: { has($0, name + ".") }) {
      // It begins with a whole frame. The first byte of that may be copied from the previous part.
      return begun.integer("offset").map { $0 & ~1 }
    }
    // A part after a split begins where the previous one ends.
    let previous = String(name[..<mark]) + (number > 2 ? "~\(number - 1)." : ".")
    if let split = all.flatMap({ $0.events("split") }).first(where: { has($0, previous) }) {
      return split.integer("offset")
    }
    return logged(number, of: String(name[..<mark]))
  }

  /// The beginning of a part according to the stream's log. The event comes later, and never if the server is killed
  /// before.
  private func logged(_ number: Int, of stream: String) -> Int? {
    guard let text = try? fileContents("\(directory)/.parts/\(stream)") else { return nil }
    let lines = String(decoding: text, as: UTF8.self).split(separator: "\n")
    let fields = lines.last { $0.hasPrefix("part=\(number),") }?.split(separator: ", ")
    return fields?.first { $0.hasPrefix("start=") }.flatMap { Int($0.dropFirst("start=".count)) }
  }
}
