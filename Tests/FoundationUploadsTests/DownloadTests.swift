import EventLoops
import FoundationUploads
import NetworkTesting
import Testing

@Suite("Downloads")
struct DownloadTests {
  /// A server of one resource that may change, and whose responses break off on request.
  final class Resource: Sendable {
    struct State: Sendable {
      var body = [UInt8]()
      var tag = "\"one\""
      /// The number of bytes after which the connection of the next response is reset.
      var breaksAfter: Int?
      /// Whether the server becomes silent there instead.
      var isSilent = false
      /// Whether a part of the present resource is sent regardless of `If-Range`.
      var ignoresValidator = false
      /// Replaces the correct `Content-Range`.
      var falseRange: String?
      /// The number of bytes sent for a part, as in `Content-Length`, regardless of `Content-Range`.
      var partCount: Int?
      var fields: [String] = ["Accept-Ranges: bytes"]
      var requests: [String?] = []
    }

    let state = Lock(State())

    func serve(_ connection: ServerConnection) throws {
      while true {
        let head = try connection.head()
        let state = state.withLock { state in
          state.requests.append(head["Range"])
          defer { state.breaksAfter = nil }
          return state
        }
        var start = 0
        var lines = state.fields + ["ETag: \(state.tag)"]
        if let range = head["Range"], head["If-Range"] == state.tag || state.ignoresValidator {
          start = Int(range.dropFirst(6).dropLast()) ?? 0
          let actual = "bytes \(start)-\(state.body.count - 1)/\(state.body.count)"
          lines = ["HTTP/1.1 206 Partial Content", "Content-Range: \(state.falseRange ?? actual)"] + lines
        } else {
          lines = ["HTTP/1.1 200 OK"] + lines
        }
        let body = state.body[start...].prefix(start > 0 ? state.partCount ?? .max : .max)
        try connection.send((lines + ["Content-Length: \(body.count)"]).map { "\($0)\r\n" }.joined() + "\r\n")
        if let count = state.breaksAfter {
          try connection.send(Array(body.prefix(count)))
          if state.isSilent { _ = connection.waitForEnd() }
          connection.shutdownWriting()
          return
        }
        try connection.send(Array(body))
      }
    }
  }

  private static let body = (0..<500_000).map { UInt8(truncatingIfNeeded: $0 &* 29) }

  private func served(_ change: (inout Resource.State) -> Void = { _ in }) throws -> (Resource, ScriptedServer) {
    let resource = Resource()
    resource.state.withLock { state in
      state.body = Self.body
      change(&state)
    }
    return (resource, try ScriptedServer { connection, _ in try resource.serve(connection) })
  }

  @Test("a download ends in a file, which is removed when the delegate returns")
  func download() throws {
    let (_, server) = try served()
    let test = TestSession()
    defer { test.end() }
    test.session.downloadTask(with: try request(server.url)).resume()
    #expect(try test.recorder.end() == nil)
    #expect(test.recorder.log.all.contains(.downloaded(Data(Self.body))))
    let count = Int64(Self.body.count)
    #expect(test.recorder.log.all.contains(.wrote(total: count, expected: count)))
  }

  @Test("a program that awaits a download owns its file")
  func asynchronous() async throws {
    let (_, server) = try served()
    let (file, response) = try await URLSession.shared.download(for: try request(server.url))
    defer { try? FileManager.default.removeItem(at: file) }
    #expect(try Data(contentsOf: file) == Data(Self.body))
    #expect((response as? HTTPURLResponse)?.statusCode == 200)
  }

  /// An interrupted download, and its resume data.
  private func broken(_ test: TestSession, _ server: ScriptedServer) throws -> Data? {
    test.session.downloadTask(with: try request(server.url)).resume()
    #expect(try test.recorder.end() == .networkConnectionLost)
    return test.recorder.error?.downloadTaskResumeData
  }

  @Test("an interrupted download is resumed at its position")
  func resumed() throws {
    let (resource, server) = try served { $0.breaksAfter = 200_000 }
    let test = TestSession()
    defer { test.end() }
    let data = try #require(try broken(test, server))
    let next = TestSession()
    defer { next.end() }
    next.session.downloadTask(withResumeData: data).resume()
    #expect(try next.recorder.end() == nil)
    #expect(next.recorder.log.all.contains(.downloaded(Data(Self.body))))
    #expect(next.recorder.log.all.contains(.resumedAt(200_000)))
    #expect(resource.state.withLock { $0.requests } == [nil, "bytes=200000-"])
  }

  @Test("a resource that has changed is loaded from its start")
  func changed() throws {
    let (resource, server) = try served { $0.breaksAfter = 200_000 }
    let test = TestSession()
    defer { test.end() }
    let data = try #require(try broken(test, server))
    resource.state.withLock { ($0.body, $0.tag) = ([1, 2, 3], "\"two\"") }
    let next = TestSession()
    defer { next.end() }
    next.session.downloadTask(withResumeData: data).resume()
    #expect(try next.recorder.end() == nil)
    #expect(next.recorder.log.all.contains(.downloaded(Data([1, 2, 3]))))
  }

