// Tests the order of work in the store's thread: a few bytes after a large hole make a recording whose digest takes
// long, and many of these must delay no client.

import EventLoops
import Glibc
import HTTPMessages
import HTTPServer
import NetworkTesting
import PropertyTesting
import Recordings
import Testing

@testable import DiskFiles
@testable import ResumableServing
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

@Suite("The order of work in a store")
struct WorkerOrderTests {
  @Test("between two slices that a client waits for, there is at most one that no client waits for")
  func oneBetween() throws {
    let worker = BackgroundWorker()
    let events = try EventLog<String>()
    let gate = EndSignal()
    // What the client's loop submits after it has received the result of its last slice.
    let answer = Lock<(@Sendable () -> Void)?>(nil)
    @Sendable func clientSlice(_ left: Int) {
      events.append("client")
      guard left > 1 else { return }
      let next: @Sendable () -> Void = { worker.executeSlice { clientSlice(left - 1) } }
      answer.withLock { $0 = next }
    }
    @Sendable func digest(_ left: UInt64) {
      events.append("digest")
      let next = answer.withLock { answer in
        defer { answer = nil }
        return answer
      }
      next?()
      if left > 1 { worker.executeUnhurried(remaining: left - 1) { digest(left - 1) } }
    }
    worker.execute { gate.wait() }
    for _ in 0..<100 { worker.executeUnhurried(remaining: 3) { digest(3) } }
    worker.executeSlice { clientSlice(10) }
    gate.signal()
    let order = try events.wait("the end of all") { $0.count == 310 ? $0 : nil }
    #expect(order.prefix(20) == (0..<20).map { $0 % 2 == 0 ? "client" : "digest" }[...])
  }

  @Test("on a disk that is always busy, slices still run, one at a time")
  func busy() throws {
    let worker = BackgroundWorker(patience: .init(slices: .milliseconds(1), unhurried: .milliseconds(5)))
    let events = try EventLog<String>()
    let gate = EndSignal()
    let isOver = Lock(false)
    // Each sync brings the next one.
    @Sendable func sync() {
      events.append("sync")
      if !isOver.withLock({ $0 }) { worker.execute { sync() } }
    }
    worker.execute { gate.wait() }
    worker.execute { sync() }
    for _ in 0..<3 { worker.executeUnhurried(remaining: 1) { events.append("digest") } }
    for _ in 0..<10 { worker.executeSlice { events.append("client") } }
    gate.signal()
    let order = try events.wait("all slices") { log in log.count { $0 != "sync" } == 13 ? log : nil }
    isOver.withLock { $0 = true }
    let clients = order.split(separator: "client", omittingEmptySubsequences: false).dropLast()
    #expect(clients.count == 10 && clients.allSatisfy { $0.contains("sync") }, "\(order)")
  }

  @Test("of the work that no client waits for, the shortest runs first, equals in their order, each to its end")
  func shortestFirst() throws {
    let worker = BackgroundWorker()
    let events = try EventLog<String>()
    let gate = EndSignal()
    @Sendable func slice(_ name: String, _ left: UInt64) {
      events.append(name)
      if left > 1 { worker.executeUnhurried(remaining: left - 1) { slice(name, left - 1) } }
    }
    worker.execute { gate.wait() }
    for (name, length) in [("a", 3), ("b", 3), ("c", 1), ("d", 2), ("e", 1), ("f", 3)] as [(String, UInt64)] {
      worker.executeUnhurried(remaining: length) { slice(name, length) }
    }
    gate.signal()
    let order = try events.wait("the end of all") { $0.count == 13 ? $0 : nil }
    #expect(order.joined() == "ceddaaabbbfff")
  }

  @Test("the list of recordings is complete before any long work continues")
  func listing() throws {
    let directory = TemporaryDirectory()
    try Command.run("sh", ["-c", "cd \"$0\" && seq -f 'a-%.0f.rare' 5000 | xargs touch", directory.path])
    let descriptor = open(directory.path, O_RDONLY | O_DIRECTORY)
    defer { close(descriptor) }
    let recordings = CompleteRecordings(in: descriptor)
    let worker = BackgroundWorker(patience: .init(slices: .seconds(600), unhurried: .seconds(600)))
    let gate = EndSignal()
    let isListed = try EventLog<Bool>()
    let asked = StreamName(path: "/new.txt", streamID: "b", mediaType: nil)
    @Sendable func look() {
      do throws(SystemError) {
        _ = try recordings.find(asked)
        isListed.append(true)
      } catch {
        isListed.append(false)
      }
    }
    worker.execute { gate.wait() }
    for _ in 0..<50 {
      worker.executeSlice { look() }
      worker.executeUnhurried(remaining: 1) { look() }
    }
    try recordings.scan(on: worker, patience: .zero) { _, _ in }
    gate.signal()
    let order = try isListed.wait("all of the work") { $0.count == 100 ? $0 : nil }
    #expect(order.allSatisfy { $0 })
  }

