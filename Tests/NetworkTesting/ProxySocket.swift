// One end of a proxied connection: a non-blocking socket on the proxy's loop, and its unsent bytes.

internal import EventLoops
internal import Glibc

/// A socket that reads when its owner wants bytes, and writes the owner's bytes. On the loop's thread only.
final class ProxySocket {
  /// The size of a read, and the maximum number of bytes kept in one direction.
  static let readSize = 32 << 10

  private let descriptor: Int32
  private let loop: EventLoop
  private var interest: EventLoop.Interest
  private var unsent: [UInt8] = []
  private var unsentStart = 0
  private var finishesWhenSent = false

  private(set) var isOpen = true
  /// Whether the peer's end of the connection has been read.
  private(set) var hasEnded = false
  /// Whether our own end has been sent.
  private(set) var hasFinished = false
  /// Whether it is paused: nothing is written or read.
  var isHeld = false { didSet { if isHeld != oldValue { isHeld ? settle() : flush() } } }
  /// Whether to read: false while earlier bytes have not been forwarded.
  var wantsBytes = true { didSet { if wantsBytes != oldValue { settle() } } }

  /// Called with received bytes.
  var received: (Span<UInt8>) -> Void = { _ in }
  /// Called when the peer has ended its direction.
  var ended: () -> Void = {}
  /// Called when the socket was closed, because both directions had ended or the connection broke.
  var closed: (_ isBroken: Bool) -> Void = { _ in }
  /// Called when everything has been written.
  var drained: () -> Void = {}

  /// Takes ownership of the descriptor.
  init(_ descriptor: Int32, _ loop: EventLoop) throws(SystemError) {
    self.descriptor = descriptor
    self.loop = loop
    interest = .readable
    try loop.register(descriptor, .readable) { [unowned self] in ready($0) }
  }

  /// A connection that is being established. Bytes sent meanwhile wait.
  convenience init(connectingTo address: IPv4Address, _ loop: EventLoop) throws {
    let descriptor = try BoundedSocket.make()
    let status = address.withPointer { connect(descriptor, $0, $1) }
    guard status == 0 || errno == EINPROGRESS else {
      defer { Glibc.close(descriptor) }
      throw SystemError.last("connect \(address)")
    }
    do { try self.init(descriptor, loop) } catch {
      Glibc.close(descriptor)
      throw error
    }
  }

  deinit { if isOpen { close() } }

  var hasUnsent: Bool { unsentStart < unsent.count }

  // MARK: Events of the loop

  private func ready(_ readiness: EventLoop.Readiness) {
    if readiness.contains(.writable) { flush() }
    guard isOpen else { return }
    if reads {
      if !readiness.isDisjoint(with: [.readable, .hangUp, .error]) { readOnce() }
    } else if !readiness.isDisjoint(with: [.hangUp, .error]) {
      // Reported for as long as it lasts, because this is the only sign of a reset while nothing is read.
      broken()
    }
  }

  private var reads: Bool { wantsBytes && !isHeld && !hasEnded }

  private func readOnce() {
    var buffer = [UInt8](repeating: 0, count: Self.readSize)
    let count = recv(descriptor, &buffer, buffer.count, 0)
    if count > 0 {
      received(buffer.span.extracting(..<count))
    } else if count == 0 {
      hasEnded = true
      settle()
      ended()
      closeIfOver()
    } else if errno != EAGAIN && errno != EINTR {
      broken()
    }
  }

  private func flush() {
    while isOpen, !isHeld, hasUnsent {
      let count = unsent.withUnsafeBytes { all in
        let rest = UnsafeRawBufferPointer(rebasing: all[unsentStart...])
        return Glibc.send(descriptor, rest.baseAddress, rest.count, Int32(MSG_NOSIGNAL))
      }
      if count < 0 {
        if errno == EINTR { continue }
        if errno != EAGAIN { return broken() }
        return settle()
      }
      unsentStart += count
    }
    guard isOpen, !hasUnsent else { return settle() }
    unsent.removeAll(keepingCapacity: true)
    unsentStart = 0
    if finishesWhenSent && !isHeld { shutDown() }
    settle()
    drained()
  }

  private func settle() {
    guard isOpen else { return }
    var wanted: EventLoop.Interest = []
    if reads { wanted.insert(.readable) }
    if hasUnsent && !isHeld { wanted.insert(.writable) }
    guard wanted != interest else { return }
    interest = wanted
    do throws(SystemError) { try loop.modify(descriptor, wanted) } catch { broken() }
  }

  // MARK: Orders of the owner

  func send(_ bytes: some Collection<UInt8>) {
    guard isOpen, !hasFinished, !finishesWhenSent else { return }
    unsent += bytes
    flush()
  }

  /// Sends an orderly end after earlier bytes. Received bytes are still read.
  func finish() {
    guard isOpen, !hasFinished, !finishesWhenSent else { return }
    finishesWhenSent = true
    flush()
  }

  /// Sends a reset as the next packet, and discards unsent bytes.
  func reset() {
    guard isOpen else { return }
    var option = linger(l_onoff: 1, l_linger: 0)
    setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &option, socklen_t(MemoryLayout<linger>.size))
    close()
  }

  /// Closes at once: an orderly end, or as TCP requires, a reset if there are unread bytes.
  func close() {
    guard isOpen else { return }
    isOpen = false
    loop.deregister(descriptor)
    Glibc.close(descriptor)
  }

  private func shutDown() {
    finishesWhenSent = false
    hasFinished = true
    shutdown(descriptor, Int32(SHUT_WR))
    closeIfOver()
  }

  private func closeIfOver() {
    guard isOpen, hasEnded, hasFinished else { return }
    close()
    closed(false)
  }

  private func broken() {
    guard isOpen else { return }
    close()
    closed(true)
  }
}
