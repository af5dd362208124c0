// Other programs that overwrite the file of a circular buffer while a process uses it.

import EventLoops
import Glibc
import PropertyTesting
import Synchronization
import Testing

@testable import StreamBuffers

@Suite("A circular buffer whose file another program overwrites")
struct OverwrittenBufferTests {
  private let path = "/dev/shm/sluice-test-overwritten-\(getpid())-\(UInt64.random(in: .min ... .max))"

  /// 5000 bytes, a pause and 1000 bytes, of which the first 2000 are released.
  private func buffer() throws -> CircularBuffer.CopiedEnds {
    var ends = try CircularBuffer.makeCopied(.inFile(path, capacity: 64 << 10))
    _ = ends.producer.write(minimum: 5000, maximum: 5000) { _ in 5000 }
    let isPaused = ends.producer.pause(70)
    #expect(isPaused)
    _ = ends.producer.write(minimum: 1000, maximum: 1000) { _ in 1000 }
    ends.consumer.release(upTo: 2000)
    ends.copier.copied(upTo: 3000)
    return ends
  }

  /// Overwrites the words of the file, and most of the rest.
  private func overwrite(with byte: UInt8) throws {
    let size = 64 << 10
    let file = open(path, O_WRONLY | O_CLOEXEC)
    let count = write(file, [UInt8](repeating: byte, count: size), size)
    close(file)
    try #require(count == size)
  }

  @Test(
    "its process knows all offsets and pauses, and no other process uses the file", arguments: [0, 0xff] as [UInt8])
  func living(byte: UInt8) throws {
    defer { unlink(path) }
    var ends = try buffer()
    try overwrite(with: byte)
    #expect(ends.producer.head == 6000 && ends.consumer.released == 2000 && ends.copier.oldest == 2000)
    #expect(ends.consumer.isFinished == false && ends.copier.isFinished == false)
    #expect(ends.consumer.nextPause == CircularBuffer.Pause(position: 5000, length: 70))
    let written = ends.producer.write(minimum: 500, maximum: 500) { _ in 500 }
    #expect(written == .written(500) && ends.consumer.head == 6500)
    guard case .bytes(4500) = ends.consumer.read(at: 2000, { $0.byteCount }) else {
      Issue.record("other bytes")
      return
    }
    ends.consumer.passPause()
    ends.consumer.release(upTo: 6500)
    ends.producer.finish()
    #expect(ends.consumer.nextPause == nil && ends.consumer.pausedByteCount == 70)
    #expect(ends.consumer.released == 6500 && ends.consumer.isFinished == true)
    #expect(try CircularBuffer.Remains(path: path) == nil)
  }

  @Test("a process that sends what a killed one left knows all of it, too", arguments: [0, 0xff] as [UInt8])
  func adopted(byte: UInt8) throws {
    defer { unlink(path) }
    let killed = try buffer()
    let remains = try #require(try CircularBuffer.Remains(path: path))
    var next = try CircularBuffer.makeFinished(remains, from: 0, backing: NoBacking())
    try overwrite(with: byte)
    #expect(next.consumer.head == 6000 && next.consumer.isFinished == true && next.copier.oldest == 2000)
    #expect(next.consumer.nextPause == CircularBuffer.Pause(position: 5000, length: 70))
    next.consumer.passPause()
    #expect(next.consumer.nextPause == nil && next.consumer.pausedByteCount == 70)
    #expect(killed.producer.head == 6000)
  }

  /// The head in the file and its copies, in the order in which they are written.
  private enum HeadWord: CaseIterable {
    case before, head, after
  }

  @Test(
    "a damaged head is replaced by its copies, and one that cannot be replaced is not used",
    arguments: Seed.several(40))
  func damagedHead(seed: Seed) throws {
    defer { unlink(path) }
    var generator = seed.generator
    let killed = try buffer()
    let file = open(path, O_RDWR | O_CLOEXEC)
    let page = try #require(mmap(nil, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0))
    close(file)
    defer { munmap(page, 4096) }
    let words = page.assumingMemoryBound(to: CircularWords.self)
    func set(_ word: HeadWord, _ value: UInt64) {
      switch word {
      case .before: words.pointee.headBefore.store(value, ordering: .relaxed)
      case .head: words.pointee.head.store(value, ordering: .relaxed)
      case .after: words.pointee.headAfter.store(value, ordering: .relaxed)
      }
    }
    // The process may be killed before each of the three is written.
    for written in 0...3 {
      for damaged in [nil] + HeadWord.allCases.map({ $0 as HeadWord? }) {
        let damage = max(1, generator.next() >> UInt64.random(in: 0..<64, using: &generator))
        for (index, word) in HeadWord.allCases.enumerated() {
          set(word, (index < written ? 6500 : 6000) ^ (word == damaged ? damage : 0))
        }
        let found = try CircularBuffer.Remains(path: path)?.head
        let what = Comment("\(written) written, \(String(describing: damaged)) damaged by \(damage)")
        if damaged == nil || written == 0 || written == 3 {
          #expect(found == (written < 2 ? 6000 : 6500), what)
        } else {
          #expect(found == nil || found == 6000 || found == 6500, what)
        }
      }
    }
    // An earlier version wrote no copies.
    for (word, value) in [(HeadWord.before, 0), (.head, 6000), (.after, 0)] { set(word, UInt64(value)) }
    #expect(try CircularBuffer.Remains(path: path)?.head == 6000)
    // Nor did it write up to where the consumer has released bytes.
    words.pointee.consumed.store(0, ordering: .relaxed)
    let left = try #require(try CircularBuffer.Remains(path: path))
    #expect(left.consumed == nil)
    #expect(killed.producer.head == 6000)
  }
}
