// Tests long work of the disk worker: it is done in slices, so that no client and no end of the server waits for it.

import Digests
import EventLoops
import Glibc
import HTTPMessages
import HTTPServer
import NetworkTesting
import PropertyTesting
import Synchronization
import Testing

@testable import DiskFiles
@testable import ResumableServing
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

@Suite("Long work in slices", .serialized)
struct SlicedReadingTests {
  @Test("work that a client waits for runs before the next slice of long work")
  func slices() throws {
    let worker = BackgroundWorker()
    let events = try EventLog<String>()
    let count = Atomic<Int>(0)
    let isDone = Atomic<Bool>(false)
    @Sendable func slice() {
      count.wrappingAdd(1, ordering: .relaxed)
      // The slices never end by themselves.
      if isDone.load(ordering: .relaxed) { events.append("done") } else { worker.executeSlice { slice() } }
    }
    worker.executeSlice { slice() }
    try waitUntil("slices run") { count.load(ordering: .relaxed) > 2 }
    worker.execute { isDone.store(true, ordering: .relaxed) }
    _ = try events.first("the end of the slices") { $0 == "done" }
  }

  @Test("the digest of a sparse recording delays no upload and no end of the server")
  func digestOfAHole() throws {
    let test = try TestServer { $0.durability = .always }
    let client = try test.connect()
    // Reading 12 GiB takes many seconds on any machine.
    try client.send(TestServer.head("/t.txt", id: "a", offset: 12 << 30) + "3\r\nabc\r\n0\r\n\r\n")
    let answer = try client.answer()
    #expect(answer.status == 201, "\(answer)")
    for _ in 0..<20 {
      try client.request("POST", "/u.txt", ["Upload-Complete: ?0"], body: "abc")
      #expect(try client.final().answer["upload-offset"] == "3")
    }
    #expect(test.directory.exists("t-a.txt") && !test.directory.exists("t-a.sidecar"), "the digest is being taken")
    test.stop()
    #expect(!test.directory.exists("t-a.sidecar"), "the server does not wait for it")
  }

  @Test("bytes that arrive after the handler was begun again are in the digest, although it was being taken already")
  func begunAgain() throws {
    let directory = TemporaryDirectory()
    let files = OpenFiles()
    let usage = UploadUsage(.init())
    let store = try FileStore(path: directory.path, durability: .none, closedLifetime: .zero, files: files, usage)
    let loop = try EventLoop()
    let records = try UploadRecordStore(
      in: RecordsDirectory(in: store.directory), disk: store.disk, worker: store.worker, files: files,
      durability: .none, loop: loop, assignment: .only)
    func openBody(creating: Bool) throws -> SpooledBody {
      let (file, count) = try records.openBody("0000", creating: creating)
      return SpooledBody(
        file, keptCount: count, account: StreamAccount(usage), share: usage.share(of: nil),
        handler: FixedResponseHandler(Response(200)), loop: loop, records: records, unreadable: { _ in })
    }
    // This is more than the server reads without the worker.
    let (bytes, rest) = ([UInt8](repeating: 7, count: 3 << 20), Array("def".utf8))
    let digest = Digest(.sha256, of: (bytes + rest).span.bytes)
    let digests = try #require(UploadDigests(["repr-digest": "sha-256=:\(digest.base64):"]))
    let gate = EndSignal()
    store.worker.execute { gate.wait() }
    let first = try openBody(creating: true)
    #expect(first.append(bytes.span, pieces: [0..<bytes.count]) == nil)
    digests.catchUpInBackground(with: first, loop: loop, worker: store.worker)
    let second = try openBody(creating: false)
    #expect(second.append(rest.span, pieces: [0..<rest.count]) == nil)
    digests.update(rest.span, [0..<rest.count], at: UInt64(bytes.count))
    var verdict: UploadDigests.Verdict?
    digests.catchUp(with: second, loop: loop, worker: store.worker) {
      verdict = $0
      loop.stop()
    }
    gate.signal()
    loop.run()
    #expect(verdict == .right)
  }

  @Test("a file with holes is read correctly, in slices of any size", arguments: Seed.several(2))
  func sparseFiles(_ seed: Seed) throws {
    var random = seed.generator
    let directory = TemporaryDirectory()
    for number in 0..<30 {
      let path = "\(directory.path)/\(number)"
      let descriptor = open(path, O_RDWR | O_CREAT, 0o600)
      defer { close(descriptor) }
      let length = Int.random(in: 0...3_000_000, using: &random)
      var model = [UInt8](repeating: 0, count: length)
      ftruncate(descriptor, off_t(length))
      for _ in 0..<Int.random(in: 0...4, using: &random) where length > 0 {
        let start = Int.random(in: 0..<length, using: &random)
        let bytes = [UInt8](
          repeating: UInt8.random(in: 0...255, using: &random),
          count: Int.random(in: 1...min(70_000, length - start), using: &random))
        pwrite(descriptor, bytes, bytes.count, off_t(start))
        model.replaceSubrange(start..<(start + bytes.count), with: bytes)
      }
      let start = Int.random(in: 0...length, using: &random)
      let end = Int.random(in: start...length, using: &random)
      var status = stat()
      fstat(descriptor, &status)
      let file = OpenFile(fcntl(descriptor, F_DUPFD_CLOEXEC, 0), path, in: AT_FDCWD, O_RDONLY, status, OpenFiles())
      let reading = try #require(FileReading([FileStretch(file, UInt64(start)..<UInt64(end))]))
      var read: [UInt8] = []
      while !reading.isAtEnd {
        let before = read.count
        let limit = UInt64.random(in: 1...900_000, using: &random)
        let count = try reading.next(limit) { span in for index in span.indices { read.append(span[index]) } }
        #expect(count == UInt64(read.count - before) && count <= limit)
      }
      #expect(read == Array(model[start..<end]), "\(seed) \(number)")
      let beyond = try #require(FileReading([FileStretch(file, UInt64(length)..<UInt64(length + 1))]))
      #expect(throws: SystemError.self) { try beyond.next(1) { _ in } }
    }
  }
}
