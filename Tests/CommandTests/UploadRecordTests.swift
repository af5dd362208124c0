// The record of an upload lies among the user's files, and must never replace one of them.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import ResumableUploads
import Synchronization
import Testing
import UploadClient

@testable import sluice

@Suite("The record of an upload")
struct UploadRecordTests {
  private let data = ResumeData(
    "format=1, upload=\"http://h/u\", version=8, target=\"http://h/x\", base=0, length=7, stream-id=\"s\"")

  private func text(base: UInt64) -> String {
    var data = data
    data?.base = base
    return data?.text ?? ""
  }

  private func version(_ path: String) throws -> FileVersion {
    let descriptor = open(path, O_RDONLY | O_CLOEXEC)
    defer { close(descriptor) }
    return try FileVersion(descriptor: descriptor)
  }

  private func code(_ body: () throws(CommandError) -> Void) -> ExitCode? {
    do throws(CommandError) {
      try body()
      return nil
    } catch {
      return error.code
    }
  }

  /// A new record beside its file, claimed, and nothing else in the directory.
  private func claimed() throws -> (directory: TemporaryDirectory, version: FileVersion, record: sluice.UploadRecord) {
    let directory = try TemporaryDirectory()
    let version = try version(try directory.write("data", "text"))
    let record = UploadRecord(path: "\(directory.path)/data.sluice", version: version)
    #expect(try record.claim() == nil)
    return (directory, version, record)
  }

  @Test("a file that is not a record is refused and stays unchanged")
  func foreign() throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", "text")
    let precious = try directory.write("precious", "words\n")
    let link = "\(directory.path)/link"
    #expect(symlink(precious, link) == 0)
    let fifo = "\(directory.path)/fifo"
    #expect(mkfifo(fifo, 0o600) == 0)
    // Another program made it: others may read it, or it has a second name.
    let readable = try directory.write("readable", "")
    #expect(chmod(readable, 0o644) == 0)
    let named = try directory.write("named", "")
    #expect(Glibc.link(named, "\(directory.path)/again") == 0)
    let cases: [(String, String?)] = [
      (precious, nil), (link, nil), (fifo, nil), (directory.path, nil), ("/dev/null", nil),
      (try directory.write("binary", [0, 255, 10, 0]), nil),
      (try directory.write("newer", "sluice upload record 4\nmore\n"), "another version"),
      (try directory.write("older", "sluice upload record 1\nmore\nmore\n"), "another version"),
      (try directory.write("long", "sluice upload record 2\n\(data?.text ?? "")\nsize=4\nmore\n end\n"), "damaged"),
      (try directory.write("mark", "sluice upload record 2"), "damaged"),
      (try directory.write("words", "sluice upload record 2\nwords\n"), "damaged"),
      (try directory.write("undigested", "sluice upload record 3\n\(data?.text ?? "")\nsize=4\n end\n"), "delete it"),
      (try directory.write("blank", "sluice upload record 2\n\n"), "damaged"),
      // A record that another program has truncated, and that still has the URL of the upload.
      (try directory.write("truncated", "sluice upload record 2\n\(data?.text ?? "")\nsize=4\n"), "damaged"),
      (readable, "it is empty"), (named, "it is empty"), (try directory.write("private", ""), "it is empty"),
      (try directory.write("base", "sluice upload record 2\n\(text(base: 5))\nsize=4\n end\n"), "damaged"),
      (
        try directory.write("far", "sluice upload record 2\n\(text(base: 999_999_999_999_999))\nsize=4\n end\n"),
        "damaged"
      ),
    ]
    for (path, says) in cases {
      var before = stat()
      #expect(lstat(path, &before) == 0)
      let contents = before.st_mode & S_IFMT == S_IFREG ? try fileContents(path) : []
      let record = UploadRecord(path: path, version: try version(file))
      do throws(CommandError) {
        _ = try record.claim()
        Issue.record("\(path) was claimed")
      } catch {
        #expect(error.code == .badData && error.message.contains("--resume-file PATH"))
        if let says { #expect(error.message.contains(says), "\(error.message)") }
      }
      record.remove()
      var after = stat()
      #expect(lstat(path, &after) == 0 && after.st_ino == before.st_ino && after.st_mode == before.st_mode, "\(path)")
      if before.st_mode & S_IFMT == S_IFREG { #expect(try fileContents(path) == contents) }
    }
  }

  @Test("the record survives each write, is readable only by its owner, and belongs to the file's state")
  func remembers() throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", "text")
    let path = "\(directory.path)/data.sluice"
    let first = UploadRecord(path: path, version: try version(file))
    #expect(try first.claim() == nil)
    let data = try #require(data)
    #expect(first.write(data) == nil)
    first.release()
    var status = stat()
    #expect(stat(path, &status) == 0 && status.st_mode & 0o777 == 0o600)
    let second = UploadRecord(path: path, version: try version(file))
    #expect(try second.claim() == UploadRecord.Unfinished(data: data, version: "\(try version(file))"))
    second.remove()
    #expect(directory.names == ["data"])
  }

