// The commands of a spool in whose folder something else has the name of a stretch.

import CommandTesting
import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Spool
import Testing

@Suite("Something else with the name of a stretch in a spool")
struct SpoolForeignEntryTests {
  enum Entry: CaseIterable, Sendable {
    case linkToStretch, linkToNothing, linkToFolder, fifo, folder, socket, randomFile, emptyFile

    /// Whether it may be what damage has left of a stretch.
    var isRegular: Bool { self == .randomFile || self == .emptyFile }
  }

  enum Command: CaseIterable, Sendable {
    case list, show, verify, drain, pipe, remove

    var needsServer: Bool { self == .drain || self == .pipe }

    /// The exit code. The new stream of `pipe` does not fail because of an earlier one, and `remove --force` removes
    /// what may be damaged.
    func code(for entry: Entry) -> Int32 {
      switch self {
      case .list, .show, .drain: 65
      case .verify: 4
      case .pipe: 0
      case .remove: entry.isRegular ? 0 : 74
      }
    }
  }

  struct Case: CustomTestStringConvertible, Sendable {
    let entry: Entry
    let command: Command
    /// Whether its name is before that of the intact stretch.
    let isFirst: Bool
    var testDescription: String { "\(command), \(entry) \(isFirst ? "before" : "after") the stretch" }

    static let all = Entry.allCases.flatMap { entry in
      Command.allCases.flatMap { command in
        [true, false].map { Case(entry: entry, command: command, isFirst: $0) }
      }
    }
  }

  private let directory: TemporaryDirectory
  private let pattern = OffsetPattern(seed: 80)

  init() throws { directory = try TemporaryDirectory() }

  private var spool: String { "\(SpoolFolder.resolved(directory.path))/spool" }

  /// Leaves a stretch of 10,000 bytes like a killed process. Returns its path.
  private func leave(address: String) throws -> String {
    let folder = try SpoolFolder(directory: spool, stream: "cam")
    let description = "format=1, url=\"http://\(address)/x.bin\", stream-id=\"left\""
    let file = try SpoolFile.create(in: folder, description: description, capacity: 1 << 20)
    try pattern[0..<10_000].withUnsafeBytes { try file.append($0, at: 0, time: WallClock.now.sinceEpoch) }
    try file.commit(state: "", pausedByteCount: 0, pauses: [], isFinished: false, sync: true)
    return file.path
  }

  /// Makes an entry beside a stretch. Returns its path.
  private func make(_ entry: Entry, isFirst: Bool, beside stretch: String) throws -> String {
    // Milliseconds of the years 2001 and 2255.
    let name = "\(isFirst ? "1000000000000" : "9000000000000")-57f93922e6ee4bd9.spool"
    let path = "\(spool)/cam/\(name)"
    var result: Int32 = 0
    switch entry {
    case .linkToStretch: result = symlink(stretch, path)
    case .linkToNothing: result = symlink("\(path).nowhere", path)
    case .linkToFolder: result = symlink(directory.path, path)
    case .fifo: result = mkfifo(path, 0o600)
    case .folder: result = mkdir(path, 0o700)
    case .socket: result = mknod(path, S_IFSOCK | 0o600, 0)
    case .randomFile: try directory.write("spool/cam/\(name)", pattern[0..<100_000])
    case .emptyFile: try directory.write("spool/cam/\(name)", [UInt8]())
    }
    try #require(result == 0, "\(entry): \(String(cString: strerror(errno)))")
    return path
  }

  private func exists(_ path: String) -> Bool {
    var status = stat()
    return lstat(path, &status) == 0
  }

  /// Runs a command for the whole spool.
  private func run(_ command: Command, address: String) throws -> (code: Int32, text: [String]) {
    let process =
      switch command {
      case .list: try sluice(["spool", "list", spool])
      case .show: try sluice(["spool", "show", spool])
      case .verify: try sluice(["spool", "verify", spool])
      case .drain: try sluice(["spool", "drain", spool])
      case .pipe:
        try sluice(
          [
            "pipe", "http://\(address)/x.bin", "--spool", spool, "--spool-limit", "64MiB", "--stream-id", "cam",
            "--backlog", "first", "--progress", "none",
          ], input: .file(directory.write("input", [1])))
      case .remove: try sluice(["spool", "remove", "--force", spool])
      }
    return (try process.wait(), process.output + process.errors)
  }

  @Test("each command reports it, and does its work for the stretch beside it", arguments: Case.all)
  func othersAreUnaffected(_ test: Case) throws {
    let server =
      try test.command.needsServer
      ? ServeProcess("\(directory.path)/stored", more: ["--durability", "none"]) : nil
    let address = server?.address ?? "127.0.0.1:9"
    let stretch = try leave(address: address)
    let entry = try make(test.entry, isFirst: test.isFirst, beside: stretch)
    let result = try run(test.command, address: address)
    #expect(result.code == test.command.code(for: test.entry), "\(result)")
    // A process that sends also reports whenever its spool finds such a file.
    let reports = result.text.filter { $0.contains(entry) }
    #expect(test.command.needsServer ? reports.count > 1 : reports.count == 1, "\(result)")
    if !test.entry.isRegular {
      #expect(reports.allSatisfy { $0.contains("not a regular file") }, "\(result)")
      #expect(reports.count { $0.contains("Move it away.") } == 1, "\(result)")
    }
    #expect(exists(entry) != (test.command == .remove && test.entry.isRegular))
    switch test.command {
    case .list, .show: #expect(result.text.contains(stretch), "\(result)")
    case .verify: #expect(result.text.contains("\(stretch): 10000 bytes intact, 0 bytes lost"), "\(result)")
    case .drain, .pipe: #expect(try directory.contents("stored/x-left.bin") == pattern[0..<10_000])
    case .remove: #expect(result.text.contains("removed \(stretch)") && !exists(stretch), "\(result)")
    }
    withExtendedLifetime(server) {}
  }

  @Test("list --json has an object with its path, and one for the stretch", arguments: Entry.allCases, [true, false])
  func json(entry: Entry, isFirst: Bool) throws {
    let stretch = try leave(address: "127.0.0.1:9")
    let path = try make(entry, isFirst: isFirst, beside: stretch)
    let process = try sluice(["spool", "list", "--json", spool])
    #expect(try process.wait() == 65 && process.output.count == 2, "\(process.output)")
    for (event, path) in [("error", path), ("stretch", stretch)] {
      let count = process.output.count { $0.contains("\"event\":\"\(event)\"") && $0.contains("\"path\":\"\(path)\"") }
      #expect(count == 1, "\(event): \(process.output)")
    }
  }

  @Test("remove refuses what is not a regular file, and does not advise --force", arguments: Entry.allCases)
  func refused(entry: Entry) throws {
    let stretch = try leave(address: "127.0.0.1:9")
    let path = try make(entry, isFirst: true, beside: stretch)
    let process = try sluice(["spool", "remove", spool])
    #expect(try process.wait() == 74 && process.output.isEmpty && process.errors.count == 1)
    let text = process.errors.first ?? ""
    #expect(text.contains(path) && text.contains("--force") == entry.isRegular, "\(text)")
    #expect(text.contains("not a regular file. Move it away.") != entry.isRegular, "\(text)")
    #expect(exists(path) && exists(stretch))
  }
}
