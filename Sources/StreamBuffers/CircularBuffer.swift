// Where captured bytes wait until the server has acknowledged them: one writer, one reader, no lock between them.

public import EventLoops
internal import Synchronization

/// A single-producer, single-consumer circular buffer addressed by **stream offset**.
///
/// A byte keeps one address all its life: its offset from the start of the stream (64 bits, never wraps). The consumer
/// may read anywhere between the *released* offset and the *head*, again and again, and gives bytes up by a separate
/// call: so "sent" and "acknowledged" are two things, and going back after a lost connection is only a smaller offset.
///
///     released              head
///        ├── readable ────────┤── free ──┤
///        └───────────── capacity ────────┘
///
/// A stream may leave bytes out that would only be silence: ``Producer/pause(_:)``. Where it does, the offsets here
/// count what was written, and the consumer adds the lengths of the pauses that it has passed.
///
/// The memory is mapped twice in a row, so every span is contiguous. Neither end allocates, locks or waits after
/// ``make(capacity:overflow:memory:allowsPauses:)``; the other thread is woken through an eventfd only if it asked to
/// be.
public enum CircularBuffer {
  /// How much a buffer holds.
  public enum Capacity: Equatable, Sendable {
    /// This number of bytes.
    case bytes(Int)
    /// As many bytes as a stream of `bytesPerSecond` produces in `time`.
    case time(Duration, bytesPerSecond: Int)

    /// The capacity in bytes, at least one.
    public var byteCount: Int {
      switch self {
      case .bytes(let count): max(1, count)
      case .time(let time, let bytesPerSecond):
        // What is no `Int` any more is more than any machine has.
        max(1, Int(exactly: (time.seconds * Double(bytesPerSecond)).rounded(.up)) ?? .max)
      }
    }
  }

  /// What a write does when the buffer is full.
  public enum Overflow: Equatable, Sendable {
    /// The write is refused: the producer stops, or waits for ``Producer/spaceDescriptor``.
    case refuse
    /// The oldest bytes make room, acknowledged or not. The consumer learns it at its next read: nothing is lost
    /// silently.
    case dropOldest
  }

  /// How much memory stands behind the addresses.
  public enum Memory: Equatable, Sendable {
    /// Pages stay once touched: no page fault after the first lap. For speed.
    case kept
    /// Pages of released bytes go back to the system 64 KiB at a time: an hour of capacity costs only what it holds.
    case returned
  }

  /// A place at which a stream goes on further on, without the bytes in between.
  public struct Pause: Equatable, Sendable {
    /// How many bytes were written before it.
    public var position: UInt64
    /// How many bytes are left out.
    public var length: UInt64

    package init(position: UInt64, length: UInt64) { (self.position, self.length) = (position, length) }
  }

  /// The two ends. Move each to the thread that will own it.
  @frozen
  public struct Ends: ~Copyable, Sendable {
    /// The end to write into.
    public var producer: Producer
    /// The end to read from.
    public var consumer: Consumer
  }

  /// Makes a buffer and returns its two ends.
  ///
  /// - Parameters:
  ///   - capacity: rounded up to whole pages (usually 4096 bytes); with ``Memory/returned`` to whole steps of
  ///     64 KiB, and one step more, because room is given up in whole steps there.
  ///   - overflow: what happens when the buffer is full.
  ///   - memory: whether unused memory goes back to the system.
  ///   - allowsPauses: whether the consumer obeys ``Consumer/nextPause``.
  /// - Throws: ``EventLoops/SystemError`` when memory or descriptors are refused.
  public static func make(
    capacity: Capacity, overflow: Overflow = .refuse, memory: Memory = .kept, allowsPauses: Bool = false
  ) throws(SystemError) -> Ends {
    var settings = Settings(capacity: capacity.byteCount)
    (settings.overflow, settings.memory, settings.allowsPauses) = (overflow, memory, allowsPauses)
    let storage = try CircularStorage(settings)
    return Ends(producer: Producer(storage: storage), consumer: Consumer(storage: storage))
  }
}

