// Downloads in the agent: their parts, their remains, and their ends.

import DiskFiles
import EventLoops
import Glibc
import JSONLines
import NetworkTesting
import Testing
import TransferClient
import UploadClient

@testable import Downloads
@testable import TransferAgent

@Suite("Downloads in the queue")
struct DownloadQueueTests {
  private func download(_ part: String, resumeData: String? = nil) -> TransferRequest {
    var request = TransferRequest(key: "k", url: "http://h/", path: "")
    (request.kind, request.method, request.part, request.resumeData) = (.download, "GET", part, resumeData)
    return request
  }

  @Test("an agent with a pending deletion is not idle, even while it waits for its next attempt")
  func idleness() {
    var queue = TransferQueue()
    _ = queue.handle(.submitted(download("/part"), version: "", size: nil), now: 0)
    _ = queue.handle(.cancel(1), now: 1)
    _ = queue.handle(.finished(1, .stopped(resumeData: nil)), now: 2)
    #expect(!queue.isIdle)
    _ = queue.handle(.abandoned(1, isDone: false), now: 3)
    #expect(queue.running.isEmpty && !queue.isIdle)
    _ = queue.handle(.timeCame, now: 20_000)
    _ = queue.handle(.abandoned(1, isDone: true), now: 20_001)
    #expect(queue.isIdle)
  }

  @Test(
    "a program's own part is returned when it cancels for resume data, and is not removed",
    arguments: 0..<3)
  func handedIn(_ way: Int) {
    var queue = TransferQueue()
    var request = download("/part", resumeData: "handed in")
    if way == 0 { request.earliestBegin = 1_000_000 }
    var actions = queue.handle(.submitted(request, version: "", size: nil), now: 0)
    actions += queue.handle(.cancel(1, keeps: true), now: 1)
    switch way {
    case 0: break
    case 1: actions += queue.handle(.finished(1, .postponed("no descriptor")), now: 2)
    default: actions += queue.handle(.finished(1, .stopped(resumeData: queue.transfers[1]?.knownPart)), now: 2)
    }
    #expect(queue.transfers[1]?.result?.outcome == .cancelled)
    #expect(queue.transfers[1]?.result?.resumeData == "handed in")
    #expect(queue.abandoned.isEmpty && !actions.contains { if case .abandon = $0 { true } else { false } })
  }

  @Test("a program receives the part of a timed-out download once no process writes into it", arguments: 0..<3)
  func noTimeLeft(_ way: Int) {
    var queue = TransferQueue()
    var request = download("/part", resumeData: "handed in")
    request.deadline = 100
    if way == 0 { request.earliestBegin = 1_000 }
    var actions = queue.handle(.submitted(request, version: "", size: nil), now: 0)
    if way > 0 { _ = queue.handle(.created(1, resumeData: "known"), now: 1) }
    actions += queue.handle(.timeCame, now: 100)
    if way > 0 {
      #expect(actions.contains(.stop(1)))
      #expect(queue.transfers[1]?.hasEnded == false, "it may still write")
      actions += queue.handle(.timeCame, now: 101)
      let ending: TransferQueue.Ending = way == 1 ? .stopped(resumeData: "more") : .postponed("no descriptor")
      actions += queue.handle(.finished(1, ending), now: 102)
    }
    let result = queue.transfers[1]?.result
    #expect(result?.outcome == .failed && result?.cause == "timedOut")
    #expect(result?.resumeData == ["handed in", "more", "known"][way])
    #expect(queue.abandoned.isEmpty && actions.count { $0 == .stop(1) } == (way == 0 ? 0 : 1))
  }

  @Test("a download that is already complete is not reported as a range error")
  func completeBefore() throws {
    let transfer = Transfer(id: 1, request: download("/part"), version: "", size: nil, created: 0)
    var response = HTTPResponse(status: 416)
    response.fields = ["Content-Range": "bytes */10", "Content-Type": "text/html", "ETag": "\"a\""]
    response.body = [1]
    let progress = DownloadProgress(written: 10, length: 10, elapsed: .zero, isConnected: false, outageCount: 0)
    let summary = DownloadSummary(
      error: nil, progress: progress, resumeData: nil, resumedFrom: 10, verified: nil, response: response)
    guard case .ended(.completed(let result))? = RunningDownload.news(.ended(summary), of: transfer).first else {
      throw TestFailure("the download has not ended")
    }
    #expect(result.status == 206 && result.fields == ["ETag: \"a\""] && result.body.isEmpty)
  }