  @Test(
    "a part that differs from the requested one is not appended",
    arguments: ["bytes 0-299999/500000", "bytes 200000-400000/500000", "none", "bytes 200000-99999999999999999999/1"])
  func wrongRange(_ range: String) throws {
    let (resource, server) = try served { $0.breaksAfter = 200_000 }
    let test = TestSession()
    defer { test.end() }
    let data = try #require(try broken(test, server))
    resource.state.withLock { $0.falseRange = range }
    let next = TestSession()
    defer { next.end() }
    next.session.downloadTask(withResumeData: data).resume()
    #expect(try next.recorder.end() == nil)
    #expect(next.recorder.log.all.contains(.downloaded(Data(Self.body))))
    #expect(resource.state.withLock { $0.requests } == [nil, "bytes=200000-", nil])
  }

  @Test("a paused download is resumed, even if its part is gone", arguments: [false, true])
  func paused(_ isRemoved: Bool) async throws {
    let (_, server) = try served { ($0.breaksAfter, $0.isSilent) = (200_000, true) }
    let test = TestSession()
    defer { test.end() }
    var asked = try request(server.url)
    asked.timeoutInterval = .infinity
    let task = test.session.downloadTask(with: asked)
    task.resume()
    try test.recorder.log.wait("some bytes") {
      $0.contains { if case .wrote = $0 { true } else { false } } ? true : nil
    }
    let data = try #require(await task.cancelByProducingResumeData())
    #expect(try test.recorder.end() == .cancelled)
    if isRemoved {
      let record = try #require(try JSONSerialization.jsonObject(with: data) as? [String: Any])
      try FileManager.default.removeItem(atPath: try #require(record["path"] as? String))
    }
    // A task that is cancelled before its first request returns the data that it was to continue with.
    let unused = test.session.downloadTask(withResumeData: data)
    let again = try #require(await unused.cancelByProducingResumeData())
    let (file, _) = try await test.session.download(resumeFrom: again)
    defer { try? FileManager.default.removeItem(at: file) }
    #expect(try Data(contentsOf: file) == Data(Self.body))
  }

  @Test("a part of another version is not joined to the existing bytes")
  func otherVersion() throws {
    let (resource, server) = try served { $0.breaksAfter = 200_000 }
    let test = TestSession()
    defer { test.end() }
    let data = try #require(try broken(test, server))
    let changed = Self.body.map { ~$0 }
    resource.state.withLock { ($0.body, $0.tag, $0.ignoresValidator) = (changed, "\"two\"", true) }
    let next = TestSession()
    defer { next.end() }
    next.session.downloadTask(withResumeData: data).resume()
    #expect(try next.recorder.end() == nil)
    #expect(next.recorder.log.all.contains(.downloaded(Data(changed))))
    #expect(resource.state.withLock { $0.requests } == [nil, "bytes=200000-", nil])
  }

  @Test("a truncated part is not a success, and can be resumed")
  func shortPart() throws {
    let (resource, server) = try served { $0.breaksAfter = 200_000 }
    let test = TestSession()
    defer { test.end() }
    let data = try #require(try broken(test, server))
    resource.state.withLock { $0.partCount = 1000 }
    let next = TestSession()
    defer { next.end() }
    next.session.downloadTask(withResumeData: data).resume()
    #expect(try next.recorder.end() == .networkConnectionLost)
    let more = try #require(next.recorder.error?.downloadTaskResumeData)
    resource.state.withLock { $0.partCount = nil }
    let last = TestSession()
    defer { last.end() }
    last.session.downloadTask(withResumeData: more).resume()
    #expect(try last.recorder.end() == nil)
    #expect(last.recorder.log.all.contains(.resumedAt(201_000)))
    #expect(last.recorder.log.all.contains(.downloaded(Data(Self.body))))
  }

  @Test("an error response to the request for the rest does not change the existing bytes")
  func errorInstead() throws {
    let (resource, server) = try served { $0.breaksAfter = 200_000 }
    let test = TestSession()
    defer { test.end() }
    let data = try #require(try broken(test, server))
    let sick = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("503 Service Unavailable", body: "later")
    }
    // The same data, for a faulty server.
    let text = String(decoding: data, as: UTF8.self).replacingOccurrences(of: ":\(server.port)", with: ":\(sick.port)")
    let next = TestSession()
    defer { next.end() }
    next.session.downloadTask(withResumeData: Data(text.utf8)).resume()
    #expect(try next.recorder.end() == nil)
    #expect(next.recorder.log.all.contains(.downloaded(Data("later".utf8))))
    let last = TestSession()
    defer { last.end() }
    last.session.downloadTask(withResumeData: data).resume()
    #expect(try last.recorder.end() == nil)
    #expect(last.recorder.log.all.contains(.resumedAt(200_000)))
    #expect(last.recorder.log.all.contains(.downloaded(Data(Self.body))))
    #expect(resource.state.withLock { $0.requests.count } == 2)
  }

