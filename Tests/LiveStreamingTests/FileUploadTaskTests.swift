// Files that tasks upload, cancel and resume, with the real server.

import EventLoops
import Glibc
import HTTPMessages
import NetworkTesting
import PropertyTesting
import ResumableUploads
import Testing

@testable import Digests
@testable import LiveStreaming

@Suite("A file that a task uploads", .serialized, .timeLimit(.minutes(5)))
struct FileUploadTaskTests {
  private let pattern = OffsetPattern()

  @Test(
    "it arrives byte for byte, and the receipt has its size and the server's response",
    arguments: [0, 1, 300_000, 5_000_000])
  func arrives(size: Int) async throws {
    let (server, local) = (try StreamServer(), try TemporaryDirectory())
    let file = try local.write("film", patternBytes(pattern, 0, size))
    let session = try UploadSession()
    let receipt = try await session.upload(file: file, to: server.url + "/film")
    let start = size == 1 ? "1 byte uploaded in " : "\(size) bytes uploaded in "
    #expect("\(receipt)".hasPrefix(start) && "\(receipt)".contains("the server answered 20"), "\(receipt)")
    #expect(receipt.byteCount == size && receipt.isResumable && receipt.response.isSuccess && receipt.outageCount == 0)
    #expect(try server.directory.contents(storedName(receipt.response)) == patternBytes(pattern, 0, size))
  }

