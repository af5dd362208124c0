// The limits of a circular buffer, each at its exact value: what is taken, kept, refused, and left in the process.

import CallCounter
import EventLoops
import Glibc
import PropertyTesting
import Synchronization
import Testing

@testable import StreamBuffers

@Suite("The limits of CircularBuffer")
struct CircularBufferLimitsTests {
  private static func path(_ name: String) -> String { "/dev/shm/sluice-test-\(name)-\(getpid())" }

  private static func settings(
    _ capacity: Int, path: String? = nil, backing: (any CircularBacking)? = nil
  ) -> CircularBuffer.Settings {
    var settings = CircularBuffer.Settings(capacity: capacity)
    (settings.hasCopier, settings.allowsPauses) = (true, true)
    (settings.path, settings.backing) = (path, backing)
    return settings
  }

  // MARK: Space

  @Test("the last free byte is used")
  func lastByte() throws {
    var ends = try CircularBuffer.make(capacity: .bytes(1))
    let count = ends.producer.capacity - 1
    _ = ends.producer.write(minimum: count, maximum: count) { _ in count }
    let bytes = [UInt8](repeating: 3, count: 5)
    #expect(ends.producer.write(copying: bytes.span.bytes) == .written(1))
    #expect(ends.producer.write(copying: bytes.span.bytes) == .full)
  }

  @Test("a producer takes copied bytes only, as many as it can use, and at most 256 KiB at once")
  func taken() throws {
    var ends = try CircularBuffer.makeCopied(Self.settings(1 << 20))
    _ = ends.producer.write(minimum: 1 << 20) { _ in 1 << 20 }
    #expect(ends.producer.write { _ in 1 } == .full)
    ends.copier.copied(upTo: 100)
    #expect(ends.producer.write(minimum: 101, maximum: 101) { _ in 101 } == .full)
    #expect(ends.producer.write(minimum: 100, maximum: 100) { _ in 100 } == .written(100))
    #expect(ends.copier.oldest == 100)
    ends.copier.copied(upTo: 1 << 20)
    #expect(ends.producer.write(minimum: 1, maximum: 50) { _ in 50 } == .written(50))
    #expect(ends.copier.oldest == 150)
    #expect(ends.producer.write { $0.byteCount } == .written(256 << 10))
    #expect(ends.copier.oldest == 150 + 256 << 10)
  }

  @Test("bytes that the copier or the consumer is using are not overwritten, and all before them are")
  func used() throws {
    var ends = try CircularBuffer.makeCopied(Self.settings(1))
    let words = ends.consumer.storage.words
    let capacity = ends.producer.capacity
    _ = ends.producer.write(minimum: capacity) { _ in capacity }
    ends.consumer.release(upTo: 100)
    // The copier copies released bytes.
    words.pointee.pinnedByCopier.store(40, ordering: .sequentiallyConsistent)
    #expect(ends.producer.write(minimum: 41, maximum: 41) { _ in 41 } == .full)
    #expect(ends.producer.write(minimum: 40, maximum: 40) { _ in 40 } == .written(40))
    words.pointee.pinnedByCopier.store(CircularWords.nothingPinned, ordering: .sequentiallyConsistent)
    #expect(ends.producer.write(minimum: 60, maximum: 60) { _ in 60 } == .written(60))
    // It copies bytes that the producer would take.
    ends.copier.copied(upTo: 200)
    words.pointee.pinnedByCopier.store(150, ordering: .sequentiallyConsistent)
    #expect(ends.producer.write(minimum: 51, maximum: 51) { _ in 51 } == .full)
    #expect(ends.producer.write(minimum: 50, maximum: 50) { _ in 50 } == .written(50))
    words.pointee.pinnedByCopier.store(CircularWords.nothingPinned, ordering: .sequentiallyConsistent)
    // The consumer reads them.
    words.pointee.pinned.store(170, ordering: .sequentiallyConsistent)
    #expect(ends.producer.write(minimum: 21, maximum: 21) { _ in 21 } == .full)
    #expect(ends.producer.write(minimum: 20, maximum: 20) { _ in 20 } == .written(20))
    words.pointee.pinned.store(CircularWords.nothingPinned, ordering: .sequentiallyConsistent)
    #expect(ends.copier.oldest == 170)
  }

