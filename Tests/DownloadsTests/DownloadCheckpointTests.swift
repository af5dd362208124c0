// The checkpoints of a running download, and how they are interpreted later.

import EventLoops
import Glibc
import LiveStreaming
import NetworkTesting
import PropertyTesting
import Testing
import UploadClient

@testable import Downloads

@Suite("Checkpoints of downloads")
struct DownloadCheckpointTests {
  /// What has happened to the part since then.
  private enum Fate: CaseIterable {
    case same, longer, shorter, gone, other, renamed, link, twoNames, empty, withoutBytes, oneByte, reborn, unborn
  }

  @Test(
    "a part counts up to its reliable length, and another file never counts", arguments: Fate.allCases, [true, false])
  private func found(_ fate: Fate, isSameBoot: Bool) throws {
    let directory = try TemporaryDirectory()
    let path = try directory.write("part", [UInt8](repeating: 1, count: 100))
    var status = stat()
    #expect(lstat(path, &status) == 0)
    var checkpoint = DownloadCheckpoint(
      DownloadResumeData(
        path: path, inode: UInt64(status.st_ino), birth: WallClock(birthOf: path, in: AT_FDCWD)?.sinceEpoch,
        byteCount: 60, validator: fate == .empty ? "" : "\"a\"", length: 500, digest: "sha-256=:AA==:"))
    // The inode of a removed file gets another file, or a file system does not report times.
    if fate == .reborn { checkpoint.data.birth = 1 }
    if fate == .unborn { checkpoint.data.birth = nil }
    if !isSameBoot { checkpoint.boot = "another" }
    let copy = try #require(DownloadCheckpoint(checkpoint.text))
    #expect(copy == checkpoint)
    var expected: UInt64? = isSameBoot ? 100 : 60
    switch fate {
    case .same: break
    case .longer:
      truncate(path, 400)
      expected = isSameBoot ? 400 : 60
    case .shorter:
      truncate(path, 30)
      expected = 30
    case .gone:
      unlink(path)
      expected = nil
    case .other:
      rename(try directory.write("other", [UInt8](repeating: 2, count: 100)), path)
      expected = nil
    case .renamed:
      rename(path, path + "2")
      #expect(copy.isFile(path + "2"))
      expected = nil
    case .link:
      rename(path, path + "2")
      symlink(path + "2", path)
      expected = nil
    case .twoNames:
      link(path, path + "2")
      expected = nil
    case .empty, .reborn: expected = nil
    case .unborn: break
    case .withoutBytes:
      truncate(path, 0)
      expected = nil
    case .oneByte:
      truncate(path, 1)
      expected = 1
    }
    #expect(copy.isFile(path) == ![.gone, .other, .renamed, .link, .reborn].contains(fate))
    #expect(copy.found?.byteCount == expected)
    #expect(expected == nil || copy.found?.validator == "\"a\"" && copy.found?.length == 500)
  }

  @Test("an invalid text is not a checkpoint", arguments: Seed.several(4))
  func damaged(seed: Seed) {
    var random = seed.generator
    let text = DownloadCheckpoint(
      DownloadResumeData(path: "/p", inode: 3, birth: 4, byteCount: 5, validator: "\"é\u{7}\"", length: nil)
    ).text
    for _ in 0..<200 {
      var bytes = Array(text.utf8)
      bytes.removeSubrange(Int.random(in: 0..<bytes.count, using: &random)...)
      #expect(DownloadCheckpoint(String(decoding: bytes, as: UTF8.self)) == nil)
    }
  }

