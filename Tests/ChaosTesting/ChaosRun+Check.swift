// The conditions that must hold after a chaos run.

internal import CommandTesting
internal import EventLoops
internal import Glibc
internal import NetworkTesting

extension ChaosRun {
  /// Compares the stored bytes and the client's reports with the sent bytes.
  ///
  /// - Throws: ``TestFailure`` for the first broken promise.
  func check(_ length: UInt64, _ duration: Duration) throws -> ChaosReport {
    let summary = try client.ended(code: 0)
    let events = proxy.events.all
    func expect(_ name: String, _ value: UInt64) throws {
      guard summary.integer(name) == Int(value) else { throw TestFailure("\(name) is not \(value): \(summary)") }
    }
    try expect("captured", length)
    try expect("acknowledged", length)
    try expect("lost", 0)
    try expect("gaps", 0)
    var report = ChaosReport(
      seed: options.seed, pace: pace, duration: duration, length: length, digest: try checkStored(length),
      counts: proxy.counts,
      recoveries: [], connections: 0, droppedInterims: 0, resent: UInt64(summary.integer("resent") ?? 0),
      seenAgain: proxy.contentReceived - min(length, proxy.contentReceived), bytesInFlight: try Self.bytesInFlight(),
      clientMemory: peakMemory)
    for event in events {
      switch event {
      case .opened: report.connections += 1
      case .droppedInterim: report.droppedInterims += 1
      case .recovered(_, let kind, _, let time): report.recoveries.append(.init(kind: kind, duration: time))
      default: break
      }
    }
    // The client's own count, and whether it is plausible.
    guard report.seenAgain <= report.resent else {
      throw TestFailure("\(report.seenAgain) bytes came again, and the client counts \(report.resent)\n\(report)")
    }
    guard report.resent < report.resentBound || report.resent == 0 else {
      throw TestFailure("\(report.resent) bytes were sent again: more than can have been under way\n\(report)")
    }
    return report
  }

  /// The digest of the stored bytes, which must be exactly the sent ones.
  private func checkStored(_ length: UInt64) throws -> String {
    // Several servers may report it: one that was killed at the last moment, and its successor.
    let files = Set(servers.flatMap { $0.events("ended") }.compactMap { $0.text("file") })
    guard files.count == 1, let file = files.first else {
      throw TestFailure("not one complete file but \(files.sorted())")
    }
    let path = "\(directory.path)/stored/\(file)"
    guard try fileNames(in: "\(directory.path)/stored") == [file] else {
      throw TestFailure("beside \(file) there is more: \(try fileNames(in: "\(directory.path)/stored"))")
    }
    var status = stat()
    guard stat(path, &status) == 0 else { throw SystemError.last(path) }
    let digests = (try pattern.digest(count: length), try StampedPattern.digest(file: path))
    guard status.st_size == off_t(length), digests.0 == digests.1 else {
      let difference = try pattern.firstDifference(file: path, count: length)
      throw TestFailure("\(file) is not what was sent: \(difference ?? "\(digests)")")
    }
    return digests.0
  }

  private static func bytesInFlight() throws -> Int {
    // The sizes of the client's send buffer and the server's receive buffer are determined like the proxy's own.
    try ChaosProxy.bytesHeld() + ChaosProxy.socketBuffers() + ChaosPace.clientBuffers
  }
}