extension CircularBuffer {
  /// The writing end. One thread owns it; it never waits for the other.
  public struct Producer: ~Copyable, Sendable {
    @usableFromInline let storage: CircularStorage
    /// What was taken from the consumer and may not be used yet: see `CircularStorage.makeRoom(for:claimed:)`.
    @usableFromInline var claimed: UInt64 = 0

    init(storage: CircularStorage) { self.storage = storage }

    /// What became of a write.
    public enum WriteResult: Equatable, Sendable {
      /// This number of bytes was published.
      case written(Int)
      /// Fewer than the minimum are free and the policy lets nothing go, or the reader is using the very bytes that
      /// would have to go. Nothing was written; try again when there is space, or after the next period.
      case full
    }

    /// Stream offset of the next byte to be written, which is the number of bytes written so far.
    public var head: UInt64 { storage.words.pointee.head.load(ordering: .relaxed) }

    /// Capacity in bytes, whole pages.
    public var capacity: Int { storage.capacity }

    /// The most bytes that a write or a request for space may insist on. Less than ``capacity`` only with
    /// ``Memory/returned``, where up to 64 KiB of released bytes may still take up room.
    public var largestMinimum: Int { storage.largestMinimum }

    /// Bytes that can be written now without letting anything go.
    public var freeByteCount: Int { storage.freeByteCount() }

    /// Hands `body` free memory at the head, contiguous, between `minimum` and `maximum` bytes, and publishes as many
    /// bytes as it returns.
    ///
    /// - Parameters:
    ///   - minimum: at least 1, at most ``largestMinimum``. With ``Overflow/dropOldest`` this many bytes are made free.
    ///   - maximum: the most bytes that `body` can use.
    ///   - body: writes from the start of the span, returns how many bytes it wrote, 0 to publish nothing.
    @inlinable  // so that the body is not called through a pointer for every message
    public mutating func write(
      minimum: Int = 1, maximum: Int = .max, _ body: (inout MutableRawSpan) -> Int
    ) -> WriteResult {
      guard let free = storage.beginWrite(minimum: minimum, maximum: maximum, claimed: &claimed) else { return .full }
      var span = MutableRawSpan(_unsafeBytes: free)
      let count = body(&span)
      precondition(count >= 0 && count <= free.count, "more bytes claimed than the span holds")
      if count > 0 { storage.publish(count) }
      return .written(count)
    }

    /// Copies in as much of `bytes` as is free (with ``Overflow/dropOldest``: all of it, up to ``largestMinimum`` at
    /// least).
    public mutating func write(copying bytes: borrowing RawSpan) -> WriteResult {
      guard bytes.byteCount > 0 else { return .written(0) }
      let minimum = storage.overflow == .dropOldest ? min(bytes.byteCount, storage.largestMinimum) : 1
      return write(minimum: minimum, maximum: bytes.byteCount) { free in
        let count = min(free.byteCount, bytes.byteCount)
        free.withUnsafeMutableBytes { target in
          bytes.withUnsafeBytes { target.copyMemory(from: UnsafeRawBufferPointer(rebasing: $0.prefix(count))) }
        }
        return count
      }
    }

    /// Leaves `length` bytes of the stream out at the head, and wakes the consumer. False when the buffer does not
    /// allow that, or when several pauses wait for the consumer: nothing is left out then.
    public mutating func pause(_ length: UInt64) -> Bool { storage.pause(length) }

    /// Says that no more bytes will come, and wakes the consumer.
    public mutating func finish() { storage.finish() }

    /// Readable (eventfd) once the space asked for by ``requestSpace(_:)`` is free.
    public var spaceDescriptor: Int32 { storage.spaceAvailable.descriptor }

    /// Asks to be woken when `count` bytes are free; false when they already are, and no wake-up will come.
    ///
    /// Exactly one wake-up comes for a request that was answered with true, repeated or not. It may be early, and is
    /// used up then: ask again before waiting again.
    ///
    /// - Parameter count: at most ``largestMinimum``: more would never be free.
    public mutating func requestSpace(_ count: Int) -> Bool {
      precondition(count <= storage.largestMinimum, "this much would never be free")
      return storage.requestSpace(count)
    }

    /// Takes the wake-ups given so far.
    public mutating func drainSpaceSignals() { storage.spaceAvailable.drain() }
  }