  @Test("an upload that must be read again is complete before the digests of many sparse recordings begin")
  func catchingUp() throws {
    let directory = TemporaryDirectory()
    let files = OpenFiles()
    let usage = UploadUsage(.init())
    let store = try FileStore(
      path: directory.path, durability: .none, closedLifetime: .zero, hasSidecars: true, files: files, usage)
    let loop = try EventLoop()
    let records = try UploadRecordStore(
      in: RecordsDirectory(in: store.directory), disk: store.disk, worker: store.worker, files: files,
      durability: .none, loop: loop, assignment: .only)
    let names = (0..<100).map { StreamName(path: "/h.txt", streamID: "\($0)", mediaType: "text/plain") }
    for name in names {
      try Command.run("truncate", ["-s", "1M", directory.path + "/" + name.final])
      var sidecar = RecordingSidecar(file: name.final)
      sidecar.stored = RecordingSidecar.Content(bytes: 1 << 20)
      sidecar.received = sidecar.stored
      try directory.write(name.pendingSidecar, Array(sidecar.text.utf8))
    }
    func writtenCount() -> Int { names.count { directory.exists($0.sidecar) } }
    let (file, _) = try records.openBody("0000", creating: true)
    let body = SpooledBody(
      file, keptCount: 0, account: StreamAccount(usage), share: usage.share(of: nil),
      handler: FixedResponseHandler(Response(200)), loop: loop, records: records, unreadable: { _ in })
    // This is more than the server reads without the worker.
    let bytes = [UInt8](repeating: 7, count: 3 << 20)
    #expect(body.append(bytes.span, pieces: [0..<bytes.count]) == nil)
    let digests = try #require(UploadDigests(["want-repr-digest": "sha-256=1"]))

    let gate = EndSignal()
    let written = try EventLog<Int>()
    let directoryPath = directory.path
    let sidecars = names.map { directoryPath + "/" + $0.sidecar }
    store.worker.execute { gate.wait() }
    for name in names { store.completeSidecar(name) }
    var verdict: UploadDigests.Verdict?
    digests.catchUp(with: body, loop: loop, worker: store.worker) {
      verdict = $0
      loop.stop()
    }
    // Long work of other clients, which those clients wait for too.
    let worker = store.worker
    @Sendable func clientSlice(_ left: Int) {
      if left > 1 {
        worker.executeSlice { clientSlice(left - 1) }
      } else {
        written.append(sidecars.count { access($0, F_OK) == 0 })
      }
    }
    worker.executeSlice { clientSlice(5) }
    gate.signal()
    loop.run()
    #expect(verdict == .right)
    #expect(try written.first("the last slice that a client waits for") { _ in true } == 0)
    try waitUntil("all sidecars are written") { writtenCount() == names.count }
  }

  @Test(
    "the digests of all sparse recordings are written eventually, even after a restart",
    arguments: Seed.several(2))
  func restart(_ seed: Seed) throws {
    var random = seed.generator
    let directory = TemporaryDirectory()
    let lengths = (0..<16).map { _ in Int.random(in: 1...(24 << 20), using: &random) }
    do {
      let test = try TestServer(in: directory)
      for (number, length) in lengths.enumerated() {
        let client = try test.connect()
        try client.send(TestServer.head(id: "\(number)", offset: length) + "1\r\nx\r\n0\r\n\r\n")
        #expect(try client.answer().status == 201)
      }
      test.stop()
    }
    let again = try TestServer(in: directory)
    for number in lengths.indices {
      try waitUntil("the sidecar of number \(number) is written", within: 60) {
        directory.exists("t-\(number).sidecar")
      }
    }
    again.stop()
    let summary = try RecordingVerification(directory: directory.path).run { Issue.record("\($0)") }
    #expect(summary.recordings == lengths.count)
  }
}
