// What a download leaves when it ends at an unusual moment: its connection, timers, locks, file and data.

import Digests
import DiskFiles
import EventLoops
import Glibc
import HTTPMessages
import LiveStreaming
import NetworkTesting
import PropertyTesting
import Testing

@testable import Downloads
@testable import UploadClient

@Suite("The end of a download")
struct DownloadEndTests {
  private let directory: TemporaryDirectory

  init() throws { directory = try TemporaryDirectory() }

  /// The remains of an earlier download.
  private func left(_ count: Int, validator: String = "\"a\"") throws -> DownloadResumeData {
    let part = try directory.write("file.part", [UInt8](repeating: 0, count: count))
    var status = stat()
    #expect(stat(part, &status) == 0)
    return DownloadResumeData(
      path: part, inode: UInt64(status.st_ino), byteCount: UInt64(count), validator: validator, length: nil)
  }

  private func configuration(_ url: String) -> FileDownload.Configuration {
    var configuration = FileDownload.Configuration(request: UploadRequest(url: url), to: "\(directory.path)/file")
    configuration.retry.maximumCeiling = .milliseconds(5)
    return configuration
  }

  /// Answers every request, and logs the end of each connection.
  private func server(_ answer: String, _ left: EventLog<Bool>) throws -> ScriptedServer {
    try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.send(answer)
      left.append(connection.waitForEnd())
    }
  }

  /// Waits until all bytes have arrived.
  private func waitForEnding(_ download: FileDownload) throws {
    let states = try EventLog<Bool>()
    try waitUntil("all bytes have arrived") {
      download.onLoop { states.append($0.isEnding) }
      return states.all.last == true
    }
  }

  /// Waits until the thread of the download has done all work so far.
  private func waitForTurn(_ download: FileDownload) throws {
    let turns = try EventLog<Bool>()
    download.onLoop { _ in turns.append(true) }
    try turns.first("the turn") { $0 }
  }

  private final class Mark: Sendable {}

  /// Keeps the thread that drops it, and with it what this thread has locked, until the gate opens.
  private final class Latch: Sendable {
    private let dropped: EventLog<Bool>
    private let gate: EndSignal

    init(_ dropped: EventLog<Bool>, _ gate: EndSignal) { (self.dropped, self.gate) = (dropped, gate) }

    deinit {
      dropped.append(true)
      gate.wait()
    }
  }

  @Test("a cancelled download closes its connection, and keeps neither its session nor its handler")
  func cancelled() throws {
    let left = try EventLog<Bool>()
    let server = try server("HTTP/1.1 200 OK\r\nETag: \"a\"\r\nContent-Length: 1000\r\n\r\n0123", left)
    var configuration = configuration(server.url)
    configuration.progressInterval = .milliseconds(5)
    let download = FileDownload(configuration)
    weak var leftSession: UploadSession?
    weak var leftMark: Mark?
    do {
      let session = try UploadSession()
      let mark = Mark()
      leftSession = session
      leftMark = mark
      let (progress, ended) = (try EventLog<DownloadProgress>(), try EventLog<DownloadSummary>())
      download.start(on: session) { event in
        withExtendedLifetime(mark) {}
        if case .progress(let now) = event { progress.append(now) }
        if case .ended(let summary) = event { ended.append(summary) }
      }
      let now = try progress.first("the bytes") { $0.written == 4 }
      #expect(now.isConnected && now.outageCount == 0)
      let registrations = session.running.withLock { $0.closings.count }
      #expect(registrations == 1)
      download.cancel()
      let summary = try ended.first("the end") { _ in true }
      #expect(summary.error?.kind == .cancelled && !summary.progress.isConnected && summary.resumeData?.byteCount == 4)
      #expect(try left.first("the end of the connection") { _ in true })
      let (late, turns) = (try EventLog<Bool>(), try EventLog<Bool>())
      session.loop.execute {
        download.withProgress { _ in late.append(true) }
        session.loop.execute { turns.append(true) }
      }
      try turns.first("the turn after the end") { $0 }
      #expect(late.all.isEmpty, "an ended download has no progress")
      let remaining = session.running.withLock { $0.closings.count }
      #expect(remaining == 0, "a session that runs long keeps nothing of each ended download")
    }
    try waitUntil("nothing refers to the session or the handler") { leftSession == nil && leftMark == nil }
    withExtendedLifetime(download) {}
  }

  @Test(
    "a download that is cancelled while its file is opened leaves no new file, and keeps an earlier one",
    arguments: [0, 4])
  func cancelledWhileOpening(count: Int) throws {
    var configuration = configuration("http://127.0.0.1:1/x")
    configuration.resumeData = count > 0 ? try left(count) : nil
    let (session, download) = (try UploadSession(), FileDownload(configuration))
    let (ended, others) = (try EventLog<DownloadSummary>(), try EventLog<String>())
    session.loop.execute {
      download.start(on: session) { event in
        if case .ended(let summary) = event { ended.append(summary) } else { others.append("\(event)") }
      }
      download.cancel()
    }
    let summary = try ended.first("the end") { _ in true }
    #expect(summary.error?.kind == .cancelled && summary.resumeData == configuration.resumeData)
    #expect(others.all.isEmpty && summary.progress.written == 0)
    #expect(directory.names == (count > 0 ? ["file.part"] : []))
  }

  @Test("a download in a closed session returns the data with which it was to continue")
  func closedSession() throws {
    let (session, ended) = (try UploadSession(), try EventLog<DownloadSummary>())
    session.close()
    var configuration = configuration("http://127.0.0.1:1/x")
    configuration.resumeData = try left(4)
    FileDownload(configuration).start(on: session) { if case .ended(let summary) = $0 { ended.append(summary) } }
    let summary = try ended.first("the end") { _ in true }
    #expect(summary.error?.kind == .cancelled && summary.resumeData == configuration.resumeData)
    #expect(directory.names == ["file.part"])
  }

  @Test("work that a download is given while it is being started is done")
  func workWhileStarting() throws {
    let (session, download) = (try UploadSession(), FileDownload(configuration("http://127.0.0.1:1/x")))
    let (dropped, gate) = (try EventLog<Bool>(), EndSignal())
    func register() -> UInt64? {
      let latch = Latch(dropped, gate)
      return session.whenClosing { withExtendedLifetime(latch) {} }
    }
    let number = try #require(register())
    defer { gate.signal() }
    // The session drops what it forgets under its lock, for which the start then waits.
    let forgetting = try NamedThread("forgetting") { session.forgetClosing(number) }
    try dropped.first("the lock of the session") { $0 }
    let (ended, done) = (try EventLog<DownloadSummary>(), try EventLog<Bool>())
    let starting = try NamedThread("starting") {
      download.start(on: session) { if case .ended(let summary) = $0 { ended.append(summary) } }
    }
    weak var kept: Mark?
    func giveWork() {
      let mark = Mark()
      kept = mark
      download.withProgress { _ in
        withExtendedLifetime(mark) {}
        done.append(true)
      }
    }
    // A download that is not yet being started drops the work at once.
    try waitUntil("the download keeps the work") {
      giveWork()
      return kept != nil
    }
    #expect(done.all.isEmpty)
    gate.signal()
    for thread in [forgetting, starting] { thread.join() }
    try done.first("the work") { $0 }
    download.cancel()
    try ended.first("the end") { _ in true }
  }

  @Test("a download can be started only once")
  func startedTwice() async {
    await #expect(processExitsWith: .failure) {
      guard let session = try? UploadSession() else { exit(0) }
      let download = FileDownload(.init(request: UploadRequest(url: "http://127.0.0.1:1/x"), to: "/nonexistent/file"))
      download.start(on: session) { _ in }
      download.start(on: session) { _ in }
      exit(0)
    }
  }

  @Test("a download that waits leaves no timer, and two requests to continue are one", arguments: [true, false])
  func timers(isCancelled: Bool) throws {
    let server = try ResourceServer()
    server.set("x", [UInt8](repeating: 1, count: 1000))
    server.close()
    var configuration = configuration(server.url("x"))
    configuration.progressInterval = .seconds(3600)
    configuration.retry.initialCeiling = .seconds(3600)
    configuration.retry.maximumCeiling = .seconds(3600)
    let (session, ended) = (try UploadSession(), try EventLog<DownloadSummary>())
    let (outages, attempts) = (try EventLog<FailedAttempt>(), try EventLog<Int>())
    weak var left: FileDownload?
    do {
      let download = FileDownload(configuration)
      left = download
      download.start(on: session) { event in
        if case .connecting(_, let attempt) = event { attempts.append(attempt) }
        if case .outage(let attempt) = event { outages.append(attempt) }
        if case .ended(let summary) = event { ended.append(summary) }
      }
      try outages.first("the outage") { _ in true }
      if isCancelled {
        download.cancel()
      } else {
        try server.open()
        session.loop.execute {
          download.retryNow()
          download.retryNow()
        }
      }
      let summary = try ended.first("the end") { _ in true }
      #expect(summary.error?.kind == (isCancelled ? .cancelled : nil))
    }
    try waitUntil("nothing refers to the download") { left == nil }
    #expect(attempts.all == (isCancelled ? [1] : [1, 2]))
    withExtendedLifetime(session) {}
  }

  @Test("a download into a pipe can be cancelled, although all bytes have arrived and nobody reads them")
  func unreadPipe() throws {
    let count = 200_000
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("200 OK", ["ETag: \"a\""], body: String(repeating: "x", count: count))
    }
    var ends: [Int32] = [-1, -1]
    try #require(pipe(&ends) == 0)
    defer { for end in ends { close(end) } }
    var configuration = configuration(server.url)
    configuration.output = .descriptor(ends[1])
    let (session, ended) = (try UploadSession(), try EventLog<DownloadSummary>())
    let download = FileDownload(configuration)
    download.start(on: session) { if case .ended(let summary) = $0 { ended.append(summary) } }
    try waitForEnding(download)
    download.cancel()
    let summary = try ended.first("the end") { _ in true }
    #expect(summary.error?.kind == .cancelled && summary.resumeData == nil)
    // The thread that writes needs a reader.
    var (buffer, rest) = ([UInt8](repeating: 0, count: 1 << 16), count)
    while rest > 0 {
      try #require(waitUntilReadable(ends[0]))
      rest -= max(1, read(ends[0], &buffer, buffer.count))
    }
  }

  // MARK: While the disk is slow

  /// A download whose worker waits in the first checkpoint until the gate opens.
  private func gated(
    _ url: String, _ gate: EndSignal, _ change: (inout FileDownload.Configuration) -> Void
  ) throws -> (download: FileDownload, session: UploadSession, ended: EventLog<DownloadSummary>) {
    var configuration = configuration(url)
    let entered = try EventLog<Bool>()
    configuration.record = { _ in
      entered.append(true)
      gate.wait()
      return true
    }
    change(&configuration)
    let (session, ended) = (try UploadSession(), try EventLog<DownloadSummary>())
    let download = FileDownload(configuration)
    download.start(on: session) { if case .ended(let summary) = $0 { ended.append(summary) } }
    try entered.first("the checkpoint") { $0 }
    return (download, session, ended)
  }

  @Test("a part that is whole does not wait for the content of a 416")
  func unfinishedContent() throws {
    let (left, gate) = (try EventLog<Bool>(), EndSignal())
    let server = try server(
      "HTTP/1.1 416 x\r\nETag: \"a\"\r\nContent-Range: bytes */10\r\nContent-Length: 100\r\n\r\n", left)
    let data = try self.left(10)
    let (_, session, ended) = try gated(server.url, gate) { $0.resumeData = data }
    #expect(try left.first("the end of the connection") { _ in true })
    gate.signal()
    let summary = try ended.first("the end") { _ in true }
    #expect(summary.error == nil && summary.progress.outageCount == 0 && directory.names == ["file"])
    withExtendedLifetime(session) {}
  }

  @Test(
    "a download that is cancelled during its verification can be continued, if it has a version",
    arguments: [true, false])
  func cancelledVerification(hasTag: Bool) throws {
    let content = Array("0123456789".utf8)
    var digest = RunningDigest(.sha256)
    var other = RunningDigest(.sha512)
    digest.update(content)
    other.update(content)
    // One of them is computed while the bytes are written, the other one only from the file.
    let lines = [
      "HTTP/1.1 200 OK", "Transfer-Encoding: chunked", hasTag ? "ETag: \"a\"" : "X: x",
      "Repr-Digest: \(DigestField([("sha-256", digest.value().bytes)]).value)", "", "a", "0123456789", "0",
      "Content-Digest: \(DigestField([("sha-512", other.value().bytes)]).value)",
    ]
    let (left, gate) = (try EventLog<Bool>(), EndSignal())
    let server = try server(lines.joined(separator: "\r\n") + "\r\n\r\n", left)
    let (download, session, ended) = try gated(server.url, gate) { _ in }
    try waitForEnding(download)
    download.cancel()
    try waitForTurn(download)
    gate.signal()
    let summary = try ended.first("the end") { _ in true }
    #expect(summary.error?.kind == .cancelled && summary.error?.description == "cancelled", "\(summary)")
    #expect(summary.resumeData?.byteCount == (hasTag ? 10 : nil))
    #expect(directory.names == (hasTag ? ["file.part"] : []))
    withExtendedLifetime(session) {}
  }

  @Test("a file that the disk refuses to sync does not get its name")
  func unsynced() throws {
    let (left, gate) = (try EventLog<Bool>(), EndSignal())
    let server = try server("HTTP/1.1 416 x\r\nETag: \"a\"\r\nContent-Range: bytes */10\r\n\r\n", left)
    let data = try self.left(10)
    let (download, session, ended) = try gated(server.url, gate) { $0.resumeData = data }
    try directory.breakDescriptor(of: "file.part")
    try waitForEnding(download)
    gate.signal()
    let summary = try ended.first("the end") { _ in true }
    #expect(summary.error?.kind == .file && summary.error?.systemError?.code == EINVAL, "\(summary)")
    // They were synced before the first checkpoint.
    #expect(summary.resumeData?.byteCount == 10 && directory.names == ["file.part"])
    withExtendedLifetime(session) {}
  }

  @Test("the bytes of an earlier process stay if a later sync fails", arguments: [false, true])
  func unsyncedWithoutRecord(_ isCancelled: Bool) throws {
    let rest = EndSignal()
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      rest.wait()
      if isCancelled { _ = connection.waitForEnd() }
      try connection.send("HTTP/1.1 416 x\r\nETag: \"a\"\r\nContent-Range: bytes */10\r\n\r\n")
    }
    var configuration = configuration(server.url)
    // Nothing stores checkpoints, as with `sluice get`.
    configuration.resumeData = try self.left(10)
    let (session, events) = (try UploadSession(), try EventLog<DownloadEvent>())
    let download = FileDownload(configuration)
    download.start(on: session) { events.append($0) }
    _ = try events.first("the file") { if case .opened = $0 { true } else { false } }
    try directory.breakDescriptor(of: "file.part")
    rest.signal()
    if isCancelled { download.cancel() }
    let ended = try events.first("the end") { if case .ended = $0 { true } else { false } }
    guard case .ended(let summary) = ended else { return }
    #expect(summary.error?.kind == (isCancelled ? .cancelled : .file), "\(summary)")
    #expect(summary.resumeData?.byteCount == 10 && summary.resumedFrom == 10 && directory.names == ["file.part"])
    withExtendedLifetime(session) {}
  }

  @Test("if the disk refuses every byte after the last one has arrived, there is nothing to continue")
  func unwritten() throws {
    let (left, gate) = (try EventLog<Bool>(), EndSignal())
    let server = try server("HTTP/1.1 200 OK\r\nETag: \"a\"\r\nContent-Length: 4\r\n\r\n0123", left)
    let (download, session, ended) = try gated(server.url, gate) { _ in }
    try directory.breakDescriptor(of: "file.part")
    try waitForEnding(download)
    gate.signal()
    let summary = try ended.first("the end") { _ in true }
    #expect(summary.error?.kind == .file && summary.error?.systemError?.code == ESPIPE, "\(summary)")
    #expect(summary.resumeData == nil && summary.progress.written == 0)
    withExtendedLifetime(session) {}
  }

  @Test("if the disk refuses the last bytes after all have arrived, earlier ones count only if it syncs them")
  func refusedAtTheEnd() throws {
    let (rest, gate) = (EndSignal(), EndSignal())
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.send("HTTP/1.1 200 OK\r\nETag: \"a\"\r\nContent-Length: 8\r\n\r\n0123")
      rest.wait()
      try connection.send("4567")
      _ = connection.waitForEnd()
    }
    var configuration = configuration(server.url)
    configuration.progressInterval = .milliseconds(5)
    let (session, ended) = (try UploadSession(), try EventLog<DownloadSummary>())
    let (progress, entered) = (try EventLog<DownloadProgress>(), try EventLog<Bool>())
    let download = FileDownload(configuration)
    download.start(on: session) { event in
      if case .progress(let now) = event { progress.append(now) }
      if case .ended(let summary) = event { ended.append(summary) }
    }
    try progress.first("the first bytes") { $0.written == 4 }
    download.worker.execute {
      entered.append(true)
      gate.wait()
    }
    try entered.first("the pause of the disk") { $0 }
    // From now on, it can neither write nor sync.
    try directory.breakDescriptor(of: "file.part")
    rest.signal()
    try waitForEnding(download)
    gate.signal()
    let summary = try ended.first("the end") { _ in true }
    #expect(summary.error?.kind == .file && summary.error?.systemError?.code == ESPIPE, "\(summary)")
    #expect(summary.resumeData == nil && summary.progress.written == 0, "\(summary)")
    withExtendedLifetime(session) {}
  }

  @Test("at the end, another download can lock the file, although this one is not yet closed")
  func unlocked() throws {
    let left = try EventLog<Bool>()
    let server = try server("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n0123", left)
    let path = "\(directory.path)/file"
    let (session, isLocked) = (try UploadSession(), try EventLog<Bool>())
    let kept = Lock<PartialFile?>(nil)
    let download = FileDownload(configuration(server.url))
    download.start(on: session) { event in
      func lock(_ path: String) -> Bool {
        let descriptor = open(path, O_RDONLY | O_CLOEXEC)
        defer { close(descriptor) }
        return flock(descriptor, LOCK_EX | LOCK_NB) == 0
      }
      if case .opened(let part, _, _) = event {
        let file = download.file
        kept.withLock { $0 = file }
        isLocked.append(lock(part))
      }
      if case .ended = event { isLocked.append(lock(path)) }
    }
    #expect(try isLocked.wait("the end") { $0.count == 2 ? $0 : nil } == [false, true])
    let isKept = kept.withLock { $0 != nil }
    #expect(isKept)
  }

  // MARK: Data for a later process

  @Test("a checkpoint follows 64 MiB, and a download continues if that one cannot be stored")
  func interval() throws {
    let server = try ResourceServer()
    server.set("x", [UInt8](repeating: 0, count: 64 << 20))
    let (session, ended) = (try UploadSession(), try EventLog<DownloadSummary>())
    let stored = try EventLog<String>()
    var configuration = configuration(server.url("x"))
    configuration.record = { checkpoint in
      stored.append("\(checkpoint.data.validator) \(checkpoint.data.byteCount)")
      return checkpoint.data.byteCount == 0
    }
    FileDownload(configuration).start(on: session) { if case .ended(let summary) = $0 { ended.append(summary) } }
    let summary = try ended.first("the end") { _ in true }
    #expect(summary.error == nil && summary.progress.written == 64 << 20, "\(summary)")
    #expect(stored.all == [" 0", "\"1\" 0", "\"1\" \(64 << 20)"])
  }

  @Test("the interval of the checkpoints of a resumed download begins at its first byte")
  func resumedInterval() throws {
    let server = try ResourceServer()
    server.set("x", [UInt8](repeating: 0, count: 64 << 20))
    let (session, ended) = (try UploadSession(), try EventLog<DownloadSummary>())
    let stored = try EventLog<String>()
    var configuration = configuration(server.url("x"))
    configuration.resumeData = try left(1, validator: "\"1\"")
    configuration.record = { checkpoint in
      stored.append("\(checkpoint.data.validator) \(checkpoint.data.byteCount)")
      return true
    }
    FileDownload(configuration).start(on: session) { if case .ended(let summary) = $0 { ended.append(summary) } }
    let summary = try ended.first("the end") { _ in true }
    #expect(summary.error == nil && summary.resumedFrom == 1 && summary.progress.written == 64 << 20, "\(summary)")
    #expect(stored.all == ["\"1\" 1"])
  }

  @Test(
    "the data of a version is reported once its predecessor's bytes are discarded, and not after its own are",
    arguments: [true, false])
  func heldData(isReported: Bool) throws {
    let (gate, later) = (EndSignal(), EndSignal())
    let server = try ScriptedServer { connection, number in
      _ = try connection.head()
      let length = "Content-Length: 1000\r\n\r\n"
      switch number {
      case 0:
        try connection.send("HTTP/1.1 200 OK\r\nETag: \"b\"\r\n\(length)0123456789")
        if isReported { later.wait() }
      case 1 where !isReported:
        try connection.send("HTTP/1.1 206 x\r\nETag: \"b\"\r\nContent-Range: bytes 0-999/1000\r\n\(length)")
      default:
        try connection.send("HTTP/1.1 200 OK\r\nETag: W/\"c\"\r\n\(length)01234567")
        _ = connection.waitForEnd()
      }
    }
    var configuration = configuration(server.url)
    configuration.resumeData = try left(4)
    configuration.progressInterval = .milliseconds(5)
    configuration.record = { checkpoint in
      if checkpoint.data.validator == "\"a\"" { gate.wait() }
      return true
    }
    let (session, ended) = (try UploadSession(), try EventLog<DownloadSummary>())
    let (responses, data) = (try EventLog<UInt64>(), try EventLog<DownloadResumeData>())
    let written = try EventLog<UInt64>()
    let download = FileDownload(configuration)
    download.start(on: session) { event in
      if case .receiving(let offset, _) = event { responses.append(offset) }
      if case .resumable(let found) = event { data.append(found) }
      if case .progress(let progress) = event { written.append(progress.written) }
      if case .ended(let summary) = event { ended.append(summary) }
    }
    // The worker has discarded nothing yet.
    try responses.wait("the response") { $0.count == (isReported ? 1 : 2) ? true : nil }
    try waitForTurn(download)
    #expect(data.all.isEmpty)
    gate.signal()
    if isReported {
      let found = try data.first("the data") { _ in true }
      #expect(found.validator == "\"b\"" && found.byteCount == 0 && found.length == 1000)
      later.signal()
    }
    try written.first("the bytes of the last version") { $0 == 8 }
    try waitForTurn(download)
    #expect(data.all.count == (isReported ? 1 : 0))
    download.cancel()
    try ended.first("the end") { _ in true }
    withExtendedLifetime(session) {}
  }
}
