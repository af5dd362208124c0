// Reads a descriptor on a stream's loop, without waiting for it.

internal import CLinux
internal import EventLoops
internal import Glibc
internal import StreamBuffers

/// Reads a descriptor when the stream's loop asks for bytes. A pipe or a socket is also read when it has some. Owned by
/// the loop's thread.
///
/// No read waits, and no flag of the descriptor changes, because other processes may share it. Where the kernel cannot
/// promise that, or the bytes of a file are not in the page cache, a thread takes over for the rest of the stream.
final class DemandReader {
  /// The ways to read without waiting.
  enum Kind {
    /// A file has its bytes at any time, and keeps them until they are needed. No event reports them.
    case file(isInMemory: Bool)
    /// Another open file description of the same pipe, which does not wait. The reader closes it.
    case pipe(Int32)
    case socket

    /// Nil for a descriptor that only a thread can read.
    init?(_ descriptor: Int32) {
      var status = stat()
      guard fstat(descriptor, &status) == 0 else { return nil }
      switch status.st_mode & S_IFMT {
      case S_IFREG:
        var system = statfs()
        self = .file(isInMemory: fstatfs(descriptor, &system) == 0 && system.f_type == Self.fileSystemInMemory)
      case S_IFIFO:
        let pipe = open("/proc/self/fd/\(descriptor)", O_RDONLY | O_NONBLOCK | O_CLOEXEC)
        guard pipe >= 0 else { return nil }
        self = .pipe(pipe)
      case S_IFSOCK: self = .socket
      default: return nil
      }
    }

    /// `TMPFS_MAGIC` (statfs(2)). It never waits for a disk, and does not support `RWF_NOWAIT`.
    private static let fileSystemInMemory = 0x0102_1994

    /// The descriptor whose events report bytes. Nil if no event does.
    func watched(_ descriptor: Int32) -> Int32? {
      switch self {
      case .file: nil
      case .pipe(let pipe): pipe
      case .socket: descriptor
      }
    }
  }

  /// What ends the reading.
  enum End {
    /// The descriptor has ended, or the source was stopped.
    case finished
    case failed(LiveStreamError)
    /// Only a thread can continue.
    case needsThread
  }

  private let descriptor: Int32
  private let kind: Kind
  private let watched: Int32?
  private let loop: EventLoop
  private let operation: String
  private let stopsWhenFull: Bool
  private let arrived: () -> Void
  /// Receives the producer at the end, once.
  private let ended: (End, consuming CircularBuffer.Producer) -> Void
  /// Nil after the end.
  private var producer: CircularBuffer.Producer?
  /// False after a read that found nothing, until the next event.
  private var mayHaveBytes = false
  private var waitsForSpace = false
  /// Whether the loop watches the descriptor for this reader. It may watch the same socket for another stream.
  private var isWatching = false
  /// Whether another turn of the loop will read.
  private var isScheduled = false

  /// - Parameter name: of the descriptor, in errors.
  init(
    _ descriptor: Int32, _ kind: Kind, name: String, producer: consuming CircularBuffer.Producer,
    context: SourceContext, arrived: @escaping () -> Void,
    ended: @escaping (End, consuming CircularBuffer.Producer) -> Void
  ) {
    (self.descriptor, self.kind, operation) = (descriptor, kind, "reading \(name)")
    watched = kind.watched(descriptor)
    (loop, stopsWhenFull) = (context.loop, context.overflow == .stop)
    (self.arrived, self.ended) = (arrived, ended)
    self.producer = consume producer
  }

  deinit { if producer != nil, case .pipe(let pipe) = kind { close(pipe) } }

  func start() {
    guard let space = producer?.spaceDescriptor else { return }
    do {
      try loop.register(space, [.readable, .edgeTriggered]) { [weak self] _ in self?.hasSpace() }
      if let watched {
        // Reports bytes that are already there.
        try loop.register(watched, [.readable, .edgeTriggered]) { [weak self] _ in self?.becameReadable() }
        isWatching = true
      } else {
        mayHaveBytes = true
      }
    } catch {
      // For example, when another stream of this loop reads the same descriptor.
      end(.needsThread)
    }
  }

  /// Ends before the descriptor does.
  func stop() { end(.finished) }

  private func becameReadable() {
    mayHaveBytes = true
    serve()
  }

  private func hasSpace() {
    waitsForSpace = false
    serve()
  }

  /// Reads what a pipe has, because its writer waits otherwise, and lets the stream read more.
  private func serve() {
    if watched != nil { _ = fetch() }
    arrived()
  }

  /// Reads at most one block. Returns false if there is nothing, or no space for it.
  func fetch() -> Bool {
    while mayHaveBytes, !waitsForSpace, producer != nil {
      var code: Int32 = 0
      var result = producer?.write(maximum: DescriptorSource.readSize) { free in
        let count = free.withUnsafeMutableBytes { read(into: $0) }
        code = count < 0 ? errno : 0
        return max(0, count)
      }
      if stopsWhenFull, case .full? = result {
        // The buffer is too small only if another byte follows.
        var byte: UInt8 = 0
        let count = withUnsafeMutableBytes(of: &byte) { read(into: $0) }
        if count > 0 {
          end(.failed(DescriptorSource.overflow))
          return true
        }
        (result, code) = (.written(0), count < 0 ? errno : 0)
      }
      switch (result, code) {
      case (.written(let count)?, 0) where count > 0:
        continueLater()
        return true
      case (.written?, 0):
        end(.finished)
        return true
      case (.written?, EINTR): continue
      case (.written?, EAGAIN):
        if watched == nil { end(.needsThread) } else { mayHaveBytes = false }
      case (.written?, EOPNOTSUPP): end(.needsThread)
      case (.written?, _):
        end(.failed(LiveStreamError(.source, SystemError(operation: operation, code: code).description)))
        return true
      case (.full?, _): waitsForSpace = requestSpace()
      case (nil, _): return false
      }
    }
    return false
  }

  private func read(into free: UnsafeMutableRawBufferPointer) -> Int {
    switch kind {
    case .file(isInMemory: true): return Glibc.read(descriptor, free.baseAddress, free.count)
    case .file(isInMemory: false):
      var piece = iovec(iov_base: free.baseAddress, iov_len: free.count)
      // From the descriptor's own position on.
      return preadv2(descriptor, &piece, 1, -1, SLUICE_RWF_NOWAIT)
    case .pipe(let pipe): return Glibc.read(pipe, free.baseAddress, free.count)
    case .socket: return recv(descriptor, free.baseAddress, free.count, Int32(MSG_DONTWAIT))
    }
  }

  /// The rest of a pipe is read in the next turns, even if the stream cannot send it now.
  private func continueLater() {
    guard watched != nil, !isScheduled else { return }
    isScheduled = true
    loop.afterReady { [weak self] in
      guard let self else { return }
      isScheduled = false
      if mayHaveBytes, !waitsForSpace, producer != nil { serve() }
    }
  }

  private func requestSpace() -> Bool {
    let wanted = min(DescriptorSource.readSize, (producer?.capacity ?? 0) / 4)
    return producer?.requestSpace(max(1, wanted)) ?? false
  }

  private func end(_ end: End) {
    guard let producer = producer.take() else { return }
    loop.deregister(producer.spaceDescriptor)
    if isWatching, let watched { loop.deregister(watched) }
    if case .pipe(let pipe) = kind { close(pipe) }
    ended(end, producer)
  }
}
