// The circular buffer's memory: it is mapped twice, never allocated later, and returned on request.

import CLinux
import CallCounter
import EventLoops
import Glibc
import PropertyTesting
import Testing

@testable import StreamBuffers

@Suite("CircularBuffer and its memory")
struct CircularBufferMemoryTests {
  static let page = sysconf(Int32(_SC_PAGESIZE))
  static let pattern = OffsetPattern()

  @Test(
    "bytes are copied as far as there is space, whether old ones are evicted or not",
    arguments: [CircularBuffer.Overflow.refuse, .dropOldest])
  func copied(overflow: CircularBuffer.Overflow) throws {
    var ends = try CircularBuffer.make(capacity: .bytes(4096), overflow: overflow)
    let pattern = OffsetPattern(seed: 4)
    var (head, count) = (UInt64(0), 0)
    while head < 20_000 {
      // 0, 1, 2, and then larger steps.
      count = count < 3 ? count + 1 : count * 3 / 2
      let size = count - 1
      var bytes = [UInt8](repeating: 0, count: size)
      bytes.withUnsafeMutableBytes { pattern.fill($0, at: head) }
      let start = head
      let expected = min(size, 4096)
      #expect(ends.producer.write(copying: bytes.span.bytes) == .written(expected))
      head += UInt64(expected)
      #expect(ends.producer.head == head)
      guard size > 0, size <= 4096 else {
        if size > 4096 { break }
        continue
      }
      var isRight = false
      _ = ends.consumer.read(at: start, maximum: size) { span in
        isRight = span.withUnsafeBytes { $0.count == size && pattern.matches($0, at: start) }
      }
      #expect(isRight, "\(size)")
      ends.consumer.release(upTo: head)
    }
  }

  @Test("a span is contiguous at any start, and both mappings have the same bytes")
  func contiguousAtEveryOffset() throws {
    var ends = try CircularBuffer.make(capacity: .bytes(1))
    let capacity = ends.producer.capacity
    #expect(capacity == Self.page)
    // Two rounds, one byte further each time, so that a full span begins at every position in the buffer.
    for offset in 0..<UInt64(2 * capacity) {
      let result = ends.producer.write(minimum: ends.producer.freeByteCount) { span in
        span.withUnsafeMutableBytes { Self.pattern.fill($0, at: ends.consumer.head) }
        return span.byteCount
      }
      guard case .written = result else {
        Issue.record("write at \(offset): \(result)")
        return
      }
      let read = ends.consumer.read(at: offset) { span in
        span.withUnsafeBytes { $0.count == capacity && Self.pattern.matches($0, at: offset) }
      }
      guard case .bytes(true) = read else {
        Issue.record("read at \(offset): \(read)")
        return
      }
      ends.consumer.release(upTo: offset + 1)
    }
  }

