// Downloads from Swift: their events, and their results when the program, the task or the session ends.

import EventLoops
import Glibc
import NetworkTesting
import Testing
import UploadClient

@testable import Downloads

@Suite("A download from Swift")
struct FileDownloadTests {
  private static let content = (0..<300_000).map { UInt8(truncatingIfNeeded: $0 &* 31 ^ $0 >> 8) }

  /// Sends one half, and then waits until the client disconnects. Sends the rest on request.
  private func half() throws -> ScriptedServer {
    try ScriptedServer { connection, number in
      while true {
        let head = try connection.head()
        let start = head["Range"].flatMap { Int($0.dropFirst(6).dropLast()) } ?? 0
        let range = start > 0 ? "Content-Range: bytes \(start)-\(Self.content.count - 1)/\(Self.content.count)\r\n" : ""
        try connection.send(
          "HTTP/1.1 \(start > 0 ? 206 : 200) x\r\nETag: \"a\"\r\n\(range)Content-Length: \(Self.content.count - start)\r\n\r\n"
        )
        if number == 0 {
          try connection.send(Array(Self.content[..<150_000]))
          _ = connection.waitForEnd()
          return
        }
        try connection.send(Array(Self.content[start...]))
      }
    }
  }

  @Test("if a file of that name exists, the download ends before its first request, and the file stays")
  func exists() async throws {
    let directory = try TemporaryDirectory()
    let path = try directory.write("file", "mine")
    let server = try half()
    var events: [DownloadEvent] = []
    let download = FileDownload(.init(request: UploadRequest(url: server.url + "/x"), to: path))
    for await event in download.events(on: try UploadSession()) { events.append(event) }
    guard case .ended(let summary)? = events.last else {
      Issue.record("\(events)")
      return
    }
    #expect(summary.error?.kind == .exists && events.count == 1, "\(events)")
    #expect(try directory.contents("file") == Array("mine".utf8) && directory.names == ["file"])
  }

  @Test("a download in a closed session ends as cancelled, and creates no file", .timeLimit(.minutes(1)))
  func closedSession() async throws {
    let directory = try TemporaryDirectory()
    let session = try UploadSession()
    session.close()
    let request = UploadRequest(url: "http://127.0.0.1:1/x")
    var events: [DownloadEvent] = []
    let download = FileDownload(.init(request: request, to: "\(directory.path)/file"))
    for await event in download.events(on: session) { events.append(event) }
    guard case .ended(let summary)? = events.last else {
      Issue.record("\(events)")
      return
    }
    #expect(summary.error?.kind == .cancelled && events.count == 1, "\(events)")
    #expect(directory.names == [])
  }

  private enum End: CaseIterable { case cancel, task, loop, session }

  @Test("each way to end it causes an end, and another download continues at its position", arguments: End.allCases)
  private func ends(_ end: End) async throws {
    let directory = try TemporaryDirectory()
    let server = try half()
    let path = "\(directory.path)/file"
    let session = try UploadSession()
    var begun = FileDownload.Configuration(request: UploadRequest(url: server.url + "/x"), to: path)
    begun.progressInterval = .milliseconds(5)
    let download = FileDownload(begun)
    /// Ends it after one half. Nothing here blocks the few threads of the task pool.
    let work = { @Sendable () async -> DownloadSummary? in
      for await event in download.events(on: session) {
        if case .ended(let summary) = event { return summary }
        guard case .progress(let progress) = event, progress.written == 150_000 else { continue }
        switch end {
        case .cancel: download.cancel()
        case .task: withUnsafeCurrentTask { $0?.cancel() }
        case .loop: return nil
        case .session: session.close()
        }
      }
      return nil
    }
    let summary = await Task(operation: work).value
    // The lock is released at the download's end.
    var data: DownloadResumeData?
    if end == .cancel || end == .session {
      let summary = try #require(summary)
      #expect(summary.error?.kind == .cancelled && summary.resumeData?.byteCount == 150_000, "\(summary)")
      data = summary.resumeData
    } else {
      var status = stat()
      try waitUntil("the part is free") {
        let descriptor = open(path + ".part", O_RDONLY | O_CLOEXEC)
        defer { close(descriptor) }
        return fstat(descriptor, &status) == 0 && flock(descriptor, LOCK_EX | LOCK_NB) == 0
      }
      data = DownloadResumeData(
        path: path + ".part", inode: UInt64(status.st_ino), byteCount: UInt64(status.st_size), validator: "\"a\"",
        length: nil)
    }
    var configuration = FileDownload.Configuration(request: UploadRequest(url: server.url + "/x"), to: path)
    configuration.resumeData = data
    var last: DownloadSummary?
    for await event in FileDownload(configuration).events(on: try UploadSession()) {
      if case .ended(let summary) = event { last = summary }
    }
    #expect(last?.error == nil && last?.progress.written == 300_000, "\(String(describing: last))")
    #expect(last?.resumedFrom == 150_000)
    #expect(try fileContents(path) == Self.content)
    #expect(directory.names == ["file"])
  }

