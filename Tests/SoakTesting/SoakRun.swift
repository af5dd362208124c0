// A simulated week of `sluice mic`: the real command, the real server, the test microphone, and faults all the time.

internal import CommandTesting
internal import Glibc
internal import NetworkTesting
internal import TestDeviceControl
internal import TestRigs

/// Streams a microphone whose time runs many times as fast as ours, looks at both processes every simulated hour, and
/// compares what is stored with what the microphone heard.
package final class SoakRun {
  package struct Options: Sendable {
    package var seed: UInt64
    package var hours = 168
    /// Simulated seconds in a real one.
    package var factor = 1000

    package init(seed: UInt64) { self.seed = seed }
  }

  /// 8 kHz, mono, S16_LE.
  static let bytesPerSecond = 16_000.0
  /// Before a sample, in simulated seconds: requests that a fault has left behind end meanwhile.
  private static let calm = 120.0

  let options: Options
  // In memory: what a disk needs for a sync does not run faster with the clock.
  private let directory = ScratchDirectory(in: "/dev/shm")
  private let clientTime: SimulatedTime
  private let serverTime: SimulatedTime
  let microphone = TestMicrophone()
  private let address: String
  private var servers: [SluiceProcess] = []
  private let relay: SwitchedRelay
  let client: SoakClient
  private var deck: FaultDeck
  private(set) var timeline: StoredTimeline
  private(set) var counts: [SoakFault: Int] = [:]
  private(set) var steps: [Int] = []
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
    timeline = StoredTimeline(stored)
    clientTime = try SimulatedTime(directory.file("client-clock"), factor: options.factor)
    serverTime = try SimulatedTime(directory.file("server-clock"), factor: options.factor)
    let server = try Self.serve(stored, "\(ServeProcess.freshHost()):0", serverTime)
    servers = [server.process]
    address = server.address
    relay = try SwitchedRelay(to: address)
    client = try SoakClient(
      clientTime.prefix + ["\(AlsaConfiguration.productDirectory)/sluice"]
        + [
          "mic", "http://\(relay.address)/soak.wav", "--device", microphone.name(), "--rate", "8000", "--period", "1s",
          "--device-buffer", "60s", "--progress", "json",
          // The server would compare its digest with a file whose beginning this run has taken away.
          "--digest", "none",
        ],
      fifo: directory.file("output"))
  }

  deinit { timeline.close() }

  private static func serve(
    _ directory: String, _ address: String, _ time: SimulatedTime
  ) throws -> (process: SluiceProcess, address: String) {
    let process = try SluiceProcess(
      ["serve", "--listen", address, "--directory", directory], prefix: time.prefix)
    let address = try process.output.wait(for: "\"listening on\"") { _, text in
      text.first { $0.hasPrefix("listening on ") }.map { String($0.dropFirst("listening on ".count)) }
    }
    return (process, address)
  }

  /// Runs to the end.
  ///
  /// - Throws: ``TestFailure`` when a promise was not kept.
  package func perform() throws -> SoakReport {
    do {
      try awaitFlow()
      let end = Double(options.hours) * 3600
      while clientTime.elapsed < end { try hour() }
      return try finish()
    } catch {
      let server = servers[servers.count - 1].output
      throw TestFailure(
        "seed \(options.seed), simulated hour \(clientTime.elapsed / 3600): \(error)\nthe client:\n"
          + client.events.suffix(50).map(\.description).joined(separator: "\n") + "\nthe server:\n"
          + (server.events.suffix(10).map(\.description) + server.text.suffix(10)).joined(separator: "\n"))
    }
  }

  private func hour() throws {
    let start = clientTime.elapsed
    if Int(start / 86_400) >= steps.count {
      let step = deck.clockStep()
      steps.append(step)
      // Of both machines, and not to the same time.
      clientTime.step(by: step)
      serverTime.step(by: -step / 2)
      tell("hour \(Int(start / 3600)): \(client.progress?.description ?? "")")
    }
    clientTime.pass(deck.seconds(60...900))
    let (fault, seconds) = deck.draw()
    try strike(fault, seconds)
    counts[fault, default: 0] += 1
    try awaitFlow()
    clientTime.pass(Self.calm)
    clientTime.pass(until: (start / 3600).rounded(.down) * 3600 + 3600)
    try awaitFlow()
    try sample()
    try timeline.advance()
  }

  /// The client is connected, and what it captured arrives.
  private func awaitFlow() throws {
    let captured = client.progress?.integer("captured") ?? 0
    try client.wait("a stream that flows") { client in
      guard let progress = client.progress, progress.values["connected"] == .literal("true"),
        let now = progress.integer("captured"), let unsent = progress.integer("unsent"),
        now > captured + Int(30 * Self.bytesPerSecond), unsent < Int(60 * Self.bytesPerSecond)
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
    serverSamples.append(try take(servers[servers.count - 1].identifier, serverBirth))
  }

  /// What to add to the place of a byte in a recording, for its stream offset. The header of a later part is none of
  /// the stream's.
  func streamOffset(ofRecording name: String) throws -> Int {
    guard name.contains("~") else { return 0 }
    for event in servers.flatMap({ $0.events("begun") + $0.events("continued") })
    where event.text("file")?.hasPrefix(name + ".") == true {
      if let offset = event.integer("offset") { return offset - 44 }
    }
    throw TestFailure("no server has begun \(name)")
  }

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
      servers[servers.count - 1].kill()
      clientTime.pass(seconds)
      servers.append(try Self.serve(directory.file("stored"), address, serverTime).process)
      serverBirth = clientTime.elapsed / 3600
    case .unplugged:
      let returns = client.count("device-returned")
      testmic_set_absent(page, true)
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
      // In a short run less.
      clientTime.pass(min(seconds, Double(options.hours) * 300))
      clientTime.sleep(clientTime.elapsed - start)
      client.signal(SIGCONT)
    }
  }

  /// Stops the client, and waits until it stands.
  private func stop() throws {
    client.signal(SIGSTOP)
    for _ in 0..<20_000 {
      let status = String(decoding: try fileContents("/proc/\(client.identifier)/stat"), as: UTF8.self)
      // After the program's name in parentheses.
      if status.split(separator: ")").last?.hasPrefix(" T") == true { return }
      poll(nil, 0, 1)
    }
    throw TestFailure("the client does not stop")
  }

  // MARK: The end

  private func finish() throws -> SoakReport {
    client.signal(SIGINT)
    let summary = try client.wait("the end") { $0.events.last { $0.event == "ended" } }
    let code = client.waitUntilExit()
    // The recording gets its final name.
    let last = servers[servers.count - 1]
    try last.event("ended")
    try timeline.advance(isLast: true)
    return try SoakReport(self, summary, code: code)
  }
}
