// The real command: built beside the tests, started as a process, and observed through its output.

internal import EventLoops
internal import Glibc
internal import NetworkTesting
internal import Synchronization
package import TestRigs

/// A running `sluice`, client or server. Ends with its last reference.
package class SluiceProcess {
  package let output: ProgramOutput
  private let process: ChildProcess
  private let scratch: ScratchDirectory

  /// Small socket buffers, so that a stall has an effect. Loopback's own could absorb seconds of audio.
  package static let boundedSockets = ["64KiB", "--max-segment", "1448"]

  /// - Parameters:
  ///   - prefix: a program that runs `sluice` in a separate environment, such as `unshare --net`.
  ///   - input: a file for its standard input.
  package init(_ arguments: [String], prefix: [String] = [], input: String? = nil) throws {
    _ = AlsaConfiguration.path
    let scratch = ScratchDirectory()
    self.scratch = scratch
    var command = prefix + ["\(AlsaConfiguration.productDirectory)/sluice"] + arguments
    if let input { command = ["sh", "-c", "input=$1; shift; exec \"$@\" <\"$input\"", "sh", input] + command }
    let fifo = scratch.file("output")
    var started: ChildProcess?
    output = try ProgramOutput(fifo: fifo) {
      started = try ChildProcess(command, package: "util-linux", output: fifo)
    }
    // The closure has set it, or has thrown.
    process = started!
  }

  package var identifier: Int32 { process.identifier }

  package func signal(_ number: Int32) { process.signal(number) }

  /// Sends SIGKILL and waits for the end.
  package func kill() { process.end(SIGKILL) }

  /// Stops the process for `duration`. This is the fault itself, not a synchronization.
  package func pause(for duration: Duration) {
    signal(SIGSTOP)
    elapse(duration)
    signal(SIGCONT)
  }

  /// The exit code, after it has ended by itself.
  package func exitCode(limit: Duration = .seconds(60)) throws -> Int32 {
    try output.waitUntilEnd(limit: limit)
    return process.waitUntilExit()
  }

  /// Waits for an event of this kind among those from number `start` on.
  @discardableResult
  package func event(
    _ kind: String, from start: Int = 0, limit: Duration = .seconds(60),
    where isWanted: (FlatObject) -> Bool = { _ in true }
  ) throws -> FlatObject {
    try output.wait(for: "the event \"\(kind)\"", limit: limit) { events, _ in
      events.dropFirst(start).first { $0.event == kind && isWanted($0) }
    }
  }

  package func events(_ kind: String) -> [FlatObject] { output.events.filter { $0.event == kind } }

  /// The requests that ended before their stream, usually several in one outage.
  package var failures: [FlatObject] { Self.failures(in: output.events) }
  package static func failures(in events: [FlatObject]) -> [FlatObject] {
    events.filter { ["outage", "attempt-failed"].contains($0.event) }
  }
}

/// Lets a fault last. Only for durations that are the purpose of a test.
package func elapse(_ duration: Duration) {
  let end = (MonotonicInstant.now + duration).nanoseconds
  var time = timespec(tv_sec: Int(end / 1_000_000_000), tv_nsec: Int(end % 1_000_000_000))
  while clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nil) == EINTR {}
}

/// `sluice serve` on an address for this test alone, so that it can return to the same port.
package final class ServeProcess: SluiceProcess {
  package private(set) var address = ""

  /// Every test has its own address within 127.0.0.0/8, so that no other process takes a port there while its server is
  /// down.
  package static func freshHost() -> String {
    let number = nextHost.wrappingAdd(1, ordering: .relaxed).newValue
    return "127.\(1 + getpid() >> 8 & 0x7f).\(getpid() & 0xff).\(1 + number % 254)"
  }
  private static let nextHost = Atomic<UInt32>(0)

  /// - Parameter address: with port 0, the kernel chooses a port.
  package init(_ directory: String, address: String? = nil, prefix: [String] = [], more: [String] = []) throws {
    try super.init(
      ["serve", "--listen", address ?? "\(Self.freshHost()):0", "--directory", directory, "--receive-buffer"]
        + Self.boundedSockets + more, prefix: prefix)
    self.address = try output.wait(for: "\"listening on\"") { _, text in
      text.first { $0.hasPrefix("listening on ") }.map { String($0.dropFirst("listening on ".count)) }
    }
  }

  package var url: String { "http://\(address)/take" }
}

/// A subcommand that streams, with JSON Lines as its output.
package final class StreamProcess: SluiceProcess {
  /// For a stream to servers without resumable uploads: one endless request, with TCP's acknowledgements.
  package static let plain = ["--resumable", "never"]

  /// Streams the test microphone: mono, S16_LE, 48 kHz, periods of 10 ms, stored as WAV.
  package convenience init(
    microphone: TestMicrophone, to url: String, deviceBuffer: String = "4s", prefix: [String] = [], more: [String] = []
  ) throws {
    try self.init(
      "mic", url, more: ["--device", microphone.name(), "--device-buffer", deviceBuffer] + more, prefix: prefix)
  }

  package init(_ subcommand: String, _ url: String, more: [String] = [], prefix: [String] = [], input: String? = nil)
    throws
  {
    try super.init(
      [subcommand, url, "--progress", "json", "--send-buffer"] + Self.boundedSockets + more, prefix: prefix,
      input: input)
  }

  /// Waits until the peer has acknowledged up to `offset`, according to the client.
  @discardableResult
  package func acknowledged(_ offset: Int, limit: Duration = .seconds(60)) throws -> FlatObject {
    try event("progress", limit: limit) { ($0.integer("acknowledged") ?? 0) >= offset }
  }

  /// How many bytes the client has captured, according to its last progress.
  package var captured: Int { events("progress").last?.integer("captured") ?? 0 }
  package var lastAcknowledged: Int { events("progress").last?.integer("acknowledged") ?? 0 }

  /// Asks it to finish. Returns its last event after it has exited.
  package func finish(limit: Duration = .seconds(60)) throws -> FlatObject {
    signal(SIGINT)
    return try ended(limit: limit)
  }

  /// Its last event, after it has exited with `code`; by default with 0, or with 4 if it reports a loss.
  package func ended(code: Int32? = nil, limit: Duration = .seconds(60)) throws -> FlatObject {
    let actual = try exitCode(limit: limit)
    guard let last = output.events.last, last.event == "ended" else {
      throw TestFailure("no \"ended\" event: \(output.text) \(output.events.suffix(5))")
    }
    func count(_ key: String) -> Int { last.integer(key) ?? 0 }
    let losses = ["lost", "source_lost_frames", "source_lost_beats", "missing_at_server", "unconfirmed"]
    let expected = code ?? (losses.contains { count($0) > 0 } ? 4 : 0)
    guard actual == expected else {
      throw TestFailure("exit code \(actual) instead of \(expected): \(output.text) \(last)")
    }
    guard count("captured") == count("acknowledged") + count("lost") + count("unsent") else {
      throw TestFailure("the summary contradicts itself: \(last)")
    }
    return last
  }
}