  @Test("space that was taken during a read is used only after the read")
  func claimed() throws {
    var ends = try CircularBuffer.make(capacity: .bytes(1), overflow: .dropOldest)
    let storage = ends.consumer.storage
    let capacity = ends.producer.capacity
    _ = ends.producer.write(minimum: capacity) { _ in capacity }
    ends.consumer.release(upTo: 100)
    // The read began between the producer's check and its claim.
    var claimed: UInt64 = 50
    storage.words.pointee.pinned.store(49, ordering: .sequentiallyConsistent)
    let during = storage.beginWrite(minimum: 1, maximum: 10, claimed: &claimed)
    #expect(during == nil && claimed == 50)
    storage.words.pointee.pinned.store(50, ordering: .sequentiallyConsistent)
    let after = storage.beginWrite(minimum: 1, maximum: 10, claimed: &claimed)
    #expect(after?.count == 10 && claimed == 0)
  }

  @Test("a request for space that was waited for can be cleared")
  func drained() throws {
    var ends = try CircularBuffer.make(capacity: .bytes(1))
    let capacity = ends.producer.capacity
    _ = ends.producer.write(minimum: capacity) { _ in capacity }
    #expect(ends.producer.requestSpace(1) == true)
    ends.consumer.release(upTo: 1)
    #expect(waitUntilReadable(ends.producer.spaceDescriptor, limit: .zero))
    ends.producer.drainSpaceSignals()
    #expect(!waitUntilReadable(ends.producer.spaceDescriptor, limit: .zero))
  }

  // MARK: A backing

  private final class Backing: CircularBacking {
    let missing: Bool
    let released = Atomic<UInt64>(0)

    init(missing: Bool) { self.missing = missing }

    var oldest: UInt64 { 7 }
    var capacity: Int { 1 }
    func read(
      at offset: UInt64, maximum: Int, oldestInMemory: UInt64
    ) -> CircularBuffer.Consumer.ReadResult<UnsafeRawBufferPointer> { .overwritten(oldest: oldestInMemory) }
    func isMissing(at offset: UInt64) -> Bool { missing }
    func release(upTo offset: UInt64) { released.store(offset, ordering: .relaxed) }
  }

  @Test("bytes that left memory are those of the backing, which learns what is released", arguments: [true, false])
  func backed(missing: Bool) throws {
    let backing = Backing(missing: missing)
    var ends = try CircularBuffer.makeCopied(Self.settings(1, backing: backing))
    let capacity = ends.producer.capacity
    _ = ends.producer.write(minimum: capacity) { _ in capacity }
    ends.copier.copied(upTo: UInt64(capacity))
    _ = ends.producer.write(minimum: 100, maximum: 100) { _ in 100 }
    #expect(ends.consumer.isBacked(at: 99) == true && ends.consumer.isBacked(at: 100) == false)
    #expect(ends.consumer.isMissing(at: 99) == missing && ends.consumer.isMissing(at: 100) == false)
    #expect(ends.consumer.released == 7 && ends.consumer.capacity == capacity + 1)
    ends.consumer.release(upTo: 10)
    #expect(backing.released.load(ordering: .relaxed) == 10)
    ends.copier.waker.wake()
    #expect(takeSignals(ends.consumer.dataDescriptor) == 1)
  }

  @Test("without a backing, nothing is elsewhere, and without pauses, no byte is omitted")
  func plain() throws {
    var ends = try CircularBuffer.make(capacity: .bytes(1))
    _ = ends.producer.write(minimum: 10, maximum: 10) { _ in 10 }
    ends.consumer.release(upTo: 10)
    #expect(ends.consumer.isBacked(at: 0) == false && ends.consumer.isMissing(at: 0) == false)
    #expect(ends.consumer.pausedByteCount == 0)
  }

  // MARK: Another process

  @Test("sixteen waiting pauses and fifteen passed ones are known, and older ones count as before")
  func oldPauses() throws {
    var ends = try CircularBuffer.makeCopied(Self.settings(1))
    for length in 1...40 {
      #expect(ends.producer.pause(UInt64(length)) == true)
      if length <= 24 { ends.consumer.passPause() }
    }
    #expect(ends.producer.pause(1) == false)
    let found = ends.copier.pauses(from: 0)
    #expect(found.ahead.map(\.length) == (10...40).map { $0 } && found.byteCountBefore == 45 && found.firstNumber == 9)
    let later = ends.copier.pauses(from: 1)
    #expect(later.ahead.map(\.length) == (25...40).map { $0 } && later.byteCountBefore == 300)
    #expect(ends.consumer.pausedByteCount == 300)
  }

