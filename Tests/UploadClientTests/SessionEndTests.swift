// What a session does first and last.

import CallCounter
import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import StreamBuffers
import Testing

@testable import UploadClient

@Suite("The beginning and the end of a session", .serialized)
struct SessionEndTests {
  @Test("a session has one lane unless more are wanted, and uses the first one unless another is named")
  func lanes() throws {
    let seen = try EventLog<SeenRequest>()
    let server = try obligingServer(seen)
    let sessions = [(try UploadSession(), 1), (try UploadSession(lanes: 0), 1), (try UploadSession(lanes: 2), 2)]
    for (session, count) in sessions {
      defer { session.close() }
      #expect(session.lanes.count == count)
      #expect(try session.send(UploadRequest("GET", server.url)).status == 200)
      let used = try onThread(of: session) { session.lanes.map(\.connections.count) }
      #expect(used == [1] + [Int](repeating: 0, count: count - 1))
    }
  }

  @Test("a session that nobody refers to any more ends, and so do its idle connections")
  func dropped() throws {
    let ended = try EventLog<Bool>()
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("200 OK")
      ended.append(connection.readToEnd().isEmpty && connection.isEnded)
    }
    let closing = try EventCounter()
    do {
      let session = try UploadSession()
      let number = session.whenClosing { closing.signal() }
      #expect(number != nil)
      #expect(try session.send(UploadRequest("GET", server.url)).status == 200)
    }
    #expect(waitUntilReadable(closing.descriptor))
    #expect(try ended.wait("the end of the connection") { $0.first })
  }

  @Test(
    "a session that is closed on its own thread leaves none of the thread's memory",
    .enabled(if: call_counter_works(), "a sanitizer keeps the memory of threads"))
  func closedByItself() async {
    await #expect(processExitsWith: .success) {
      func addressSpace() throws -> Int {
        let status = String(decoding: try fileContents("/proc/self/status"), as: UTF8.self)
        let line = status.split(separator: "\n").first { $0.hasPrefix("VmSize:") }
        guard let kilobytes = line.flatMap({ Int($0.filter(\.isNumber)) }) else { throw TestFailure("no VmSize") }
        return kilobytes
      }
      func threadCount() throws -> Int {
        try fileNames(in: "/proc/self/task").count { thread in
          let name = (try? fileContents("/proc/self/task/\(thread)/comm")) ?? []
          return name.starts(with: "sluice-network".utf8)
        }
      }
      func run(_ count: Int) throws {
        for _ in 0..<count {
          let session = try UploadSession()
          try waitUntil("the thread has its name") { try threadCount() == 1 }
          session.loop.execute { session.close() }
          try waitUntil("the thread ends") { try threadCount() == 0 }
        }
      }
      try run(10)
      let before = try addressSpace()
      try run(60)
      // The stacks of 60 threads would be 480 MiB.
      let growth = try addressSpace() - before
      guard growth < 200 << 10 else { throw TestFailure("\(growth) KiB more") }
    }
  }

  private final class Load: Sendable {}

  @Test("a closed session keeps neither what it was to do when it closes, nor the body of a request that it refuses")
  func closed() throws {
    weak var left: Load?
    let session = try UploadSession()
    do {
      let load = Load()
      left = load
      let number = session.whenClosing { withExtendedLifetime(load) {} }
      #expect(number != nil)
    }
    #expect(left != nil)
    session.close()
    try eventually("the end of what it keeps") { left == nil }
    let pair = BoundPair.make()
    let feed = try BodyFeed(pair.output)
    do throws(UploadError) {
      _ = try session.upload(UploadRequest(url: "http://127.0.0.1:9"), body: .stream(pair.input)) { _ in }
      Issue.record("a closed session took a request")
    } catch {
      #expect(error.kind == .cancelled)
    }
    try feed.waitUntilOver()
    withExtendedLifetime(session) {}
  }
}