  @Test("if it does not exist, or is a directory, there is an error before anything is sent")
  func missing() async throws {
    let session = try UploadSession()
    for path in ["/nowhere/film", "/tmp"] {
      let error = await #expect(throws: FileUploadError.self) {
        try await session.upload(file: path, to: "http://127.0.0.1:9/")
      }
      guard case .file(let reason)? = error else {
        Issue.record("\(String(describing: error))")
        continue
      }
      #expect((reason == .directory) == (path == "/tmp") && error?.resumeData == nil)
    }
  }

  @Test("its name is added to a URL that ends with a slash, and the receipt has the name at the server")
  func directoryURL() async throws {
    let (server, local) = (try StreamServer(), try TemporaryDirectory())
    let file = try local.write("my film.mkv", patternBytes(pattern, 0, 300_000))
    let session = try UploadSession()
    let receipt = try await session.upload(file: file, to: server.url + "/archive/")
    let name = try #require(receipt.storedName)
    #expect(name.hasPrefix("my") && name.hasSuffix(".mkv"), "\(name)")
    #expect(try server.directory.contents(name) == patternBytes(pattern, 0, 300_000))
    let data = try await unfinished(session, local.write("other.mkv", patternBytes(pattern, 0, 5_000_000)), server.url)
    let resumed = try await session.upload(resuming: data, configuration: .file(to: server.url))
    #expect(resumed.storedName?.hasSuffix(".mkv") == true && resumed.storedName?.hasPrefix("other-") == true)
  }

  @Test("an error has words, and no names of Swift")
  func words() async throws {
    let session = try UploadSession()
    for (path, words) in [
      ("/nowhere/film", "cannot upload /nowhere/film: No such file or directory"),
      ("/tmp", "cannot upload the file: it is a directory"),
    ] {
      #expect(throws: FileUploadError.self) {
        do { _ = try session.uploadTask(file: path, to: "http://127.0.0.1:9/") } catch {
          #expect("\(error)" == words)
          throw error
        }
      }
    }
    let local = try TemporaryDirectory()
    let file = try local.write("film", patternBytes(pattern, 0, 1))
    let error = await #expect(throws: FileUploadError.self) { try await session.upload(file: file, to: "/a") }
    #expect("\(error.map { "\($0)" } ?? "")".contains(#"Write "http://HOST/a""#), "\(String(describing: error))")
  }

  @Test("progress begins at once, never decreases, and ends with the whole file, for each of several observers")
  func progress() async throws {
    let (server, local) = (try StreamServer(), try TemporaryDirectory())
    let file = try local.write("film", patternBytes(pattern, 0, 5_000_000))
    let session = try UploadSession()
    let upload = try session.uploadTask(file: file, to: server.url + "/film")
    try await withThrowingTaskGroup(of: [StreamProgress].self) { group in
      for _ in 0..<3 {
        group.addTask {
          var seen: [StreamProgress] = []
          for await progress in upload.progress { seen.append(progress) }
          return seen
        }
      }
      for try await seen in group {
        #expect(seen.last?.fractionCompleted == 1 && seen.allSatisfy { $0.captured == 5_000_000 })
        #expect(zip(seen, seen.dropFirst()).allSatisfy { $0.acknowledged <= $1.acknowledged })
      }
    }
    _ = try await upload.value
    // Also after the end.
    var late: [Double] = []
    for await progress in upload.progress { late.append(progress.fractionCompleted) }
    #expect(late == [1])
  }

  @Test("a break ends the observation of the progress, and not the upload")
  func leavesProgress() async throws {
    let (server, local) = (try StreamServer(), try TemporaryDirectory())
    let file = try local.write("film", patternBytes(pattern, 0, 3_000_000))
    let session = try UploadSession()
    let upload = try session.uploadTask(file: file, to: server.url + "/film")
    for await _ in upload.progress { break }
    #expect(try await upload.value.byteCount == 3_000_000)
  }

  @Test("a server without resumable uploads causes no resume data")
  func plainServer() async throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      _ = connection.waitForEnd()
    }
    let local = try TemporaryDirectory()
    let file = try local.write("film", patternBytes(pattern, 0, 300_000))
    let session = try UploadSession()
    let upload = try session.uploadTask(file: file, to: server.url + "/film")
    for await event in upload.events {
      if case .connected = event { break }
    }
    #expect(await upload.cancelProducingResumeData() == nil)
    let error = await #expect(throws: FileUploadError.self) { try await upload.value }
    if case .cancelled(nil)? = error {} else { Issue.record("\(String(describing: error))") }
  }

  /// Suspends an upload before one of its requests, on the thread of its session.
  private final class Suspension: Sendable {
    private let task = Lock<FileUploadTask?>(nil)
    private let count = Lock(0)
    var requestCount: Int { count.withLock { $0 } }

    func upload(
      _ session: UploadSession, _ file: String, _ url: String, requestSize: UInt64, suspendedBefore number: Int
    ) throws -> FileUploadTask {
      var configuration = LiveStreamConfiguration.file(to: url)
      configuration.rollOver.size = requestSize
      configuration.bearerToken = { [self] in
        let current = count.withLock { count in
          count += 1
          return count
        }
        if current == number { task.withLock { $0 }?.suspend() }
        return nil
      }
      let upload = try session.uploadTask(file: file, configuration: configuration)
      upload.suspend()
      task.withLock { $0 = upload }
      upload.resume()
      return upload
    }

    /// Releases the upload, which refers to this.
    func end() { task.withLock { $0 = nil } }
  }

  /// An upload of which the server has stored some bytes, but not all.
  private func unfinished(
    _ session: UploadSession, _ file: String, _ url: String
  ) async throws -> FileResumeData {
    let suspension = Suspension()
    // The server acknowledges each request.
    let task = try suspension.upload(session, file, url, requestSize: 100_000, suspendedBefore: 6)
    for await event in task.events {
      if case .acknowledged = event { break }
    }
    suspension.end()
    return try #require(await task.cancelProducingResumeData())
  }

  @Test("resume data can be restored from its text, and another session completes the file")
  func resumes() async throws {
    let (server, local) = (try StreamServer(), try TemporaryDirectory())
    let file = try local.write("film\n\"ü", patternBytes(pattern, 0, 5_000_000))
    let data = try await unfinished(try UploadSession(), file, server.url + "/film")
    let restored = try #require(FileResumeData(data.text))
    #expect(restored == data && restored.path == file)
    let receipt = try await UploadSession().upload(resuming: restored)
    #expect(receipt.byteCount == 5_000_000)
    #expect(try server.directory.contents(storedName(receipt.response)) == patternBytes(pattern, 0, 5_000_000))
    for wrong in [
      "", "x", data.text.replacing("sluice-file-upload 1", with: "sluice-file-upload 2"), String(data.text.prefix(60)),
    ] {
      #expect(FileResumeData(wrong) == nil)
    }
  }

  @Test("resume data of a URL with letters beyond ASCII can be restored from its text")
  func internationalURL() async throws {
    let (server, local) = (try StreamServer(), try TemporaryDirectory())
    let file = try local.write("film", patternBytes(pattern, 0, 5_000_000))
    let url = server.url + "/größe"
    let data = try await unfinished(try UploadSession(), file, url)
    let restored = try #require(FileResumeData(data.text))
    #expect(restored == data)
    let receipt = try await UploadSession().upload(resuming: restored, configuration: .file(to: url))
    #expect(receipt.byteCount == 5_000_000 && receipt.resentByteCount < 5_000_000)
  }

  @Test("a running upload publishes its resume data, and then nil, because it is complete")
  func publishesResumeData() async throws {
    let (server, local) = (try StreamServer(), try TemporaryDirectory())
    let file = try local.write("film", patternBytes(pattern, 0, 5_000_000))
    let session = try UploadSession()
    let kept = try await unfinished(session, file, server.url + "/film")
    // An upload that continues has resume data from its start, even if its server cannot be reached.
    var elsewhere = kept.upload
    elsewhere.upload = elsewhere.upload.replacing(":\(server.port)/", with: ":\(try freePort())/")
    let moved = FileResumeData(path: kept.path, version: kept.version, upload: elsewhere)
    let waiting = try session.uploadTask(resuming: moved)
    var seen: [FileResumeData?] = []
    for await data in waiting.resumeData {
      seen.append(data)
      waiting.cancel()
    }
    #expect(seen == [moved, moved])
    let upload = try session.uploadTask(resuming: kept)
    for await data in upload.resumeData { seen.append(data) }
    #expect(seen.last == .some(nil))
    #expect(try await upload.value.byteCount == 5_000_000)
  }

  @Test("an upload that a closed session cannot resume returns its resume data")
  func closedSession() async throws {
    let local = try TemporaryDirectory()
    let file = try local.write("film", patternBytes(pattern, 0, 1000))
    let version = try UploadFile(path: file).version
    let upload = ResumeData(
      upload: "http://127.0.0.1:9/uploads/0", target: "http://127.0.0.1:9/film", base: 0, length: 1000, streamID: nil,
      version: .newest)
    let kept = FileResumeData(path: file, version: "\(version)", upload: upload)
    let session = try UploadSession()
    session.close()
    let task = try session.uploadTask(resuming: kept)
    // The last value is the one that a program keeps.
    var last: FileResumeData?
    for await data in task.resumeData { last = data }
    #expect(last == kept)
    #expect(await task.cancelProducingResumeData() == kept)
    let error = await #expect(throws: FileUploadError.self) { try await task.value }
    if case .cancelled? = error {} else { Issue.record("\(String(describing: error))") }
    #expect(error?.resumeData == kept)
  }

  @Test("after a kill, the kept resume data resumes the upload, and the server stores one file")
  func killed() async throws {
    let (server, local) = (try StreamServer(), try TemporaryDirectory())
    let file = try local.write("film", patternBytes(pattern, 0, 20_000_000))
    await #expect(processExitsWith: .signal(SIGKILL)) {
      [file = file as String, url = server.url + "/film" as String, record = local.path + "/record" as String] in
      await recordingErrors {
        let upload = try UploadSession().uploadTask(file: file, to: url)
        for await data in upload.resumeData {
          try write(Array((data?.text ?? "").utf8), to: record)
          kill(getpid(), SIGKILL)
        }
      }
    }
    let text = String(decoding: try local.contents("record"), as: UTF8.self)
    let data = try #require(FileResumeData(text))
    let receipt = try await UploadSession().upload(resuming: data)
    #expect(try server.directory.contents(try #require(receipt.storedName)) == patternBytes(pattern, 0, 20_000_000))
    #expect(server.directory.names.count == 1)
  }

  @Test("an upload whose Location names another host resumes at the host of its URL, if the program chooses so")
  func keepsOrigin() async throws {
    let (server, local) = (try StreamServer(), try TemporaryDirectory())
    let file = try local.write("film", patternBytes(pattern, 0, 5_000_000))
    let session = try UploadSession()
    let data = try await unfinished(session, file, server.url + "/film")
    var upload = data.upload
    upload.upload = upload.upload.replacing(":\(server.port)/", with: ":\(try freePort())/")
    let moved = FileResumeData(path: data.path, version: data.version, upload: upload)
    var configuration = LiveStreamConfiguration.file(to: server.url + "/film")
    configuration.keepsOrigin = true
    let receipt = try await session.upload(resuming: moved, configuration: configuration)
    #expect(receipt.byteCount == 5_000_000 && receipt.resentByteCount < 5_000_000)
  }

  @Test("resume data of another URL is an error, and nothing is sent")
  func otherURL() async throws {
    let (server, local) = (try StreamServer(), try TemporaryDirectory())
    let file = try local.write("film", patternBytes(pattern, 0, 5_000_000))
    let session = try UploadSession()
    let data = try await unfinished(session, file, server.url + "/film")
    let error = await #expect(throws: FileUploadError.self) {
      try await session.upload(resuming: data, configuration: .file(to: server.url + "/other"))
    }
    if case .failed(let reason, let kept)? = error {
      #expect(reason.kind == .invalidRequest && reason.description.contains("/other") && kept == data)
    } else {
      Issue.record("\(String(describing: error))")
    }
  }

  @Test("a file that has changed since is not resumed")
  func changed() async throws {
    let (server, local) = (try StreamServer(), try TemporaryDirectory())
    let file = try local.write("film", patternBytes(pattern, 0, 5_000_000))
    let session = try UploadSession()
    let data = try await unfinished(session, file, server.url + "/film")
    try local.write("film", patternBytes(pattern, 7, 5_000_000))
    let error = await #expect(throws: FileUploadError.self) { try await session.upload(resuming: data) }
    if case .file(.changed)? = error {} else { Issue.record("\(String(describing: error))") }
    #expect(
      error?.description
        == "cannot resume the upload of \(file): the file has changed since. Upload it again from the start.")
  }

  @Test("a suspended upload sends no more requests until it is resumed")
  func suspended() async throws {
    let (server, local) = (try StreamServer(), try TemporaryDirectory())
    let file = try local.write("film", patternBytes(pattern, 0, 5_000_000))
    let session = try UploadSession()
    let suspension = Suspension()
    let task = try suspension.upload(session, file, server.url + "/film", requestSize: 200_000, suspendedBefore: 3)
    try await waitUntil("the suspension") { suspension.requestCount == 3 }
    // As many requests on the same thread, which begin later.
    var other = LiveStreamConfiguration.file(to: server.url + "/other")
    other.rollOver.size = 200_000
    _ = try await session.upload(file: file, configuration: other)
    #expect(suspension.requestCount == 3)
    suspension.end()
    task.resume()
    #expect(try await task.value.byteCount == 5_000_000)
    #expect(task.operation.waiterCount == 0)
  }

  @Test("the receipt has the digest that the server has confirmed, also of an empty file", arguments: [0, 300_000])
  func verified(size: Int) async throws {
    let local = try TemporaryDirectory()
    let file = try local.write("film", patternBytes(pattern, 0, size))
    let server = try ResumableServer(
      .init(digest: { bytes in DigestField([("sha-256", Digest(.sha256, of: bytes.span.bytes).bytes)]).value }))
    let session = try UploadSession()
    var configuration = LiveStreamConfiguration.file(to: server.url + "/film")
    #expect(try await session.upload(file: file, configuration: configuration).verifiedDigest == nil)
    configuration.digest = .sha256
    let receipt = try await session.upload(file: file, configuration: configuration)
    #expect(receipt.verifiedDigest == .sha256 && receipt.byteCount == UInt64(size))
  }

  @Test("the release of an upload that nobody awaits cancels it")
  func dropped() async throws {
    let ended = try EventLog<Bool>()
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      _ = connection.readToEnd()
      if connection.isEnded { ended.append(true) }
    }
    let local = try TemporaryDirectory()
    let file = try local.write("film", patternBytes(pattern, 0, 300_000))
    let session = try UploadSession()
    var upload = Optional(try session.uploadTask(file: file, to: server.url + "/film"))
    let operation = WeakReference(try #require(upload).operation)
    if let events = upload?.events {
      for await event in events {
        if case .connected = event { break }
      }
    }
    upload = nil
    try await waitUntil("the release of the upload") { operation.object == nil }
    try await waitUntil("the end of the connection") { !ended.all.isEmpty }
  }

  @Test("resume data of a relative path has the absolute one, because the working directory may change")
  func relativePath() async throws {
    let local = try TemporaryDirectory()
    let file = try local.write("film", patternBytes(pattern, 0, 1000))
    let buffer = try #require(getcwd(nil, 0))
    let directory = String(cString: buffer)
    free(buffer)
    // From the root, which is above every directory.
    let up = String(repeating: "../", count: directory.split(separator: "/").count)
    let relative = up + String(file.dropFirst())
    let version = try UploadFile(path: relative).version
    let upload = ResumeData(
      upload: "http://127.0.0.1:9/uploads/0", target: "http://127.0.0.1:9/film", base: 0, length: 1000, streamID: nil,
      version: .newest)
    let session = try UploadSession()
    session.close()
    let task = try session.uploadTask(resuming: FileResumeData(path: relative, version: "\(version)", upload: upload))
    #expect(await task.cancelProducingResumeData()?.path == directory + "/" + relative)
  }

  @Test("the text of resume data has four parts, of which only the version may be empty")
  func text() throws {
    let upload = ResumeData(
      upload: "http://127.0.0.1:9/uploads/0", target: "http://127.0.0.1:9/film", base: 0, length: 1000, streamID: nil,
      version: .newest)
    for path in ["/film", "/a\n\nb\n", "\n/film"] {
      for version in ["7", ""] {
        let data = FileResumeData(path: path, version: version, upload: upload)
        #expect(FileResumeData(data.text) == data)
      }
    }
    #expect(FileResumeData(FileResumeData(path: "", version: "7", upload: upload).text) == nil)
  }

  @Test("the configuration of a file uses PUT or POST, large pieces, and requests as long as the server permits")
  func configuration() {
    let file = LiveStreamConfiguration.file(to: "http://host/film")
    #expect(file.request.url == "http://host/film" && file.request.method == "PUT" && file.mayUsePOST)
    #expect(file.request.uploadBufferSize == 512 << 10 && file.rollOver.size == .max)
    #expect(file.request.fields.first("Content-Type") == "application/octet-stream")
    let waiting = LiveStreamConfiguration.waiting(to: "http://host/s", contentType: "text/plain")
    #expect(waiting.overflow == .wait && waiting.request.method == "POST" && waiting.request.url == "http://host/s")
    #expect(waiting.request.fields.first("Content-Type") == "text/plain")
  }

  @Test("an ended upload that a program keeps has neither its file nor the session's loop open")
  func kept() async throws {
    // In a separate process, whose descriptors and threads can be counted.
    await #expect(processExitsWith: .success) {
      await recordingErrors { try await Self.keepEndedUploads() }
    }
  }

  private static func keepEndedUploads() async throws {
    let (server, local) = (try StreamServer(), try TemporaryDirectory())
    let file = try local.write("film", patternBytes(OffsetPattern(), 0, 1000))
    func once() async throws -> FileUploadTask {
      let upload = try UploadSession().uploadTask(file: file, to: server.url + "/film")
      for await _ in upload.progress {}
      _ = try await upload.value
      return upload
    }
    // Resources that are allocated once per process are not leaks: the state of libcurl, and the epoll descriptor of
    // the runtime's timers.
    _ = try await once()
    try await Task.sleep(for: .milliseconds(1))
    let before = try ProcessResources(without: server.directory.path)
    var uploads: [FileUploadTask] = []
    for _ in 0..<20 { uploads.append(try await once()) }
    try await waitForRelease(since: before, without: server.directory.path)
    withExtendedLifetime(uploads) {}
  }

  @Test(
    "cancelled at 500 random moments: nothing leaks, and the resumed upload is complete", arguments: Seed.several(1))
  func cancelled(seed: Seed) async throws {
    // In a separate process, whose descriptors and threads can be counted.
    await #expect(processExitsWith: .success) { [value = seed.value as UInt64] in
      await recordingErrors { try await Self.cancelAtRandomMoments(500, Seed(value)) }
    }
  }

  private static func cancelAtRandomMoments(_ count: Int, _ seed: Seed) async throws {
    var random = seed.generator
    let rig = try CancellationRig()
    // Resources that are allocated once per process, such as the state of libcurl, are not leaks.
    try await rig.run(5, &random)
    let before = try ProcessResources(without: rig.directory)
    for _ in 0..<count / 25 {
      try await rig.run(25, &random)
      try await waitForRelease(since: before, without: rig.directory)
    }
    // All kinds of ends have occurred.
    #expect(rig.completeCount > 0 && rig.resumedCount > count / 10 && rig.repeatedCount > 0, "\(rig)")
  }
}

