// The spool of one stream on a disk that a test makes fail, kills or cuts from power.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Spool
import SpoolTesting
import SpooledStreams

/// A machine, the spools that its processes open for one stream, and what these have reported.
struct SpoolOnMachine: Sendable {
  let machine: SpoolMachine
  let events: EventLog<SpoolEvent>
  /// The folder of the stream's files.
  let folder: String
  private let directory: String
  /// A directory of this machine, for code that resolves a folder. The folder's content is on the test's disk.
  private let temporary: TemporaryDirectory

  /// - Parameters:
  ///   - seed: decides what a power cut destroys.
  ///   - hasDirectory: whether the directory of the spools exists before the first one.
  init(_ seed: Seed, hasDirectory: Bool = true) throws {
    let temporary = try TemporaryDirectory()
    let directory = hasDirectory ? temporary.path : "\(temporary.path)/spool"
    let folder = "\(directory)/s"
    if hasDirectory { try retryingInterrupts("mkdir") { mkdir(folder, 0o700) } }
    (self.temporary, self.directory, self.folder) = (temporary, directory, folder)
    events = try EventLog()
    machine = try SpoolMachine(seed.generator, folder: temporary.path)
  }

  /// The codes of the failures among the events, and nil for each other event.
  var codes: [Int32?] { events.all.map { if case .failing(let error) = $0 { error.code } else { nil } } }

  /// Opens the spool in the process that begins now, or that is running.
  ///
  /// - Parameters:
  ///   - logsEvents: whether ``events`` include those of this spool. The disk refuses every call of a process that was
  ///     killed, and its spool may report this.
  ///   - change: makes other changes to the settings.
  func open(
    limit: UInt64 = 1 << 20, syncInterval: Duration = .milliseconds(10), logsEvents: Bool = true,
    _ change: (inout SpoolSettings) -> Void = { _ in }
  ) throws(SpoolError) -> StreamSpool {
    var settings = SpoolSettings(limit: limit)
    settings.syncInterval = syncInterval
    change(&settings)
    return try StreamSpool(directory: directory, stream: "s", settings: settings, disk: machine.start()) {
      [events] event in if logsEvents { events.append(event) }
    }
  }

  /// The paths of the stretches' files, oldest first.
  func stretches() throws -> [String] { try SpoolFolder.stretches(in: folder, disk: machine.start()) }

  /// The names of these files.
  func names() throws -> [String] { try stretches().map { String($0.dropFirst(folder.count + 1)) } }

  /// The file of a stretch, as another process sees it.
  func file(_ path: String) throws -> SpoolFile {
    try SpoolFile.open(path, access: .readOnly, disk: machine.start())
  }
}