  @Test("no byte of a version is in the part before its checkpoint is stored")
  func order() throws {
    let (directory, server) = (try TemporaryDirectory(), try ResourceServer())
    server.set("x", [UInt8](repeating: 1, count: 500_000))
    server.breaksAfter = 200_000
    let path = "\(directory.path)/file"
    let stored = try EventLog<(validator: String, size: Int, isFirst: Bool)>()
    var configuration = FileDownload.Configuration(
      request: UploadRequest(url: server.url("x")), output: .file(path, part: path + ".part"))
    configuration.retry.maximumCeiling = .milliseconds(5)
    // Others may write, regardless of the process's umask.
    configuration.permissions = 0o666
    configuration.record = { checkpoint in
      var status = stat()
      let size = lstat(path + ".part", &status) == 0 ? Int(status.st_size) : -1
      // The next version appears before the second request.
      if checkpoint.data.validator == "\"1\"" { server.set("x", [UInt8](repeating: 2, count: 300_000)) }
      stored.append((checkpoint.data.validator, size, checkpoint.data.byteCount == 0))
      return true
    }
    let session = try UploadSession()
    let ended = try EventLog<DownloadSummary>()
    FileDownload(configuration).start(on: session) { if case .ended(let summary) = $0 { ended.append(summary) } }
    let summary = try ended.first("the end") { _ in true }
    #expect(summary.error == nil)
    #expect(stored.all.map(\.validator) == ["", "\"1\"", "\"2\""])
    #expect(stored.all.allSatisfy { $0.size == 0 && $0.isFirst }, "\(stored.all)")
    #expect(try fileContents(path) == server.body("x"))
    var status = stat()
    #expect(stat(path, &status) == 0 && status.st_mode & 0o777 == 0o666)
  }

  @Test(
    "a download whose checkpoint cannot be stored ends in a state from which it can restart, and leaves no file",
    arguments: ["", "\"1\""])
  func refused(validator: String) throws {
    let (directory, server) = (try TemporaryDirectory(), try ResourceServer())
    server.set("x", [UInt8](repeating: 1, count: 300_000))
    let path = "\(directory.path)/file"
    var configuration = FileDownload.Configuration(
      request: UploadRequest(url: server.url("x")), output: .file(path, part: path + ".part"))
    configuration.record = { $0.data.validator != validator }
    let session = try UploadSession()
    let ended = try EventLog<DownloadSummary>()
    FileDownload(configuration).start(on: session) { if case .ended(let summary) = $0 { ended.append(summary) } }
    let summary = try ended.first("the end") { _ in true }
    #expect(summary.error?.systemError?.code == EAGAIN && summary.resumeData == nil, "\(summary)")
    #expect(directory.names.isEmpty)
  }

  @Test("while a checkpoint is not stored, nothing is written, and the server waits")
  func blocked() throws {
    let (directory, server) = (try TemporaryDirectory(), try ResourceServer())
    server.set("x", [UInt8](repeating: 1, count: 32 << 20))
    let path = "\(directory.path)/file"
    var configuration = FileDownload.Configuration(
      request: UploadRequest(url: server.url("x")), output: .file(path, part: path + ".part"))
    let asked = try EventLog<String>()
    let isFree = Lock(false)
    configuration.record = { checkpoint in
      asked.append(checkpoint.data.validator)
      while checkpoint.data.validator != "", !isFree.withLock({ $0 }) { poll(nil, 0, 1) }
      return true
    }
    let session = try UploadSession()
    let ended = try EventLog<DownloadSummary>()
    let download = FileDownload(configuration)
    download.start(on: session) { if case .ended(let summary) = $0 { ended.append(summary) } }
    try asked.first("the checkpoint") { $0 == "\"1\"" }
    let progress = try EventLog<DownloadProgress>()
    download.withProgress { progress.append($0) }
    #expect(try progress.first("how it stands") { _ in true }.written == 0)
    isFree.withLock { $0 = true }
    #expect(try ended.first("the end") { _ in true }.error == nil)
    #expect(try fileContents(path).count == 32 << 20)
  }

  @Test("a download that waits for its next attempt starts it on request")
  func retryNow() throws {
    let (directory, server) = (try TemporaryDirectory(), try ResourceServer())
    server.set("x", [UInt8](repeating: 1, count: 1000))
    server.close()
    let path = "\(directory.path)/file"
    var configuration = FileDownload.Configuration(request: UploadRequest(url: server.url("x")), to: path)
    configuration.retry.initialCeiling = .seconds(3600)
    configuration.retry.maximumCeiling = .seconds(3600)
    let session = try UploadSession()
    let (outages, ended) = (try EventLog<Int>(), try EventLog<DownloadSummary>())
    let download = FileDownload(configuration)
    download.start(on: session) { event in
      if case .outage = event { outages.append(1) }
      if case .ended(let summary) = event { ended.append(summary) }
    }
    try outages.first("the outage") { _ in true }
    try server.open()
    download.retryNow()
    #expect(try ended.first("the end") { _ in true }.error == nil)
  }
}
