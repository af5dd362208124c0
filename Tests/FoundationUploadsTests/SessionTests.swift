import FoundationNetworking
import FoundationUploads
import NetworkTesting
import PropertyTesting
import Testing

// `FoundationNetworking` is imported on purpose: its classes of the same names must not conflict.

@Suite("Sessions")
struct SessionTests {
  @Test("a data task delivers response, body and end, in this order")
  func dataTask() throws {
    let body = String(repeating: "0123456789", count: 50_000)
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("200 OK", ["X-A: 1", "x-a: 2"], body: body)
    }
    let test = TestSession()
    defer { test.end() }
    let task = test.session.dataTask(with: try request(server.url))
    #expect(task.state == .suspended)
    task.resume()
    #expect(try test.recorder.end() == nil)
    #expect(test.recorder.data == Data(body.utf8))
    let rest = test.recorder.log.all.filter { if case .data = $0 { false } else { true } }
    #expect(rest == [.created, .response(200), .metrics, .completed(nil)])
    let response = try #require(task.response as? HTTPURLResponse)
    #expect(response.value(forHTTPHeaderField: "X-A") == "1, 2")
    #expect(task.state == .completed)
    #expect(task.countOfBytesReceived == Int64(body.utf8.count))
    #expect(task.progress.fractionCompleted == 1)
  }

  @Test("names of fields keep their spelling, in a request and in its response")
  func spelling() throws {
    let heads = try EventLog<ServerConnection.Head>()
    let server = try ScriptedServer { connection, _ in
      heads.append(try connection.head())
      try connection.respond("200 OK", ["x-ODD: b"])
    }
    let test = TestSession()
    defer { test.end() }
    var request = try request(server.url)
    request.setValue("secret", forHTTPHeaderField: "x-API-key")
    // Foundation may change the spelling.
    let key = try #require(request.allHTTPHeaderFields?.first { $0.value == "secret" }?.key)
    let task = test.session.dataTask(with: request)
    task.resume()
    #expect(try test.recorder.end() == nil)
    #expect(heads.all.first?.fields.first { $0.value == "secret" }?.name == key)
    let names = (task.response as? HTTPURLResponse)?.allHeaderFields.keys.compactMap { $0 as? String } ?? []
    #expect(names.contains("x-ODD"), "\(names)")
  }

  @Test("a response with as many fields as libcurl accepts is delivered with all of them")
  func manyFields() throws {
    let names = (0..<30_000).map { "x-" + String($0, radix: 36) }
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("200 OK", names.map { "\($0): " } + ["x-same: a", "X-Same: b", "x-SAME: c"])
    }
    let test = TestSession()
    defer { test.end() }
    let task = test.session.dataTask(with: try request(server.url))
    task.resume()
    #expect(try test.recorder.end() == nil)
    let response = try #require(task.response as? HTTPURLResponse)
    #expect(response.allHeaderFields.count == names.count + 2)
    #expect(response.value(forHTTPHeaderField: "x-same") == "a, b, c")
  }

  @Test("a program can await a response of any length")
  func asynchronous() async throws {
    let body = String(repeating: "x", count: 300_000)
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("404 Not Found", body: body)
    }
    let (data, response) = try await URLSession.shared.data(for: try request(server.url))
    #expect(data == Data(body.utf8))
    #expect((response as? HTTPURLResponse)?.statusCode == 404)
  }

  @Test("bytes and files are uploaded, with their progress", arguments: [0, 5, 300_000])
  func upload(_ count: Int) throws {
    let server = try StreamServer()
    let bytes = (0..<count).map { UInt8(truncatingIfNeeded: $0 &* 31) }
    let path = try server.directory.write(".source", bytes)
    for (name, isFile) in [("bytes", false), ("file", true)] {
      let test = TestSession()
      defer { test.end() }
      let request = try request("\(server.url)/\(name)", "PUT")
      let task =
        isFile
        ? test.session.uploadTask(with: request, fromFile: URL(fileURLWithPath: path))
        : test.session.uploadTask(with: request, from: Data(bytes))
      task.resume()
      #expect(try test.recorder.end() == nil)
      #expect(test.recorder.log.all.contains(.response(201)))
      #expect(try stored(test.recorder.data, server) == bytes)
      #expect(task.countOfBytesSent == Int64(count) && task.countOfBytesExpectedToSend == Int64(count))
      if count > 0 { #expect(test.recorder.log.all.contains(.sent(total: Int64(count), expected: Int64(count)))) }
    }
  }

  @Test(
    "the progress is finished once, at the end, and counts once in its parent", arguments: [false, true], [false, true])
  func progress(isStream: Bool, hasLength: Bool) throws {
    let goOn = DispatchSemaphore(value: 0)
    let server = try ScriptedServer { connection, _ in
      try connection.receiveContent(of: try connection.headAfterDiscovery())
      try connection.send("HTTP/1.1 200 OK\r\n" + (hasLength ? "Content-Length: 10\r\n" : "") + "\r\n12345")
      goOn.wait()
      try connection.send("67890")
    }
    let test = TestSession()
    defer { test.end() }
    let pair = try Pair()
    test.recorder.stream = { pair.input }
    let request = try request("\(server.url)/a", "POST")
    let task =
      isStream
      ? test.session.uploadTask(withStreamedRequest: request)
      : test.session.uploadTask(with: request, from: Data("content".utf8))
    let parent = Progress(totalUnitCount: 2)
    parent.addChild(task.progress, withPendingUnitCount: 1)
    task.resume()
    if isStream {
      pair.output.open()
      #expect(pair.output.write("content", maxLength: 7) == 7)
      pair.output.close()
    } else {
      try test.recorder.log.first("the response begins") { if case .data = $0 { true } else { false } }
      #expect(!task.progress.isFinished && parent.completedUnitCount == 0)
    }
    goOn.signal()
    #expect(try test.recorder.end() == nil)
    #expect(task.progress.isFinished && task.progress.fractionCompleted == 1)
    #expect(parent.completedUnitCount == 1)
  }

  @Test("the progress of a task without any bytes is finished only if the task succeeds", arguments: [false, true])
  func emptyProgress(isCancelled: Bool) throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("204 No Content")
    }
    let test = TestSession()
    defer { test.end() }
    let task = test.session.dataTask(with: try request(server.url))
    let parent = Progress(totalUnitCount: 2)
    parent.addChild(task.progress, withPendingUnitCount: 1)
    if isCancelled { task.cancel() } else { task.resume() }
    #expect(try test.recorder.end() == (isCancelled ? URLError.Code.cancelled : nil))
    #expect(task.progress.isFinished == !isCancelled)
    #expect(task.progress.fractionCompleted == (isCancelled ? 0 : 1))
    #expect(parent.completedUnitCount == (isCancelled ? 0 : 1))
  }

  @Test("a session lists its tasks by kind until they end, and cancelling a task's progress cancels the task")
  func lists() async throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      _ = connection.waitForEnd()
    }
    let test = TestSession()
    defer { test.end() }
    test.session.sessionDescription = "uploads"
    #expect(test.session.sessionDescription == "uploads")
    let request = try request(server.url)
    let data = test.session.dataTask(with: request)
    let upload = test.session.uploadTask(
      with: try FoundationUploadsTests.request(server.url, "PUT"), from: Data("x".utf8))
    let download = test.session.downloadTask(with: request)
    upload.resume()
    func all() async -> [Int] {
      await withCheckedContinuation { found in
        test.session.getAllTasks { found.resume(returning: $0.map(\.taskIdentifier).sorted()) }
      }
    }
    func counts() async -> [Int] {
      await withCheckedContinuation { found in
        test.session.getTasksWithCompletionHandler { found.resume(returning: [$0.count, $1.count, $2.count]) }
      }
    }
    #expect(await all() == [data, upload, download].map(\.taskIdentifier).sorted())
    #expect(await counts() == [1, 1, 1])
    upload.progress.cancel()
    #expect(try test.recorder.end() == .cancelled)
    #expect(await counts() == [1, 0, 1])
    data.cancel()
    download.cancel()
    #expect(await all() == [])
  }

  @Test("the default credential of the storage answers the first challenge of each origin")
  func storedCredential() throws {
    let attempts = try EventLog<String>()
    func server(_ next: String?) throws -> ScriptedServer {
      try ScriptedServer { connection, _ in
        while true {
          let head = try connection.head()
          attempts.append(head["Authorization"] ?? "none")
          if head["Authorization"] == nil {
            try connection.respond("401 Unauthorized", ["WWW-Authenticate: Basic realm=\"r\""])
          } else if let next {
            try connection.respond("302 Found", ["Location: \(next)"])
          } else {
            try connection.respond("200 OK", body: "content")
          }
        }
      }
    }
    let second = try server(nil)
    let first = try server(second.url)
    let storage = URLCredentialStorage()
    for port in [first.port, second.port] {
      let space = URLProtectionSpace(
        host: "127.0.0.1", port: Int(port), protocol: NSURLProtectionSpaceHTTP, realm: "r",
        authenticationMethod: NSURLAuthenticationMethodHTTPBasic)
      let credential = URLCredential(user: "u\(port)", password: "p", persistence: .forSession)
      storage.setDefaultCredential(credential, for: space)
    }
    let test = TestSession { $0.urlCredentialStorage = storage }
    defer { test.end() }
    test.session.dataTask(with: try request(first.url)).resume()
    #expect(try test.recorder.end() == nil)
    #expect(test.recorder.data == Data("content".utf8))
    let sent = [first, second].map { "Basic \(Data("u\($0.port):p".utf8).base64EncodedString())" }
    #expect(attempts.all == ["none", sent[0], "none", sent[1]])
  }

  @Test("a missing file fails the task")
  func missingFile() async throws {
    do {
      let request = try request("http://127.0.0.1:9/", "PUT")
      _ = try await URLSession.shared.upload(for: request, fromFile: URL(fileURLWithPath: "/nonexistent"))
      Issue.record("it was uploaded")
    } catch let error as URLError {
      #expect(error.code == .fileDoesNotExist)
    }
  }

  @Test("a missing server has its own error, with the URL")
  func unreachable() async throws {
    let url = "http://127.0.0.1:\(try freePort())/a"
    do {
      _ = try await URLSession.shared.data(for: try request(url))
      Issue.record("there was an answer")
    } catch let error as URLError {
      #expect(error.code == .cannotConnectToHost)
      #expect(error.failingURL?.absoluteString == url)
    }
  }

  @Test("a task that waits for connectivity reports it, and continues when the server is available")
  func waitsForConnectivity() throws {
    let port = try freePort()
    let test = TestSession { $0.waitsForConnectivity = true }
    defer { test.end() }
    test.session.dataTask(with: try request("http://127.0.0.1:\(port)/")).resume()
    try test.recorder.log.first("the news") { $0 == .waiting }
    let server = try ScriptedServer(.port(port)) { connection, _ in
      _ = try connection.head()
      try connection.respond("200 OK")
    }
    defer { server.close() }
    #expect(try test.recorder.end() == nil)
    #expect(test.recorder.log.count { $0 == .waiting } == 1)
  }

  @Test("cancelling ends a task, once, and a Swift task that awaits it")
  func cancellation() async throws {
    let server = try ScriptedServer { connection, _ in _ = connection.readToEnd() }
    let test = TestSession()
    defer { test.end() }
    let task = test.session.dataTask(with: try request(server.url))
    task.resume()
    task.cancel()
    task.cancel()
    #expect(try test.recorder.end() == .cancelled)
    #expect(task.state == .completed)
    let url = server.url
    let awaiting = Task { try await URLSession.shared.data(for: try request(url)) }
    awaiting.cancel()
    await #expect(throws: URLError.self) { try await awaiting.value }
  }

  @Test("an error has the URL as a URL and as text, and Foundation's words")
  func errorInformation() throws {
    let test = TestSession()
    defer { test.end() }
    let task = test.session.dataTask(with: try request("http://127.0.0.1:9/a"))
    task.cancel()
    #expect(try test.recorder.end() == .cancelled)
    let information = try #require(test.recorder.error?.userInfo)
    #expect(information[NSURLErrorFailingURLErrorKey] as? URL == task.originalRequest?.url)
    #expect(information["NSErrorFailingURLStringKey"] as? String == "http://127.0.0.1:9/a")
    #expect(test.recorder.error?.localizedDescription == "cancelled")
  }

  @Test("a cancelled task is not among a session's tasks, even before its last call")
  func cancelledIsNoTask() async throws {
    let test = TestSession()
    defer { test.end() }
    // So that no last call can arrive.
    test.session.delegateQueue.isSuspended = true
    let tasks = [try request("http://127.0.0.1:9/a"), try request("http://127.0.0.1:9/b")].map {
      test.session.dataTask(with: $0)
    }
    #expect(await test.session.allTasks == tasks)
    tasks[0].cancel()
    #expect(await test.session.allTasks == [tasks[1]])
    test.session.invalidateAndCancel()
    #expect(await test.session.allTasks.isEmpty)
    test.session.delegateQueue.isSuspended = false
  }

  @Test("a server that sends nothing times out")
  func timeout() throws {
    let server = try ScriptedServer { connection, _ in _ = connection.readToEnd() }
    for isResource in [false, true] {
      let test = TestSession {
        if isResource { $0.timeoutIntervalForResource = 1 } else { $0.timeoutIntervalForRequest = 1 }
      }
      defer { test.end() }
      test.session.dataTask(with: try request(server.url)).resume()
      #expect(try test.recorder.end() == .timedOut)
    }
  }

  @Test("a delegate can refuse a response")
  func refusedResponse() throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("200 OK", body: "secret")
    }
    let test = TestSession()
    defer { test.end() }
    test.recorder.disposition = .cancel
    test.session.dataTask(with: try request(server.url)).resume()
    #expect(try test.recorder.end() == .cancelled)
    #expect(test.recorder.data.isEmpty)
  }

  @Test("interim responses are delivered")
  func interim() throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.send("HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
      try connection.respond("204 No Content")
    }
    let test = TestSession()
    defer { test.end() }
    test.session.dataTask(with: try request(server.url)).resume()
    #expect(try test.recorder.end() == nil)
    #expect(
      test.recorder.log.all == [.created, .interim(102), .interim(103), .response(204), .metrics, .completed(nil)])
  }

  @Test("an invalidated session finishes its tasks, reports its end, and accepts no more")
  func invalidation() throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("200 OK")
    }
    let test = TestSession()
    let task = test.session.dataTask(with: try request(server.url))
    test.session.finishTasksAndInvalidate()
    let late = test.session.dataTask(with: try request(server.url))
    task.resume()
    try test.recorder.log.wait("the first end") { $0.contains(.completed(nil)) ? true : nil }
    late.resume()
    try test.recorder.log.wait("the second end") { $0.contains(.completed(.cancelled)) ? true : nil }
    try test.recorder.log.first("the end") { $0 == .invalid }
    #expect(test.recorder.log.all.last == .invalid)
    #expect(test.session.delegate == nil || test.recorder.log.count { $0 == .invalid } == 1)
  }
}