  @Test("lengths near the largest number fail only their task")
  func longLengths() async throws {
    let (_, server) = try served { $0.breaksAfter = 200_000 }
    let test = TestSession()
    defer { test.end() }
    let data = try #require(try broken(test, server))
    let huge = try ScriptedServer { connection, _ in
      let head = try connection.head()
      if let count = head["Content-Length"].flatMap({ Int($0) }), count > 0 { _ = try connection.receive(count) }
      let isPart = head["Range"] != nil
      try connection.send(
        "HTTP/1.1 \(isPart ? "206 Partial Content" : "200 OK")\r\nContent-Length: \(Int64.max)\r\n"
          + (isPart ? "Content-Range: bytes 200000-\(Int64.max - 1)/\(Int64.max)\r\n" : "") + "\r\nsome")
      connection.shutdownWriting()
    }
    let text = String(decoding: data, as: UTF8.self).replacingOccurrences(of: ":\(server.port)", with: ":\(huge.port)")
    let post = try request(huge.url, "POST")
    let tasks: [(URLSession) -> URLSessionTask] = [
      { $0.dataTask(with: URL(string: huge.url)!) },  // like the server's URL
      { $0.uploadTask(with: post, from: Data("hello".utf8)) }, { $0.downloadTask(with: URL(string: huge.url)!) },
      { $0.downloadTask(withResumeData: Data(text.utf8)) },
    ]
    for make in tasks {
      let next = TestSession()
      defer { next.end() }
      let task = make(next.session)
      task.resume()
      #expect(try next.recorder.end() == .networkConnectionLost)
      #expect(task.countOfBytesExpectedToReceive == .max)
      #expect(task.progress.totalUnitCount == .max)
    }
  }

  enum Substitute: String, CaseIterable {
    case symbolicLink, otherFile, directory, secondName
  }

  @Test("a file that replaced a download's part is neither written nor removed", arguments: Substitute.allCases)
  func substitute(_ kind: Substitute) throws {
    let (_, server) = try served { $0.breaksAfter = 200_000 }
    let test = TestSession()
    defer { test.end() }
    let data = try #require(try broken(test, server))
    let record = try #require(try JSONSerialization.jsonObject(with: data) as? [String: Any])
    let path = try #require(record["path"] as? String)
    let directory = try TemporaryDirectory()
    let precious = try directory.write("precious", [UInt8](repeating: 7, count: 300_000))
    let manager = FileManager.default
    defer { try? manager.removeItem(atPath: path) }
    switch kind {
    case .symbolicLink:
      try manager.removeItem(atPath: path)
      try manager.createSymbolicLink(atPath: path, withDestinationPath: precious)
    case .otherFile:
      try manager.moveItem(atPath: path, toPath: directory.path + "/part")
      try manager.copyItem(atPath: precious, toPath: path)
    case .directory:
      try manager.removeItem(atPath: path)
      try manager.createDirectory(atPath: path, withIntermediateDirectories: false)
    case .secondName: try manager.linkItem(atPath: path, toPath: directory.path + "/second")
    }
    let before = try? Data(contentsOf: URL(fileURLWithPath: path))
    let next = TestSession()
    defer { next.end() }
    next.session.downloadTask(withResumeData: data).resume()
    #expect(try next.recorder.end() == .cannotOpenFile)
    #expect(manager.fileExists(atPath: path))
    #expect((try? Data(contentsOf: URL(fileURLWithPath: path))) == before)
    #expect(try directory.contents("precious") == [UInt8](repeating: 7, count: 300_000))
  }

  @Test("of two tasks that continue one download, the second fails, and the first is complete")
  func twice() throws {
    let (resource, server) = try served { $0.breaksAfter = 200_000 }
    let test = TestSession()
    defer { test.end() }
    let data = try #require(try broken(test, server))
    resource.state.withLock { ($0.breaksAfter, $0.isSilent) = (100_000, true) }
    let (first, second) = (TestSession(), TestSession())
    defer {
      first.end()
      second.end()
    }
    let task = first.session.downloadTask(withResumeData: data)
    task.resume()
    try first.recorder.log.first("the resumption") { $0 == .resumedAt(200_000) }
    second.session.downloadTask(withResumeData: data).resume()
    #expect(try second.recorder.end() == .cannotOpenFile)
    // The data is valid again as soon as the first task has released it.
    let more = try EventLog<Data?>()
    task.cancel { more.append($0) }
    let newer = try #require(try more.wait("resume data") { $0.first } ?? nil)
    let third = TestSession()
    defer { third.end() }
    third.session.downloadTask(withResumeData: newer).resume()
    #expect(try third.recorder.end() == nil)
    #expect(third.recorder.log.all.contains(.downloaded(Data(Self.body))))
  }

  @Test("a server without ranges or validators causes no resume data", arguments: [true, false])
  func notResumable(_ hasRanges: Bool) throws {
    let (_, server) = try served { state in
      state.breaksAfter = 200_000
      if hasRanges { state.tag = "W/\"weak\"" } else { state.fields = [] }
    }
    let test = TestSession()
    defer { test.end() }
    #expect(try broken(test, server) == nil)
  }
}
