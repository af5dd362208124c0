// Bytes from a descriptor, such as standard input, a pipe or a file.

public import EventLoops
internal import Glibc
public import StreamBuffers

/// Reads a descriptor to its end, directly into the circular buffer unless that discards bytes for it.
///
/// The stream's loop reads pipes, sockets and local files itself when it needs bytes, without waiting for them. A
/// separate thread reads everything else.
public final class DescriptorSource: OnDemandSource, @unchecked Sendable {
  private let descriptor: Int32
  private let name: String
  private let stopRequest: EventCounter
  // Passed to the thread by `start`, and unchecked for that reason.
  private var producer: CircularBuffer.Producer?
  // Owned by the stream's loop.
  var arrived: (() -> Void)?
  private var reader: DemandReader?

  /// The largest size of one read(2), in bytes.
  static let readSize = 256 << 10

  /// Creates a source that reads a descriptor.
  ///
  /// - Parameters:
  ///   - descriptor: a descriptor that the caller owns. It is not closed.
  ///   - name: the name of the source in errors, such as `standard input`.
  /// - Throws: ``EventLoops/SystemError`` when the descriptor is not open for reading, or no descriptor is left for the
  ///   wake-up. The code is `ESOCKTNOSUPPORT` for a datagram socket, because read(2) does not report its end, and
  ///   `ENOTCONN` for a socket without a peer.
  public init(descriptor: Int32 = 0, name: String = "standard input") throws(SystemError) {
    let flags = fcntl(descriptor, F_GETFL)
    guard flags != -1, flags & O_ACCMODE != O_WRONLY else {
      throw SystemError(operation: "reading \(name)", code: EBADF)
    }
    if let code = Self.socketError(descriptor) { throw SystemError(operation: "reading \(name)", code: code) }
    self.descriptor = descriptor
    self.name = name
    stopRequest = try EventCounter()
  }

  /// The reason why a socket is not a byte stream. Nil for a stream socket and for other descriptors (socket(7)).
  private static func socketError(_ descriptor: Int32) -> Int32? {
    func option(_ name: Int32) -> Int32? {
      var (value, length) = (Int32(0), socklen_t(MemoryLayout<Int32>.size))
      return getsockopt(descriptor, SOL_SOCKET, name, &value, &length) == 0 ? value : nil
    }
    guard let type = option(SO_TYPE) else { return nil }
    guard type == Int32(SOCK_STREAM.rawValue) else { return ESOCKTNOSUPPORT }
    return option(SO_ACCEPTCONN) == 1 ? ENOTCONN : nil
  }

  /// Starts to read the descriptor.
  public func start(into producer: consuming CircularBuffer.Producer, context: SourceContext) throws(LiveStreamError) {
    // A source that discards bytes must read at once, even while the loop is busy.
    guard arrived != nil, context.overflow != .dropOldest, let kind = DemandReader.Kind(descriptor) else {
      return try startThread(producer, context)
    }
    let reader = DemandReader(descriptor, kind, name: name, producer: producer, context: context) { [weak self] in
      self?.arrived?()
    } ended: { [weak self] end, producer in
      self?.readerEnded(end, producer, context)
    }
    self.reader = reader
    reader.start()
  }

  private func startThread(
    _ producer: consuming CircularBuffer.Producer, _ context: SourceContext
  ) throws(LiveStreamError) {
    self.producer = consume producer
    do {
      try NamedThread("sluice-source") { [self] in run(context) }.detach()
    } catch {
      throw LiveStreamError(.source, error.description)
    }
  }

  private func readerEnded(
    _ end: DemandReader.End, _ producer: consuming CircularBuffer.Producer, _ context: SourceContext
  ) {
    switch end {
    case .needsThread:
      reader = nil
      do { return try startThread(producer, context) } catch { context.fail(error) }
      self.producer?.finish()
    case .failed(let error):
      context.fail(error)
      producer.finish()
    case .finished: producer.finish()
    }
    // Not at once, because the stream may be on the stack.
    context.loop.atEndOfTurn { [weak self] in self?.arrived?() }
  }

  var isReadOnDemand: Bool { reader != nil }

  func fetch() -> Bool { reader?.fetch() ?? false }

  /// Ends the reading. The stream ends after the bytes that were read.
  public func stop() {
    stopRequest.signal()
    reader?.stop()
  }

  /// The thread: reads and publishes until the end, an error, or a request to stop.
  private func run(_ context: SourceContext) {
    guard var producer = producer.take() else { return }
    let discards = context.overflow == .dropOldest
    let most = discards ? min(Self.readSize, producer.capacity / 4) : 1
    let outside = UnsafeMutableRawBufferPointer.allocate(byteCount: most, alignment: 1)
    defer { outside.deallocate() }
    reading: while waits(for: descriptor) {
      var code: Int32 = 0
      var result = CircularBuffer.Producer.WriteResult.full
      if !discards || producer.freeByteCount >= most {
        result = producer.write(maximum: Self.readSize) { free in
          free.withUnsafeMutableBytes { read(into: $0, &code) }
        }
      }
      if case .full = result, context.overflow != .wait {
        // The buffer discards only as many bytes as have arrived, and is too small only if another byte does.
        let count = read(into: outside, &code)
        if count > 0, !discards {
          context.fail(Self.overflow)
          break reading
        }
        // A reader may be in the way, for as long as it copies, and no event reports its end.
        let arrived = UnsafeRawBufferPointer(rebasing: outside.prefix(count))
        while count > 0, case .full = producer.write(copying: arrived.bytes) { sched_yield() }
        result = .written(count)
      }
      switch (result, code) {
      case (.written, EINTR), (.written, EAGAIN):
        continue
      case (.written(0), 0):
        break reading
      case (.written, 0):
        continue
      case (.written, _):
        context.fail(LiveStreamError(.source, SystemError(operation: "reading \(name)", code: code).description))
        break reading
      case (.full, _):
        guard waitsForSpace(&producer) else { break reading }
      }
    }
    producer.finish()
  }

  /// read(2). Returns 0 at the end, and after an error, whose number is in `code`.
  private func read(into free: UnsafeMutableRawBufferPointer, _ code: inout Int32) -> Int {
    let count = Glibc.read(descriptor, free.baseAddress, free.count)
    code = count < 0 ? errno : 0
    return max(0, count)
  }

  /// The error if the buffer is full and the source may not wait.
  static let overflow = LiveStreamError(
    .overflow, "the buffer is full. Choose a larger buffer or another overflow policy", remedy: .largerBuffer)

  /// Waits for room. Returns false on a request to stop.
  private func waitsForSpace(_ producer: inout CircularBuffer.Producer) -> Bool {
    // A quarter of the buffer at a time, because a wake-up for every acknowledged byte would cost more than it helps.
    guard producer.requestSpace(max(1, min(Self.readSize, producer.capacity / 4))) else { return true }
    guard waits(for: producer.spaceDescriptor) else { return false }
    producer.drainSpaceSignals()
    return true
  }

  /// Waits until `other` is readable or at its end. Returns false on a request to stop.
  private func waits(for other: Int32) -> Bool {
    var polled = [
      pollfd(fd: other, events: Int16(POLLIN), revents: 0),
      pollfd(fd: stopRequest.descriptor, events: Int16(POLLIN), revents: 0),
    ]
    while poll(&polled, 2, -1) < 0 && errno == EINTR {}
    return polled[1].revents == 0
  }
}
