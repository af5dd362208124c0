// The buffer of captured bytes until the server has acknowledged them. It has one writer and one reader, without a
// lock.

public import EventLoops
internal import Synchronization

/// A single-producer, single-consumer circular buffer that is addressed by **stream offset**.
///
/// A byte keeps one address for its whole life: its offset from the start of the stream (64 bits, never wraps). The
/// consumer may read anywhere between the *released* offset and the *head*, repeatedly, and releases bytes with a
/// separate call. So "sent" and "acknowledged" are separate, and going back after a lost connection only requires a
/// smaller offset.
///
///     released              head
///        ├── readable ────────┤── free ──┤
///        └───────────── capacity ────────┘
///
/// A stream may omit bytes that would only be silence with ``Producer/pause(_:)``. In that case, the offsets here count
/// the written bytes, and the consumer adds the lengths of the pauses that it has passed.
///
/// The memory is mapped twice in a row, so every span is contiguous. Neither end allocates, locks or waits after
/// ``make(capacity:overflow:memory:allowsPauses:)``. An eventfd wakes the other thread only if it requested this.
public enum CircularBuffer {
  /// The capacity of a buffer.
  public enum Capacity: Equatable, Sendable {
    /// This number of bytes.
    case bytes(Int)
    /// The number of bytes that a stream of `bytesPerSecond` produces in `time`.
    case time(Duration, bytesPerSecond: Int)

    /// The capacity in bytes, at least one.
    public var byteCount: Int {
      switch self {
      case .bytes(let count): max(1, count)
      case .time(let time, let bytesPerSecond):
        // A value beyond `Int` exceeds the memory of any machine.
        max(1, Int(exactly: (time.seconds * Double(bytesPerSecond)).rounded(.up)) ?? .max)
      }
    }
  }

  /// The behaviour of a write when the buffer is full.
  public enum Overflow: Equatable, Sendable {
    /// The write is refused. The producer stops, or waits for ``Producer/spaceDescriptor``.
    case refuse
    /// The oldest bytes are dropped, acknowledged or not. The consumer's next read reports it, so nothing is lost
    /// silently.
    case dropOldest
  }

  /// The amount of physical memory behind the addresses.
  public enum Memory: Equatable, Sendable {
    /// Pages stay after their first use, so there are no page faults after the first lap. This is the fastest setting.
    case kept
    /// Pages of released bytes are returned to the system in steps of 64 KiB. A buffer for an hour costs only its
    /// contents.
    case returned
  }

  /// A position at which a stream continues after omitted bytes.
  public struct Pause: Equatable, Sendable {
    /// The number of bytes that were written before it.
    public var position: UInt64
    /// The number of omitted bytes.
    public var length: UInt64

    package init(position: UInt64, length: UInt64) { (self.position, self.length) = (position, length) }
  }

  /// The two ends. Move each to its owner's thread.
  @frozen
  public struct Ends: ~Copyable, Sendable {
    /// The end to write to.
    public var producer: Producer
    /// The end to read from.
    public var consumer: Consumer
  }

  /// Creates a buffer, and returns its two ends.
  ///
  /// - Parameters:
  ///   - capacity: rounded up to whole pages (usually 4096 bytes). With ``Memory/returned``, it is rounded up to whole
  ///     steps of 64 KiB, plus one step, because space is released in whole steps.
  ///   - overflow: the behaviour when the buffer is full.
  ///   - memory: whether unused memory is returned to the system.
  ///   - allowsPauses: whether the consumer handles ``Consumer/nextPause``.
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
  /// The writing end. One thread owns it, and it never waits for the other end.
  public struct Producer: ~Copyable, Sendable {
    @usableFromInline let storage: CircularStorage
    /// Bytes taken from the consumer that may not be used yet: see `CircularStorage.makeRoom(for:claimed:)`.
    @usableFromInline var claimed: UInt64 = 0

    init(storage: CircularStorage) { self.storage = storage }

    /// The result of a write.
    public enum WriteResult: Equatable, Sendable {
      /// This number of bytes was published.
      case written(Int)
      /// Fewer bytes than the minimum are free and the policy drops none, or the reader is using the bytes that would
      /// be dropped. Nothing was written. Try again when there is space, or after the next period.
      case full
    }

    /// The stream offset of the next byte to write, which is the number of bytes written so far.
    public var head: UInt64 { storage.words.pointee.head.load(ordering: .relaxed) }

    /// The capacity in bytes, in whole pages.
    public var capacity: Int { storage.capacity }

    /// The largest minimum for a write or a request for space. It is less than ``capacity`` only with
    /// ``Memory/returned``, where up to 64 KiB of released bytes may still occupy space.
    public var largestMinimum: Int { storage.largestMinimum }

    /// The number of bytes that can be written now without dropping any.
    public var freeByteCount: Int { storage.freeByteCount() }

    /// Calls `body` with contiguous free memory at the head, between `minimum` and `maximum` bytes, and publishes the
    /// number of bytes that it returns.
    ///
    /// - Parameters:
    ///   - minimum: at least 1, at most ``largestMinimum``. With ``Overflow/dropOldest``, this many bytes are made
    ///     free.
    ///   - maximum: the most bytes that `body` can use.
    ///   - body: writes from the start of the span, and returns the number of written bytes. 0 publishes nothing.
    @inlinable  // so that no message calls the body through a pointer
    public mutating func write(
      minimum: Int = 1, maximum: Int = .max, _ body: (inout MutableRawSpan) -> Int
    ) -> WriteResult {
      guard let free = storage.beginWrite(minimum: minimum, maximum: maximum, claimed: &claimed) else { return .full }
      var span = MutableRawSpan(_unsafeBytes: free)
      let count = body(&span)
      precondition(count >= 0 && count <= free.count, "more bytes committed than the span contains")
      if count > 0 { storage.publish(count) }
      return .written(count)
    }

