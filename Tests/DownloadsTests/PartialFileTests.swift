// The file of a download that is not complete, written by a worker that the test holds up.

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

  /// Keeps the worker from working until the test says so.
  private func hold() -> @Sendable () -> Void {
    let gate = EndSignal()
    worker.execute { gate.wait() }
    return { gate.signal() }
  }

  /// Waits until the worker has done everything so far.
  private func waitForWorker() {
    let done = EndSignal()
    worker.execute { done.signal() }
    done.wait()
  }

  @Test("what is called when all is written waits for the last byte, and for nothing else")
  func whenWritten() throws {
    let file = try PartialFile(making: path, mode: 0o600, worker)
    let calls = Atomic<Int>(0)
    withExtendedLifetime(calls) {
      file.whenWritten { calls.add(1, ordering: .relaxed) }
      #expect(calls.load(ordering: .relaxed) == 1, "nothing waits")
      let goOn = hold()
      file.write([7]) { _ in }
      file.whenWritten { calls.add(10, ordering: .relaxed) }
      #expect(calls.load(ordering: .relaxed) == 1 && file.written == 0)
      goOn()
      waitForWorker()
      #expect(calls.load(ordering: .relaxed) == 11 && file.written == 1)
    }
    #expect(try directory.contents("part") == [7])
  }

  @Test("a file that has taken too much at once is full, and says when it has room again, once")
  func room() throws {
    let file = try PartialFile(making: path, mode: 0o600, worker)
    let calls = Atomic<Int>(0)
    withExtendedLifetime(calls) {
      for round in 1...3 {
        let goOn = hold()
        let piece = [UInt8](repeating: 1, count: 256 << 10)
        for number in 1...5 {
          #expect(!file.isFull)
          file.write(piece) { isNews in if isNews { calls.add(1, ordering: .relaxed) } }
          #expect(file.isFull == (number == 5))
        }
        goOn()
        waitForWorker()
        #expect(!file.isFull && calls.load(ordering: .relaxed) == round)
      }
    }
    #expect(file.written == 3 * 5 * 256 << 10)
  }

  @Test("the digest that is taken while bytes are written is that of the file", arguments: DigestAlgorithm.allCases)
  func digest(_ algorithm: DigestAlgorithm) throws {
    let file = try PartialFile(making: path, mode: 0o600, worker)
    file.beginDigest(algorithm)
    for number in 0..<10 { file.write([UInt8](repeating: UInt8(number), count: 100 * number + 1)) { _ in } }
    waitForWorker()
    let count = file.written
    // Nobody could read it now: what is known of it is what went through.
    let read = try file.digest(algorithm, of: 0..<count)
    #expect(truncate(path, 0) == 0)
    let running = try file.digest(algorithm, of: 0..<count)
    #expect(running != nil && running?.bytes == read?.bytes)
    var whole = try RunningDigest(algorithm)
    for number in 0..<10 { whole.update([UInt8](repeating: UInt8(number), count: 100 * number + 1)) }
    #expect(try whole.value().bytes == running?.bytes)
  }

  @Test("a download that is over has its file open no longer, and standard output is not its to close")
  func closed() throws {
    func isOpen(_ path: String) throws -> Bool {
      for name in try fileNames(in: "/proc/self/fd") {
        var target = [CChar](repeating: 0, count: 4096)
        let count = readlink("/proc/self/fd/\(name)", &target, target.count)
        if count > 0, String(decoding: target[..<count].map(UInt8.init(bitPattern:)), as: UTF8.self) == path {
          return true
        }
      }
      return false
    }
    var file: PartialFile? = try PartialFile(making: path, mode: 0o600, worker)
    #expect(try isOpen(path))
    withExtendedLifetime(file) {}
    file = nil
    waitForWorker()
    #expect(try !isOpen(path))
    let other = open("\(directory.path)/other", O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
    file = PartialFile(streaming: other, worker)
    withExtendedLifetime(file) {}
    file = nil
    #expect(fcntl(other, F_GETFD) >= 0)
    close(other)
  }
}