  @Test("a note of at most 8 KiB is kept, and the former one stays until the next one is complete")
  func notes() throws {
    let path = Self.path("notes")
    defer { unlink(path) }
    let ends = try CircularBuffer.makeCopied(Self.settings(1, path: path))
    func found() throws -> String? { try CircularBuffer.Remains(path: path)?.note }
    let note = ends.copier.note
    #expect(try found() == nil)
    let longest = String(repeating: "x", count: 8 << 10)
    for text in ["", "a", longest, "b"] {
      note.write(text)
      #expect(try found() == text)
      note.write(longest + "y")
      #expect(try found() == text, "a longer one is ignored")
    }
    for text in ["former", "latter"] { note.write(text) }
    let start = UnsafeRawPointer(try #require(ends.consumer.storage.published)) + CircularNote.offset
    let slots = String(decoding: UnsafeRawBufferPointer(start: start, count: CircularNote.length), as: UTF8.self)
    #expect(slots.contains("former") && slots.contains("latter"))
  }

  @Test("damaged offsets in a killed process's buffer are limited, and impossible ones are refused")
  func damagedOffsets() throws {
    let path = Self.path("damaged")
    defer { unlink(path) }
    let ends = try CircularBuffer.makeCopied(Self.settings(1, path: path))
    let words = try #require(ends.consumer.storage.published)
    let capacity = UInt64(ends.copier.capacity)
    words.pointee.head.store(3 * capacity, ordering: .sequentiallyConsistent)
    do {
      let remains = try #require(try CircularBuffer.Remains(path: path))
      #expect(remains.oldest == 2 * capacity && remains.head == 3 * capacity)
      let next = try CircularBuffer.makeFinished(remains, from: 0, backing: Backing(missing: false))
      #expect(next.copier.oldest == 2 * capacity)
    }
    words.pointee.head.store(1 << 62, ordering: .sequentiallyConsistent)
    #expect(try CircularBuffer.Remains(path: path) == nil)
    words.pointee.head.store((1 << 62) - 1, ordering: .sequentiallyConsistent)
    #expect(try CircularBuffer.Remains(path: path)?.head == (1 << 62) - 1)
    for (written, read) in [(-1, -2), (0, -1), (3, 4), (40, 8)] {
      words.pointee.pausesWritten.store(written, ordering: .sequentiallyConsistent)
      words.pointee.pausesRead.store(read, ordering: .sequentiallyConsistent)
      #expect(try CircularBuffer.Remains(path: path) == nil, "\(written), \(read)")
    }
  }

  // MARK: What is left

  @Test("a killed process's buffer is private, and its reader leaves neither a descriptor nor a mapping")
  func closed() throws {
    let path = Self.path("closed")
    defer { unlink(path) }
    do {
      let ends = try CircularBuffer.makeCopied(Self.settings(1, path: path))
      #expect(ends.producer.head == 0)
      #expect(descriptorCount(of: path) == 0 && mappingCount(of: path) >= 2)
    }
    #expect(mappingCount(of: path) == 0)
    var status = stat()
    #expect(stat(path, &status) == 0 && status.st_mode & 0o777 == 0o600)
    do {
      let remains = try #require(try CircularBuffer.Remains(path: path))
      #expect(remains.head == 0 && descriptorCount(of: path) == 0)
    }
    #expect(mappingCount(of: path) == 0)
    #expect(truncate(path, status.st_size - off_t(CircularBufferMemoryTests.page)) == 0)
    #expect(throws: SystemError.self) { _ = try CircularBuffer.Remains(path: path) }
    #expect(truncate(path, status.st_size + off_t(CircularBufferMemoryTests.page)) == 0)
    #expect(try CircularBuffer.Remains(path: path) == nil, "it has more bytes than it states")
    #expect(descriptorCount(of: path) == 0 && mappingCount(of: path) == 0)
  }

  @Test("many buffers leave no mapping", .enabled(if: allocations_of_this_thread() >= 0))
  func unmapped() throws {
    // More than other tests have at the same time.
    for _ in 0..<2000 { _ = try CircularBuffer.make(capacity: .bytes(1)) }
    #expect(mappingCount(of: "sluice-circular-buffer") < 2000)
  }

  @Test("a buffer that cannot have its memory leaves no file")
  func refused() async {
    await #expect(processExitsWith: .success) {
      let path = CircularBufferLimitsTests.path("refused")
      signal(SIGXFSZ, SIG_IGN)
      var limits = rlimit()
      getrlimit(__rlimit_resource_t(RLIMIT_FSIZE.rawValue), &limits)
      limits.rlim_cur = 4096
      setrlimit(__rlimit_resource_t(RLIMIT_FSIZE.rawValue), &limits)
      do throws(SystemError) {
        _ = try CircularBuffer.makeCopied(CircularBufferLimitsTests.settings(8192, path: path))
      } catch {
        guard error.code == EFBIG, access(path, F_OK) != 0 else { fatalError("error \(error.code)") }
        return
      }
      unlink(path)
      fatalError("the buffer was made")
    }
  }

