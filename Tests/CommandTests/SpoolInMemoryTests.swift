// The actions of sluice spool for a stretch that is only in memory: its process was killed, and the disk was full
// before.

import CommandTesting
import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Spool
import StreamBuffers
import Testing

@testable import SpooledStreams

@Suite("A stretch that is only in memory, for sluice spool")
struct SpoolInMemoryTests {
  /// What the disk has of the spool.
  enum Disk: CaseIterable, Sendable { case nothing, directory, emptyFolder }

  /// What is left of the two files in memory.
  enum Rest: CaseIterable, Sendable { case both, buffer, description }

  private let directory: TemporaryDirectory
  private let pattern = OffsetPattern(seed: 79)

  init() throws { directory = try TemporaryDirectory() }

  private var spool: String { "\(directory.path)/spool" }
  private var folder: String { "\(spool)/cam" }

  /// Removes what a failed test leaves in memory.
  private final class Left {
    let shared: SharedStretch
    /// The path of its future file.
    let path: String

    init(_ shared: SharedStretch, _ path: String) { (self.shared, self.path) = (shared, path) }

    deinit { shared.remove() }

    var isThere: Bool { shared.isThere || access(shared.bufferPath + ".stretch", F_OK) == 0 }
  }

  /// Leaves a stretch of 10,000 bytes like a killed process.
  private func leave(_ disk: Disk, _ rest: Rest = .both, released: UInt64 = 0, text: String = "") throws -> Left {
    if disk != .nothing { try retryingInterrupts("mkdir") { mkdir(spool, 0o700) } }
    if disk == .emptyFolder { try retryingInterrupts("mkdir") { mkdir(folder, 0o700) } }
    let (identity, place) = (StretchIdentity(), SpoolFolder.resolved(folder))
    let left = Left(SharedStretch(id: identity.id), "\(place)/\(identity.fileName)")
    var settings = CircularBuffer.Settings(capacity: 64 << 10)
    (settings.allowsPauses, settings.hasCopier, settings.path) = (true, true, left.shared.bufferPath)
    settings.label = SharedStretch.label(created: identity.created, folder: place)
    var ends = try CircularBuffer.makeCopied(settings)
    _ = ends.producer.write(minimum: 10_000, maximum: 10_000) { span in
      span.withUnsafeMutableBytes { pattern.fill($0, at: 0) }
      return 10_000
    }
    ends.consumer.release(upTo: released)
    if rest != .buffer {
      try left.shared.write(SharedStretch.Description(identity: identity, folder: place, text: text, hasBuffer: true))
    }
    if rest == .description { try retryingInterrupts("unlink") { unlink(left.shared.bufferPath) } }
    return left
  }

  private func run(_ arguments: [String]) throws -> (code: Int32, text: [String]) {
    let process = try sluice(["spool"] + arguments)
    return (try process.wait(), process.output + process.errors)
  }

  @Test("list, show and verify list it with its bytes, whatever the disk has of the spool", arguments: Disk.allCases)
  func listed(disk: Disk) throws {
    let left = try leave(disk, released: 4000)
    for action in ["list", "show", "verify"] {
      for path in [spool, folder, left.path] {
        let result = try run([action, path])
        #expect(result.code == 0 && result.text.first == left.path, "\(action) \(path): \(result)")
        #expect(result.text.count == 2 && result.text.last?.contains("6.00 kB not acknowledged") == true, "\(result)")
        #expect(result.text.last?.contains("only in memory") == true, "\(result)")
      }
    }
    // Nothing was made or removed, and nothing else is there.
    #expect(left.isThere && (access(spool, F_OK) == 0) == (disk != .nothing))
    #expect((access(folder, F_OK) == 0) == (disk == .emptyFolder))
    #expect(try run(["list", "\(directory.path)/other"]).code == 66)
  }

  @Test("drain sends it, whatever the disk has of the spool", arguments: Disk.allCases, [false, true])
  func drained(disk: Disk, isFolderNamed: Bool) throws {
    let server = try ServeProcess("\(directory.path)/stored", more: ["--durability", "none"])
    let left = try leave(disk, text: "format=1, url=\"http://\(server.address)/x.bin\", stream-id=\"left\"")
    let result = try run(["drain", isFolderNamed ? folder : spool])
    #expect(result.code == 0 && !left.isThere, "\(result)")
    #expect(try directory.contents("stored/x-left.bin") == pattern[0..<10_000])
    withExtendedLifetime(server) {}
  }

  @Test(
    "remove removes it and says so, but with bytes that the server lacks only with --force",
    arguments: Disk.allCases, [0, 10_000] as [UInt64])
  func removed(disk: Disk, released: UInt64) throws {
    let left = try leave(disk, released: released)
    if released == 0 {
      let result = try run(["remove", spool])
      #expect(result.code == 77 && result.text.first?.contains("Use --force") == true && left.isThere, "\(result)")
    }
    let result = try run(["remove", spool] + (released == 0 ? ["--force"] : []))
    #expect(result.code == 0 && result.text == ["removed \(left.path), which was only in memory"], "\(result)")
    #expect(!left.isThere && (access(folder, F_OK) == 0) == (disk == .emptyFolder))
    #expect(try run(["list", spool]).code == (disk == .nothing ? 66 : 0))
  }

  @Test("remove refuses it while a process uses its stream, even with --force", arguments: Disk.allCases)
  func inUse(disk: Disk) throws {
    let left = try leave(disk)
    let user = try SpoolFolder(directory: spool, stream: "cam", mayLackSpace: true, makesFolder: false)
    for options in [[], ["--force"]] as [[String]] {
      let result = try run(["remove", left.path] + options)
      #expect(result.code == 75 && result.text.first?.contains("in use by process \(getpid())") == true, "\(result)")
    }
    let list = try run(["list", "--json", spool])
    #expect(list.text.count == 1 && list.text.first?.contains("\"process\":\(getpid())") == true, "\(list)")
    #expect(left.isThere)
    withExtendedLifetime(user) {}
  }

  @Test(
    "each action finds it by either of its files in memory, and reports that bytes may be lost if their file is gone",
    arguments: Rest.allCases)
  func rest(rest: Rest) throws {
    // Without a description, a folder that exists shows where it belongs.
    let left = try leave(.emptyFolder, rest)
    let isLost = rest == .description
    for action in ["list", "verify"] {
      let result = try run([action, spool])
      #expect(result.code == (isLost && action == "verify" ? 4 : 0) && result.text.first == left.path, "\(result)")
      #expect((result.text.last?.contains("bytes may be lost") == true) == isLost, "\(result)")
    }
    let refusal = try run(["remove", spool])
    #expect(refusal.code == 77 && left.isThere, "\(refusal)")
    let result = try run(["remove", "--json", "--force", spool])
    #expect(result.code == 0 && result.text.count == 1 && !left.isThere, "\(result)")
    #expect(result.text.first?.contains("\"only_in_memory\":true") == true, "\(result)")
  }
}
