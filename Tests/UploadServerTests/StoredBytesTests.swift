// Tests how bytes travel to the disk and back, and how many descriptors this takes.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Synchronization
import Testing

@testable import DiskFiles
@testable import HTTPServer
@testable import ResumableServing
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

@Suite("Stored bytes")
struct StoredBytesTests {
  @Test(
    "any number of pieces of any size is written where it belongs, without those that are skipped",
    arguments: Seed.several(3))
  func pieces(_ seed: Seed) throws {
    var random = seed.generator
    let directory = TemporaryDirectory()
    let bytes = (0..<20_000).map { _ in UInt8.random(in: 0...255, using: &random) }
    for _ in 0..<40 {
      // UIO_MAXIOV is 1,024. The counts are below, at and above it.
      let count = [1, 2, 1023, 1024, 1025, 2048, 2049, Int.random(in: 1...5000, using: &random)].randomElement(
        using: &random)!  // not empty
      var pieces: [Range<Int>] = []
      var position = 0
      for _ in 0..<count {
        let start = position + Int.random(in: 0...1, using: &random)
        let end = start + (random.chance(3) ? Int.random(in: 0...3, using: &random) : 1)
        guard end <= bytes.count else { break }
        pieces.append(start..<end)
        position = end
      }
      let all = pieces.flatMap { bytes[$0] }
      let skipped = random.chance(2) ? 0 : Int.random(in: 0...all.count, using: &random)
      let descriptor = open(directory.path + "/f", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0o600)
      defer { close(descriptor) }
      let (written, error) = BodyWriter.write(descriptor, bytes.span, pieces, skipping: skipped, at: 7)
      #expect(error == nil && written == all.count - skipped)
      #expect(try directory.contents("f").dropFirst(7).elementsEqual(all.dropFirst(skipped)) || written == 0)
      guard skipped == 0 else { continue }
      let compared = Int.random(in: 0...all.count, using: &random)
      #expect(try BodyWriter.matches(descriptor, bytes.span, pieces, count: compared, at: 7))
      guard compared > 0 else { continue }
      var other = UInt8(all[compared - 1] ^ 1)
      pwrite(descriptor, &other, 1, off_t(7 + compared - 1))
      #expect(try !BodyWriter.matches(descriptor, bytes.span, pieces, count: compared, at: 7))
    }
  }

  @Test("a body of 10,000 chunks of one byte, sent at once, is stored completely")
  func oneByteChunks() throws {
    let test = try TestServer()
    let text = String((0..<10_000).map { Character(UnicodeScalar(UInt8(97 + $0 % 26))) })
    let client = try test.connect()
    try client.send(TestServer.head() + text.map { "1\r\n\($0)\r\n" }.joined() + "0\r\n\r\n")
    #expect(try client.answer().status == 201)
    #expect(try test.directory.text("t-a.txt") == text)
    // The same as an upload.
    let location = try test.create("/u.txt", ["Stream-ID: b"])
    try client.patch(location, at: 0, completes: true, chunked: true)
    try client.send(text.map { "1\r\n\($0)\r\n" }.joined() + "0\r\n\r\n")
    #expect(try client.final().answer.status == 201)
    #expect(try test.directory.text("u-b.txt") == text)
  }

  @Test("bytes do not match a file that ends before them")
  func shorterFile() throws {
    let directory = TemporaryDirectory()
    try directory.write("f", Array("abc".utf8))
    let descriptor = open(directory.path + "/f", O_RDONLY | O_CLOEXEC)
    defer { close(descriptor) }
    let bytes = Array("abcd".utf8)
    let isInFile = try BodyWriter.matches(descriptor, bytes.span, [0..<3], count: 3, at: 0)
    let isLongerInFile = try BodyWriter.matches(descriptor, bytes.span, [0..<4], count: 4, at: 0)
    let isBehindFile = try BodyWriter.matches(descriptor, bytes.span, [3..<4], count: 1, at: 3)
    #expect(isInFile && !isLongerInFile && !isBehindFile)
  }

