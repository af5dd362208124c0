import FoundationUploads
import NetworkTesting
import Testing

/// Implements only one method. The session's delegate has the others.
private final class TaskDelegate: NSObject, URLSessionTaskDelegate, Sendable {
  let metrics: EventLog<Int>
  init(_ metrics: EventLog<Int>) { self.metrics = metrics }

  func urlSession(_ session: URLSession, task: URLSessionTask, didFinishCollecting metrics: URLSessionTaskMetrics) {
    self.metrics.append(metrics.transactionMetrics.count)
  }
}

@Suite("Delegates of tasks")
struct TaskDelegateTests {
  private func server(_ body: String) throws -> ScriptedServer {
    try ScriptedServer { connection, _ in
      while true {
        let head = try connection.head()
        if head.line.contains(" /moved ") {
          try connection.respond("302 Found", ["Location: /"])
        } else {
          try connection.respond("200 OK", body: body)
        }
      }
    }
  }

  @Test("the session's delegate receives only the calls that a task's own delegate has no methods for")
  func fallback() throws {
    let server = try server("hello")
    let test = TestSession()
    defer { test.end() }
    test.recorder.redirect = { request in
      var request = request
      request.setValue("asked", forHTTPHeaderField: "X-A")
      return request
    }
    let own = TaskDelegate(try EventLog())
    let task = test.session.dataTask(with: try request("\(server.url)/moved"))
    task.delegate = own
    task.resume()
    #expect(try test.recorder.end() == nil)
    #expect(task.currentRequest?.value(forHTTPHeaderField: "X-A") == "asked")
    #expect(
      test.recorder.log.all == [
        .created, .redirect(302, to: "/"), .response(200), .data(Data("hello".utf8)), .completed(nil),
      ])
    #expect(own.metrics.all == [2])
  }

  enum End: String, CaseIterable { case delegate, dataHandler, downloadHandler, cancelled }

  @Test("a task releases its delegate after the last call", arguments: End.allCases)
  func released(_ end: End) throws {
    let server = try server("hello")
    let test = TestSession()
    defer { test.end() }
    let request = try request(server.url)
    let task: URLSessionTask =
      switch end {
      case .delegate, .cancelled: test.session.dataTask(with: request)
      case .dataHandler: test.session.dataTask(with: request) { _, _, _ in }
      case .downloadHandler: test.session.downloadTask(with: request) { _, _, _ in }
      }
    let calls = try EventLog<Int>()
    weak let own = delegate(of: task, calls)
    #expect(own != nil && task.delegate === own)
    if end == .cancelled { task.cancel() } else { task.resume() }
    try calls.first("the metrics") { _ in true }
    try waitUntil("it is released") { task.delegate == nil && own == nil }
  }

  /// A delegate that only the task retains.
  private func delegate(of task: URLSessionTask, _ calls: EventLog<Int>) -> TaskDelegate {
    let own = TaskDelegate(calls)
    task.delegate = own
    return own
  }

  @Test("the delegate of an awaited response receives its bytes, and the session's does not")
  func awaitedData() async throws {
    let server = try server("hello")
    let test = TestSession()
    defer { test.end() }
    let own = SessionRecorder()
    let (data, _) = try await test.session.data(for: try request(server.url), delegate: own)
    #expect(data == Data("hello".utf8) && own.data == data)
    #expect(own.log.all.contains(.response(200)))
    _ = try await test.session.data(for: try request(server.url), delegate: TaskDelegate(try EventLog()))
    #expect(test.recorder.data.isEmpty)
  }

  @Test("the delegate of an awaited download receives its progress, and the caller owns the file")
  func awaitedDownload() async throws {
    let server = try server("hello")
    let test = TestSession()
    defer { test.end() }
    let own = SessionRecorder()
    let (file, _) = try await test.session.download(for: try request(server.url), delegate: own)
    defer { try? FileManager.default.removeItem(at: file) }
    #expect(try Data(contentsOf: file) == Data("hello".utf8))
    #expect(own.log.all.contains(.wrote(total: 5, expected: 5)))
    #expect(!own.log.all.contains { if case .downloaded = $0 { true } else { false } })
  }
}
