// Downloads that outlive the program: a real agent, a real server, and sessions that end at an inconvenient time.

import CommandTesting
import Downloads
import EventLoops
import FoundationUploads
import Glibc
import NetworkTesting
import PropertyTesting
import Testing
import TransferClient

@testable import FoundationUploadsCore

@Suite("Downloads of background sessions")
struct BackgroundDownloadTests {
  private static func bytes(_ count: Int, _ seed: UInt64) -> [UInt8] { OffsetPattern(seed: seed)[0..<count] }

  private func session(
    _ bench: AgentBench, _ recorder: DownloadRecorder, _ change: (URLSessionConfiguration) -> Void = { _ in }
  ) -> URLSession {
    let configuration = URLSessionConfiguration.background(withIdentifier: "com.example.downloads")
    (configuration.agentLocation, configuration.agentExecutable) = (bench.location, bench.program)
    change(configuration)
    return URLSession(configuration: configuration, delegate: recorder, delegateQueue: nil)
  }

  private func url(_ server: ResourceServer, _ path: String) throws -> URL {
    try #require(URL(string: server.url(path)))
  }

  @Test("a file arrives, the delegate receives its progress and its end once, and the agent then keeps none of it")
  func download() throws {
    let (bench, server, recorder) = (try AgentBench(), try ResourceServer(), try DownloadRecorder.make())
    let content = Self.bytes(2_000_000, 1)
    server.set("film", content)
    let session = session(bench, recorder)
    let task = session.downloadTask(with: try url(server, "film"))
    task.taskDescription = "the film"
    task.resume()
    #expect(try recorder.end(of: task) == .completed(task.taskIdentifier, "the film", status: 200, nil, nil))
    let files = recorder.log.all.compactMap { if case .file(_, let data) = $0 { data } else { nil } }
    #expect(files.map { Array($0) } == [content])
    let written = recorder.log.all.compactMap { if case .wrote(let new, let total) = $0 { (new, total) } else { nil } }
    #expect(written.last?.1 == 2_000_000 && written.reduce(0) { $0 + $1.0 } == 2_000_000)
    #expect(task.countOfBytesReceived == 2_000_000 && task.countOfBytesExpectedToReceive == 2_000_000)
    try waitUntil("the agent has forgotten it") {
      try bench.transfers().isEmpty && allNames(in: "\(bench.location.directory)/downloads").isEmpty
    }
  }

