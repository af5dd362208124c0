// Tests which recording a store opens or begins for a stream, and what remains if the disk refuses that.

import EventLoops
import ExitTesting
import Glibc
import HTTPMessages
import NetworkTesting
import SyncGate
import Testing

@testable import DiskFiles
@testable import StreamServing
@testable import StreamStore

@Suite("The recordings that a store opens")
struct StoreOpeningTests {
  private let directory = TemporaryDirectory()
  private let store: FileStore
  private let name = StreamName(path: "/t.txt", streamID: "a", mediaType: "text/plain")
  private let owner = [UInt8](repeating: 1, count: 32)
  private let other = [UInt8](repeating: 2, count: 32)

  init() throws { store = try Self.store(in: directory) }

  private static func store(
    in directory: TemporaryDirectory, hasSidecars: Bool = false, isCollected: Bool = false
  ) throws -> FileStore {
    try FileStore(in: directory, hasSidecars: hasSidecars, isCollected: isCollected)
  }

  /// A line about the recording of that number.
  private static func line(_ number: Int, start: UInt64 = 0, end: UInt64? = nil) -> RecordingPart {
    var part = RecordingPart(file: number == 1 ? "t-a.txt" : "t-a~\(number).txt")
    part.number = number
    (part.start, part.firstReceived) = (start, start)
    (part.end, part.count) = (end, (end ?? start) - start)
    return part
  }

  /// Leaves a recording of three bytes that a server has closed.
  private func leaveClosed() throws {
    try directory.write("t-a.txt", Array("abc".utf8))
    try store.parts.append(Self.line(1, end: 3), to: name.base)
  }

  private static func write(_ text: String, at offset: UInt64, to stream: StreamFile) throws {
    let bytes = Array(text.utf8)
    let stored = stream.write(bytes.span, [0..<bytes.count], skipping: 0, at: offset, maySplit: false)
    try require(stored.count == bytes.count && stored.error == nil, "stored: \(stored)")
  }

  // MARK: Owners

  @Test(
    "a token may begin a stream of another token that is being removed, unless closed recordings of it stay",
    arguments: [true, false])
  func beingRemoved(hasClosed: Bool) throws {
    try store.owners.record(owner, of: name, isBeginner: true)
    if hasClosed { try leaveClosed() }
    let number = hasClosed ? 2 : 1
    var removed = Self.line(number)
    removed.isDiscarded = true
    try store.parts.append(removed, to: name.base)
    try directory.write(hasClosed ? "t-a~2.part" : "t-a.part", Array("de".utf8))
    #expect(try store.admits(other, to: name) == !hasClosed)
    #expect(try store.admits(owner, to: name))
  }

  @Test("any token may continue a closed stream without an owner")
  func closedOfNobody() throws {
    try leaveClosed()
    #expect(try store.admits(other, to: name))
    let stream = try #require(try store.open(name, for: other, at: 3, creating: true))
    #expect(stream.name.partial == "t-a~2.part" && stream.start == 3)
    // It began none of the earlier bytes.
    #expect(try store.owners.record(of: name)?.isBeginner == false)
  }

  @Test("a token that begins a stream whose files are gone does not continue the log of the former owner")
  func staleLog() throws {
    try store.owners.record(owner, of: name, isBeginner: true)
    try store.parts.append(Self.line(2, start: 100), to: name.base)
    #expect(try store.admits(other, to: name))
    let stream = try #require(try store.open(name, for: other, at: 0, creating: true))
    #expect(stream.name.partial == "t-a.part" && stream.start == 0 && stream.length == 0)
    #expect(!directory.exists(".parts/t-a"))
    let record = try store.owners.record(of: name)
    #expect(record?.owner == other && record?.isBeginner == true)
  }

  @Test("a search for a stream that does not exist leaves no owner, and removes none", arguments: [true, false])
  func notBegun(hasOwner: Bool) throws {
    if hasOwner { try store.owners.record(owner, of: name, isBeginner: true) }
    let isFound = try store.open(name, for: owner, at: 0, creating: false) != nil
    #expect(!isFound)
    #expect(try store.owners.owner(of: name) == (hasOwner ? owner : nil))
  }

  @Test("a token that once continued a stream of nobody owns the stream that it begins itself")
  func begunByGuest() throws {
    try directory.write("t-a.part", Array("abc".utf8))
    for _ in 0..<2 {
      _ = try store.open(name, for: owner, at: 3, creating: true)
      #expect(try store.owners.record(of: name)?.isBeginner == false)
    }
    // Its operator has removed it.
    unlink("\(directory.path)/t-a.part")
    _ = try store.open(name, for: owner, at: 0, creating: true)
    #expect(try store.owners.record(of: name)?.isBeginner == true)
  }