  @Test("a record that ends within a later state has the last complete one, and within the first one it is refused")
  func cut() throws {
    let (directory, version, first) = try claimed()
    let path = first.path
    var states: [ResumeData] = []
    var ends = [try directory.contents("data.sluice").count]
    for number in 0..<3 {
      var data = try #require(data)
      data.upload = "http://h/\(number)"
      // An unchanged record is not written again.
      for _ in 0..<2 { #expect(first.write(data) == nil) }
      states.append(data)
      ends.append(try directory.contents("data.sluice").count)
      #expect(directory.names == ["data", "data.sluice"])
    }
    first.release()
    let whole = try directory.contents("data.sluice")
    #expect(whole.count == ends[3])
    for count in ends[0]...ends[3] {
      try directory.write("data.sluice", Array(whole[..<count]))
      let record = UploadRecord(path: path, version: version)
      let complete = ends.count { $0 <= count } - 1
      guard complete > 0 || count == ends[0] else {
        #expect(code { () throws(CommandError) in _ = try record.claim() } == .badData, "\(count) bytes")
        record.remove()
        #expect(try directory.contents("data.sluice") == Array(whole[..<count]), "\(count) bytes")
        continue
      }
      #expect(try record.claim()?.data == (complete > 0 ? states[complete - 1] : nil), "\(count) bytes")
      #expect(record.write(states[0]) == nil)
      record.release()
      let next = UploadRecord(path: path, version: version)
      #expect(try next.claim()?.data == states[0], "\(count) bytes")
      next.release()
    }
  }

  @Test("a record of which any bit was changed is refused and stays unchanged", arguments: Seed.several(2))
  func changedBit(_ seed: Seed) throws {
    var random = seed.generator
    let (directory, version, record) = try claimed()
    #expect(record.write(try #require(data)) == nil)
    record.release()
    let whole = try directory.contents("data.sluice")
    for position in whole.indices {
      var changed = whole
      changed[position] ^= 1 << UInt8.random(in: 0..<8, using: &random)
      try directory.write("data.sluice", changed)
      let next = UploadRecord(path: record.path, version: version)
      #expect(code { () throws(CommandError) in _ = try next.claim() } == .badData, "byte \(position)")
      next.remove()
      #expect(try directory.contents("data.sluice") == changed, "byte \(position)")
    }
  }

  @Test("a changed bit in a record with two states never gives a third one", arguments: Seed.several(2))
  func changedBitOfTwoStates(_ seed: Seed) throws {
    var random = seed.generator
    let (directory, version, record) = try claimed()
    let first = try #require(data)
    var second = first
    second.upload = "http://h/second"
    #expect(record.write(first) == nil)
    let firstEnd = try directory.contents("data.sluice").count
    #expect(record.write(second) == nil)
    record.release()
    let whole = try directory.contents("data.sluice")
    for position in whole.indices {
      var changed = whole
      changed[position] ^= 1 << UInt8.random(in: 0..<8, using: &random)
      try directory.write("data.sluice", changed)
      let next = UploadRecord(path: record.path, version: version)
      do throws(CommandError) {
        // The second state then looks like one whose write a kill has interrupted.
        let found = try next.claim()
        #expect(position >= firstEnd && found?.data == first, "byte \(position)")
      } catch {
        #expect(error.code == .badData, "byte \(position)")
      }
      next.release()
    }
  }

  @Test(
    "a record into which another program has written the URL of another upload or another Stream-ID is refused",
    arguments: ["upload=\"http://h/u", "stream-id=\"s", "length=7"], [1, 2])
  func changedField(_ field: String, writes: Int) throws {
    let (directory, version, record) = try claimed()
    var data = try #require(data)
    for number in 0..<writes {
      data.target = "http://h/\(number)"
      #expect(record.write(data) == nil)
    }
    record.release()
    let text = String(decoding: try directory.contents("data.sluice"), as: UTF8.self)
    let changed = text.replacing(field, with: field + "2")
    #expect(changed != text)
    try directory.write("data.sluice", changed)
    let next = UploadRecord(path: record.path, version: version)
    do throws(CommandError) {
      _ = try next.claim()
      Issue.record("the changed record was claimed")
    } catch {
      #expect(error.code == .badData && error.message.contains("another program has changed it"), "\(error.message)")
      #expect(error.message.contains("--resume-file PATH, or delete it and upload the file"), "\(error.message)")
    }
    #expect(try directory.contents("data.sluice") == Array(changed.utf8))
  }

  @Test("a record of an earlier version, which has no digests, can be resumed and keeps its form")
  func earlierForm() throws {
    let directory = try TemporaryDirectory()
    let version = try version(try directory.write("data", "text"))
    let data = try #require(data)
    let text = try #require(data.text)
    let path = try directory.write("data.sluice", "sluice upload record 2\n\(text)\n\(version)\n end\n")
    let before = try directory.contents("data.sluice")
    let record = UploadRecord(path: path, version: version)
    #expect(try record.claim() == UploadRecord.Unfinished(data: data, version: "\(version)"))
    #expect(record.write(data) == nil)
    #expect(try directory.contents("data.sluice") == before, "an unchanged state is not written again")
    var other = data
    other.upload = "http://h/other"
    #expect(record.write(other) == nil)
    record.release()
    let next = UploadRecord(path: path, version: version)
    #expect(try next.claim()?.data == other)
    next.reset()
    #expect(try directory.contents("data.sluice") == Array("sluice upload record 2\n".utf8))
    #expect(next.advice(resumingWith: "c") == Self.nothing)
    next.remove()
    #expect(directory.names == ["data"])
  }

  @Test("a record that thousands of states have made long is rewritten, and has the last one")
  func endless() throws {
    let directory = try TemporaryDirectory()
    let version = try version(try directory.write("data", "text"))
    let path = "\(directory.path)/data.sluice"
    let record = UploadRecord(path: path, version: version)
    _ = try record.claim()
    var data = try #require(data)
    for number in 0..<30 {
      data.upload = "http://h/" + String(repeating: "\(number % 10)", count: 90_000)
      #expect(record.write(data) == nil)
      #expect(try directory.contents("data.sluice").count <= 1 << 20)
    }
    record.release()
    #expect(try UploadRecord(path: path, version: version).claim()?.data == data)
  }

  @Test("a child process that was forked meanwhile does not keep it locked", arguments: [false, true])
  func forked(isRemoved: Bool) throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", "text")
    let path = "\(directory.path)/data.sluice"
    var first = Optional(UploadRecord(path: path, version: try version(file)))
    #expect(try first?.claim() == nil)
    // Imitates a child between fork and exec, which has another descriptor of the same open file.
    let inherited = try #require(descriptors(of: path).first.map { fcntl($0, F_DUPFD_CLOEXEC, 0) })
    defer { close(inherited) }
    let second = UploadRecord(path: path, version: try version(file))
    #expect(code { () throws(CommandError) in _ = try second.claim() } == .inputOutput)
    if isRemoved { first?.remove() }
    first = nil
    #expect(code { () throws(CommandError) in _ = try second.claim() } == nil)
  }

