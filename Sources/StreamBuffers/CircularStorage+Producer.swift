// The producer's operations on a circular buffer. Only on its thread.

internal import EventLoops
internal import Synchronization

extension CircularStorage {
  /// How many copied bytes the producer takes at once. Taking them singly would limit each write to as few.
  private static let takenAtOnce = 256 << 10

  /// Free memory at the head, from `minimum` to `maximum` bytes; nil if it is not available.
  @usableFromInline
  func beginWrite(minimum: Int, maximum: Int, claimed: inout UInt64) -> UnsafeMutableRawBufferPointer? {
    precondition(minimum >= 1 && minimum <= largestMinimum, "this minimum can never be free")
    guard let free = makeRoom(for: minimum, maximum: maximum, claimed: &claimed) else { return nil }
    let start = address(of: words.pointee.head.load(ordering: .relaxed))
    return UnsafeMutableRawBufferPointer(start: start, count: min(free, max(minimum, maximum)))
  }

  /// Returns how many bytes may be written at the head, at least `count`; nil if they are not available.
  ///
  /// - Parameters:
  ///   - maximum: the number of bytes that the producer can use.
  ///   - claimed: the producer's note of the bytes that it took from the consumer and may not use yet. It is the offset
  ///     up to which it moved `released` itself, until it has seen that no read is active below; 0 if there is none.
  private func makeRoom(for count: Int, maximum: Int, claimed: inout UInt64) -> Int? {
    let free = usableByteCount(from: 0)
    if free < count {
      guard let oldest = oldestAfterTaking(count, maximum: maximum) else { return nil }
      // Bytes in use cannot be dropped now. Trying again later is better than dropping them for nothing.
      guard !isRead(before: oldest) else { return nil }
      advanceReleased(to: oldest)
      claimed = oldest
    } else if claimed == 0 {
      return free
    }
    // A read that began between the check and the claim prevents use of the space, in this call and in later ones. The
    // space counts as free by now, but that does not mean that the reader has left it.
    guard !isRead(before: claimed) else { return nil }
    defer { claimed = 0 }
    return usableByteCount(from: claimed)
  }

  /// Bytes that are released and that the copier no longer uses.
  ///
  /// - Parameter floor: nothing before it is read. A copier that pins a byte there will find it gone.
  private func usableByteCount(from floor: UInt64) -> Int {
    // In this order: a copier pins before it checks `released`, see above.
    var kept = words.pointee.released.load(ordering: .sequentiallyConsistent)
    if hasCopier { kept = max(floor, min(kept, words.pointee.pinnedByCopier.load(ordering: .sequentiallyConsistent))) }
    return capacity - Int(words.pointee.head.load(ordering: .relaxed) - kept)
  }

  /// The offset up to which bytes are taken for `count` bytes at the head; nil if the policy drops none of them.
  private func oldestAfterTaking(_ count: Int, maximum: Int) -> UInt64? {
    let head = words.pointee.head.load(ordering: .relaxed)
    let oldest = head + UInt64(count) - UInt64(capacity)
    if overflow == .dropOldest { return oldest }
    guard hasCopier else { return nil }
    let copied = words.pointee.copied.load(ordering: .acquiring)
    guard copied >= oldest else { return nil }
    let end = head + UInt64(max(count, min(maximum, Self.takenAtOnce, capacity)))
    return max(oldest, min(copied, end - min(end, UInt64(capacity))))
  }

  private func isRead(before offset: UInt64) -> Bool {
    if words.pointee.pinned.load(ordering: .sequentiallyConsistent) < offset { return true }
    return hasCopier && words.pointee.pinnedByCopier.load(ordering: .sequentiallyConsistent) < offset
  }

  /// Lets the consumer see `count` more bytes, and wakes it if it waits for them.
  ///
  /// Sequentially consistent, here and in ``release(upTo:)``. This side stores and then checks whether the other side
  /// sleeps. The other side declares that it sleeps and then checks. The barrier waits until the preceding copy has
  /// left the core, about 10 ns for a message of 4 KiB. Without it, the sleeper would have to pay for both, with a
  /// membarrier(2) at each sleep. That is worse for live streams, which sleep after nearly every message.
  @usableFromInline
  func publish(_ count: Int) {
    let head = words.pointee.head.load(ordering: .relaxed) + UInt64(count)
    // First in the file, so that another process has every byte that a thread of this one may have sent.
    published?.pointee.publishHead(head)
    words.pointee.head.store(head, ordering: .sequentiallyConsistent)
    wakeConsumer()
    if hasCopier { wakeCopier(head: head) }
  }

  /// Called before any byte after the pause, so that a reader of such a byte also sees the pause.
  func pause(_ length: UInt64) -> Bool {
    let pause = CircularBuffer.Pause(position: words.pointee.head.load(ordering: .relaxed), length: length)
    guard pauses?.append(pause) == true else { return false }
    wakeConsumer()
    return true
  }

  func finish() {
    published?.pointee.finished.store(true, ordering: .releasing)
    words.pointee.finished.store(true, ordering: .sequentiallyConsistent)
    wakeConsumer()
    if hasCopier { wakeCopier(head: .max) }
  }

  private func wakeConsumer() {
    // The cheap check first: an exchange would take the cache line from the consumer at every write.
    if words.pointee.consumerWaits.load(ordering: .sequentiallyConsistent),
      words.pointee.consumerWaits.exchange(false, ordering: .sequentiallyConsistent)
    {
      dataAvailable.signal()
    }
  }

  /// - Parameter head: wakes the copier if it waits for this offset or a lower one.
  private func wakeCopier(head: UInt64) {
    let awaited = words.pointee.copierWaits.load(ordering: .sequentiallyConsistent)
    guard awaited != .max, head >= awaited else { return }
    if words.pointee.copierWaits.exchange(.max, ordering: .sequentiallyConsistent) != .max { copyDue?.signal() }
  }

  func requestSpace(_ count: Int) -> Bool {
    words.pointee.producerWaits.store(count, ordering: .sequentiallyConsistent)
    if freeByteCount() < count {
      // Only a copy may free it.
      if hasCopier { wakeCopier(head: .max) }
      return true
    }
    // The request is withdrawn, unless the consumer was faster. Then its signal arrives, and must be awaited like any
    // other.
    return words.pointee.producerWaits.exchange(0, ordering: .sequentiallyConsistent) == 0
  }
}