  @Test(
    "a capacity is rounded up, never down",
    arguments: [(1, 1), (4095, 1), (4096, 1), (4097, 2), (1_000_000, 245)])
  func capacityInPages(bytes: Int, pages: Int) throws {
    let ends = try CircularBuffer.make(capacity: .bytes(bytes))
    if Self.page == 4096 { #expect(ends.consumer.capacity == pages * 4096) }
    #expect(ends.producer.capacity >= bytes && ends.producer.capacity % Self.page == 0)
  }

  @Test("a capacity in time is the number of bytes in that time, rounded up")
  func capacityInTime() {
    // 48 kHz, two channels of 16 bits.
    #expect(CircularBuffer.Capacity.time(.seconds(10), bytesPerSecond: 192_000).byteCount == 1_920_000)
    #expect(CircularBuffer.Capacity.time(.milliseconds(1), bytesPerSecond: 44_100 * 3).byteCount == 133)
    #expect(CircularBuffer.Capacity.time(.zero, bytesPerSecond: 1).byteCount == 1)
    #expect(CircularBuffer.Capacity.bytes(-5).byteCount == 1)
  }

  @Test("a million writes, reads, waits and releases allocate nothing", .enabled(if: allocations_of_this_thread() >= 0))
  func noAllocationAfterCreation() throws {
    var ends = try CircularBuffer.make(capacity: .bytes(64 << 10), overflow: .dropOldest)
    var cursor: UInt64 = 0
    let source = [UInt8](repeating: 7, count: 1000)
    func run(_ rounds: Int) {
      for round in 0..<rounds {
        _ = ends.producer.write(copying: source.span.bytes)
        _ = ends.producer.write(minimum: 10, maximum: 500) { $0.byteCount }
        // Half of the time, the consumer falls behind and loses bytes.
        if round % 200 < 100 {
          switch ends.consumer.read(at: cursor, { $0.byteCount }) {
          case .bytes(let count): cursor += UInt64(count)
          case .empty: break
          case .overwritten(let oldest): cursor = oldest
          }
          ends.consumer.release(upTo: cursor)
          _ = ends.consumer.requestWakeUp(beyond: cursor)
        }
        _ = ends.producer.requestSpace(1000)
        ends.producer.drainSpaceSignals()
      }
    }
    // A warm-up, because the runtime looks up each generic type at its first use.
    run(200)
    let before = allocations_of_this_thread()
    run(250_000)
    #expect(allocations_of_this_thread() - before == 0)
    // The counter itself, because an array is an allocation.
    let counted = allocations_of_this_thread()
    withExtendedLifetime([UInt8](repeating: 1, count: Int.random(in: 1000...2000))) {}
    #expect(allocations_of_this_thread() > counted)
  }

  @Test("returned memory is freed when its bytes are released, and retained memory stays")
  func returnedPages() throws {
    let capacity = 16 << 20
    #expect(try residentBytes(afterFillingAndReleasing: capacity, memory: .kept) == capacity)
    let left = try residentBytes(afterFillingAndReleasing: capacity, memory: .returned)
    #expect(left <= 256 << 10, "at most the step in which the head stands")
  }

  @Test("returned memory stays bounded over many laps, and later bytes are read correctly")
  func returnedPagesOverLaps() throws {
    var ends = try CircularBuffer.make(capacity: .bytes(1 << 20), memory: .returned)
    var cursor: UInt64 = 0
    for _ in 0..<500 {
      let head = ends.producer.head
      let result = ends.producer.write(minimum: 50_001, maximum: 50_001) { span in
        span.withUnsafeMutableBytes { Self.pattern.fill($0, at: head) }
        return 50_001
      }
      guard result == .written(50_001) else {
        Issue.record("\(result) at \(head)")
        return
      }
      let read = ends.consumer.read(at: cursor) { span in
        span.withUnsafeBytes { bytes in
          (matches: Self.pattern.matches(bytes, at: cursor), count: bytes.count)
        }
      }
      guard case .bytes((true, let count)) = read else {
        Issue.record("\(read) at \(cursor)")
        return
      }
      cursor += UInt64(count)
      ends.consumer.release(upTo: cursor)
      #expect(ends.consumer.residentBytes <= 512 << 10)
    }
  }

  @Test(
    "whenever steps are returned to the system, the two steps ahead of the head are ready, and no others",
    .enabled(if: canPrepare),
    arguments: Seed.several(10))
  func preparedPages(seed: Seed) throws {
    var random = seed.generator
    let step = 64 << 10
    var ends = try CircularBuffer.make(capacity: .bytes(15 * step), memory: .returned)
    // One step more than requested, in pages.
    let pageCount = 16 * step / Self.page
    var isResident = [Bool](repeating: false, count: pageCount)
    func mark(_ bytes: Range<Int>, _ value: Bool) {
      guard !bytes.isEmpty else { return }
      for page in bytes.lowerBound / Self.page...(bytes.upperBound - 1) / Self.page {
        isResident[page % pageCount] = value
      }
    }
    mark(0..<2 * step, true)
    var (head, released) = (0, 0)
    for _ in 0..<40 {
      try #require(ends.consumer.residentBytes == isResident.count { $0 } * Self.page, "from \(released) to \(head)")
      let most = min(ends.producer.freeByteCount, ends.producer.largestMinimum)
      var count = Int.random(in: 0...most, using: &random)
      // In half of the cases, the head is at the edge of a step.
      if random.chance(50) { count = max(0, (head + count) / step * step - head) }
      if count > 0 {
        let result = ends.producer.write(minimum: count, maximum: count) { span in
          _ = span.withUnsafeMutableBytes { $0.initializeMemory(as: UInt8.self, repeating: 1) }
          return count
        }
        try #require(result == .written(count))
        mark(head..<head + count, true)
        head += count
      }
      let end = Int.random(in: released...head, using: &random)
      ends.consumer.release(upTo: UInt64(end))
      // Whole steps only.
      let returned = released..<max(released, end / step * step)
      mark(returned, false)
      let ahead = (head + step - 1) / step * step
      // Without memory that is in use.
      if !returned.isEmpty { mark(ahead..<min(ahead + 2 * step, returned.upperBound + 16 * step), true) }
      released = returned.upperBound
    }
  }

  /// Whether the kernel supports `MADV_POPULATE_WRITE`: Linux 5.14.
  private static let canPrepare: Bool = {
    guard let memory = mmap(nil, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), memory != MAP_FAILED
    else { return false }
    defer { munmap(memory, page) }
    return madvise(memory, page, SLUICE_MADV_POPULATE_WRITE) == 0
  }()

  /// A process cannot map 128 GiB 4000 times, and the kernel assigns the lowest free descriptor. Other tests have
  /// descriptors, too, but fewer than these buffers would leave behind.
  @Test("memory and descriptors are freed with the last end", .enabled(if: allocations_of_this_thread() >= 0))
  func nothingIsLeftBehind() throws {
    var highest: Int32 = 0
    for _ in 0..<4000 {
      let ends = try CircularBuffer.make(capacity: .bytes(64 << 30))
      // The lowest free one, because the buffer opens its file after the descriptors that it keeps.
      let next = try EventCounter()
      highest = max(highest, ends.consumer.dataDescriptor, ends.producer.spaceDescriptor, next.descriptor)
      // The ends are dropped one after the other, and the buffer lives until the second one is.
      let producer = ends.producer
      #expect(producer.head == 0)
    }
    #expect(highest < 4000)
  }

  @Test(
    "the addresses of a buffer are known as shared while it is mapped, if its file has a name",
    arguments: [true, false])
  func sharedMappings(hasName: Bool) async {
    // In a process of its own, because the list has a limited number of entries, and other tests map buffers, too.
    await #expect(processExitsWith: .success) { [hasName = hasName as Bool] in
      let path = "/dev/shm/sluice-test-mapped-\(getpid())"
      defer { unlink(path) }
      var settings = CircularBuffer.Settings(capacity: CircularBufferMemoryTests.page)
      (settings.hasCopier, settings.path) = (true, hasName ? path : nil)
      var addresses: [UInt] = []
      do {
        let ends = try CircularBuffer.makeCopied(settings)
        let start = UInt(bitPattern: ends.consumer.storage.address(of: 0))
        let storage = ends.consumer.storage
        let words = UInt(bitPattern: UnsafeMutableRawPointer(storage.published ?? storage.words))
        addresses = [words, start, start + 2 * UInt(CircularBufferMemoryTests.page) - 1]
        for address in addresses where SharedMappings.contains(address) != hasName { exit(1) }
        withExtendedLifetime(ends) {}
      }
      for address in addresses where SharedMappings.contains(address) { exit(2) }
    }
  }