  /// This process's descriptors that are open on a path.
  private func descriptors(of path: String) throws -> [Int32] {
    var named = stat()
    try #require(stat(path, &named) == 0)
    return (0..<4096).filter { descriptor in
      var own = stat()
      return fstat(descriptor, &own) == 0 && own.st_dev == named.st_dev && own.st_ino == named.st_ino
    }
  }

  @Test("an upload that was killed before it began leaves no obstacle")
  func neverBegan() throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", "text")
    let path = "\(directory.path)/data.sluice"
    // The first process leaves the same files as a killed one.
    for _ in 0..<2 {
      let record = UploadRecord(path: path, version: try version(file))
      #expect(try record.claim() == nil)
      #expect(try directory.contents("data.sluice") == Array("sluice upload record 3\n".utf8))
      record.release()
    }
    let record = UploadRecord(path: path, version: try version(file))
    #expect(try record.claim() == nil)
    #expect(record.write(try #require(data)) == nil)
    record.remove()
    #expect(directory.names == ["data"])
  }

  @Test("a record that was reset has no state and leaves no obstacle", arguments: [0, 1, 2])
  func reset(writesBefore: Int) throws {
    let (directory, version, record) = try claimed()
    var data = try #require(data)
    for number in 0..<writesBefore {
      data.upload = "http://h/\(number)"
      #expect(record.write(data) == nil)
    }
    #expect(record.advice(resumingWith: "c") == (writesBefore > 0 ? "resume with: c" : Self.nothing))
    record.reset()
    #expect(record.isKept && record.advice(resumingWith: "c") == Self.nothing)
    #expect(try directory.contents("data.sluice") == Array("sluice upload record 3\n".utf8))
    // It is still the record of this process.
    #expect(record.write(data) == nil)
    record.reset()
    record.release()
    let next = UploadRecord(path: record.path, version: version)
    #expect(try next.claim() == nil)
    #expect(next.isInherited)
    next.remove()
    #expect(directory.names == ["data"])
  }

  private static let nothing =
    "nothing to resume: the same command begins with the first byte, with or without --resume"

  @Test("a record that cannot be created is created later, once that is possible", arguments: [false, true])
  func createdLater(_ resets: Bool) throws {
    let directory = try TemporaryDirectory()
    let version = try version(try directory.write("data", "text"))
    let data = try #require(data)
    let place = "\(directory.path)/place"
    let record = UploadRecord(path: "\(place)/record", version: version)
    #expect(try record.claim() == nil)
    #expect(record.write(data)?.code == ENOENT)
    record.reset()
    #expect(!record.isKept && record.advice(resumingWith: "c").contains("without --resume"))
    #expect(mkdir(place, 0o700) == 0)
    // Another program's file stays as it is.
    try directory.write("place/record", "precious")
    #expect(record.write(data)?.code == EEXIST)
    record.reset()
    #expect(try directory.contents("place/record") == Array("precious".utf8) && !record.isKept)
    #expect(unlink(record.path) == 0)
    if resets { record.reset() } else { #expect(record.write(data) == nil) }
    #expect(record.isKept)
    record.release()
    let next = UploadRecord(path: record.path, version: version)
    #expect(try next.claim()?.data == (resets ? nil : data))
    next.remove()
    #expect(rmdir(place) == 0)
  }

  @Test("a record is withdrawn only by the process that has created it")
  func withdrawn() throws {
    let (directory, version, record) = try claimed()
    record.withdraw()
    #expect(directory.names == ["data"])
    try directory.write("data.sluice", "sluice upload record 3\n")
    #expect(try record.claim() == nil)
    record.withdraw()
    #expect(try directory.contents("data.sluice") == Array("sluice upload record 3\n".utf8))
    // The lock is released.
    #expect(try UploadRecord(path: record.path, version: version).claim() == nil)
  }

  @Test("an empty file is refused and stays empty, even if only its owner may read it, and whoever has locked it")
  func empty() throws {
    let directory = try TemporaryDirectory()
    let version = try version(try directory.write("data", "text"))
    let path = try directory.write("data.sluice", "")
    let owner = open(path, O_RDWR | O_CLOEXEC)
    #expect(flock(owner, LOCK_EX | LOCK_NB) == 0)
    let record = UploadRecord(path: path, version: version)
    #expect(code { () throws(CommandError) in _ = try record.claim() } == .inputOutput)
    close(owner)
    #expect(code { () throws(CommandError) in _ = try record.claim() } == .badData)
    #expect(!record.isKept)
    record.remove()
    #expect(try directory.contents("data.sluice").isEmpty)
    #expect(directory.names == ["data", "data.sluice"])
  }

  @Test("a second upload is refused while the first one runs, during every write")
  func locked() throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", "text")
    let path = "\(directory.path)/data.sluice"
    let first = UploadRecord(path: path, version: try version(file))
    let second = UploadRecord(path: path, version: try version(file))
    _ = try first.claim()
    for _ in 0..<3 {
      #expect(code { () throws(CommandError) in _ = try second.claim() } == .inputOutput)
      #expect(first.write(try #require(data)) == nil)
    }
    second.remove()
    #expect(directory.names == ["data", "data.sluice"])
    first.remove()
    #expect(try second.claim() == nil)
  }

  @Test("a file that replaces the record is neither overwritten nor removed")
  func replaced() throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", "text")
    let path = "\(directory.path)/data.sluice"
    let record = UploadRecord(path: path, version: try version(file))
    _ = try record.claim()
    #expect(rename(try directory.write("mine", "precious"), path) == 0)
    #expect(record.write(try #require(data)) != nil)
    record.remove()
    #expect(try directory.contents("data.sluice") == Array("precious".utf8))
    #expect(directory.names == ["data", "data.sluice"])
  }

  @Test(
    "a record that another program has written into is neither overwritten nor removed",
    arguments: ["", "precious", "sluice upload record 3\nprecious\n"], [0, 1, 2])
  func rewritten(_ text: String, writesBefore: Int) throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", "text")
    let path = "\(directory.path)/data.sluice"
    let record = UploadRecord(path: path, version: try version(file))
    _ = try record.claim()
    for _ in 0..<writesBefore { #expect(record.write(try #require(data)) == nil) }
    #expect(record.isKept)
    let writing = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC)
    #expect(write(writing, text, text.utf8.count) == text.utf8.count)
    close(writing)
    #expect(!record.isKept)
    #expect(record.write(try #require(data)) != nil)
    record.remove()
    #expect(try directory.contents("data.sluice") == Array(text.utf8))
    #expect(directory.names == ["data", "data.sluice"])
  }

  @Test("a record with the longest possible URL is removed like any other")
  func long() throws {
    let directory = try TemporaryDirectory()
    let record = UploadRecord(
      path: "\(directory.path)/data.sluice", version: try version(try directory.write("data", "text")))
    _ = try record.claim()
    var data = try #require(data)
    data.upload = "http://h/" + String(repeating: "x", count: 100_000)
    #expect(record.write(data) == nil && record.isKept)
    record.remove()
    #expect(directory.names == ["data"])
  }

  @Test("if many processes claim it at once, one at a time has it")
  func many() throws {
    let directory = try TemporaryDirectory()
    let version = try version(try directory.write("data", "text"))
    let path = "\(directory.path)/data.sluice"
    let owners = Atomic(0)
    let claims = Atomic(0)
    let threads = try (0..<4).map { number in
      try NamedThread("claim \(number)") {
        for _ in 0..<100 {
          let record = UploadRecord(path: path, version: version)
          guard (try? record.claim()) != nil || record.isKept else { continue }
          #expect(owners.wrappingAdd(1, ordering: .sequentiallyConsistent).newValue == 1)
          claims.wrappingAdd(1, ordering: .relaxed)
          owners.wrappingSubtract(1, ordering: .sequentiallyConsistent)
          record.remove()
        }
      }
    }
    for thread in threads { thread.join() }
    #expect(claims.load(ordering: .relaxed) > 0 && directory.names == ["data"])
  }

  @Test("a suggested path is one word of a shell, whatever its characters")
  func quoting() throws {
    for text in ["plain/path.wav", "it's", "a b", "$(x)", "`x`", "\\", "\"", "*", "ü", "\u{1B}[2J\n'\\é", "", "#", "~"]
    {
      let process = try TestProcess("/bin/bash", ["-c", "printf %s \(text.shellQuoted) | base64 -w0"], input: .nothing)
      #expect(try process.wait() == 0)
      let expected = try TestProcess("/usr/bin/base64", ["-w0"], input: .pipe)
      expected.send(Array(text.utf8))
      expected.endInput()
      #expect(try expected.wait() == 0)
      #expect(process.output == expected.output, "\(text)")
      #expect(!text.shellQuoted.unicodeScalars.contains { $0.value < 0x20 })
    }
    #expect("-x".shellOperand == "./-x")
  }
}
