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

  /// The descriptors with which this process has a file open.
  private func descriptors(of path: String) throws -> [Int32] {
    try fileNames(in: "/proc/self/fd").compactMap { name in
      var target = [CChar](repeating: 0, count: 4096)
      let count = max(0, readlink("/proc/self/fd/\(name)", &target, target.count))
      let isOpen = String(decoding: target[..<count].map(UInt8.init(bitPattern:)), as: UTF8.self) == path
      return isOpen ? Int32(name) : nil
    }
  }

  private func descriptor(of path: String) throws -> Int32? { try descriptors(of: path).first }

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
      file.write([8]) { _, _ in }
      waitForWorker()
      #expect(calls.load(ordering: .relaxed) == 11, "each is called once")
    }
    #expect(try directory.contents("part") == [7, 8])
  }

  @Test("a file with too many pending bytes is full, and reports once when it has space again")
  func room() throws {
    let file = try PartialFile(making: path, mode: 0o600, worker)
    let news = try EventLog<Int>()
    for round in 1...3 {
      let goOn = hold()
      let piece = [UInt8](repeating: 1, count: 256 << 10)
      for number in 1...5 {
        #expect(!file.isFull)
        file.write(piece) { _, isNews in if isNews { news.append(number) } }
        #expect(file.isFull == (number == 5))
      }
      goOn()
      waitForWorker()
      // Half of 1 MiB is left after the third piece.
      #expect(!file.isFull && news.all == [Int](repeating: 3, count: round))
    }
    #expect(file.written == 3 * 5 * 256 << 10)
  }

  @Test("each digest that is computed during the writes is that of the file", arguments: DigestAlgorithm.allCases)
  func digest(_ algorithm: DigestAlgorithm) throws {
    let file = try PartialFile(making: path, mode: 0o600, worker)
    file.beginDigests(DigestAlgorithm.allCases)
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

  @Test("the digest of a part of a file is that of these bytes, in any number of reads")
  func partialDigest() throws {
    let bytes = OffsetPattern()[0..<(3 << 20) + 5]
    let file = try PartialFile(making: path, mode: 0o600, worker)
    file.write(bytes) { _, _ in }
    waitForWorker()
    for range in [0..<0, 0..<1, 2..<5, 1..<(1 << 20) + 1, 7..<(3 << 20), 0..<bytes.count] {
      var expected = RunningDigest(.sha256)
      expected.update(Array(bytes[range]))
      let found = try file.digest(.sha256, of: UInt64(range.lowerBound)..<UInt64(range.upperBound))
      #expect(found?.bytes == expected.value().bytes, "\(range)")
    }
    // The digest of the first bytes is known only to the file.
    #expect(truncate(path, 10) == 0)
    let shortened = #expect(throws: SystemError.self) { _ = try file.digest(.sha256, of: 5..<11) }
    #expect(shortened?.code == ESTALE)
    file.abandonDigests()
    let abandoned = #expect(throws: SystemError.self) { _ = try file.digest(.sha256, of: 0..<10) }
    #expect(abandoned?.code == ECANCELED)
  }

  @Test("after an order to discard bytes, a digest is that of the bytes that follow")
  func digestAfterTruncation() throws {
    let file = try PartialFile(making: path, mode: 0o600, worker)
    file.beginDigests([.sha256])
    file.write([1, 2, 3]) { _, _ in }
    file.truncate(to: 0)
    file.write([4, 5, 6]) { _, _ in }
    waitForWorker()
    var expected = RunningDigest(.sha256)
    expected.update([4, 5, 6])
    #expect(try file.digest(.sha256, of: 0..<3)?.bytes == expected.value().bytes)
    // One that begins after the first byte would lack the bytes before it.
    file.beginDigests([.sha256])
    file.write([7]) { _, _ in }
    waitForWorker()
    expected.update([7])
    #expect(try file.digest(.sha256, of: 0..<4)?.bytes == expected.value().bytes)
  }

  /// Has a pipe replace a descriptor while `work` runs. A pipe can be neither synced nor shortened.
  private func withPipe(as number: Int32, _ work: () throws -> Void) throws {
    var ends: [Int32] = [-1, -1]
    try #require(pipe(&ends) == 0)
    let kept = fcntl(number, F_DUPFD_CLOEXEC, 0)
    #expect(dup2(ends[1], number) == number)
    defer {
      #expect(dup2(kept, number) == number)
      for end in ends + [kept] { close(end) }
    }
    try work()
  }

  @Test("discarded bytes do not count as synced any more")
  func syncedAndDiscarded() throws {
    let file = try PartialFile(making: path, mode: 0o600, worker)
    file.write([UInt8](repeating: 1, count: 100)) { _, _ in }
    waitForWorker()
    try file.synchronize()
    file.truncate(to: 30)
    file.write([UInt8](repeating: 2, count: 50)) { _, _ in }
    waitForWorker()
    #expect(file.written == 80)
    let number = try #require(try descriptor(of: path))
    try withPipe(as: number) { #expect(throws: SystemError.self) { try file.synchronize() } }
    #expect(file.written == 30)
  }

  @Test("if bytes cannot be discarded, the file accepts no more")
  func notDiscarded() throws {
    let file = try PartialFile(making: path, mode: 0o600, worker)
    file.write([1, 2, 3]) { _, _ in }
    waitForWorker()
    let number = try #require(try descriptor(of: path))
    try withPipe(as: number) {
      file.truncate(to: 0)
      waitForWorker()
    }
    #expect(file.error?.code == EINVAL)
    file.write([4]) { _, _ in }
    waitForWorker()
    #expect(try directory.contents("part") == [1, 2, 3] && file.written == 0)
    // The first reason stays.
    file.refuse(SystemError(operation: "test", code: EAGAIN))
    #expect(file.error?.code == EINVAL)
  }

  @Test("a full device accepts no bytes, which is news once, and the following bytes are not tried")
  func fullDevice() throws {
    let device = open("/dev/full", O_WRONLY | O_CLOEXEC)
    try #require(device >= 0)
    defer { close(device) }
    let file = PartialFile(streaming: device, worker)
    let news = try EventLog<[Int]>()
    for number in 1...3 { file.write([1, 2]) { bytes, isNews in news.append([number, bytes.count, isNews ? 1 : 0]) } }
    waitForWorker()
    #expect(news.all == [[1, 2, 1], [2, 2, 0], [3, 2, 0]])
    #expect(file.error?.code == ENOSPC && file.written == 0 && file.isIdle)
    // A stream can be neither synced nor removed, and its bytes cannot be read again.
    try file.synchronize()
    file.remove()
    #expect(try file.digest(.sha256, of: 0..<2) == nil)
  }

  @Test("a pipe that another process has made non-blocking gets every byte once")
  func nonBlockingPipe() throws {
    var ends: [Int32] = [-1, -1]
    try #require(pipe(&ends) == 0)
    defer { for end in ends { close(end) } }
    #expect(fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0)
    let bytes = OffsetPattern()[0..<300_001]
    let file = PartialFile(streaming: ends[1], worker)
    file.write(bytes) { _, _ in }
    var (found, buffer) = ([UInt8](), [UInt8](repeating: 0, count: 10_000))
    while found.count < bytes.count {
      try #require(waitUntilReadable(ends[0], limit: .seconds(30)))
      let count = read(ends[0], &buffer, buffer.count)
      try #require(count > 0)
      found += buffer[..<count]
    }
    waitForWorker()
    #expect(found == bytes && file.written == UInt64(bytes.count) && file.error == nil)
  }

  @Test("a file that has taken the place of a part is neither renamed nor removed")
  func replaced() throws {
    let file = try PartialFile(making: path, mode: 0o600, worker)
    rename(try directory.write("other", [7]), path)
    let name = "\(directory.path)/file"
    for replaces in [true, false] {
      let refusal = #expect(throws: SystemError.self) { try file.rename(to: name, replaces: replaces) }
      #expect(refusal?.code == ESTALE)
    }
    file.remove()
    #expect(try directory.names == ["part"] && directory.contents("part") == [7])
  }

  @Test("a part gets its name, also in place of another file, and its directory is closed", arguments: [true, false])
  func named(replaces: Bool) throws {
    let file = try PartialFile(making: path, mode: 0o600, worker)
    file.write([1, 2, 3]) { _, _ in }
    waitForWorker()
    let name = "\(directory.path)/file"
    if replaces { _ = try directory.write("file", [9]) }
    try file.rename(to: name, replaces: replaces)
    #expect(try directory.names == ["file"] && directory.contents("file") == [1, 2, 3])
    #expect(try descriptors(of: directory.path) == [])
    withExtendedLifetime(file) {}
  }

  @Test("no other download can open a part until it is unlocked, and a refused one is closed")
  func lock() throws {
    let file = try PartialFile(making: path, mode: 0o600, worker)
    file.write([1, 2, 3]) { _, _ in }
    waitForWorker()
    let data = DownloadResumeData(
      path: path, inode: file.inode, birth: file.birth, byteCount: 3, validator: "\"a\"", length: nil)
    let own = try descriptors(of: path)
    let refusal = #expect(throws: SystemError.self) { _ = try PartialFile(resuming: data, worker) }
    #expect(refusal?.code == EBUSY)
    #expect(try own.count == 1 && descriptors(of: path) == own)
    file.unlock()
    let next = try PartialFile(resuming: data, worker)
    #expect(next.written == 3 && next.inode == file.inode && next.birth == file.birth)
    withExtendedLifetime((file, next)) {}
  }

  @Test("a lock of the caller on its own descriptor stays")
  func streamLock() throws {
    let name = try directory.write("output", "")
    let (own, other) = (open(name, O_WRONLY | O_CLOEXEC), open(name, O_WRONLY | O_CLOEXEC))
    defer { for descriptor in [own, other] { close(descriptor) } }
    #expect(flock(own, LOCK_EX | LOCK_NB) == 0)
    let file = PartialFile(streaming: own, worker)
    file.unlock()
    #expect(flock(other, LOCK_EX | LOCK_NB) != 0)
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