  @Test("after its session has closed, no work of a download runs on the session's thread")
  func closingSession() throws {
    let directory = try TemporaryDirectory()
    let session = try UploadSession()
    let events = try EventLog<DownloadEvent>()
    let isOnThread = try EventLog<Bool>()
    let turns = try EventLog<Bool>()
    let request = UploadRequest(url: "http://127.0.0.1:1/x")
    let download = FileDownload(.init(request: request, to: "\(directory.path)/file"))
    download.start(on: session) { events.append($0) }
    session.loop.execute {
      session.close()
      // The session's thread gets this work before the download leaves it, and does it afterwards.
      download.withProgress { _ in isOnThread.append(session.loop.isOnThread) }
      session.loop.execute { turns.append(true) }
    }
    try turns.wait("the turn after the closing") { $0.first }
    try events.first("the end of the download") { if case .ended = $0 { true } else { false } }
    #expect(isOnThread.all.allSatisfy { !$0 }, "the worker owns the download")
  }

  @Test("a renewed token is not sent to the server to which a redirect leads")
  func tokenAfterRedirect() async throws {
    let directory = try TemporaryDirectory()
    let seen = try EventLog<String>()
    let other = try ScriptedServer { connection, _ in
      let head = try connection.head()
      seen.append("other: \(head["Authorization"] ?? "none")")
      try connection.respond("200 OK", body: "0123")
    }
    let own = try ScriptedServer { connection, _ in
      let head = try connection.head()
      seen.append("own: \(head["Authorization"] ?? "none")")
      try connection.respond("302 Found", ["Location: \(other.url)/y"])
    }
    var configuration = FileDownload.Configuration(
      request: UploadRequest(url: own.url + "/x"), to: "\(directory.path)/file")
    configuration.request.bearerToken = "old"
    configuration.bearerToken = { "new" }
    var summary: DownloadSummary?
    for await event in FileDownload(configuration).events(on: try UploadSession()) {
      if case .ended(let end) = event { summary = end }
    }
    #expect(summary != nil && summary?.error == nil)
    #expect(seen.all == ["own: Bearer new", "other: none"])
    #expect(try directory.contents("file") == Array("0123".utf8))
    withExtendedLifetime(own) {}
  }

  @Test("a foreign file at the path of the part is not trusted", arguments: ["other", "born", "link", "short", "name"])
  func foreign(_ kind: String) async throws {
    let directory = try TemporaryDirectory()
    let part = try directory.write("file.part", [UInt8](repeating: 7, count: 150_000))
    var status = stat()
    #expect(stat(part, &status) == 0)
    var data = DownloadResumeData(
      path: part, inode: UInt64(status.st_ino), byteCount: 150_000, validator: "\"a\"", length: nil)
    switch kind {
    case "other": data.inode += 1
    case "born": data.birth = 5
    case "short": data.byteCount += 1
    case "name": link(part, "\(directory.path)/another")
    default:
      rename(part, "\(directory.path)/precious")
      symlink("\(directory.path)/precious", part)
    }
    let names = directory.names
    var configuration = FileDownload.Configuration(
      request: UploadRequest(url: "http://127.0.0.1:1/x"), to: "\(directory.path)/file")
    configuration.resumeData = data
    var summary: DownloadSummary?
    for await event in FileDownload(configuration).events(on: try UploadSession()) {
      if case .ended(let end) = event { summary = end }
    }
    #expect(summary?.error?.kind == .file, "\(String(describing: summary))")
    #expect(directory.names == names)
  }
}
