// The file of a download task when little or none of it comes from the server.

import DiskFiles
import EventLoops
import FoundationUploads
import Glibc
import NetworkTesting
import Testing

@testable import FoundationUploadsCore

@Suite("The ends of downloads")
struct DownloadEndTests {
  @Test("the part of a resource that is now empty is empty before the program receives it")
  func emptied() throws {
    let server = try ScriptedServer { connection, number in
      _ = try connection.head()
      guard number == 0 else {
        return try connection.send("HTTP/1.1 200 OK\r\nETag: \"two\"\r\nContent-Length: 0\r\n\r\n")
      }
      try connection.send(
        "HTTP/1.1 200 OK\r\nETag: \"one\"\r\nAccept-Ranges: bytes\r\nContent-Length: 9\r\n\r\nsome")
      connection.shutdownWriting()
    }
    let test = TestSession()
    defer { test.end() }
    test.session.downloadTask(with: try request(server.url)).resume()
    #expect(try test.recorder.end() == .networkConnectionLost)
    let data = try #require(test.recorder.error?.downloadTaskResumeData)
    let next = TestSession()
    defer { next.end() }
    let gate = EndSignal()
    next.session.disk.execute { gate.wait() }
    let task = next.session.downloadTask(withResumeData: data)
    let transfer = try #require(task.engine as? Transfer)
    task.resume()
    try waitUntil("the response") { task.response != nil }
    // The network thread finishes its work on the file in this time.
    for _ in 0..<10 {
      let passed = EndSignal()
      transfer.onLoop { passed.signal() }
      passed.wait()
    }
    gate.signal()
    #expect(try next.recorder.end() == nil)
    #expect(next.recorder.log.all.filter { if case .downloaded = $0 { true } else { false } } == [.downloaded(Data())])
  }

  @Test("a download that times out fails with resume data, and continues with it", arguments: [false, true])
  func timedOut(isResource: Bool) throws {
    let server = try ScriptedServer { connection, number in
      let head = try connection.head()
      guard number > 0 else {
        try connection.send(
          "HTTP/1.1 200 OK\r\nETag: \"1\"\r\nAccept-Ranges: bytes\r\nContent-Length: 10\r\n\r\n01234")
        _ = connection.readToEnd()
        return
      }
      #expect(head["Range"] == "bytes=5-")
      try connection.respond(
        "206 Partial Content", ["ETag: \"1\"", "Content-Range: bytes 5-9/10"], body: "56789")
    }
    let test = TestSession {
      if isResource { $0.timeoutIntervalForResource = 1 } else { $0.timeoutIntervalForRequest = 1 }
    }
    defer { test.end() }
    test.session.downloadTask(with: try request(server.url)).resume()
    #expect(try test.recorder.end() == .timedOut)
    let data = try #require(test.recorder.error?.downloadTaskResumeData)
    let next = TestSession()
    defer { next.end() }
    next.session.downloadTask(withResumeData: data).resume()
    #expect(try next.recorder.end() == nil)
    #expect(next.recorder.log.all.contains(.downloaded(Data("0123456789".utf8))))
  }

  @Test(
    "resume data follows the sync of the part to the disk, and there is none if that fails", arguments: [false, true])
  func synchronized(_ fails: Bool) throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.send(
        "HTTP/1.1 200 OK\r\nETag: \"1\"\r\nAccept-Ranges: bytes\r\nContent-Length: 10\r\n\r\n01234")
      _ = connection.waitForEnd()
    }
    let test = TestSession()
    defer { test.end() }
    let session = test.session
    let task = session.downloadTask(with: try request(server.url))
    let transfer = try #require(task.engine as? Transfer)
    task.resume()
    try test.recorder.log.first("the bytes") { $0 == .wrote(total: 5, expected: 10) }
    let paths = try EventLog<String>()
    transfer.onLoop { paths.append(transfer.download?.url.path ?? "") }
    let path = try paths.first("the path of the part") { !$0.isEmpty }
    defer { try? FileManager.default.removeItem(atPath: path) }
    if fails { try replaceDescriptor(of: path) }
    let gate = EndSignal()
    session.disk.execute { gate.wait() }
    let given = try EventLog<Data?>()
    task.cancel { given.append($0) }
    // The network thread and the delegate's finish their work in this time.
    for _ in 0..<10 {
      let passed = EndSignal()
      transfer.onLoop { session.call { passed.signal() } }
      passed.wait()
    }
    #expect(given.all.isEmpty)
    gate.signal()
    let data = try given.first("the call") { _ in true }
    #expect((data == nil) == fails)
    #expect(try test.recorder.end() == .cancelled)
  }

  /// A pipe replaces a file that this process has open, because a pipe cannot be synced.
  private func replaceDescriptor(of path: String) throws {
    let name = String(path.split(separator: "/").last ?? "")
    let found = try fileNames(in: "/proc/self/fd").first { number in
      var target = [CChar](repeating: 0, count: 4096)
      let count = readlink("/proc/self/fd/\(number)", &target, target.count)
      return count > 0 && String(decoding: target[..<count].map(UInt8.init(bitPattern:)), as: UTF8.self).hasSuffix(name)
    }
    let number = try #require(found.flatMap { Int32($0) })
    var ends: [Int32] = [-1, -1]
    #expect(pipe(&ends) == 0)
    #expect(dup2(ends[1], number) == number)
    for end in ends { close(end) }
  }

  @Test("the response to HEAD is a success with an empty file")
  func head() throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.send("HTTP/1.1 200 OK\r\nETag: \"one\"\r\nContent-Length: 9\r\n\r\n")
    }
    let test = TestSession()
    defer { test.end() }
    test.session.downloadTask(with: try request(server.url, "HEAD")).resume()
    #expect(try test.recorder.end() == nil)
    #expect(test.recorder.log.all.contains(.downloaded(Data())))
  }
}