  /// The reading end. One thread owns it.
  public struct Consumer: ~Copyable, Sendable {
    @usableFromInline let storage: CircularStorage

    /// What a read found at its offset.
    public enum ReadResult<Value> {
      /// The value that the body made of the bytes.
      case bytes(Value)
      /// The offset was the head at the time of the call. Whether more will come: ``Consumer/isFinished``, and the
      /// order of looking that it asks for.
      case empty
      /// The bytes there were let go to make room; the oldest that are left begin at `oldest`.
      case overwritten(oldest: UInt64)
    }

    /// Stream offset up to which bytes were given up, by ``release(upTo:)`` or by overflow. Reading starts here at the
    /// earliest.
    public var released: UInt64 { storage.oldest }

    /// Stream offset one past the newest byte.
    public var head: UInt64 { storage.words.pointee.head.load(ordering: .acquiring) }

    /// Capacity in bytes, whole pages; with what can be kept elsewhere.
    public var capacity: Int { storage.capacity + (storage.backing?.capacity ?? 0) }

    /// Whether the producer has said that ``head`` is final.
    ///
    /// Look here first and at ``head`` (or by a read) afterwards: `isFinished && cursor == head` is the end of the
    /// stream. The other way round bytes may come between the two looks, and the last of the stream would be missed.
    public var isFinished: Bool { storage.words.pointee.finished.load(ordering: .acquiring) }

    /// The next pause that was not passed yet. Look at ``head`` first: the bytes before a head that was seen are never
    /// behind a pause that was not.
    public var nextPause: Pause? { storage.nextPause() }

    /// The lengths of all pauses that were passed, those before this buffer began among them.
    package var pausedByteCount: UInt64 { storage.pauses?.passedByteCount ?? 0 }

    /// Takes ``nextPause`` away.
    public mutating func passPause() { storage.passPause() }

    /// Hands `body` up to `maximum` contiguous bytes from `offset` on. The producer cannot overwrite them meanwhile.
    ///
    /// - Parameters:
    ///   - offset: a stream offset not beyond ``head``.
    ///   - maximum: the most bytes that `body` can use.
    ///   - body: reads the bytes; its value is part of the result.
    @inlinable  // so that it is made for each type of value, instead of looking that type up for every message
    public borrowing func read<Value>(
      at offset: UInt64, maximum: Int = .max, _ body: (RawSpan) -> Value
    ) -> ReadResult<Value> {
      switch storage.beginRead(at: offset, maximum: maximum) {
      case .bytes(let found):
        defer { storage.endRead() }
        return .bytes(body(RawSpan(_unsafeBytes: found)))
      case .empty: return .empty
      case .overwritten(let oldest): return .overwritten(oldest: oldest)
      }
    }

    /// Whether the bytes at `offset` are kept elsewhere, and may have to be loaded first: a read that finds none wakes
    /// the consumer when they are there.
    package func isBacked(at offset: UInt64) -> Bool { storage.isBacked(at: offset) }

    /// Whether the byte at `offset` is known to be missing from what is kept elsewhere, and others follow.
    package func isMissing(at offset: UInt64) -> Bool {
      storage.isBacked(at: offset) && storage.backing?.isMissing(at: offset) == true
    }

    /// Gives up all bytes before `offset`, making their room free. Offsets already given up are ignored. With
    /// ``Memory/returned`` only whole steps are given up: ``released`` may stay up to 64 KiB behind `offset`.
    public mutating func release(upTo offset: UInt64) { storage.release(upTo: offset) }

    /// An eventfd that is signalled after ``requestWakeUp(beyond:)`` when bytes come or the stream finishes.
    /// Watch it edge-triggered, or drain it by reading.
    public var dataDescriptor: Int32 { storage.dataAvailable.descriptor }

    /// Asks to be woken once there is something beyond `offset` or the stream has ended; false when that is so already,
    /// and no wake-up will come.
    ///
    /// Exactly one wake-up comes for a request that was answered with true, repeated or not. It may be early, and is
    /// used up then: ask again before waiting again.
    public mutating func requestWakeUp(beyond offset: UInt64) -> Bool { storage.requestWakeUp(beyond: offset) }
  }
}