  @Test("a body that waits for the disk keeps no descriptor, and the sync applies to its own file")
  func closedBeforeSync() throws {
    let directory = TemporaryDirectory()
    let files = OpenFiles()
    let usage = UploadUsage(.init())
    let store = try FileStore(
      path: directory.path, durability: .interval, closedLifetime: .zero, files: files, usage)
    let loop = try EventLoop()
    let records = try UploadRecordStore(
      in: RecordsDirectory(in: store.directory), disk: store.disk, worker: store.worker, files: files,
      durability: .interval, loop: loop, assignment: .only)
    let (file, _) = try records.openBody("0000", creating: true)
    let body = SpooledBody(
      file, keptCount: 0, account: StreamAccount(usage), share: usage.share(of: nil),
      handler: FixedResponseHandler(Response(200)), loop: loop, records: records, unreadable: { _ in })
    let bytes = Array("abc".utf8)
    #expect(body.append(bytes.span, pieces: [0..<3]) == nil)
    // The worker is busy with other work.
    let gate = EndSignal()
    store.worker.execute { gate.wait() }
    let synced = try EventLog<SystemError?>()
    body.synchronize { count, error in
      #expect(count == 3)
      synced.append(error)
      loop.stop()
    }
    // The file is closed as for an idle upload, and a pipe gets its number. A pipe cannot be synced.
    body.closeFile()
    var pipes: [Int32] = [0, 0]
    pipe(&pipes)
    defer { for descriptor in pipes { close(descriptor) } }
    gate.signal()
    loop.run()
    #expect(try synced.first("the sync") { _ in true } == nil)
  }

  @Test("a body whose bytes were read back for its handler can be closed")
  func closedAfterReading() throws {
    let directory = TemporaryDirectory()
    let (files, usage, loop) = (OpenFiles(), UploadUsage(.init()), try EventLoop())
    let store = try FileStore(path: directory.path, durability: .none, closedLifetime: .zero, files: files, usage)
    let records = try UploadRecordStore(
      in: RecordsDirectory(in: store.directory), disk: store.disk, worker: store.worker, files: files,
      durability: .none, loop: loop, assignment: .only)
    let (file, _) = try records.openBody("0000", creating: true)
    var received: [UInt8]?
    let handler = Gatherer { [unowned loop] in
      received = $0
      loop.stop()
    }
    let body = SpooledBody(
      file, keptCount: 0, account: StreamAccount(usage), share: usage.share(of: nil), handler: handler, loop: loop,
      records: records, unreadable: { _ in })
    let bytes = Array("abc".utf8)
    #expect(body.append(bytes.span, pieces: [0..<3]) == nil)
    body.end(sha256: nil)
    #expect(received == nil, "the handler has not accepted it yet")
    body.accept()
    loop.runAtMostAMinute()
    #expect(received == bytes)
    let path = try "\(directory.path)/\(#require(records.bodyName("0000")))"
    #expect(ForeignChangeTests.isOpen(path))
    body.closeFile()
    #expect(!ForeignChangeTests.isOpen(path))
  }

  @Test("failures leave no descriptor open")
  func leaks() async {
    // Runs in a separate process because other tests open and close descriptors too.
    await #expect(processExitsWith: .success) {
      func openDescriptors() -> Int {
        guard let directory = opendir("/proc/self/fd") else { return -1 }
        defer { closedir(directory) }
        var count = 0
        while readdir(directory) != nil { count += 1 }
        return count
      }
      let test = try TestServer()
      let directory = test.directory.path
      mkfifo(directory + "/t-fifo.part", 0o600)
      mkdir(directory + "/t-folder.part", 0o700)
      symlink("/nonexistent", directory + "/t-link.part")
      let loop = try EventLoop()
      func failures() throws {
        for id in ["fifo", "folder", "link"] {
          let client = try test.connect()
          try client.send(TestServer.head(id: id, framing: "Content-Length: 1") + "x")
          try require(try client.answer().status == 500, "\(id) is not a place for a stream")
        }
        // A port that is in use would do as well, but finding its owner takes long.
        for address in ["192.0.2.1:80", "unix:/nonexistent/socket"] {
          let isMade = (try? Listener.all(at: try ListenAddress(address), .init(), loop)) != nil
          try require(!isMade, "the server cannot listen on \(address)")
          let isServer =
            (try? UploadServer(configuration: .init(listen: [try ListenAddress(address)], directory: directory + "/s")))
            != nil
          try require(!isServer, "there is no server at \(address)")
        }
        let isSecond = (try? UploadServer(configuration: .init(listen: [], directory: directory))) != nil
        try require(!isSecond, "the directory is in use")
      }
      try failures()
      let before = openDescriptors()
      for _ in 0..<20 { try failures() }
      // The server closes a connection once it has noticed that the client's end is closed.
      try waitUntil("all are closed: \(before) before, \(openDescriptors()) now") { openDescriptors() <= before }
    }
  }
}
