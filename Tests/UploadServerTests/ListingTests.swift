// Tests that a directory which cannot be listed causes an error: no name in it may count as free.

import EventLoops
import Glibc
import NetworkTesting
import SyncGate
import Testing

@testable import DiskFiles
@testable import ResumableServing
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

@Suite("Listings of directories")
struct ListingTests {
  @Test("a missing or unreadable directory is an error and not an empty directory")
  func failures() async throws {
    #expect(throws: (any Error).self) { try DirectoryNames(of: -1) }
    #expect(throws: (any Error).self) { try DirectoryNames(of: "/proc/self/status", in: AT_FDCWD) }
    #expect(throws: (any Error).self) { try DirectoryNames.ifThere("/proc/self/status", in: AT_FDCWD) }
    // Only here it may be missing.
    let missing = try DirectoryNames.ifThere("/nonexistent", in: AT_FDCWD)
    #expect(missing == nil)
    #expect(throws: (any Error).self) { try CompleteRecordings(in: -1).scan(on: BackgroundWorker()) { _, _ in } }
    // A separate process, because the test closes the server's descriptor and no other test may reuse its number.
    await #expect(processExitsWith: .success) {
      let directory = open("/proc/self/fd", O_RDONLY | O_DIRECTORY)
      let next = dup(directory)
      close(next)
      let names = try DirectoryNames(of: directory)
      close(next)
      do {
        _ = try names.next(10)
        exit(1)
      } catch {
        exit((error as? SystemError)?.code == EBADF ? 0 : 2)
      }
    }
  }

  @Test(
    "a server that cannot list its records of closed recordings does not start, or reports that it cannot find them")
  func unlistable() throws {
    for (file, hasQuota) in [(".parts", true), (".parts", false), (".owners", true)] {
      let directory = TemporaryDirectory()
      try Command.run("touch", [directory.path + "/" + file])
      do {
        let test = try TestServer(in: directory) { if hasQuota { $0.uploads.quota = 1000 } }
        #expect(file != ".parts" || !hasQuota)
        let event = try test.events.wait(.warning)
        #expect(event.reason?.contains("cannot find unfinished recordings") == true)
      } catch let error as UploadServerError {
        #expect(file == ".parts" && hasQuota)
        guard case .unreadableDirectory = error else {
          Issue.record("\(error)")
          return
        }
        #expect(error.description.hasPrefix("cannot list the directory \"\(directory.path)\": "))
      }
    }
  }

  @Test("a foreign file whose name begins with a hyphen stays unchanged, whatever its contents")
  func hyphen() throws {
    let directory = TemporaryDirectory()
    for name in ["-f.part", "-f~2.part", "f-x.part"] {
      try Command.run("sh", ["-c", "echo content > \"$0/$1\"", directory.path, name])
    }
    let test = try TestServer(in: directory) { $0.finishAfter = .milliseconds(100) }
    #expect(try test.events.wait(.closed).file == "f-x.bin")
    test.stop()
    // All files that wait for their final name have it by the time the server ends.
    #expect(directory.names.filter { !$0.hasPrefix(".") } == ["-f.part", "-f~2.part", "f-x.bin", "f-x.gaps"])
  }

  @Test("until the directory is listed, a possibly existing stream receives 503")
  func early() throws {
    let directory = TemporaryDirectory()
    try Command.run("sh", ["-c", "cd \"$0\" && seq -f 'a-%.0f.rare' 40000 | xargs touch", directory.path])
    // A busy machine may list everything before the client asks.
    for attempt in 0..<10 {
      let test = try TestServer(in: directory)
      var refusals = 0
      while true {
        let client = try test.connect()
        try client.send(TestServer.head("/new-\(attempt)-\(refusals).txt") + "0\r\n\r\n")
        let answer = try client.answer()
        if answer.status == 201 { break }
        #expect(answer.status == 503 && answer["retry-after"] == "2", "\(answer)")
        guard answer.status == 503 else { break }
        refusals += 1
      }
      if refusals > 0 { return }
      test.stop()
    }
    Issue.record("everything was listed before each client asked")
  }

  @Test("if the rest of the directory cannot be listed, a stream that may be in it receives 503 until it can")
  func later() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let count = 40_000
      try Command.run("sh", ["-c", "cd \"$0\" && seq -f 'a-%.0f.rare' \(count) | xargs touch", directory.path])
      // More than a start has time for, and fewer than there are.
      list_gate_fail(EIO, directory.path, UInt(count) - 100)
      let test = try TestServer(in: directory) { $0.maintenancePause = .milliseconds(5) }
      func create(_ number: Int) throws -> Int {
        let client = try test.connect()
        try client.send(TestServer.head("/new-\(number).txt") + "0\r\n\r\n")
        return try client.answer().status
      }
      for number in 0..<20 { try require(create(number) == 503, "the list is incomplete") }
      list_gate_fail(0, "", 0)
      var number = 20
      try waitUntil("all is listed") {
        number += 1
        return try create(number) == 201
      }
    }
  }

  @Test(
    "while the disk does not answer whether a recording exists, none is found in its place",
    .enabled(if: disk_faults_are_possible() != 0))
  func unanswered() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let descriptor = open(directory.path, O_RDONLY | O_DIRECTORY)
      let recordings = CompleteRecordings(in: descriptor)
      try recordings.scan(on: BackgroundWorker()) { _, _ in }
      let name = StreamName(path: "/a.rare", streamID: "1", mediaType: nil)
      disk_faults_begin(directory.path)
      for call in 1...100 {
        disk_faults_fail(DISK_ACCESS, UInt(call), EIO)
        do {
          let found = try recordings.find(name)
          try require(found == nil, "found after error \(call)")
          // All calls have succeeded.
          try require(String(cString: disk_faults_place()).isEmpty, "error \(call) does not count")
          try require(call > 1, "no call has failed")
          break
        } catch let error as SystemError {
          try require(error.code == EIO, "\(error)")
        }
        try require(call < 100, "the calls do not end")
      }
    }
  }

  @Test("the list of recordings with rare extensions has only existing ones")
  func removed() throws {
    let directory = TemporaryDirectory()
    let descriptor = open(directory.path, O_RDONLY | O_DIRECTORY)
    defer { close(descriptor) }
    let recordings = CompleteRecordings(in: descriptor)
    func name(_ number: Int) -> StreamName {
      StreamName(path: "/a.rare", streamID: "\(number)", mediaType: nil)
    }
    for number in 0..<5 { try Command.run("touch", [directory.path + "/a-\(number).rare"]) }
    for number in 0..<20_000 {
      recordings.add(name(number))
      #expect(recordings.listedCount <= 20)
    }
    try recordings.scan(on: BackgroundWorker()) { _, _ in }
    for number in 0..<10 {
      // If the requested extension differs, the file is found by listing the directory.
      let asked = name(number).withExtension(".other")
      #expect(try recordings.find(asked)?.final == (number < 5 ? "a-\(number).rare" : nil))
    }
  }
}
