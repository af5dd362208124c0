// The consumer's operations on a circular buffer. Only on its thread.

internal import CLinux
internal import EventLoops
internal import Glibc
internal import Synchronization

extension CircularStorage {
  /// Finds up to `maximum` bytes at `offset`. They stay unchanged until ``endRead()``.
  @usableFromInline
  func beginRead(
    at offset: UInt64, maximum: Int
  ) -> CircularBuffer.Consumer.ReadResult<UnsafeRawBufferPointer> {
    if let oldest = pin(offset) {
      guard let backing else { return .overwritten(oldest: oldest) }
      return backing.read(at: offset, maximum: maximum, oldestInMemory: oldest)
    }
    let head = words.pointee.head.load(ordering: .acquiring)
    precondition(offset <= head, "reading beyond the head")
    guard offset < head else {
      unpin()
      return .empty
    }
    return .bytes(UnsafeRawBufferPointer(start: address(of: offset), count: min(Int(head - offset), maximum)))
  }

  @usableFromInline
  func endRead() { unpin() }

  /// Keeps the producer from overwriting anything from `offset` on. If it is too late, returns the oldest offset left.
  private func pin(_ offset: UInt64) -> UInt64? {
    guard isTaken else {
      // Here only the consumer itself moves `released`, so there is nothing to publish or order.
      let oldest = words.pointee.released.load(ordering: .relaxed)
      return offset < oldest ? oldest : nil
    }
    words.pointee.pinned.store(offset, ordering: .sequentiallyConsistent)
    let oldest = words.pointee.released.load(ordering: .sequentiallyConsistent)
    guard offset < oldest else { return nil }
    unpin()
    return oldest
  }

  private func unpin() {
    if isTaken { words.pointee.pinned.store(CircularWords.nothingPinned, ordering: .releasing) }
  }

  func nextPause() -> CircularBuffer.Pause? { pauses?.first }

  func passPause() { pauses?.removeFirst() }

  func release(upTo wanted: UInt64) {
    let start = words.pointee.released.load(ordering: .relaxed)
    precondition(wanted <= words.pointee.head.load(ordering: .acquiring), "releasing bytes that are not yet written")
    backing?.release(upTo: wanted)
    // Before `released`, so that another process does not take released bytes for lost ones.
    if let published, words.pointee.consumed.load(ordering: .relaxed) <= wanted {
      published.pointee.consumed.store(wanted &+ 1, ordering: .releasing)
      words.pointee.consumed.store(wanted &+ 1, ordering: .relaxed)
    }
    let offset = memory == .returned ? wanted / UInt64(Self.returnStep) * UInt64(Self.returnStep) : wanted
    guard offset > start else { return }
    if memory == .returned { returnPages(from: start, to: offset) }
    advanceReleased(to: offset)
    wakeProducer()
  }

  /// The oldest readable offset, here or in the backing.
  var oldest: UInt64 { backing?.oldest ?? words.pointee.released.load(ordering: .acquiring) }

  /// Positions whose bytes are neither here nor in the backing, as far as is known.
  var holes: [Range<UInt64>] { backing?.holes(before: words.pointee.released.load(ordering: .acquiring)) ?? [] }

  /// Whether the bytes at `offset` have to be loaded from the backing.
  func isBacked(at offset: UInt64) -> Bool {
    backing != nil && offset < words.pointee.released.load(ordering: .acquiring)
  }

  func requestWakeUp(beyond offset: UInt64) -> Bool {
    words.pointee.consumerWaits.store(true, ordering: .sequentiallyConsistent)
    let alreadyThere =
      words.pointee.head.load(ordering: .sequentiallyConsistent) > offset
      || words.pointee.finished.load(ordering: .sequentiallyConsistent)
    if !alreadyThere { return true }
    // The request is withdrawn, unless the producer was faster. Then its signal arrives, and must be awaited like any
    // other.
    return !words.pointee.consumerWaits.exchange(false, ordering: .sequentiallyConsistent)
  }

  /// Returns the memory of the whole steps between two offsets to the system: madvise(2), `MADV_REMOVE`.
  ///
  /// Done under a pin and before `released` moves, because afterwards the producer may already write there. The step in
  /// which an overflow ended stays, because its first part may be in use again.
  private func returnPages(from start: UInt64, to end: UInt64) {
    let step = UInt64(Self.returnStep)
    var offset = (start + step - 1) / step * step
    guard offset < end, pin(start) == nil else { return }
    defer { unpin() }
    while offset < end {
      madvise(address(of: offset), Self.returnStep, MADV_REMOVE)
      offset += step
    }
    preparePages(before: end + UInt64(capacity))
  }
}
