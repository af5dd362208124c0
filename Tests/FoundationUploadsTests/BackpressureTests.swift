import DiskFiles
import Dispatch
import EventLoops
import FoundationUploads
import Glibc
import NetworkTesting
import Testing

@testable import FoundationUploadsCore

@Suite("Backpressure")
struct BackpressureTests {
  /// More than the kernels of both sides accept.
  private static let count = 24 << 20

  /// Sends zeros, and reports when the peer has accepted nothing for a second.
  private func pouring(_ heldUp: EventLog<Int>, _ head: String) throws -> ScriptedServer {
    try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.send("\(head)\r\nContent-Length: \(Self.count)\r\n\r\n")
      var limit = timeval(tv_sec: 1, tv_usec: 0)
      setsockopt(connection.descriptor, SOL_SOCKET, SO_SNDTIMEO, &limit, socklen_t(MemoryLayout<timeval>.size))
      let piece = [UInt8](repeating: 0, count: 1 << 16)
      var (sent, waits) = (0, 0)
      while sent < Self.count, waits < 30 {
        let count = Glibc.send(connection.descriptor, piece, min(piece.count, Self.count - sent), Int32(MSG_NOSIGNAL))
        if count > 0 {
          sent += count
          waits = 0
        } else if errno == EAGAIN {
          waits += 1
          heldUp.append(sent)
        } else {
          return
        }
      }
    }
  }

  @Test("a slow delegate slows down the server, and receives everything", arguments: ["200 OK", "302 Found"])
  func slowDelegate(_ status: String) throws {
    let heldUp = try EventLog<Int>()
    let server = try pouring(heldUp, "HTTP/1.1 \(status)\r\nLocation: /b")
    let test = TestSession()
    defer { test.end() }
    let mayGoOn = DispatchSemaphore(value: 0)
    let isFirst = Lock(true)
    // A redirect is a response here. It waits for the delegate's decision whether to follow it.
    test.recorder.redirect = { _ in
      mayGoOn.wait()
      return nil
    }
    if status == "200 OK" {
      test.recorder.received = { if isFirst.withLock({ $0.take() }) { mayGoOn.wait() } }
    }
    let task = test.session.dataTask(with: try request(server.url))
    task.resume()
    let sent = try heldUp.wait("the server is held up") { $0.first }
    #expect(sent < Self.count)
    mayGoOn.signal()
    #expect(try test.recorder.end() == nil)
    #expect(test.recorder.data.count == Self.count)
    #expect(task.countOfBytesReceived == Int64(Self.count))
  }

  @Test("a response that is paused for longer than the silence limit of the server does not time out")
  func patience() throws {
    let heldUp = try EventLog<Int>()
    let server = try pouring(heldUp, "HTTP/1.1 200 OK")
    let test = TestSession { $0.timeoutIntervalForRequest = 1 }
    defer { test.end() }
    let mayGoOn = DispatchSemaphore(value: 0)
    let isFirst = Lock(true)
    test.recorder.received = { if isFirst.withLock({ $0.take() }) { mayGoOn.wait() } }
    test.session.dataTask(with: try request(server.url)).resume()
    try heldUp.wait("three seconds") { $0.count >= 3 ? true : nil }
    mayGoOn.signal()
    #expect(try test.recorder.end() == nil)
    #expect(test.recorder.data.count == Self.count)
  }

  /// Blocks the disk's thread of a session until it is released, like a slow disk.
  private func slowDisk(_ session: FoundationUploads.URLSession) -> DispatchSemaphore {
    let mayGoOn = DispatchSemaphore(value: 0)
    session.disk.execute { mayGoOn.wait() }
    return mayGoOn
  }

  @Test("a slow disk slows down the server of a download, and no other task of its session")
  func slowDownload() throws {
    let heldUp = try EventLog<Int>()
    let server = try pouring(heldUp, "HTTP/1.1 200 OK")
    let other = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("200 OK", body: "meanwhile")
    }
    let test = TestSession()
    defer { test.end() }
    let disk = slowDisk(test.session)
    let task = test.session.downloadTask(with: try request(server.url))
    task.resume()
    #expect(try heldUp.wait("the server is held up") { $0.first } < Self.count)
    let answers = try EventLog<Data?>()
    test.session.dataTask(with: try request(other.url)) { data, _, _ in answers.append(data) }.resume()
    #expect(try answers.first("the other task's answer") { _ in true } == Data("meanwhile".utf8))
    disk.signal()
    #expect(try test.recorder.end() == nil)
    let count = Int64(Self.count)
    #expect(task.countOfBytesReceived == count)
    #expect(test.recorder.log.all.contains(.wrote(total: count, expected: count)))
    #expect(test.recorder.log.all.contains(.downloaded(Data(count: Self.count))))
  }

  @Test("a download that is paused while the disk is slow resumes after the bytes in its file")
  func slowPause() throws {
    let resource = DownloadTests.Resource()
    let body = (0..<300_000).map { UInt8(truncatingIfNeeded: $0 &* 29) }
    resource.state.withLock { ($0.body, $0.breaksAfter, $0.isSilent) = (body, 200_000, true) }
    let server = try ScriptedServer { connection, _ in try resource.serve(connection) }
    let test = TestSession()
    defer { test.end() }
    let disk = slowDisk(test.session)
    let task = test.session.downloadTask(with: try request(server.url))
    task.resume()
    try waitUntil("all of the part has come") { task.countOfBytesReceived == 200_000 }
    let paused = try EventLog<Data?>()
    task.cancel { paused.append($0) }
    disk.signal()
    let data = try #require(try paused.wait("resume data") { $0.first } ?? nil)
    let next = TestSession()
    defer { next.end() }
    next.session.downloadTask(withResumeData: data).resume()
    #expect(try next.recorder.end() == nil)
    #expect(next.recorder.log.all.contains(.resumedAt(200_000)))
    #expect(next.recorder.log.all.contains(.downloaded(Data(body))))
  }
}

extension Bool {
  /// Returns true once.
  fileprivate mutating func take() -> Bool {
    defer { self = false }
    return self
  }
}
