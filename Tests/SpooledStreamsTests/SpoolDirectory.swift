// A separate spool directory for each test, and calls on spools that wait for their thread.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Spool
import SpooledStreams
import Testing

/// A spool directory, and what its spools have reported.
final class SpoolDirectory: Sendable {
  private let directory: TemporaryDirectory
  private let reported = Lock<[SpoolEvent]>([])

  init() throws { directory = try TemporaryDirectory() }

  var events: [SpoolEvent] { reported.withLock { $0 } }

  /// - Parameter patience: how long a spool that was just dropped may still use the folder.
  func open(
    limit: UInt64 = 64 << 20, stream: String = "test", syncInterval: Duration = .milliseconds(10),
    patience: Duration = .seconds(60), sourcePatience: Duration? = nil
  ) throws -> StreamSpool {
    var settings = SpoolSettings(limit: limit)
    settings.syncInterval = syncInterval
    if let sourcePatience { settings.sourcePatience = sourcePatience }
    let end = MonotonicInstant.now + patience
    while true {
      do {
        return try StreamSpool(directory: directory.path, stream: stream, settings: settings) { [self] event in
          reported.withLock { $0.append(event) }
        }
      } catch {
        // The folder of a dropped spool belongs to it until its thread has ended.
        guard case .inUse(getpid()) = error.cause, .now < end else { throw error }
        usleep(1000)
      }
    }
  }

  func stretches() throws -> [String] { try SpoolFolder.stretches(in: "\(directory.path)/test") }

  /// The newest stretch, as another process sees it.
  func newest() throws -> SpoolFile? {
    try stretches().last.flatMap { try? SpoolFile.open($0, access: .readOnly) }
  }

  /// The files in memory of the stretches with these file names.
  static func inMemory(_ names: [String]) throws -> [String] {
    let identifiers = names.map { $0.drop { $0 != "-" }.dropFirst().prefix { $0 != "." } }
    return try fileNames(in: "/dev/shm").filter { name in identifiers.contains { name.hasPrefix("sluice-\($0)") } }
  }

  /// Polls until a condition holds on the disk, because the file is the only thing to wait for.
  static func wait(for what: String, _ seed: Seed? = nil, until isSo: () throws -> Bool) throws {
    let end = MonotonicInstant.now + .seconds(30)
    while !(try isSo()) {
      try #require(.now < end, "\(what) has not come (\(seed.map { "\($0)" } ?? "no seed"))")
      usleep(1000)
    }
  }
}

extension StreamSpool {
  /// A stretch that an earlier process has left; nil if nothing is left, or it cannot be opened.
  func opened(_ name: String?) throws -> SpooledBacklog? {
    guard let name else { return nil }
    let found = Lock<SpooledBacklog?>(nil)
    let done = try EventCounter()
    let descriptor = done.descriptor
    open(name) { stretch in
      if case .backlog(let stretch) = stretch { found.withLock { $0 = stretch } }
      done.signal()
    }
    try #require(waitUntilReadable(descriptor))
    return found.withLock { $0 }
  }

  /// Ends a stretch. Returns how many bytes exist only in memory.
  @discardableResult
  func finish(_ stretch: SpooledStretch, isDelivered: Bool) throws -> UInt64 {
    let count = Lock<UInt64>(0)
    let done = try EventCounter()
    let descriptor = done.descriptor
    end(stretch, isDelivered: isDelivered) { inMemory in
      count.withLock { $0 = inMemory }
      done.signal()
    }
    try #require(waitUntilReadable(descriptor))
    return count.withLock { $0 }
  }
}