/// Writes a file without Foundation.
private func write(_ bytes: [UInt8], to path: String) throws {
  let descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0o600)
  guard descriptor >= 0, Glibc.write(descriptor, bytes, bytes.count) == bytes.count else { throw TestFailure(path) }
  close(descriptor)
}

/// Uploads that are cancelled, with the real server behind a connection that can be cut. One task uses it.
private final class CancellationRig: CustomStringConvertible {
  private let server: StreamServer
  private let relay: SwitchedRelay
  private let local: TemporaryDirectory
  private let files: [(path: String, content: [UInt8])]
  private(set) var completeCount = 0
  private(set) var resumedCount = 0
  private(set) var repeatedCount = 0
  private var number = 0

  init() throws {
    server = try StreamServer()
    relay = try SwitchedRelay(to: "127.0.0.1:\(server.port)")
    local = try TemporaryDirectory()
    let (pattern, local) = (OffsetPattern(), local)
    // The last one is created before any of it is sent.
    files = try [0, 1, 60_000, 300_000, 300_000, 1_000_000, 1_000_000, 4_300_000].map { size in
      let content = patternBytes(pattern, size, size)
      return (try local.write("\(size)", content), content)
    }
  }

  var description: String { "\(completeCount) complete, \(resumedCount) resumed, \(repeatedCount) repeated" }

