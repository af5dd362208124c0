// The file of an incomplete download, written by a worker that the test can delay.

import Digests
import DiskFiles
import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Synchronization
import Testing

@testable import Downloads

@Suite("The file of an unfinished download")
struct PartialFileTests {
  private let directory: TemporaryDirectory
  private let worker = BackgroundWorker()

  init() throws { directory = try TemporaryDirectory() }

  private var path: String { "\(directory.path)/part" }

  /// Blocks the worker until the returned closure is called.
  private func hold() -> @Sendable () -> Void {
    let gate = EndSignal()
    worker.execute { gate.wait() }
    return { gate.signal() }
  }

  /// Waits until the worker has done all work so far.
  private func waitForWorker() {
    let done = EndSignal()
    worker.execute { done.signal() }
    done.wait()
  }

  /// The descriptor with which this process has a file open.
  private func descriptor(of path: String) throws -> Int32? {
    for name in try fileNames(in: "/proc/self/fd") {
      var target = [CChar](repeating: 0, count: 4096)
      let count = readlink("/proc/self/fd/\(name)", &target, target.count)
      if count > 0, String(decoding: target[..<count].map(UInt8.init(bitPattern:)), as: UTF8.self) == path {
        return Int32(name)
      }
    }
    return nil
  }

  @Test(
    "bytes of a part beyond its resume data are discarded when it is continued, and no later checkpoint counts them")
  func beyond() throws {
    _ = try directory.write("part", [UInt8](repeating: 9, count: 400))
    var status = stat()
    #expect(stat(path, &status) == 0)
    let data = DownloadResumeData(
      path: path, inode: UInt64(status.st_ino), byteCount: 100, validator: "\"a\"", length: nil)
    let file = try PartialFile(resuming: data, worker)
    file.write([UInt8](repeating: 8, count: 50)) { _, _ in }
    waitForWorker()
    #expect(DownloadCheckpoint(data).found?.byteCount == 150)
    #expect(
      try directory.contents("part") == [UInt8](repeating: 9, count: 100) + [UInt8](repeating: 8, count: 50))
    withExtendedLifetime(file) {}
  }

  @Test("the end waits for an order to discard bytes, even if no byte follows")
  func truncation() throws {
    let file = try PartialFile(making: path, mode: 0o600, worker)
    file.write([1, 2, 3]) { _, _ in }
    waitForWorker()
    let goOn = hold()
    file.truncate(to: 0)
    #expect(!file.isIdle)
    let lengths = try EventLog<UInt64>()
    file.whenWritten { lengths.append(file.written) }
    #expect(lengths.all.isEmpty)
    goOn()
    #expect(try lengths.first("the call") { _ in true } == 0)
    #expect(try file.isIdle && directory.contents("part").isEmpty)
  }

  @Test("bytes that the disk has refused do not count, and none follow, even if its next sync succeeds")
  func refusedBytes() throws {
    let file = try PartialFile(making: path, mode: 0o600, worker)
    file.write([UInt8](repeating: 1, count: 100)) { _, _ in }
    waitForWorker()
    try file.synchronize()
    file.write([UInt8](repeating: 2, count: 50)) { _, _ in }
    waitForWorker()
    let number = try #require(try descriptor(of: path))
    // A pipe replaces the file, because a pipe cannot be synced.
    var ends: [Int32] = [-1, -1]
    #expect(pipe(&ends) == 0)
    let kept = fcntl(number, F_DUPFD_CLOEXEC, 0)
    #expect(dup2(ends[1], number) == number)
    #expect(throws: SystemError.self) { try file.synchronize() }
    #expect(dup2(kept, number) == number)
    for end in ends + [kept] { close(end) }
    try file.synchronize()
    file.write([3]) { _, _ in }
    waitForWorker()
    #expect(file.error?.code == EINVAL && file.written == 100)
  }

  @Test("a completion handler waits for the last byte, and for nothing else")
  func whenWritten() throws {
    let file = try PartialFile(making: path, mode: 0o600, worker)
    let calls = Atomic<Int>(0)
    withExtendedLifetime(calls) {
      file.whenWritten { calls.add(1, ordering: .relaxed) }
      #expect(calls.load(ordering: .relaxed) == 1, "nothing waits")
      let goOn = hold()
      file.write([7]) { _, _ in }
      file.whenWritten { calls.add(10, ordering: .relaxed) }
      #expect(calls.load(ordering: .relaxed) == 1 && file.written == 0)
      goOn()
      waitForWorker()
      #expect(calls.load(ordering: .relaxed) == 11 && file.written == 1)
    }
    #expect(try directory.contents("part") == [7])
  }

  @Test("a file with too many pending bytes is full, and reports once when it has space again")
  func room() throws {
    let file = try PartialFile(making: path, mode: 0o600, worker)
    let calls = Atomic<Int>(0)
    withExtendedLifetime(calls) {
      for round in 1...3 {
        let goOn = hold()
        let piece = [UInt8](repeating: 1, count: 256 << 10)
        for number in 1...5 {
          #expect(!file.isFull)
          file.write(piece) { _, isNews in if isNews { calls.add(1, ordering: .relaxed) } }
          #expect(file.isFull == (number == 5))
        }
        goOn()
        waitForWorker()
        #expect(!file.isFull && calls.load(ordering: .relaxed) == round)
      }
    }
    #expect(file.written == 3 * 5 * 256 << 10)
  }

  @Test("the digest that is computed during the writes is that of the file", arguments: DigestAlgorithm.allCases)
  func digest(_ algorithm: DigestAlgorithm) throws {
    let file = try PartialFile(making: path, mode: 0o600, worker)
    file.beginDigest(algorithm)
    for number in 0..<10 { file.write([UInt8](repeating: UInt8(number), count: 100 * number + 1)) { _, _ in } }
    waitForWorker()
    let count = file.written
    // The file is no longer readable, so the digest is known only from the writes.
    let read = try file.digest(algorithm, of: 0..<count)
    #expect(truncate(path, 0) == 0)
    let running = try file.digest(algorithm, of: 0..<count)
    #expect(running != nil && running?.bytes == read?.bytes)
    var whole = RunningDigest(algorithm)
    for number in 0..<10 { whole.update([UInt8](repeating: UInt8(number), count: 100 * number + 1)) }
    #expect(whole.value().bytes == running?.bytes)
  }

  @Test("an ended download has closed its file, but never closes standard output")
  func closed() throws {
    var file: PartialFile? = try PartialFile(making: path, mode: 0o600, worker)
    #expect(try descriptor(of: path) != nil)
    withExtendedLifetime(file) {}
    file = nil
    waitForWorker()
    #expect(try descriptor(of: path) == nil)
    let other = open("\(directory.path)/other", O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
    file = PartialFile(streaming: other, worker)
    withExtendedLifetime(file) {}
    file = nil
    #expect(fcntl(other, F_GETFD) >= 0)
    close(other)
  }
}