  @Test("a session receives the end of a download that ended while no program ran, once, with the file")
  func missedEvents() throws {
    let (bench, server) = (try AgentBench(), try ResourceServer())
    let content = Self.bytes(700_000, 2)
    server.set("film", content)
    server.breaksAfter = 100_000
    do {
      let first = session(bench, try DownloadRecorder.make())
      let task = first.downloadTask(with: try url(server, "film"))
      task.taskDescription = "missed"
      task.resume()
      try server.requests.first("a part of it") { $0.start ?? 0 >= 100_000 }
      // As if the process ended here: it receives nothing more.
      first.background?.close()
    }
    try bench.killAgent()
    #expect(try bench.ended(1).outcome == .completed)
    try bench.killAgent()
    let recorder = try DownloadRecorder.make()
    let second = session(bench, recorder)
    try recorder.log.first("the end of the missed events") { $0 == .finishedEvents }
    let heard = recorder.log.all.filter { if case .wrote = $0 { false } else { true } }
    #expect(
      heard == [.file(1, Data(content)), .completed(1, "missed", status: 206, nil, nil), .finishedEvents], "\(heard)")
    try waitUntil("all is acknowledged") { try bench.transfers().isEmpty }
    second.background?.close()
    let third = try DownloadRecorder.make()
    #expect(session(bench, third).openTasks.isEmpty && third.log.all.isEmpty, "nothing is reported twice")
  }

  @Test("a task of an earlier process is a download that can be suspended, resumed and cancelled")
  func restored() throws {
    let (bench, server) = (try AgentBench(), try ResourceServer())
    server.set("film", Self.bytes(400_000, 3))
    do {
      let first = session(bench, try DownloadRecorder.make())
      let task = first.downloadTask(with: try url(server, "film"))
      task.earliestBeginDate = Date(timeIntervalSinceNow: 3600)
      task.resume()
      try waitUntil("the agent has it") { try bench.transfers().count == 1 }
      first.background?.close()
    }
    let recorder = try DownloadRecorder.make()
    let second = session(bench, recorder)
    let task = try #require(second.openTasks.first as? URLSessionDownloadTask)
    task.suspend()
    try waitUntil("it is paused") { try bench.transfers().map(\.state) == [.paused] }
    task.resume()
    try waitUntil("it waits") { try bench.transfers().map(\.state) == [.waiting] }
    task.cancel()
    #expect(try recorder.end(of: task) == .completed(task.taskIdentifier, "", status: 0, .cancelled, nil))
  }

  @Test(
    "a download that is cancelled with resume data continues at its position, in both kinds of session",
    arguments: [false, true], [false, true])
  func resumeData(inBackground: Bool, changes: Bool) throws {
    let (bench, server, recorder) = (try AgentBench(), try ResourceServer(), try DownloadRecorder.make())
    server.set("film", Self.bytes(900_000, 4))
    server.breaksAfter = 150_000
    let session = session(bench, recorder)
    let task = session.downloadTask(with: try url(server, "film"))
    task.resume()
    try server.requests.first("a part of it") { $0.start ?? 0 >= 150_000 }
    let got = try EventLog<Data?>()
    task.cancel { got.append($0) }
    let data = try #require(try got.first("the resume data") { _ in true })
    #expect(try recorder.end(of: task) == .completed(task.taskIdentifier, "", status: 0, .cancelled, data))
    try waitUntil("the agent has forgotten it") { try bench.transfers().isEmpty }
    if changes { server.set("film", Self.bytes(500_000, 5)) }
    server.breaksAfter = nil
    let before = server.requests.all.count
    let begun = try #require(DownloadRecord(data)).byteCount
    let (other, second) = (try DownloadRecorder.make(), try DownloadRecorder.make())
    let plain = URLSession(configuration: .default, delegate: other, delegateQueue: nil)
    defer { plain.invalidateAndCancel() }
    let next = inBackground ? self.session(bench, second) : plain
    let nextTask = next.downloadTask(withResumeData: data)
    nextTask.resume()
    let heard = inBackground ? second : other
    guard case .completed(_, _, _, nil, nil) = try heard.end(of: nextTask) else {
      throw TestFailure("\(heard.log.all.last.map { "\($0)" } ?? "")")
    }
    let files = heard.log.all.compactMap { if case .file(_, let data) = $0 { Array(data) } else { nil } }
    #expect(files == [server.body("film")])
    #expect(server.requests.all.dropFirst(before).first?.start ?? 0 >= 150_000)
    let resumed = heard.log.all.filter { if case .resumed = $0 { true } else { false } }
    #expect(resumed == (changes ? [] : [.resumed(begun, expected: 900_000)]))
    let written = heard.log.all.reduce(Int64(0)) { if case .wrote(let new, _) = $1 { $0 + new } else { $0 } }
    #expect(written == (changes ? 500_000 : 900_000 - begun))
    try waitUntil("no part is left") { try allNames(in: "\(bench.location.directory)/downloads").isEmpty }
  }

  @Test("a task that was not submitted returns its resume data, and a finished one has none")
  func unusedResumeData() throws {
    let (bench, recorder) = (try AgentBench(), try DownloadRecorder.make())
    let session = session(bench, recorder)
    let record = DownloadRecord(
      URLRequest(url: try #require(URL(string: "http://127.0.0.1:9/x"))), isAtOtherOrigin: false,
      DownloadResumeData(path: "/nowhere/part", inode: 7, byteCount: 100, validator: "\"a\"", length: nil))
    let data = try #require(record.data)
    let got = try EventLog<Data?>()
    let task = session.downloadTask(withResumeData: data)
    task.cancel { got.append($0) }
    #expect(try got.first("the data") { _ in true } != nil)
    let lost = session.downloadTask(withResumeData: data)
    lost.resume()
    guard case .completed(_, _, _, .cannotOpenFile, _) = try recorder.end(of: lost) else {
      throw TestFailure("a part that is gone was continued")
    }
  }

  @Test("resume data from behind a redirect to another origin contains no secret of the first one")
  func otherOrigin() throws {
    let (bench, recorder) = (try AgentBench(), try DownloadRecorder.make())
    let session = session(bench, recorder) { $0.httpAdditionalHeaders = ["Authorization": "s3cret", "X-Plain": "1"] }
    for isAtOtherOrigin in [false, true] {
      let record = DownloadRecord(
        URLRequest(url: try #require(URL(string: "http://127.0.0.1:9/x"))), isAtOtherOrigin: isAtOtherOrigin,
        DownloadResumeData(path: "/nowhere/part", inode: 7, byteCount: 100, validator: "\"a\"", length: nil))
      let task = session.downloadTask(withResumeData: try #require(record.data))
      let transfer = try #require(task.engine as? BackgroundTransfer)
      #expect(
        try transfer.transferRequest().fields.sorted()
          == (isAtOtherOrigin ? ["X-Plain: 1"] : ["Authorization: s3cret", "X-Plain: 1"]))
      #expect(transfer.isAtOtherOrigin == isAtOtherOrigin)
      task.cancel()
    }
  }

  @Test("a download that runs out of time fails with resume data, and continues at its position")
  func noTimeLeft() throws {
    let (bench, server, recorder) = (try AgentBench(), try ResourceServer(), try DownloadRecorder.make())
    server.set("film", Self.bytes(900_000, 6))
    server.breaksAfter = 150_000
    let session = session(bench, recorder) { $0.timeoutIntervalForResource = 2 }
    let task = session.downloadTask(with: try url(server, "film"))
    task.resume()
    try server.requests.first("a part of it") { $0.start ?? 0 >= 150_000 }
    // From here on, there is no progress.
    server.breaksAfter = 0
    guard case .completed(_, _, _, .timedOut, let data?) = try recorder.end(of: task) else {
      throw TestFailure("\(recorder.log.all)")
    }
    server.breaksAfter = nil
    let second = try DownloadRecorder.make()
    let next = self.session(bench, second).downloadTask(withResumeData: data)
    next.resume()
    #expect(try second.end(of: next) == .completed(next.taskIdentifier, "", status: 206, nil, nil))
    #expect(second.log.all.contains(.file(next.taskIdentifier, Data(server.body("film")))))
    try waitUntil("no part is left") { try allNames(in: "\(bench.location.directory)/downloads").isEmpty }
  }

  @Test("a task of an earlier process remembers a redirect to another origin, and so does its resume data")
  func restoredAtOtherOrigin() throws {
    let (bench, server, recorder) = (try AgentBench(), try ResourceServer(), try DownloadRecorder.make())
    server.set("film", Self.bytes(900_000, 7))
    server.breaksAfter = 150_000
    do {
      let first = session(bench, recorder)
      let task = first.downloadTask(with: try url(server, "film"))
      task.resume()
      try server.requests.first("a part of it") { $0.start ?? 0 >= 150_000 }
      let got = try EventLog<Data?>()
      task.cancel { got.append($0) }
      let found = try #require(try got.first("the resume data") { _ in true })
      var record = try #require(DownloadRecord(found))
      record.request.isAtOtherOrigin = true
      let next = first.downloadTask(withResumeData: try #require(record.data))
      next.earliestBeginDate = Date(timeIntervalSinceNow: 3600)
      next.resume()
      try waitUntil("the agent has it") { try bench.transfers().map(\.state) == [.waiting] }
      first.background?.close()
    }
    try bench.killAgent()
    let second = session(bench, try DownloadRecorder.make())
    let task = try #require(second.openTasks.first as? URLSessionDownloadTask)
    let got = try EventLog<Data?>()
    task.cancel { got.append($0) }
    let data = try #require(try got.first("the resume data") { _ in true })
    #expect(try #require(DownloadRecord(data)).request.isAtOtherOrigin == true)
  }

  @Test("a refusal is a response with its page, and an unsupported feature of the agent is an error")
  func refusals() throws {
    let (bench, server, recorder) = (try AgentBench(), try ResourceServer(), try DownloadRecorder.make())
    let session = session(bench, recorder)
    let missing = session.downloadTask(with: try url(server, "nothing"))
    missing.resume()
    #expect(try recorder.end(of: missing) == .completed(missing.taskIdentifier, "", status: 404, nil, nil))
    #expect(recorder.log.all.first == .file(missing.taskIdentifier, Data("there is no /nothing\n".utf8)))
    var post = URLRequest(url: try url(server, "x"))
    post.httpMethod = "POST"
    var range = URLRequest(url: try url(server, "x"))
    range.setValue("bytes=5-", forHTTPHeaderField: "Range")
    var tasks = [session.downloadTask(with: post), session.downloadTask(with: range)]
    tasks.append(session.downloadTask(with: try url(server, "x")) { _, _, _ in })
    for task in tasks {
      task.resume()
      try waitUntil("its end") { task.state == .completed }
      #expect((task.error as? URLError)?.code == .unsupportedURL)
    }
  }
}

/// The calls that a delegate of downloads has received.
private final class DownloadRecorder: NSObject, URLSessionDownloadDelegate, Sendable {
  enum Call: Equatable, Sendable {
    case file(Int, Data)
    case wrote(Int64, total: Int64)
    case resumed(Int64, expected: Int64)
    case completed(Int, String, status: Int, URLError.Code?, Data?)
    case finishedEvents
  }

  let log: EventLog<Call>

  static func make() throws -> DownloadRecorder { DownloadRecorder(try EventLog()) }

  init(_ log: EventLog<Call>) { self.log = log }

  func end(of task: URLSessionTask) throws -> Call {
    let number = task.taskIdentifier
    return try log.first("the end of task \(number)") {
      if case .completed(number, _, _, _, _) = $0 { true } else { false }
    }
  }

  func urlSession(_ session: URLSession, downloadTask: URLSessionDownloadTask, didFinishDownloadingTo location: URL) {
    log.append(.file(downloadTask.taskIdentifier, (try? Data(contentsOf: location)) ?? Data()))
  }

  func urlSession(
    _ session: URLSession, downloadTask: URLSessionDownloadTask, didWriteData bytesWritten: Int64,
    totalBytesWritten: Int64, totalBytesExpectedToWrite: Int64
  ) { log.append(.wrote(bytesWritten, total: totalBytesWritten)) }

  func urlSession(
    _ session: URLSession, downloadTask: URLSessionDownloadTask, didResumeAtOffset fileOffset: Int64,
    expectedTotalBytes: Int64
  ) { log.append(.resumed(fileOffset, expected: expectedTotalBytes)) }

  func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
    log.append(
      .completed(
        task.taskIdentifier, task.taskDescription ?? "", status: (task.response as? HTTPURLResponse)?.statusCode ?? 0,
        (error as? URLError)?.code, (error as? URLError)?.downloadTaskResumeData))
  }

  func urlSessionDidFinishEvents(forBackgroundURLSession session: URLSession) { log.append(.finishedEvents) }
}