    /// Copies as many bytes of `bytes` as are free. With ``Overflow/dropOldest``, it copies all of them, up to at least
    /// ``largestMinimum``.
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

    /// Omits `length` bytes of the stream at the head, and wakes the consumer. Returns false and omits nothing if the
    /// buffer does not allow pauses, or if several pauses wait for the consumer.
    public mutating func pause(_ length: UInt64) -> Bool { storage.pause(length) }

    /// Ends the stream, and wakes the consumer.
    public mutating func finish() { storage.finish() }

    /// An eventfd that is readable when the space that ``requestSpace(_:)`` requested is free.
    public var spaceDescriptor: Int32 { storage.spaceAvailable.descriptor }

    /// Requests a wake-up when `count` bytes are free. Returns false, without a later wake-up, if they are already
    /// free.
    ///
    /// A request that returned true causes exactly one wake-up, even if it is repeated. The wake-up may be early, and
    /// is used up then. So request again before you wait again.
    ///
    /// - Parameter count: at most ``largestMinimum``, because more can never be free.
    public mutating func requestSpace(_ count: Int) -> Bool {
      precondition(count <= storage.largestMinimum, "this number of bytes can never be free")
      return storage.requestSpace(count)
    }

    /// Clears the wake-ups so far.
    public mutating func drainSpaceSignals() { storage.spaceAvailable.drain() }
  }

  /// The reading end. One thread owns it.
  public struct Consumer: ~Copyable, Sendable {
    @usableFromInline let storage: CircularStorage

    /// The result of a read at an offset.
    public enum ReadResult<Value> {
      /// The value that the body returned.
      case bytes(Value)
      /// The offset was the head at the time of the call. ``Consumer/isFinished`` shows whether more bytes will come.
      /// Observe the order that it requires.
      case empty
      /// The bytes at the offset were dropped. The oldest remaining ones begin at `oldest`.
      case overwritten(oldest: UInt64)
    }

    /// The stream offset before which bytes were released, by ``release(upTo:)`` or by overflow. Reading starts here at
    /// the earliest.
    public var released: UInt64 { storage.oldest }

    /// The stream offset after the newest byte.
    public var head: UInt64 { storage.words.pointee.head.load(ordering: .acquiring) }

    /// The capacity in bytes, in whole pages, plus that of a backing.
    public var capacity: Int { storage.capacity + (storage.backing?.capacity ?? 0) }

    /// Whether ``head`` is final, because the producer has finished.
    ///
    /// Read this first, and ``head`` afterwards (or with a read): `isFinished && cursor == head` is the end of the
    /// stream. In the other order, bytes may arrive between the two calls, and the end of the stream would be missed.
    public var isFinished: Bool { storage.words.pointee.finished.load(ordering: .acquiring) }

    /// The next pause that is not passed yet. Read ``head`` first. The bytes before a head that was read are never
    /// after a pause that was not visible.
    public var nextPause: Pause? { storage.nextPause() }

    /// The total length of all pauses that were passed, including those before this buffer began.
    package var pausedByteCount: UInt64 { storage.pauses?.passedByteCount ?? 0 }

    /// Removes ``nextPause``.
    public mutating func passPause() { storage.passPause() }

    /// Calls `body` with up to `maximum` contiguous bytes from `offset` on. The producer cannot overwrite them during
    /// the call.
    ///
    /// - Parameters:
    ///   - offset: a stream offset not beyond ``head``.
    ///   - maximum: the most bytes that `body` can use.
    ///   - body: reads the bytes. Its value is part of the result.
    @inlinable  // specialised for each type of value, instead of looking the type up for every message
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

    /// Whether the bytes at `offset` are kept elsewhere and may have to be loaded first. A read that finds none wakes
    /// the consumer when they are there.
    package func isBacked(at offset: UInt64) -> Bool { storage.isBacked(at: offset) }

    /// Whether the byte at `offset` is known to be missing from the backing, and others follow.
    package func isMissing(at offset: UInt64) -> Bool {
      storage.isBacked(at: offset) && storage.backing?.isMissing(at: offset) == true
    }

    /// Positions whose bytes are lost although they were not released, in order, as far as is known: the producer
    /// dropped them before they were copied. Those that were released since may be among them.
    package var holes: [Range<UInt64>] { storage.holes }

    /// Releases all bytes before `offset`, so that their space is free. An offset that was already released has no
    /// effect. With ``Memory/returned``, only whole steps are released, and ``released`` may stay up to 64 KiB behind
    /// `offset`.
    public mutating func release(upTo offset: UInt64) { storage.release(upTo: offset) }

    /// An eventfd that is signalled after ``requestWakeUp(beyond:)`` when bytes arrive or the stream finishes. Watch it
    /// edge-triggered, or drain it by reading.
    public var dataDescriptor: Int32 { storage.dataAvailable.descriptor }

    /// Requests a wake-up when there are bytes beyond `offset` or the stream has ended. Returns false, without a later
    /// wake-up, if that is already so.
    ///
    /// A request that returned true causes exactly one wake-up, even if it is repeated. The wake-up may be early, and
    /// is used up then. So request again before you wait again.
    public mutating func requestWakeUp(beyond offset: UInt64) -> Bool { storage.requestWakeUp(beyond: offset) }
  }
}