  @Test("a server that stores nothing admits only the token that began a stream")
  func counted() {
    let store = CountingStore(maximumCount: 10, maximumAge: .seconds(60))
    _ = store.open(name, for: .request(credential: owner, offset: 0, creating: true, isUpload: false))
    #expect(store.admits(owner, to: name))
    #expect(!store.admits(other, to: name))
  }

  // MARK: What an earlier server left

  @Test("a recording that a killed server was about to close grows again, according to its log as well")
  func beingClosed() throws {
    try directory.write("t-a.part", Array("abc".utf8))
    try store.parts.append(Self.line(1, end: 3), to: name.base)
    let stream = try #require(try store.open(name, for: nil, at: 3, creating: true))
    #expect(stream.name.partial == "t-a.part" && stream.length == 3)
    #expect(stream.part?.end == nil && stream.part?.count == 0)
    let line = try #require(try store.parts.lines(of: name.base).last)
    #expect(line.end == nil && line.count == 0)
  }

  @Test("a split whose first recording a power failure has cut short is undone when its stream is opened")
  func tornSplit() throws {
    try directory.write("t-a.part", Array("abc".utf8))
    try directory.write("t-a~2.part", [])
    var (split, growing) = (Self.line(1, end: 5), Self.line(2, start: 5))
    split.isSplit = true
    growing.series = .init(start: 0, holesEnd: 0)
    try store.parts.append(split, growing, to: name.base)
    let stream = try #require(try store.open(name, for: nil, at: 3, creating: true))
    #expect(stream.name.partial == "t-a.part" && stream.length == 3)
    #expect(!directory.exists("t-a~2.part"))
  }

  @Test("a next part whose log has lost the part before it gets a hole, because it cannot begin elsewhere")
  func lostPrevious() throws {
    try store.parts.append(Self.line(2), to: name.base)
    let stream = try #require(try store.open(name, for: nil, at: 5, creating: true))
    try Self.write("abc", at: 5, to: stream)
    #expect(stream.length == 8 && stream.missing == 5)
    #expect(try directory.contents("t-a~2.part") == [0, 0, 0, 0, 0] + Array("abc".utf8))
  }

  @Test("the sender's description belongs to the next part, wherever that begins")
  func describedPart() throws {
    let directory = TemporaryDirectory()
    let store = try Self.store(in: directory, hasSidecars: true)
    try directory.write("t-a.txt", Array("abc".utf8))
    try store.parts.append(Self.line(1, end: 3), to: name.base)
    let stream = try #require(try store.open(name, for: nil, at: 10, creating: true))
    let description = try #require(StreamDescription(parsing: "device=\"kitchen\""))
    try stream.describe(description)
    #expect(try directory.text(".t-a~2.sidecar").contains("kitchen"))
    // The part begins with the first byte that comes.
    try Self.write("xyz", at: 20, to: stream)
    #expect(stream.start == 20)
    #expect(try directory.text(".t-a~2.sidecar").contains("kitchen"))
  }

  @Test("a log that states no hole before a part that follows another without a gap has none")
  func seriesWithoutHoles() throws {
    let text = "part=2, file=\"t-a~2.txt\", start=5, first=5, header=0, count=0, series=1"
    let part = try #require(RecordingPart(parsing: text))
    #expect(part.series == RecordingPart.Series(start: 1, holesEnd: 0))
  }

  // MARK: What the disk refuses

  @Test("a collector that cannot begin a recording leaves no claim of it")
  func unclaimed() throws {
    let directory = TemporaryDirectory()
    let store = try Self.store(in: directory, isCollected: true)
    // Another program has taken the name of the record of gaps.
    try directory.write("t-a.gaps", Array("a list of gaps\n".utf8))
    #expect(throws: SystemError.self) { try store.open(name, for: nil, at: 0, creating: true) }
    #expect(!directory.exists(".parts/t-a") && !directory.exists("t-a.part"))
    unlink("\(directory.path)/t-a.gaps")
    _ = try store.open(name, for: nil, at: 0, creating: true)
    #expect(directory.exists(".parts/t-a") && directory.exists("t-a.part"))
  }