  @Test(
    "a buffer that would leave too little address space for objects is refused",
    .enabled(if: allocations_of_this_thread() >= 0, "a sanitizer needs memory itself"))
  func addressSpace() async {
    await #expect(processExitsWith: .success) {
      let capacity = 64 << 20
      var limits = rlimit()
      getrlimit(__rlimit_resource_t(RLIMIT_AS.rawValue), &limits)
      // Space for the two mappings, and for some more.
      limits.rlim_cur = rlim_t(usedAddressSpace() + 2 * capacity + (4 << 20))
      setrlimit(__rlimit_resource_t(RLIMIT_AS.rawValue), &limits)
      do throws(SystemError) {
        _ = try CircularBuffer.make(capacity: .bytes(capacity))
      } catch {
        guard error.code == ENOMEM else { fatalError("error \(error.code)") }
        return
      }
      fatalError("the buffer was made")
    }
  }

  private func residentBytes(afterFillingAndReleasing count: Int, memory: CircularBuffer.Memory) throws -> Int {
    var ends = try CircularBuffer.make(capacity: .bytes(count), memory: memory)
    _ = ends.producer.write(minimum: count, maximum: count) { span in
      _ = span.withUnsafeMutableBytes { $0.initializeMemory(as: UInt8.self, repeating: 1) }
      return count
    }
    #expect(ends.consumer.residentBytes >= count)
    ends.consumer.release(upTo: ends.consumer.head)
    return ends.consumer.residentBytes
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

extension CircularBuffer.Consumer {
  /// The resident size of the buffer; mincore(2).
  var residentBytes: Int {
    let page = sysconf(Int32(_SC_PAGESIZE))
    var pages = [UInt8](repeating: 0, count: capacity / page)
    let result = mincore(storage.address(of: 0), capacity, &pages)
    #expect(result == 0)
    return pages.count { $0 & 1 == 1 } * page
  }
}
