// A spooled stream whose client, server and network are killed at random moments. Checks that every byte is stored
// once, in order.

internal import CommandTesting
internal import EventLoops
internal import Glibc
internal import NetworkTesting
internal import PropertyTesting

/// One source writes continuously into a FIFO. Clients stream it one after another, each from where the previous one
/// was killed. At the end, the server must have stored all captured bytes, with one recording for each client that
/// captured any.
package final class SpoolChaosRun {
  package struct Options: Sendable {
    package var seed: UInt64
    /// How often the client or the server is killed, or the network is cut.
    package var faults: Int
    /// The rate of the source in bytes per second.
    package var bytesPerSecond = 1_000_000
    /// Whether the streams are resumable uploads, or one plain request each.
    package var isResumable = true

    package init(seed: UInt64, faults: Int) { (self.seed, self.faults) = (seed, faults) }
  }

  /// The kinds of faults.
  private enum Fault: String, CaseIterable {
    case clientKill, clientTerm, serverKill, networkCut
    case everything

    /// The faults after which a plain upload is complete. Others lose bytes that TCP has acknowledged and the server
    /// has not read.
    static let plain: [Fault] = [.clientKill, .clientTerm]
  }

  private static let limit = Duration.seconds(60)

  private let options: Options
  private let directory: TemporaryDirectory
  private let pattern: StampedPattern
  private var random: SplitMix64
  private let input: PacedInput
  private let relay: SwitchedRelay
  private let address: String
  /// The address for clients. A plain upload relies on the acknowledgements of the server's own TCP.
  private let host: String
  private var server: ServeProcess
  private var client: StreamProcess
  private var counts: [String: Int] = [:]
  private var clients = 1

  package init(_ options: Options) throws {
    self.options = options
    random = SplitMix64(state: options.seed)
    pattern = StampedPattern(seed: options.seed)
    directory = try TemporaryDirectory()
    guard mkdir("\(directory.path)/stored", 0o700) == 0 else { throw SystemError.last("mkdir stored") }
    server = try ServeProcess("\(directory.path)/stored", more: ["--durability", "none"])
    address = server.address
    relay = try SwitchedRelay(to: address)
    input = try PacedInput("\(directory.path)/input", pattern, bytesPerSecond: options.bytesPerSecond)
    try input.start()
    host = options.isResumable ? relay.address : address
    client = try Self.client(directory, host, options)
  }

  private static func client(
    _ directory: TemporaryDirectory, _ host: String, _ options: Options
  ) throws -> StreamProcess {
    try StreamProcess(
      "pipe", "http://\(host)/chaos.bin",
      more: [
        "--spool", "\(directory.path)/spool", "--spool-limit", "1GB", "--buffer", "256KiB", "--sync-interval", "50ms",
        "--resumable", options.isResumable ? "always" : "never", "--roll-over-bytes", "256KiB",
        "--response-timeout", "500ms", "--stall-timeout", "500ms", "--connect-timeout", "1s", "--retry-ceiling", "20ms",
        "--finish-timeout", "100ms",
      ], input: "\(directory.path)/input")
  }

  /// Runs to the end. Returns the report.
  ///
  /// - Throws: ``TestFailure`` if a byte is missing or stored twice. Everything is then kept, and the error names the
  ///   directory.
  package func perform() throws -> String {
    do {
      return try run()
    } catch {
      directory.keep()
      throw TestFailure(
        "seed \(options.seed): \(error)\nlogs and what was stored: \(directory.path)\n"
          + client.output.text.suffix(20).joined(separator: "\n"))
    }
  }

  private func run() throws -> String {
    let start = MonotonicInstant.now
    for _ in 0..<options.faults { try strike() }
    // The FIFO's end is the stream's end for a client that has opened it.
    try client.event("connecting", limit: Self.limit)
    let length = input.finish()
    let summary = try client.event("ended", limit: Self.limit)
    try awaitBacklog()
    guard try client.exitCode(limit: Self.limit) == 0, summary.integer("lost") == 0 else {
      throw TestFailure("the last client: \(summary)")
    }
    let missing = try check(length)
    let faults = counts.sorted { $0.key < $1.key }.map { "\($0.value) \($0.key)" }.joined(separator: ", ")
    return
      "seed \(options.seed): \(length) bytes, \(clients) clients, \(faults): every captured byte stored once, in order; "
      + "\(missing) bytes between the kernel and a client that was killed (\((.now - start).seconds) s)"
  }

  /// Waits for the end of the backlog. The limit is for one stretch: hundreds of kills leave hundreds of them. If all
  /// earlier clients have sent what they captured, there is no backlog, and the last client just ends.
  private func awaitBacklog() throws {
    var sent = 0
    while client.events("backlog-done").isEmpty {
      do {
        sent = try client.output.wait(for: "the next part of the backlog", limit: Self.limit) { events, _ in
          let now = events.count { $0.event == "backlog-ends" }
          return now > sent || events.contains { $0.event == "backlog-done" } ? now : nil
        }
      } catch {
        guard client.output.isAtEnd, client.events("backlog-begins").isEmpty else { throw error }
        return
      }
    }
  }

  /// One fault, or several at once, and the way back.
  private func strike() throws {
    guard let fault = (options.isResumable ? Fault.allCases : Fault.plain).randomElement(using: &random) else { return }
    counts[fault.rawValue, default: 0] += 1
    // At a random moment.
    elapse(.milliseconds(Int.random(in: 0...250, using: &random)))
    switch fault {
    case .clientKill:
      client.kill()
      try restartClient()
    case .clientTerm:
      client.signal(SIGTERM)
      _ = try client.exitCode(limit: Self.limit)
      try restartClient()
    case .serverKill:
      server.kill()
      elapse(.milliseconds(Int.random(in: 0...200, using: &random)))
      try restartServer()
    case .networkCut:
      try relay.set(.resets)
      elapse(.milliseconds(Int.random(in: 0...300, using: &random)))
      if random.chance(50) {
        client.kill()
        try restartClient()
        elapse(.milliseconds(Int.random(in: 0...100, using: &random)))
      }
      try relay.set(.passes)
    case .everything:
      server.kill()
      client.kill()
      elapse(.milliseconds(Int.random(in: 0...50, using: &random)))
      try restartClient()
      elapse(.milliseconds(Int.random(in: 0...100, using: &random)))
      try restartServer()
    }
  }

  private func restartClient() throws {
    client = try Self.client(directory, host, options)
    clients += 1
  }

  private func restartServer() throws {
    server = try ServeProcess("\(directory.path)/stored", address: address, more: ["--durability", "none"])
  }

  // MARK: Stored bytes

  /// Returns how many bytes were lost between the kernel and a client.
  private func check(_ length: UInt64) throws -> UInt64 {
    let names = try fileNames(in: "\(directory.path)/stored").filter { $0.hasSuffix(".bin") }
    if let part = try fileNames(in: "\(directory.path)/stored").first(where: { $0.hasSuffix(".part") }) {
      throw TestFailure("\(part) is not complete")
    }
    let stream = pattern.bytes(Int(length))
    var recordings: [(start: UInt64, end: UInt64, name: String)] = []
    for name in names {
      let path = "\(directory.path)/stored/\(name)"
      let bytes = try fileContents(path)
      // A client that was killed before it had read anything.
      if bytes.isEmpty { continue }
      guard let first = position(of: bytes, in: stream) else {
        throw TestFailure("\(name): its \(bytes.count) bytes are none of the stream's")
      }
      recordings.append((first, first + UInt64(bytes.count), name))
    }
    recordings.sort { $0.start < $1.start }
    var (end, missing): (UInt64, UInt64) = (0, 0)
    for recording in recordings {
      guard recording.start >= end else {
        throw TestFailure("\(end - recording.start) bytes before \(end) are there twice: \(recordings)")
      }
      // Bytes that a client had read from the FIFO, but had not counted before it was killed.
      guard recording.start - end <= 64 << 10 else {
        throw TestFailure("\(recording.start - end) bytes are missing at \(end): \(recordings)")
      }
      missing += recording.start - end
      end = recording.end
    }
    guard end == length else {
      throw TestFailure("the recordings end at \(end), the stream at \(length): \(recordings)")
    }
    let spool = "\(directory.path)/spool"
    for folder in try fileNames(in: spool) {
      let left = try fileNames(in: "\(spool)/\(folder)").filter { $0 != "lock" }
      guard left.isEmpty else { throw TestFailure("the spool still has \(left)") }
    }
    guard Int(missing) <= clients * (64 << 10) / 20 else {
      throw TestFailure("\(missing) bytes are missing: \(recordings)")
    }
    return missing
  }
}

/// The position of the whole `part` in `stream`; nil if it is not there.
private func position(of part: [UInt8], in stream: [UInt8]) -> UInt64? {
  stream.withUnsafeBytes { stream in
    part.withUnsafeBytes { part in
      guard let first = part.first, let wanted = part.baseAddress, let start = stream.baseAddress else { return nil }
      var place = 0
      while place + part.count <= stream.count {
        guard let found = memchr(start + place, Int32(first), stream.count - place - part.count + 1) else { return nil }
        place = UnsafeRawPointer(found) - start
        if memcmp(found, wanted, part.count) == 0 { return UInt64(place) }
        place += 1
      }
      return nil
    }
  }
}
