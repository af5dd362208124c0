import FoundationNetworking
import FoundationUploads
import NetworkTesting
import Testing

@Suite("Metrics of tasks")
struct MetricsTests {
  /// The dates of a request in their order; nil for missing ones.
  private func dates(_ transaction: URLSessionTaskTransactionMetrics) -> [Date?] {
    [
      transaction.fetchStartDate, transaction.domainLookupStartDate, transaction.domainLookupEndDate,
      transaction.connectStartDate, transaction.secureConnectionStartDate, transaction.secureConnectionEndDate,
      transaction.connectEndDate, transaction.requestStartDate, transaction.requestEndDate,
      transaction.responseStartDate, transaction.responseEndDate,
    ]
  }

  private func isOrdered(_ transaction: URLSessionTaskTransactionMetrics) -> Bool {
    let dates = dates(transaction).compactMap { $0 }
    return zip(dates, dates.dropFirst()).allSatisfy { $0 <= $1 }
  }

  @Test("a task reports the times, counts and connection of each of its requests, before its end")
  func requests() throws {
    let server = try ScriptedServer { connection, _ in
      while true {
        let head = try connection.head()
        if let count = head["Content-Length"].flatMap({ Int($0) }), count > 0 { _ = try connection.receive(count) }
        if head.line.contains(" /a ") {
          try connection.respond("307 Temporary Redirect", ["Location: /b"])
        } else {
          try connection.respond("200 OK", body: "welcome")
        }
      }
    }
    let test = TestSession()
    defer { test.end() }
    let before = Date()
    test.session.uploadTask(with: try request("\(server.url)/a", "PUT"), from: Data("hello".utf8)).resume()
    #expect(try test.recorder.end() == nil)
    let metrics = try #require(test.recorder.metrics)
    #expect(Array(test.recorder.log.all.suffix(2)) == [.metrics, .completed(nil)])
    #expect(metrics.redirectCount == 1 && metrics.transactionMetrics.count == 2)
    #expect(metrics.taskInterval.start >= before && metrics.taskInterval.end <= Date())
    for (index, transaction) in metrics.transactionMetrics.enumerated() {
      #expect(isOrdered(transaction), "\(dates(transaction))")
      let isFirst = index == 0
      #expect(transaction.isReusedConnection == !isFirst)
      let isThere = dates(transaction).map { $0 != nil }
      #expect(
        isThere == [true, isFirst, isFirst, isFirst, false, false, isFirst, true, true, true, true], "\(isThere)")
      #expect(transaction.request.url?.path == (isFirst ? "/a" : "/b") && transaction.request.httpMethod == "PUT")
      #expect((transaction.response as? HTTPURLResponse)?.statusCode == (isFirst ? 307 : 200))
      #expect(transaction.networkProtocolName == "http/1.1")
      #expect(transaction.remoteAddress == "127.0.0.1" && transaction.remotePort == Int(server.port))
      #expect(transaction.localAddress == "127.0.0.1" && transaction.localPort ?? 0 > 0)
      #expect(transaction.countOfRequestBodyBytesSent == 5 && transaction.countOfRequestHeaderBytesSent > 50)
      #expect(transaction.countOfResponseBodyBytesReceived == (isFirst ? 0 : 7))
      #expect(transaction.countOfResponseHeaderBytesReceived > 20)
    }
  }

  @Test("a connection over TLS has a handshake, and the negotiated protocol")
  func secure() throws {
    let backend = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("200 OK")
    }
    let front = try TLSFrontEnd(backend: "127.0.0.1:\(backend.port)")
    let test = TestSession { $0.certificateAuthorityFile = front.authority }
    defer { test.end() }
    test.session.dataTask(with: try request("https://127.0.0.1:\(front.port)/")).resume()
    #expect(try test.recorder.end() == nil)
    let transaction = try #require(test.recorder.metrics?.transactionMetrics.first)
    #expect(transaction.networkProtocolName == "h2")
    #expect(dates(transaction).allSatisfy { $0 != nil } && isOrdered(transaction))
    #expect(transaction.connectEndDate == transaction.secureConnectionEndDate)
  }

  @Test("a stream reports the discovery and each request of its upload, resumed or not")
  func stream() async throws {
    let server = try StreamServer()
    let test = TestSession()
    defer { test.end() }
    let pair = try Pair()
    test.recorder.stream = { pair.input }
    let task = test.session.uploadTask(withStreamedRequest: try request("\(server.url)/live", "POST"))
    task.resume()
    pair.output.open()
    #expect(pair.output.write("before,", maxLength: 7) == 7)
    try waitUntil("the first bytes are sent") { task.countOfBytesSent == 7 }
    let data = try #require(await task.cancelByProducingResumeData())
    #expect(try test.recorder.end() == .cancelled)
    let first = try #require(test.recorder.metrics).transactionMetrics
    #expect(first.first?.request.httpMethod == "OPTIONS" && first.allSatisfy { isOrdered($0) })
    let next = TestSession()
    defer { next.end() }
    next.recorder.streamFrom = { InputStream(data: Data("before,after".utf8).dropFirst(Int($0))) }
    next.session.uploadTask(withResumeData: data).resume()
    #expect(try next.recorder.end() == nil)
    let second = try #require(next.recorder.metrics).transactionMetrics
    #expect(second.map { $0.request.httpMethod } == ["HEAD", "PATCH"])
  }

  @Test("a cancelled task reports the progress of its request, and one without a request reports none")
  func cancelled() throws {
    let heads = try EventLog<Bool>()
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      heads.append(true)
      _ = connection.waitForEnd()
    }
    let test = TestSession()
    defer { test.end() }
    let task = test.session.dataTask(with: try request(server.url))
    task.resume()
    try heads.first("the request") { $0 }
    task.cancel()
    #expect(try test.recorder.end() == .cancelled)
    let transactions = try #require(test.recorder.metrics).transactionMetrics
    #expect(transactions.count == 1 && transactions.first?.requestStartDate != nil)
    #expect(transactions.first?.response == nil && transactions.first?.responseEndDate == nil)
    let other = TestSession()
    defer { other.end() }
    other.session.dataTask(with: try request(server.url)).cancel()
    #expect(try other.recorder.end() == .cancelled)
    #expect(try #require(other.recorder.metrics).transactionMetrics.isEmpty)
  }

  @Test("a download that stops in the middle of its response reports that request")
  func stopped() throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.send("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
      try connection.send([UInt8](repeating: 120, count: 500))
      _ = connection.waitForEnd()
    }
    let test = TestSession()
    defer { test.end() }
    let task = test.session.downloadTask(with: try request(server.url))
    task.resume()
    try test.recorder.log.first("the first bytes") { $0 == .wrote(total: 500, expected: 1000) }
    task.cancel { _ in }
    #expect(try test.recorder.end() == .cancelled)
    let transactions = try #require(test.recorder.metrics).transactionMetrics
    #expect(transactions.map { $0.request.httpMethod } == ["GET"])
    #expect(transactions.first?.countOfResponseBodyBytesReceived == 500)
  }

  @Test("metrics come before a completion handler")
  func completionHandler() throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("200 OK")
    }
    let test = TestSession()
    defer { test.end() }
    let order = try EventLog<Bool>()
    let recorder = test.recorder
    test.session.dataTask(with: try request(server.url)) { _, _, _ in order.append(recorder.metrics != nil) }.resume()
    #expect(try order.wait("the end") { $0.first } == true)
  }
}
