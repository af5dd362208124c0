// Sessions whose transfers outlive the program: a real agent, a real server, and programs that end at an inconvenient
// time.

import CallCounter
import CommandTesting
import EventLoops
import FoundationUploads
import Glibc
import NetworkTesting
import PropertyTesting
import StreamServing
import Testing
import TransferClient

@testable import FoundationUploadsCore

@Suite("Background sessions")
struct BackgroundSessionTests {
  private let pattern = OffsetPattern()
  private func bytes(_ count: Int) -> [UInt8] { pattern[0..<count] }

  private func session(
    _ bench: AgentBench, _ recorder: BackgroundRecorder, _ identifier: String = "com.example.uploads",
    _ change: (URLSessionConfiguration) -> Void = { _ in }
  ) -> URLSession {
    let configuration = URLSessionConfiguration.background(withIdentifier: identifier)
    (configuration.agentLocation, configuration.agentExecutable) = (bench.location, bench.program)
    change(configuration)
    return URLSession(configuration: configuration, delegate: recorder, delegateQueue: nil)
  }

  private func request(_ url: String) throws -> URLRequest {
    var request = URLRequest(url: try #require(URL(string: url)))
    request.httpMethod = "PUT"
    request.setValue("text/plain", forHTTPHeaderField: "Content-Type")
    return request
  }

  @Test("a file is uploaded, and the delegate receives the response, its data and the end, once")
  func upload() throws {
    let (bench, server, recorder) = (try AgentBench(), try StreamServer(), BackgroundRecorder(try EventLog()))
    let file = try bench.directory.write("data", bytes(300_000))
    let session = session(bench, recorder)
    let task = session.uploadTask(with: try request("\(server.url)/x/data"), fromFile: URL(fileURLWithPath: file))
    task.taskDescription = "the first"
    task.resume()
    let end = try recorder.end()
    #expect(end == .completed(task: task.taskIdentifier, "the first", status: 201, error: nil))
    #expect(recorder.log.all.contains { if case .data(let text) = $0 { text.contains("data") } else { false } })
    #expect(task.state == .completed && task.countOfBytesSent == 300_000 && task.countOfBytesExpectedToSend == 300_000)
    let stored = try server.events.first("its end") { $0.kind == .ended }
    #expect(try server.directory.contents(stored.file ?? "") == bytes(300_000))
    try waitUntil("the agent has forgotten it") { try bench.transfers().isEmpty }
  }

  @Test("a session with the same identifier receives the tasks of the previous one, and each missed end, once")
  func missedEvents() throws {
    let (bench, server) = (try AgentBench(), try StreamServer())
    let file = try bench.directory.write("data", bytes(100_000))
    do {
      let recorder = BackgroundRecorder(try EventLog())
      let first = session(bench, recorder)
      for number in 1...3 {
        let task = first.uploadTask(
          with: try request("\(server.url)/x/file\(number)"), fromFile: URL(fileURLWithPath: file))
        task.taskDescription = "task \(number)"
        if number < 3 {
          task.earliestBeginDate = Date(timeIntervalSinceNow: 0.2)
        } else {
          task.earliestBeginDate = Date(timeIntervalSinceNow: 3600)
        }
        task.resume()
      }
      try waitUntil("the agent has them") { try bench.transfers().count == 3 }
      // As if the process ended here: it receives nothing more.
      first.background?.close()
    }
    for id in [Int64(1), 2] { #expect(try bench.ended(id).outcome == .completed) }
    try bench.killAgent()
    let recorder = BackgroundRecorder(try EventLog())
    let second = session(bench, recorder)
    #expect(second.background?.error == nil)
    try recorder.log.first("the end of the missed events") { $0 == .finishedEvents }
    let ends = recorder.log.all.compactMap {
      if case .completed(_, let text, let status, _) = $0 { "\(text) \(status)" } else { nil }
    }
    #expect(ends.sorted() == ["task 1 201", "task 2 201"])
    #expect(recorder.log.all.last == .finishedEvents)
    let open = second.openTasks
    #expect(open.map(\.taskDescription) == ["task 3"] && open.first?.state == .running)
    #expect(open.first?.originalRequest?.url?.path == "/x/file3")
    let new = second.uploadTask(with: try request("\(server.url)/x/file4"), fromFile: URL(fileURLWithPath: file))
    #expect(new.taskIdentifier > 3, "a new task has a number of its own")
    open.first?.cancel()
    try recorder.log.first("the cancellation") {
      if case .completed(3, _, _, .cancelled) = $0 { true } else { false }
    }
    try waitUntil("all is acknowledged") { try bench.transfers().isEmpty }
    second.background?.close()
    let third = BackgroundRecorder(try EventLog())
    #expect(session(bench, third).openTasks.isEmpty)
    #expect(third.log.all.isEmpty, "nothing is reported twice")
  }

  @Test("a session that is invalidated acknowledges each end before it closes")
  func invalidation() throws {
    let (bench, server) = (try AgentBench(), try StreamServer())
    let file = try bench.directory.write("data", bytes(1000))
    for round in 1...5 {
      let recorder = BackgroundRecorder(try EventLog())
      let session = session(bench, recorder)
      for number in 1...3 {
        let url = "\(server.url)/x/file\(round)-\(number)"
        session.uploadTask(with: try request(url), fromFile: URL(fileURLWithPath: file)).resume()
      }
      session.finishTasksAndInvalidate()
      try recorder.log.first("the end of the session") { $0 == .invalid }
      #expect(recorder.log.all.count { if case .completed = $0 { true } else { false } } == 3)
      try waitUntil("the agent has forgotten them") { try bench.transfers().isEmpty }
    }
  }

  @Test("transfers with the same task number are two tasks, and each receives its own events")
  func sameNumber() throws {
    let (bench, server) = (try AgentBench(), try StreamServer())
    let file = try bench.directory.write("data", bytes(1000))
    for number in 1...2 {
      var transfer = TransferRequest(key: "k\(number)", url: "\(server.url)/x/file\(number)", path: file)
      (transfer.session, transfer.task, transfer.note) = ("com.example.uploads", 1, "transfer \(number)")
      transfer.earliestBegin = WallClock.now.sinceEpoch + 1000
      _ = try bench.submit(transfer)
    }
    let recorder = BackgroundRecorder(try EventLog())
    let session = session(bench, recorder)
    #expect(Set(session.openTasks.map(\.taskIdentifier)).count == 2)
    for number in 1...2 {
      try recorder.log.first("the end of transfer \(number)") {
        if case .completed(_, "transfer \(number)", 201, nil) = $0 { true } else { false }
      }
    }
    try waitUntil("the agent has forgotten them") { try bench.transfers().isEmpty }
  }

  @Test("orders that the agent cannot store on its full disk are submitted again")
  func fullDisk() throws {
    let (bench, server) = (try AgentBench(), try StreamServer())
    let file = try bench.directory.write("data", bytes(1000))
    // Writes beyond the limit fail, as on a full disk, without ending the agent.
    let agent = try TestProcess(
      "/bin/sh", ["-c", "trap '' XFSZ; exec \(bench.program) agent"], environment: bench.environment)
    try agent.lines.first("its start") { $0.text.hasPrefix("listening on") }
    let recorder = BackgroundRecorder(try EventLog())
    let session = session(bench, recorder)
    func setLimit(_ limit: String) throws {
      let process = try TestProcess("prlimit", ["--pid", "\(agent.pid)", "--fsize=\(limit)"])
      #expect(try process.wait() == 0, "\(process.errors)")
    }
    try setLimit("1:unlimited")
    let task = session.uploadTask(with: try request("\(server.url)/x/data"), fromFile: URL(fileURLWithPath: file))
    task.resume()
    // The agent answers in the order of the requests.
    var last = TransferRequest(key: "last", url: "http://127.0.0.1:9/x", path: file)
    last.earliestBegin = .max
    guard case .refused(_, .database, _) = try bench.connection().order(.submit(last)) else {
      throw TestFailure("the disk is not full")
    }
    try setLimit("unlimited:unlimited")
    #expect(try recorder.end() == .completed(task: task.taskIdentifier, "", status: 201, error: nil))
    agent.signal(SIGTERM)
    #expect(try agent.wait() == 0)
  }

  @Test("the pauses before orders that the agent cannot store grow, and begin anew when it has stored one")
  func pausesOfFullDisk() {
    var orders = PostponedOrders()
    var now = MonotonicInstant(nanoseconds: 0)
    func refuse(_ tokens: [Int], for pause: Duration) {
      for token in tokens { orders.postpone(token, now: now) }
      #expect(orders.time == now + pause)
      now = now + pause
      let due = orders.takeAll()
      #expect(due == tokens && orders.time == nil)
    }
    for pause in [1, 2, 4, 8, 16, 30, 30] { refuse([1, 2], for: .seconds(pause)) }
    // An order that was never postponed shows nothing.
    orders.answered(3)
    refuse([1, 2], for: .seconds(30))
    orders.answered(1)
    orders.answered(2)
    refuse([4], for: .seconds(1))
    refuse([4], for: .seconds(2))
  }

  @Test("a program that is killed in the middle receives the end when it starts again, and only once more")
  func killedProgram() throws {
    let bench = try AgentBench()
    let content = bytes(6_000_000)
    let file = try bench.directory.write("data", content)
    let server = try ResumableServer { request, _ in
      request.method == "PATCH" && request.offset ?? 0 < 5_900_000 ? .cut(after: 100_000) : .proper
    }
    let sample = bench.program.replacingOccurrences(
      of: "/sluice", with: "/sample-background-upload", options: .backwards)
    let environment = bench.environment.merging(["SLUICE": bench.program]) { $1 }
    func run(_ more: [String] = []) throws -> TestProcess {
      try TestProcess(sample, ["com.example.killed"] + more, environment: environment)
    }
    let first = try run([server.url + "/take", file])
    try server.requests.first("a part of it") { $0.method == "PATCH" && $0.offset ?? 0 >= 300_000 }
    first.signal(SIGKILL)
    #expect(try first.wait() == 128 + SIGKILL)
    let second = try run()
    #expect(try second.wait() == 0)
    #expect(second.output.last == "\(file): status 200", "\(second.lines.all)")
    #expect(server.state.withLock { $0.uploads.map(\.bytes) } == [content])
    let third = try run()
    #expect(try third.wait() == 0)
    #expect(third.output.isEmpty, "\(third.lines.all)")
  }

  @Test("an agent that is killed while a session waits is restarted, and the session receives the end")
  func killedAgent() throws {
    let (bench, server, recorder) = (try AgentBench(), try StreamServer(), BackgroundRecorder(try EventLog()))
    let session = session(bench, recorder)
    let file = try bench.directory.write("data", bytes(100_000))
    let task = session.uploadTask(with: try request("\(server.url)/x/data"), fromFile: URL(fileURLWithPath: file))
    task.earliestBeginDate = Date(timeIntervalSinceNow: 0.3)
    task.resume()
    try waitUntil("the agent has it") { try bench.transfers().count == 1 }
    try bench.killAgent()
    #expect(try recorder.end() == .completed(task: task.taskIdentifier, "", status: 201, error: nil))
  }

  @Test("a request that is repeated after the clock was set, because the agent was killed, has the same time left")
  func clockSetBeforeRepetition() throws {
    let bench = try AgentBench()
    let file = try bench.directory.write("data", bytes(1000))
    let (day, hour): (Int64, Int64) = (86_400_000, 3_600_000)
    let isSet = Lock(false)
    // The program begins with a clock that is ten days slow.
    let link = AgentLink(bench.location, program: bench.program, identifier: "com.example.clock") {
      var clocks = ClockReading.now
      if !isSet.withLock({ $0 }) { clocks.wall -= 10 * day }
      return clocks
    }
    _ = try link.begin()
    defer { link.close() }
    let agent = try #require(try AgentConnection(bench.location).agentProcess)
    // It receives the request and does not answer.
    kill(agent, SIGSTOP)
    var request = TransferRequest(key: "k", url: "http://127.0.0.1:9/x", path: file)
    request.session = "com.example.clock"
    (request.earliestBegin, request.deadline) = (.max, WallClock.now.sinceEpoch - 10 * day + hour)
    let accepted = try EventLog<Int64>()
    link.order(.submit(request)) { if case .accepted(_, let id) = $0 { accepted.append(id) } }
    isSet.withLock { $0 = true }
    kill(agent, SIGKILL)
    try link.listen { _ in }
    let id = try accepted.first("the acceptance") { _ in true }
    // With the deadline of the old clock, it would have no time left.
    #expect(try bench.transfer(id, "appeared") { _ in true }.state == .waiting)
  }

  @Test("a suspended task does not run, resumes, and a cancelled one ends as cancelled")
  func orders() throws {
    let (bench, server, recorder) = (try AgentBench(), try StreamServer(), BackgroundRecorder(try EventLog()))
    let session = session(bench, recorder)
    let file = try bench.directory.write("data", bytes(100_000))
    let task = session.uploadTask(with: try request("\(server.url)/x/data"), fromFile: URL(fileURLWithPath: file))
    // Ordered before the agent has answered.
    task.resume()
    task.suspend()
    try waitUntil("the agent knows") { try bench.transfers().map(\.state) == [.paused] || recorder.log.all.count > 1 }
    task.resume()
    #expect(try recorder.end() == .completed(task: task.taskIdentifier, "", status: 201, error: nil))
    let other = session.uploadTask(with: try request("http://127.0.0.1:9/"), fromFile: URL(fileURLWithPath: file))
    other.resume()
    other.cancel()
    try recorder.log.first("the cancellation") {
      $0 == .completed(task: other.taskIdentifier, "", status: 0, error: .cancelled)
    }
    let unsent = session.uploadTask(with: try request("http://127.0.0.1:9/"), fromFile: URL(fileURLWithPath: file))
    unsent.cancel()
    try recorder.log.first("the other one") {
      $0 == .completed(task: unsent.taskIdentifier, "", status: 0, error: .cancelled)
    }
  }

  @Test("a task releases its delegate after its last call", arguments: [false, true])
  func releasedDelegate(isCancelled: Bool) throws {
    let (bench, server, recorder) = (try AgentBench(), try StreamServer(), BackgroundRecorder(try EventLog()))
    let session = session(bench, recorder)
    let file = try bench.directory.write("data", bytes(1000))
    let own = BackgroundRecorder(try EventLog())
    let task = session.uploadTask(with: try request("\(server.url)/x/data"), fromFile: URL(fileURLWithPath: file))
    task.delegate = own
    if isCancelled { task.cancel() } else { task.resume() }
    _ = try own.end()
    try waitUntil("it is released") { task.delegate == nil }
  }

  @Test("a request with an invalid field is not given to the agent, and the error names the field")
  func invalidField() throws {
    let (bench, recorder) = (try AgentBench(), BackgroundRecorder(try EventLog()))
    let file = URL(fileURLWithPath: try bench.directory.write("data", bytes(10)))
    var invalid = try request("http://127.0.0.1:1/x")
    invalid.setValue("a\u{1}b", forHTTPHeaderField: "X-Room")
    let task = session(bench, recorder).uploadTask(with: invalid, fromFile: file)
    let engine = try #require(task.engine as? BackgroundTransfer)
    let error = #expect(throws: URLError.self) { try engine.transferRequest() }
    #expect(error?.code == .badURL && error?.localizedDescription.contains("X-Room") == true)
  }

  @Test("the network settings of a session and a task reach the agent, and a URL session without them runs anywhere")
  func conditions() throws {
    let (bench, recorder) = (try AgentBench(), BackgroundRecorder(try EventLog()))
    let file = URL(fileURLWithPath: try bench.directory.write("data", bytes(1000)))
    let server = try StreamServer()
    // Nothing here reports the network as metered.
    let session = session(bench, recorder) { configuration in
      configuration.isDiscretionary = true
      (configuration.allowsExpensiveNetworkAccess, configuration.allowsConstrainedNetworkAccess) = (false, false)
    }
    #expect(session.configuration.isDiscretionary && !session.configuration.allowsExpensiveNetworkAccess)
    let task = session.uploadTask(with: try request("\(server.url)/x/data"), fromFile: file)
    (task.countOfBytesClientExpectsToSend, task.countOfBytesClientExpectsToReceive) = (1000, 10)
    let asked = try #require(try (task.engine as? BackgroundTransfer)?.transferRequest())
    #expect(asked.isDiscretionary && !asked.allowsExpensive && !asked.allowsConstrained)
    #expect(asked.expectedToSend == 1000 && asked.expectedToReceive == 10)
    task.resume()
    #expect(try recorder.end() == .completed(task: task.taskIdentifier, "", status: 201, error: nil))
  }

  @Test("a server's refusal or 206 is a response, and an impossible transfer is an error")
  func refusals() throws {
    let (bench, recorder) = (try AgentBench(), BackgroundRecorder(try EventLog()))
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("403 Forbidden", ["Connection: close"])
      _ = connection.readToEnd()
    }
    let partial = try ScriptedServer { connection, _ in
      var rest = try connection.head()["Content-Length"].flatMap { Int($0) } ?? 0
      while rest > 0, let piece = try connection.receive(rest) { rest -= piece.count }
      try connection.respond("206 Partial Content", ["Connection: close"])
      _ = connection.readToEnd()
    }
    let session = session(bench, recorder)
    // For the only task that ends because of its time. On a busy machine, any other may take as long.
    let short = self.session(bench, recorder, "com.example.short") { $0.timeoutIntervalForResource = 0.3 }
    let file = URL(fileURLWithPath: try bench.directory.write("data", bytes(1000)))
    func ends(_ task: URLSessionTask, _ status: Int, _ error: URLError.Code?) throws {
      task.resume()
      try recorder.log.first("\(task.taskIdentifier): \(status) \(error.debugDescription)") {
        $0 == .completed(task: task.taskIdentifier, "", status: status, error: error)
      }
    }
    try ends(session.uploadTask(with: try request("\(server.url)/x"), fromFile: file), 403, nil)
    try ends(session.uploadTask(with: try request("\(partial.url)/x"), fromFile: file), 206, nil)
    try ends(
      session.uploadTask(with: try request("http://127.0.0.1:9/x"), fromFile: URL(fileURLWithPath: "/nowhere")), 0,
      .cannotOpenFile)
    try ends(short.uploadTask(with: try request("http://127.0.0.1:\(try freePort())/x"), fromFile: file), 0, .timedOut)
    try ends(session.uploadTask(with: try request("ftp://127.0.0.1/x"), fromFile: file), 0, .unsupportedURL)
    try ends(session.uploadTask(with: try request("http://127.0.0.1:9/x"), from: Data()), 0, .unsupportedURL)
    try ends(session.uploadTask(withStreamedRequest: try request("http://127.0.0.1:9/x")), 0, .unsupportedURL)
    try ends(session.dataTask(with: try request("http://127.0.0.1:9/x")), 0, .unsupportedURL)
    let handled = try EventLog<Int>()
    session.uploadTask(with: try request("http://127.0.0.1:9/x"), fromFile: file) { _, _, error in
      handled.append((error as? URLError)?.errorCode ?? 0)
    }.resume()
    #expect(try handled.first("its handler") { _ in true } == URLError.Code.unsupportedURL.rawValue)
    // The agent removes a transfer when it learns that its result was delivered.
    try waitUntil("no transfer is left") { try bench.transfers().isEmpty }
  }

  @Test("without an agent, and without an identifier, tasks fail with a reason and nothing crashes")
  func noAgent() throws {
    let bench = try AgentBench()
    let file = URL(fileURLWithPath: try bench.directory.write("data", bytes(1000)))
    for (identifier, program) in [("x", "/nowhere/sluice"), ("", bench.program)] {
      let recorder = BackgroundRecorder(try EventLog())
      let session = session(bench, recorder, identifier) { $0.agentExecutable = program }
      session.uploadTask(with: try request("http://127.0.0.1:9/x"), fromFile: file).resume()
      guard case .completed(_, _, _, .backgroundSessionWasDisconnected) = try recorder.end() else {
        throw TestFailure("\(recorder.log.all)")
      }
    }
  }

  @Test("if the system refuses the thread for the agent's messages, the tasks of an earlier process end with an error")
  func refusedThread() throws {
    guard call_counter_works() else { return }
    let bench = try AgentBench()
    let file = URL(fileURLWithPath: try bench.directory.write("data", bytes(1000)))
    do {
      let first = session(bench, BackgroundRecorder(try EventLog()))
      first.uploadTask(with: try request("http://127.0.0.1:\(try freePort())/x"), fromFile: file).resume()
      try waitUntil("the agent has it") { try bench.transfers().count == 1 }
      first.background?.close()
    }
    let recorder = BackgroundRecorder(try EventLog())
    refuse_next_thread_of_this_thread()
    let second = session(bench, recorder)
    guard case .completed(_, _, _, .backgroundSessionWasDisconnected) = try recorder.end() else {
      throw TestFailure("\(recorder.log.all)")
    }
    let reason = SystemError(operation: "", code: EAGAIN).reason
    let words = second.background?.error?.userInfo[NSLocalizedDescriptionKey] as? String
    #expect(words?.contains(reason) == true, "\(String(describing: words))")
    let third = session(bench, BackgroundRecorder(try EventLog()))
    #expect(third.openTasks.count == 1, "the agent has continued it")
  }

  @Test("a second session with an identifier replaces the first, whose tasks end with an error")
  func twoSessions() throws {
    let bench = try AgentBench()
    let (first, second) = (BackgroundRecorder(try EventLog()), BackgroundRecorder(try EventLog()))
    let file = URL(fileURLWithPath: try bench.directory.write("data", bytes(1000)))
    let old = session(bench, first)
    let task = old.uploadTask(with: try request("http://127.0.0.1:\(try freePort())/x"), fromFile: file)
    task.resume()
    try waitUntil("the agent has it") { try bench.transfers().count == 1 }
    let new = session(bench, second)
    guard case .completed(_, _, _, .backgroundSessionInUseByAnotherProcess) = try first.end() else {
      throw TestFailure("\(first.log.all)")
    }
    #expect(new.openTasks.map(\.taskIdentifier) == [task.taskIdentifier])
    new.invalidateAndCancel()
    try second.log.first("the cancellation") { if case .completed(_, _, _, .cancelled) = $0 { true } else { false } }
    try second.log.first("the end of the session") { $0 == .invalid }
  }
}

/// The calls that a delegate of a background session has received.
private final class BackgroundRecorder: NSObject, URLSessionDataDelegate, Sendable {
  enum Call: Equatable, Sendable {
    case data(String)
    case completed(task: Int, String, status: Int, error: URLError.Code?)
    case waiting
    case finishedEvents
    case invalid
  }

  let log: EventLog<Call>
  init(_ log: EventLog<Call>) { self.log = log }

  /// The first end of a task.
  func end() throws -> Call {
    try log.first("the end of a task") { if case .completed = $0 { true } else { false } }
  }

  func urlSession(_ session: URLSession, dataTask: URLSessionDataTask, didReceive data: Data) {
    log.append(.data(String(decoding: data, as: UTF8.self)))
  }

  func urlSession(_ session: URLSession, taskIsWaitingForConnectivity task: URLSessionTask) { log.append(.waiting) }

  func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
    log.append(
      .completed(
        task: task.taskIdentifier, task.taskDescription ?? "",
        status: (task.response as? HTTPURLResponse)?.statusCode ?? 0, error: (error as? URLError)?.code))
  }

  func urlSessionDidFinishEvents(forBackgroundURLSession session: URLSession) { log.append(.finishedEvents) }
  func urlSession(_ session: URLSession, didBecomeInvalidWithError error: (any Error)?) { log.append(.invalid) }
}
