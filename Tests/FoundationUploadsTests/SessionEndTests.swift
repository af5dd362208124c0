// What a session leaves when it has ended.

import EventLoops
import FoundationUploads
import Glibc
import NetworkTesting
import Testing

@testable import FoundationUploadsCore

@Suite("Ends of sessions")
struct SessionEndTests {
  @Test("after the end of a session, neither a refused task nor a kept one has a network thread")
  func engineAfterEnd() throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("200 OK")
    }
    let test = TestSession()
    let kept = test.session.dataTask(with: try request(server.url))
    kept.resume()
    #expect(try test.recorder.end() == nil)
    weak let engine = try test.session.engine()
    test.session.finishTasksAndInvalidate()
    try test.recorder.log.first("the end") { $0 == .invalid }
    try waitUntil("its thread ends") { engine == nil }
    let late = test.session.dataTask(with: try request(server.url))
    late.resume()
    try waitUntil("it is refused") { late.state == .completed }
    for task in [kept, late] {
      task.cancel()
      task.suspend()
      task.resume()
    }
    try waitUntil("no thread is left") { try test.session.engine() == nil }
  }

  @Test("the last call of a session stays its last one, even if another task is created before it comes")
  func lateTask() throws {
    let test = TestSession()
    // So that no call can arrive.
    test.session.delegateQueue.isSuspended = true
    test.session.invalidateAndCancel()
    let late = test.session.dataTask(with: try request("http://127.0.0.1:9/"))
    late.resume()
    try waitUntil("it is refused") { late.state == .completed }
    // Then all calls about the task are in the queue.
    try waitUntil("no thread is left") { try test.session.engine() == nil }
    test.session.delegateQueue.isSuspended = false
    let passed = EndSignal()
    test.session.delegateQueue.addOperation { passed.signal() }
    passed.wait()
    #expect(test.recorder.log.all == [.invalid])
  }

  @Test("a session that is invalidated while a task is created reports the creation before both ends")
  func invalidatedDuringCreation() throws {
    let recorder = SessionRecorder()
    let queue = ObservedQueue()
    queue.maxConcurrentOperationCount = 1
    let session = URLSession(configuration: .default, delegate: recorder, delegateQueue: queue)
    // The next operation is the call about the creation.
    queue.beforeNext = {
      session.invalidateAndCancel()
      // The end comes within this time if it does not wait for that call.
      for _ in 0..<300 where !recorder.log.all.contains(.invalid) { poll(nil, 0, 1) }
    }
    let task = session.dataTask(with: try request("http://127.0.0.1:9/"))
    try recorder.log.first("the end") { $0 == .invalid }
    #expect(recorder.log.all.filter { $0 != .metrics } == [.created, .completed(.cancelled), .invalid])
    #expect(task.state == .completed)
  }

  /// A queue that calls a function before it accepts the next operation.
  private final class ObservedQueue: OperationQueue, @unchecked Sendable {
    var beforeNext: (() -> Void)?

    override func addOperation(_ operation: Operation) {
      beforeNext.take()?()
      super.addOperation(operation)
    }
  }

  @Test("a refused task that is never resumed does not keep its session from ending")
  func refusedTask() throws {
    let mayAnswer = EndSignal()
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      mayAnswer.wait()
      try connection.respond("200 OK")
    }
    let test = TestSession()
    let task = test.session.dataTask(with: try request(server.url))
    task.resume()
    test.session.finishTasksAndInvalidate()
    let late = test.session.dataTask(with: try request(server.url))
    mayAnswer.signal()
    try test.recorder.log.first("the session's last call") { $0 == .invalid }
    #expect(test.recorder.log.all.last == .invalid)
    #expect(late.state == .completed && (late.error as? URLError)?.code == .cancelled)
  }

  @Test(
    "the handler for the resume data of a task that is over or cancelled is called on the delegate queue",
    arguments: [false, true], [false, true])
  func lateHandler(isOver: Bool, isDownload: Bool) throws {
    let server = try ScriptedServer { connection, _ in
      let head = try connection.head()
      if let count = head["Content-Length"].flatMap({ Int($0) }), count > 0 { _ = try connection.receive(count) }
      try connection.respond("200 OK")
    }
    let test = TestSession()
    defer { test.end() }
    let download = test.session.downloadTask(with: try request(server.url))
    let upload = test.session.uploadTask(with: try request(server.url, "POST"), from: Data("a".utf8))
    let task: URLSessionTask = isDownload ? download : upload
    if isOver {
      task.resume()
      #expect(try test.recorder.end() == nil)
    } else {
      task.cancel()
    }
    // So that no call can arrive.
    test.session.delegateQueue.isSuspended = true
    let calls = try EventLog<Data?>()
    if isDownload { download.cancel { calls.append($0) } } else { upload.cancel { calls.append($0) } }
    #expect(calls.all.isEmpty)
    test.session.delegateQueue.isSuspended = false
    #expect(try calls.first("the call") { _ in true } == nil)
  }

  @Test("a handler that waits for resume data is called before the session's last call")
  func handlerBeforeEnd() throws {
    let (hasBody, mayEnd) = (EndSignal(), EndSignal())
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      _ = try connection.receive(5)
      hasBody.signal()
      mayEnd.wait()
    }
    let test = TestSession()
    let task = test.session.uploadTask(with: try request(server.url, "POST"), from: Data("hello".utf8))
    let transfer = try #require(task.engine as? Transfer)
    task.resume()
    hasBody.wait()
    test.session.finishTasksAndInvalidate()
    let wasInvalid = try EventLog<Bool>()
    task.cancel { [recorder = test.recorder] _ in wasInvalid.append(recorder.log.all.contains(.invalid)) }
    // From here on, the task waits for the server to report whether it can resume.
    let passed = EndSignal()
    transfer.onLoop { passed.signal() }
    passed.wait()
    mayEnd.signal()
    #expect(try wasInvalid.first("the call") { _ in true } == false)
    try test.recorder.log.first("the session's last call") { $0 == .invalid }
  }
}