  /// The server's directory.
  var directory: String { server.directory.path }

  /// Runs this number of uploads in a separate session, which is released afterwards.
  func run(_ count: Int, _ random: inout SplitMix64) async throws {
    var references: [WeakReference<StreamOperation>] = []
    let session = try await inSession { session in
      for _ in 0..<count { references += try await cancelOne(session, &random) }
    }
    try await waitUntil("the release of the session") { session.object == nil }
    try await waitUntil("the release of the uploads") { references.allSatisfy { $0.object == nil } }
  }

  private func inSession(_ body: (UploadSession) async throws -> Void) async throws -> WeakReference<UploadSession> {
    let session = try UploadSession()
    try await body(session)
    return WeakReference(session)
  }

  private func configuration(_ name: String) -> LiveStreamConfiguration {
    var configuration = LiveStreamConfiguration.file(to: "http://\(relay.address)/\(name)")
    configuration.retry.initialCeiling = .milliseconds(4)
    configuration.retry.maximumCeiling = .milliseconds(20)
    return configuration
  }

  /// Begins an upload, cancels it at a random moment in a random way, and completes it.
  private func cancelOne(
    _ session: UploadSession, _ random: inout SplitMix64
  ) async throws -> [WeakReference<StreamOperation>] {
    number += 1
    let (path, content) = files[Int.random(in: files.indices, using: &random)]
    var upload = Optional(try session.uploadTask(file: path, configuration: configuration("film-\(number)")))
    let reference = upload.map { WeakReference($0.operation) }
    // Mostly within the duration of the upload.
    let moment = Duration.microseconds(Int.random(in: 0...(random.chance(50) ? 3_000 : 30_000), using: &random))
    let observer = random.chance(30) ? upload.map { upload in Task { for await _ in upload.progress {} } } : nil
    if random.chance(20) {
      try await Task.sleep(for: moment / 2)
      try relay.set(.resets)
      try relay.set(.passes)
    }
    try await Task.sleep(for: moment)
    var (receipt, data) = (UploadReceipt?.none, FileResumeData?.none)
    do {
      switch Int.random(in: 0..<5, using: &random) {
      case 0:
        data = await upload?.cancelProducingResumeData()
        if data == nil { receipt = try await upload?.value }
      case 1:
        let waiter = Task { [upload] in try await upload?.value }
        waiter.cancel()
        receipt = try await waiter.value
      case 2:
        upload?.cancel()
        receipt = try await upload?.value
      case 3:
        // It is not awaited, so releasing it cancels it.
        upload = nil
      default:
        upload?.suspend()
        upload?.resume()
        upload?.cancel()
        receipt = try await upload?.value
      }
    } catch let error as FileUploadError {
      guard case .cancelled(let resumeData) = error else { throw error }
      data = resumeData
    }
    observer?.cancel()
    let name: String
    if let receipt {
      completeCount += 1
      name = try storedName(receipt.response)
    } else if let data {
      resumedCount += 1
      let configuration = configuration("film-\(number)")
      name = try storedName(try await session.upload(resuming: data, configuration: configuration).response)
    } else {
      repeatedCount += 1
      let configuration = configuration("film-\(number)")
      name = try storedName(try await session.upload(file: path, configuration: configuration).response)
    }
    let isEqual = try server.directory.contents(name) == content
    #expect(isEqual, "\(name) of upload \(number)")
    return reference.map { [$0] } ?? []
  }
}
