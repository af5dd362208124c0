// The cost of one small message of a stream for the session's thread, in calls of the kernel and of libcurl.

import CallCounter
import NetworkTesting
import PropertyTesting
import Testing

@testable import UploadClient

@Suite("The cost of a message", .serialized)
struct MessageCostTests {
  enum Route: CaseIterable { case plain, sharedHTTP2 }

  @Test(
    "a message that the socket accepts does not change epoll's interest, and wakes the thread a bounded number of times",
    .enabled(if: call_counter_works(), "a sanitizer needs libc's functions for itself"), arguments: Route.allCases)
  func watches(_ route: Route) throws {
    let received = try EventLog<Int>()
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      while let chunk = try connection.chunk() { received.append(chunk.count) }
      try connection.respond("200 OK")
    }
    let nginx = try TLSFrontEnd(backend: "127.0.0.1:\(server.port)")
    let session = try UploadSession(connections: route == .plain ? .onePerUpload : .shared(maximumUploads: 100))
    defer { session.close() }
    var request = UploadRequest(url: server.url)
    if route == .sharedHTTP2 {
      request = UploadRequest(url: "https://localhost:\(nginx.port)/")
      request.certificateAuthorities = nginx.authority
      request.addressFamily = .ipv4
      request.httpVersion = .http2
    }
    let upload = try RunningUpload(session, request)
    func send() throws {
      let before = received.all.reduce(0, +)
      try upload.body.write("a message")
      try received.wait("the message") { $0.reduce(0, +) == before + 9 ? true : nil }
    }
    for _ in 0..<5 { try send() }
    let thread = try onThread(of: session) { ThreadAccount() }
    let watchesBefore = try onThread(of: session) { watch_changes_of_this_thread() }
    let sleepsBefore = try thread.sleepCount()
    let count = 200
    for _ in 0..<count { try send() }
    let sleeps = try thread.sleepCount() - sleepsBefore
    let watches = try onThread(of: session) { watch_changes_of_this_thread() } - watchesBefore
    #expect(watches < count / 10, "\(watches) changes for \(count) messages")
    #expect(sleeps <= 3 * count, "\(sleeps) wake-ups for \(count) messages")
    upload.body.end()
    #expect(try upload.response().status == 200)
  }
}