  @Test(
    "a recording that cannot be begun leaves neither a file nor an owner",
    .enabled(if: disk_faults_are_possible() != 0))
  func unbegun() async {
    await #expect(processExitsWith: .success) {
      reportingErrors {
        let tests = try StoreOpeningTests()
        let (store, directory) = (tests.store, tests.directory)
        disk_faults_begin(directory.path)
        for call in 1...100 {
          let new = StreamName(path: "/n.txt", streamID: "\(call)", mediaType: "text/plain")
          disk_faults_fail(DISK_OPEN, UInt(call), EIO)
          var failure: SystemError?
          do throws(SystemError) {
            _ = try store.open(new, for: tests.owner, at: 0, creating: true)
          } catch {
            failure = error
          }
          let place = String(cString: disk_faults_place())
          disk_faults_fail(DISK_OPEN, 0, 0)
          if let failure {
            try require(failure.code == EIO, "\(failure)")
            try require(!directory.exists(new.partial), "there is a file after an error at \(place)")
            try require(try store.owners.owner(of: new) == nil, "there is an owner after an error at \(place)")
          } else {
            try require(directory.exists(new.partial), "there is no file, with \(place)")
          }
          // All calls have succeeded.
          if place.isEmpty {
            try require(call > 1, "no call has failed")
            break
          }
          try require(call < 100, "the calls do not end")
        }
      }
    }
  }

  @Test(
    "a part that cannot begin later continues where it began", .enabled(if: disk_faults_are_possible() != 0))
  func unmoved() async {
    await #expect(processExitsWith: .success) {
      reportingErrors {
        var failureCount = 0
        for kind in [DISK_OPEN, DISK_WRITE, DISK_RENAME, DISK_UNLINK] {
          for call in 1...100 {
            let tests = try StoreOpeningTests()
            try tests.leaveClosed()
            guard let stream = try tests.store.open(tests.name, for: nil, at: 10, creating: true) else {
              throw TestFailure("there is no stream")
            }
            disk_faults_begin(tests.directory.path)
            disk_faults_fail(kind, UInt(call), EIO)
            var failure: SystemError?
            do throws(SystemError) { try stream.makeHole(length: 10) } catch { failure = error }
            let place = String(cString: disk_faults_place())
            disk_faults_begin("")
            let context = "call \(call) of kind \(kind.rawValue) at \(place): \(failure.map { "\($0)" } ?? "no error")"
            try require(stream.length == (failure == nil ? 20 : 10), "length \(stream.length): \(context)")
            do { try StoreOpeningTests.write("xyz", at: stream.length, to: stream) } catch {
              throw TestFailure("\(error): \(context)")
            }
            try require(try tests.directory.text(stream.name.partial) == "xyz", context)
            if place.isEmpty { break }
            if failure != nil { failureCount += 1 }
            try require(call < 100, "the calls do not end")
          }
        }
        try require(failureCount > 0, "it begins later whatever fails")
      }
    }
  }

  @Test(
    "a log that cannot be replaced stays as it was, and no other file remains",
    .enabled(if: disk_faults_are_possible() != 0))
  func notReplaced() async {
    await #expect(processExitsWith: .success) {
      reportingErrors {
        let tests = try StoreOpeningTests()
        try tests.leaveClosed()
        let log = try tests.directory.contents(".parts/t-a")
        disk_faults_begin(tests.directory.path)
        disk_faults_fail(DISK_RENAME, 1, EIO)
        var code: Int32 = 0
        do throws(SystemError) {
          try tests.store.parts.rewrite([], of: tests.name.base, isSynced: false)
        } catch {
          code = error.code
        }
        disk_faults_begin("")
        try require(code == EIO, "error \(code)")
        try require(try tests.directory.contents(".parts/t-a") == log, "another log")
        try require(!tests.directory.exists(".t-a.parts~"), "the other file remains")
      }
    }
  }

  @Test(
    "a server that cannot find out whether a directory is that of a collector leaves no descriptor open",
    .enabled(if: disk_faults_are_possible() != 0))
  func descriptors() async {
    await #expect(processExitsWith: .success) {
      reportingErrors {
        let directory = TemporaryDirectory()
        disk_faults_begin(directory.path)
        var (counts, unreadable): ([Int], Int) = ([], 0)
        // Each of the calls fails twice.
        for call in [1, 1, 2, 2] {
          disk_faults_fail(DISK_ACCESS, UInt(call), EIO)
          do throws(DirectoryError) {
            _ = try FileStore(in: directory)
          } catch {
            if case .unreadable = error { unreadable += 1 }
          }
          counts.append(try allNames(in: "/proc/self/fd").count)
        }
        try require(unreadable > 0, "it always finds out")
        try require(counts.allSatisfy { $0 == counts[0] }, "\(counts)")
        disk_faults_begin("")
        _ = try StoreOpeningTests.store(in: directory)
      }
    }
  }
}
