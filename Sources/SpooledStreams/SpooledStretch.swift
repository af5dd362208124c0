// A stretch of a stream on disk, as the consumer of its circular buffer sees it.

internal import EventLoops
package import StreamBuffers

/// The backing of a circular buffer: the bytes of one stretch. The consumer's thread reads, and the spool's thread
/// writes and loads. No call waits for the disk.
package final class SpooledStretch: CircularBacking, Sendable {
  private struct State {
    var readAhead = SpoolReadAhead()
    /// Everything before it was evicted, or is known to be missing.
    var oldest: UInt64 = 0
    /// The server has acknowledged everything before it.
    var released: UInt64 = 0
    /// Everything before it survives a power failure.
    var synchronized: UInt64 = 0
    /// Bytes before it can be loaded.
    var end: UInt64 = 0
    /// Bytes before it were taken from the circular buffer. Those after ``end`` are being written.
    var taken: UInt64 = 0
    /// Bytes that are lost, and that the consumer has not passed yet.
    var holes = StretchHoles()
    /// None before it counts as a hole, because it was acknowledged, or an earlier version has left the buffer.
    var firstHole: UInt64 = 0
    /// What another process needs to resume the stream, in the stream's own format.
    var resumption = ""
    /// The note in which this text survives the process; nil if only the file's next commit stores it.
    var note: CircularBuffer.Note?
    /// Whether the spool's thread waits for space.
    var isStarved = false
    /// Whether the consumer waits for bytes that are being written.
    var isAwaited = false

    /// Notes that the bytes from `position` to `end` are lost, without those that the server has acknowledged or that
    /// were evicted.
    mutating func noteHole(from position: UInt64, to end: UInt64) {
      let passed = max(oldest, released)
      holes.forget(before: passed)
      let start = max(position, passed, firstHole)
      if start < end { holes.add(start..<end) }
    }

    /// How many bytes are at these positions, without lost ones.
    func byteCount(from start: UInt64, to end: UInt64) -> UInt64 {
      guard start < end else { return 0 }
      return end - start - holes.byteCount(in: start..<end)
    }

    /// Where the bytes continue if there is none at `offset`: after a hole, or in memory if the disk refused the bytes
    /// before.
    func missing(at offset: UInt64, oldestInMemory: UInt64) -> UInt64? {
      if let hole = readAhead.hole, hole.contains(offset) { return hole.upperBound }
      return offset >= taken ? max(oldestInMemory, offset + 1) : nil
    }
  }

  private let state: Lock<State>
  private let maximum: Int
  /// Called on the consumer's thread to load bytes from a position on.
  private let load: @Sendable (UInt64) -> Void
  /// Called on the consumer's thread when there is space again.
  private let roomIsThere: @Sendable () -> Void
  /// Called on the consumer's thread to store the resumption data in the file.
  private let keep: @Sendable () -> Void

  /// - Parameters:
  ///   - kept: the range of positions that are already kept.
  ///   - capacity: in bytes.
  ///   - firstHole: no byte before it counts as lost before a read finds that out.
  init(
    kept: Range<UInt64>, released: UInt64, capacity: UInt64, resumption: String = "", firstHole: UInt64 = 0,
    load: @escaping @Sendable (UInt64) -> Void, roomIsThere: @escaping @Sendable () -> Void = {},
    keep: @escaping @Sendable () -> Void
  ) {
    var state = State()
    state.firstHole = firstHole
    (state.oldest, state.released) = (kept.lowerBound, released)
    (state.end, state.taken) = (kept.upperBound, kept.upperBound)
    state.synchronized = kept.upperBound
    state.resumption = resumption
    self.state = Lock(state)
    maximum = Int(clamping: capacity)
    self.load = load
    self.roomIsThere = roomIsThere
    self.keep = keep
  }

  // MARK: The consumer's thread

  package var oldest: UInt64 { state.withLock { max($0.oldest, $0.released) } }

  package var capacity: Int { maximum }

  package func read(
    at offset: UInt64, maximum: Int, oldestInMemory: UInt64
  ) -> CircularBuffer.Consumer.ReadResult<UnsafeRawBufferPointer> {
    let (result, wanted) = state.withLock {
      state -> (CircularBuffer.Consumer.ReadResult<UnsafeRawBufferPointer>, UInt64?) in
      guard offset >= state.oldest else { return (.overwritten(oldest: state.oldest), nil) }
      if let missing = state.missing(at: offset, oldestInMemory: oldestInMemory) {
        // Everything before it is acknowledged, so the stream continues after it.
        if offset <= max(state.oldest, state.released) { state.oldest = missing }
        return (.overwritten(oldest: missing), nil)
      }
      let bytes = state.readAhead.bytes(at: offset)
      let wanted = state.readAhead.wanted(at: offset, before: state.end)
      guard let bytes else {
        state.isAwaited = state.readAhead.loading == nil
        return (.empty, wanted)
      }
      return (.bytes(UnsafeRawBufferPointer(rebasing: bytes.prefix(maximum))), wanted)
    }
    if let wanted { load(wanted) }
    return result
  }

  package func isMissing(at offset: UInt64) -> Bool {
    state.withLock { $0.readAhead.hole?.contains(offset) == true || offset >= $0.taken }
  }

  package func holes(before oldestInMemory: UInt64) -> [Range<UInt64>] {
    state.withLock { state -> [Range<UInt64>] in
      // Those before `taken` are in the file or on their way. The spool's thread may be waiting for the disk.
      state.noteHole(from: state.taken, to: oldestInMemory)
      return state.holes.ranges
    }
  }

  package func release(upTo offset: UInt64) {
    let isStarved = state.withLock { state in
      state.released = max(state.released, offset)
      if state.released >= state.end { state.readAhead.forget() }
      defer { state.isStarved = false }
      return state.isStarved
    }
    if isStarved { roomIsThere() }
  }

  /// Replaces the text because bytes are about to be released. One commit of the file stores both, whenever that is.
  package func noteWithRelease(_ text: String) {
    state.withLock { state in
      state.resumption = text
      state.note?.write(text)
    }
  }

  /// Replaces the text that is kept with the bytes. After this returns, a process that finds the buffer finds the text.
  ///
  /// - Parameter isUrgent: whether it must survive a power failure.
  package func note(_ text: String, isUrgent: Bool) {
    let isKept = state.withLock { state -> Bool in
      guard state.resumption != text else { return true }
      state.resumption = text
      state.note?.write(text)
      return state.note != nil && !isUrgent
    }
    if !isKept { keep() }
  }

  /// How many of the bytes before `head` the server does not have and a power failure would lose. Those that are lost
  /// already do not count.
  package func notSynchronized(upTo head: UInt64) -> UInt64 {
    state.withLock { $0.byteCount(from: max($0.synchronized, $0.released, $0.oldest), to: head) }
  }

  // MARK: The spool's thread

  func synchronized(upTo position: UInt64) { state.withLock { $0.synchronized = position } }

  var released: UInt64 { state.withLock { $0.released } }

  var resumption: String { state.withLock { $0.resumption } }

  /// Sets the note in which the text also survives the process; nil for none.
  func keepsWords(in note: CircularBuffer.Note?) {
    state.withLock { state in
      state.note = note
      note?.write(state.resumption)
    }
  }

  /// How many of the bytes before `head` the server does not have. Those that are lost already do not count.
  func unacknowledged(upTo head: UInt64) -> UInt64 {
    state.withLock { $0.byteCount(from: max($0.oldest, $0.released), to: head) }
  }

  /// The bytes from `position` to `end` will not be in the file, and the buffer has dropped them, or is about to.
  func lost(from position: UInt64, to end: UInt64) {
    state.withLock { $0.noteHole(from: position, to: end) }
  }

  func took(upTo position: UInt64) { state.withLock { $0.taken = position } }

  /// The bytes taken can be loaded up to here, and none of them is still being written. Returns whether the consumer
  /// waits for that.
  func wrote(upTo position: UInt64) -> Bool {
    state.withLock { state in
      (state.taken, state.end) = (position, position)
      defer { state.isAwaited = false }
      return state.isAwaited
    }
  }

  func evicted(upTo position: UInt64) { state.withLock { $0.oldest = max($0.oldest, position) } }

  func isStarved() { state.withLock { $0.isStarved = true } }

  /// A load has ended.
  func loaded(_ piece: SpoolReadAhead.Piece?, hole: Range<UInt64>?) {
    state.withLock { $0.readAhead.loaded(piece, hole: hole) }
  }
}