  @Test("a part with a second hard link is recreated if it is the agent's, and not changed if it is the program's")
  func secondName() throws {
    let directory = try TemporaryDirectory()
    let path = try directory.write("part", [1, 2, 3])
    link(path, "\(directory.path)/second")
    var status = stat()
    #expect(stat(path, &status) == 0)
    let text = DownloadCheckpoint(
      DownloadResumeData(path: path, inode: UInt64(status.st_ino), byteCount: 3, validator: "\"a\"", length: nil)
    ).text
    let given = Transfer(id: 1, request: download(path, resumeData: text), version: "", size: nil, created: 0)
    guard case .failure(let failure) = RunningDownload.beginning(given) else {
      throw TestFailure("the program's part was taken")
    }
    #expect(failure.cause == "fileChanged" && !failure.isTemporary && directory.names == ["part", "second"])
    var own = Transfer(id: 2, request: download(path), version: "", size: nil, created: 0)
    own.resumeData = text
    guard case .success(.download(nil)) = RunningDownload.beginning(own) else {
      throw TestFailure("the agent's part was continued")
    }
    #expect(directory.names == ["second"])
  }

  @Test("a part that a download has open is not removed, however old it seems to be, and other old parts are")
  func sweep() throws {
    let directory = try TemporaryDirectory()
    let used = ".sluice-used.part"
    let file = try PartialFile(making: "\(directory.path)/\(used)", mode: 0o600, BackgroundWorker())
    _ = try directory.write(".sluice-unused.part", "x")
    for name in [used, ".sluice-unused.part"] {
      var times = [timespec(), timespec()]
      #expect(utimensat(AT_FDCWD, "\(directory.path)/\(name)", &times, 0) == 0)
    }
    RunningDownload.sweep(directory.path, keeping: [])
    #expect(try allNames(in: directory.path) == [used])
    file.unlock()
    RunningDownload.sweep(directory.path, keeping: [])
    #expect(try allNames(in: directory.path) == [])
  }

  @Test("without a descriptor to find out whether a download has a part open, no part is removed")
  func sweepWithoutDescriptors() async {
    await #expect(processExitsWith: .success) {
      let directory = try TemporaryDirectory()
      let path = try directory.write(".sluice-used.part", "x")
      var times = [timespec(), timespec()]
      guard utimensat(AT_FDCWD, path, &times, 0) == 0 else { throw TestFailure("utimensat") }
      let resource = __rlimit_resource_t(RLIMIT_NOFILE.rawValue)
      var limit = rlimit()
      getrlimit(resource, &limit)
      let usual = limit.rlim_cur
      // The list of the directory takes the last descriptor.
      let free = open("/dev/null", O_RDONLY)
      close(free)
      limit.rlim_cur = rlim_t(free) + 1
      setrlimit(resource, &limit)
      RunningDownload.sweep(directory.path, keeping: [])
      limit.rlim_cur = usual
      setrlimit(resource, &limit)
      guard try allNames(in: directory.path) == [".sluice-used.part"] else { throw TestFailure("it is gone") }
      RunningDownload.sweep(directory.path, keeping: [])
      guard try allNames(in: directory.path) == [] else { throw TestFailure("it is still there") }
    }
  }

  @Test("opening the database removes the secrets of ended transfers of an earlier version")
  func upgrade() throws {
    let directory = try TemporaryDirectory()
    let (state, path) = ("\(directory.path)/state", "\(directory.path)/state/transfers.db")
    _ = try TransferDatabase(directory: state)
    var request = TransferRequest(key: "k", url: "http://user:s3cret@h/", path: "/x")
    (request.token, request.fields) = ("s3cret", ["Authorization: s3cret"])
    var (line, result) = (JSONLine(event: "submit"), JSONLine(event: "result"))
    request.add(to: &line)
    TransferResult(.failed, cause: "refused").add(to: &result)
    var old: SQLite? = try SQLite(path: path)
    try old?.run("DROP TABLE abandoned")
    for (id, state) in [(1, "ended"), (2, "active")] {
      try old?.run(
        "INSERT INTO transfers VALUES(?, ?, '', ?, ?, 'v', 1, 1, ?, ?)",
        [
          .integer(Int64(id)), .text("\(id)"), .text(state), .text(line.line), .text("s3cret"),
          id == 1 ? .text(result.line) : .null,
        ])
    }
    try old?.run("PRAGMA user_version=2")
    old = nil
    func secrets() -> Int {
      ["transfers.db", "transfers.db-wal"].reduce(0) { count, name in
        let bytes = (try? fileContents("\(state)/\(name)")) ?? []
        return count + String(decoding: bytes, as: UTF8.self).ranges(of: "s3cret").count
      }
    }
    #expect(secrets() >= 8)
    let database = try TransferDatabase(directory: state)
    #expect(secrets() == 4, "those of the transfer that has not ended")
    let queue = try database.load()
    #expect(queue.transfers[1]?.hasEnded == true && queue.transfers[1]?.request.token == nil)
    #expect(queue.transfers[2]?.request == request && queue.transfers[2]?.resumeData == "s3cret")
  }
}