  @Test(
    "without address space, neither a new buffer nor a killed process's leaves a mapping",
    .enabled(if: allocations_of_this_thread() >= 0, "a sanitizer needs memory itself"))
  func addressSpace() async {
    await #expect(processExitsWith: .success) {
      let (path, capacity) = (CircularBufferLimitsTests.path("space"), 8 << 20)
      defer { unlink(path) }
      do {
        let storage = try CircularStorage(CircularBufferLimitsTests.settings(capacity, path: path))
        withExtendedLifetime(storage) {}
      }
      var limits = rlimit()
      getrlimit(__rlimit_resource_t(RLIMIT_AS.rawValue), &limits)
      // Space for the two mappings, and for some more.
      limits.rlim_cur = rlim_t(usedAddressSpace() + 2 * capacity + (4 << 20))
      setrlimit(__rlimit_resource_t(RLIMIT_AS.rawValue), &limits)
      var codes: [Int32] = []
      do throws(SystemError) { _ = try CircularBuffer.Remains(path: path) } catch { codes.append(error.code) }
      do throws(SystemError) {
        _ = try CircularBuffer.make(capacity: .bytes(capacity))
      } catch {
        codes.append(error.code)
      }
      guard codes == [ENOMEM, ENOMEM], mappingCount(of: path) == 0, mappingCount(of: "sluice-circular-buffer") == 0
      else { fatalError("\(codes)") }
    }
  }

  @Test("the addresses of 32 buffers with names are known, exactly, in slots that are used again and again")
  func knownAddresses() async {
    // In a process of its own, because the list has a limited number of entries, and other tests map buffers, too.
    await #expect(processExitsWith: .success) {
      let (path, page) = (CircularBufferLimitsTests.path("known"), CircularBufferMemoryTests.page)
      for _ in 0..<70 {
        let storage = try CircularStorage(CircularBufferLimitsTests.settings(1, path: path))
        let (start, words) = (UInt(bitPattern: storage.address(of: 0)), UInt(bitPattern: storage.published))
        let head = (CircularNote.offset + CircularNote.length + page - 1) / page * page
        let end = max(start + 2 * UInt(page), words + UInt(head))
        guard SharedMappings.contains(start), SharedMappings.contains(words + UInt(head) - 1),
          !SharedMappings.contains(end), !SharedMappings.contains(min(start, words) - 1)
        else { exit(1) }
        guard let remains = try CircularBuffer.Remains(path: path) else { exit(2) }
        guard SharedMappings.contains(UInt(bitPattern: remains.memory.base)) else { exit(3) }
        unlink(path)
        withExtendedLifetime((storage, remains)) {}
      }
      var storages: [CircularStorage] = []
      for _ in 0..<33 {
        storages.append(try CircularStorage(CircularBufferLimitsTests.settings(1, path: path)))
        unlink(path)
      }
      let known = storages.map { SharedMappings.contains(UInt(bitPattern: $0.address(of: 0))) }
      guard known == [Bool](repeating: true, count: 32) + [false] else { exit(4) }
      withExtendedLifetime(storages) {}
    }
  }
}

/// How many mappings of this process are of a file with such a name.
private func mappingCount(of name: String) -> Int {
  guard let file = fopen("/proc/self/maps", "r") else { return -1 }
  defer { fclose(file) }
  var line = [CChar](repeating: 0, count: 4096)
  var count = 0
  while fgets(&line, Int32(line.count), file) != nil { if strstr(line, name) != nil { count += 1 } }
  return count
}

/// How many of this process's descriptors are of a file.
private func descriptorCount(of path: String) -> Int {
  (0..<4096).count { number in
    var target = [CChar](repeating: 0, count: 256)
    let length = readlink("/proc/self/fd/\(number)", &target, target.count)
    return length > 0 && String(decoding: target[..<length].map(UInt8.init(bitPattern:)), as: UTF8.self) == path
  }
}

/// The size of the process's address space in use.
private func usedAddressSpace() -> Int {
  guard let file = fopen("/proc/self/statm", "r") else { return 0 }
  defer { fclose(file) }
  var line = [CChar](repeating: 0, count: 128)
  fgets(&line, Int32(line.count), file)
  return atol(line) * Int(getpagesize())
}
