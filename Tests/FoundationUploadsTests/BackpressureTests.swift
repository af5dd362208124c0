import Dispatch
import EventLoops
import FoundationUploads
import Glibc
import NetworkTesting
import Testing

@Suite("Backpressure")
struct BackpressureTests {
  /// More than the kernels of both sides take.
  private static let count = 24 << 20

  /// Sends zeros, and reports as soon as the peer takes nothing more for a second.
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

  @Test("a delegate that is slow holds the server up, and gets everything", arguments: ["200 OK", "302 Found"])
  func slowDelegate(_ status: String) throws {
    let heldUp = try EventLog<Int>()
    let server = try pouring(heldUp, "HTTP/1.1 \(status)\r\nLocation: /b")
    let test = TestSession()
    defer { test.end() }
    let mayGoOn = DispatchSemaphore(value: 0)
    let isFirst = Lock(true)
    // A redirect is a response here. It waits for the delegate's answer to the question whether to follow it.
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

  @Test("a response that is held up for longer than the server may be silent does not time out")
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
}

extension Bool {
  /// True once.
  fileprivate mutating func take() -> Bool {
    defer { self = false }
    return self
  }
}
