// A listening socket.

internal import CLinux
internal import EventLoops
internal import Glibc

/// Listens, and passes on each connection. After ``init`` only on the loop's thread.
package final class Listener {
  package struct Options {
    /// `SO_RCVBUF` of every connection, in bytes (the kernel doubles it); nil means that the kernel tunes it.
    var receiveBufferSize: Int?
    /// `TCP_MAXSEG` of every connection, in bytes.
    var maximumSegmentSize: Int?

    package init(receiveBufferSize: Int? = nil, maximumSegmentSize: Int? = nil) {
      self.receiveBufferSize = receiveBufferSize
      self.maximumSegmentSize = maximumSegmentSize
    }
  }

  /// How long accepting pauses when the process has no descriptor left, unless a connection ends before.
  private static let pause = Duration.seconds(1)

  /// How many connections are accepted in one turn of the loop, so that a burst of them does not delay existing ones.
  private static let accepting = 128

  /// The address, with the port that the kernel chose.
  package let address: ListenAddress
  private let descriptor: Int32
  private let loop: EventLoop
  /// The socket file, by device and inode; nil if there is none.
  private let file: FileIdentity?
  private var isOpen = true
  private var isPaused = false
  private var pauseTimer: EventLoop.Timer?
  /// An accepted connection without a usable descriptor, while the listener is paused.
  private var waiting: (descriptor: Int32, peer: String)?
  /// Whether a whole pause has freed no descriptor. Then further connections are turned away at once.
  private var isShort = false

  /// Called with the non-blocking descriptor of an accepted connection, and its peer.
  var accepted: (Int32, _ peer: String) -> Void = { _, _ in }
  /// Connections get smaller descriptors than this. The others serve them.
  var descriptorLimit: () -> Int32 = { .max }
  /// Closes something dispensable because a descriptor is needed. Returns whether one is free now.
  var makeRoom: () -> Bool = { false }
  /// Called when a connection is turned away for lack of a descriptor.
  var turnedAway: () -> Void = {}
  /// Called once per pause, with the reason, when no connection can be accepted.
  var exhausted: (String) -> Void = { _ in }

  init(_ address: ListenAddress, _ socketAddress: SocketAddress, options: Options, loop: EventLoop)
    throws(ListenError)
  {
    self.loop = loop
    let type = Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue | SOCK_NONBLOCK.rawValue)
    let shown = socketAddress.numeric ?? address
    let descriptor = socket(socketAddress.family, type, 0)
    guard descriptor >= 0 else {
      throw .cannotListen(address: "\(shown)", reason: String(cString: strerror(errno)))
    }
    do throws(ListenError) {
      try Self.prepare(descriptor, address, options)
      try Self.bind(descriptor, socketAddress, shown)
    } catch {
      close(descriptor)
      throw error
    }
    var bound = SocketAddress()
    _ = bound.withMutablePointer { getsockname(descriptor, $0, $1) }
    self.address = bound.numeric ?? address
    self.descriptor = descriptor
    file = Self.identity(at: self.address)
  }

  /// Listens on every address of a name that this machine has. `localhost`, for example, is `::1` and `127.0.0.1`.
  static func all(
    at address: ListenAddress, _ options: Options, _ loop: EventLoop
  ) throws(ListenError) -> [Listener] {
    var listeners: [Listener] = []
    var absent: ListenError?
    for candidate in try SocketAddress.resolve(address) {
      do throws(ListenError) {
        listeners.append(try Listener(address, candidate, options: options, loop: loop))
      } catch {
        guard case .notOurAddress = error else { throw error }
        absent = error
      }
    }
    if listeners.isEmpty { throw absent ?? .notOurAddress("\(address)") }
    return listeners
  }

  private static func prepare(_ descriptor: Int32, _ address: ListenAddress, _ options: Options)
    throws(ListenError)
  {
    if case .unix(let path) = address { return try removeStale(path) }
    // Without it, a restarted server waits up to a minute until the connections of its predecessor are forgotten.
    set(descriptor, SOL_SOCKET, SO_REUSEADDR, 1)
    // Every accepted socket inherits it, but only if it is set before listen(2).
    if let size = options.receiveBufferSize { set(descriptor, SOL_SOCKET, SO_RCVBUF, Int32(clamping: size)) }
    if let size = options.maximumSegmentSize { set(descriptor, Int32(IPPROTO_TCP), TCP_MAXSEG, Int32(clamping: size)) }
    // A client whose machine lost power never reports it, and silence does not prove it. So the kernel probes.
    set(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1)
    set(descriptor, Int32(IPPROTO_TCP), TCP_KEEPIDLE, 60)
    set(descriptor, Int32(IPPROTO_TCP), TCP_KEEPINTVL, 15)
    set(descriptor, Int32(IPPROTO_TCP), TCP_KEEPCNT, 4)
    // Answers are written as a whole, so waiting for more bytes would only delay them.
    set(descriptor, Int32(IPPROTO_TCP), TCP_NODELAY, 1)
  }

  private static func set(_ descriptor: Int32, _ level: Int32, _ option: Int32, _ value: Int32) {
    var value = value
    // A failure of one of these on our TCP socket would not keep it from working.
    setsockopt(descriptor, level, option, &value, socklen_t(MemoryLayout<Int32>.size))
  }

  private struct FileIdentity: Equatable {
    var device: dev_t
    var inode: ino_t
  }

  /// The socket file of an address; nil if there is none.
  private static func identity(at address: ListenAddress) -> FileIdentity? {
    var status = stat()
    guard case .unix(let path) = address, lstat(path, &status) == 0 else { return nil }
    return FileIdentity(device: status.st_dev, inode: status.st_ino)
  }

  /// Removes the socket file, unless somebody has replaced it.
  private func removeFile() {
    guard let file, file == Self.identity(at: address), case .unix(let path) = address else { return }
    unlink(path)
  }

  /// Removes the socket file that a killed server left. It stays if a process listens on it, or if it is not a socket.
  private static func removeStale(_ path: String) throws(ListenError) {
    var status = stat()
    guard lstat(path, &status) == 0 else { return }
    guard status.st_mode & S_IFMT == S_IFSOCK else {
      throw .cannotListen(
        address: "\(ListenAddress.unix(path: path))",
        reason: "a file that is not a socket exists there. Remove it, or choose another path.")
    }
    // Not blocking, because a server that accepts nothing may have a full queue. It still listens there.
    let probe = socket(AF_UNIX, Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue | SOCK_NONBLOCK.rawValue), 0)
    guard probe >= 0 else { return }
    defer { close(probe) }
    guard let target = try SocketAddress.resolve(.unix(path: path)).first else { return }
    if target.withPointer({ connect(probe, $0, $1) }) == -1 && errno == ECONNREFUSED { unlink(path) }
  }

  private static func bind(_ descriptor: Int32, _ target: SocketAddress, _ shown: ListenAddress)
    throws(ListenError)
  {
    let bound = target.withPointer { Glibc.bind(descriptor, $0, $1) }
    if bound == 0 && listen(descriptor, SOMAXCONN) == 0 { return }
    switch errno {
    case EADDRINUSE: throw .portTaken(address: "\(shown)", owner: shown.port.flatMap(PortOwner.find))
    case EADDRNOTAVAIL: throw .notOurAddress("\(shown)")
    case EACCES where shown.port != nil: throw .portNotPermitted("\(shown)")
    default: throw .cannotListen(address: "\(shown)", reason: String(cString: strerror(errno)))
    }
  }

  /// Begins to accept. If the kernel refuses to watch the socket, for example because it has no memory, each pause ends
  /// with another attempt.
  ///
  /// - Throws: the reason of the first refusal.
  func start() throws(SystemError) {
    do throws(SystemError) {
      try watch()
    } catch {
      pause()
      throw error
    }
  }

  private func watch() throws(SystemError) {
    try loop.register(descriptor, .readable) { [unowned self] _ in acceptAll() }
  }

  private func acceptAll() {
    // epoll reports the rest of the queue again in the next turn.
    for _ in 0..<Self.accepting where isOpen && !isPaused {
      var peer = SocketAddress()
      let flags = Int32(SOCK_CLOEXEC.rawValue | SOCK_NONBLOCK.rawValue)
      var connection: Int32 = -1
      connection = peer.withMutablePointer { accept4(descriptor, $0, $1, flags) }
      if connection >= 0 {
        guard take(connection, peer.numeric?.description ?? "unix") else { return pause() }
        continue
      }
      switch errno {
      case EAGAIN: return
      case EMFILE, ENFILE, ENOBUFS, ENOMEM:
        let code = errno
        if makeRoom() { continue }
        // The connection stays in the queue, so epoll would report it again at once, repeatedly.
        exhausted(exhaustion(code))
        return pause()
      // accept(2) reports the errors of a connection that ended before it was accepted.
      default: continue
      }
    }
  }

  /// Passes on a connection if there is a descriptor for it. Otherwise it is turned away, or waits, and this returns
  /// false.
  private func take(_ connection: Int32, _ peer: String) -> Bool {
    if let descriptor = lowered(connection) {
      isShort = false
      accepted(descriptor, peer)
    } else if isShort {
      turnAway(connection)
    } else {
      waiting = (connection, peer)
      exhausted(exhaustion(EMFILE))
      return false
    }
    return true
  }

  /// The descriptor, or a replacement within the limit; nil if there is none.
  private func lowered(_ connection: Int32) -> Int32? {
    let limit = descriptorLimit()
    guard connection >= limit else { return connection }
    // Several attempts, because others also take freed descriptors.
    for _ in 0..<4 {
      let descriptor = fcntl(connection, F_DUPFD_CLOEXEC, 0)
      if (0..<limit).contains(descriptor) {
        close(connection)
        return descriptor
      }
      if descriptor >= 0 { close(descriptor) }
      guard makeRoom() else { break }
    }
    return nil
  }

  /// Sends a refused client the time for a retry.
  private func turnAway(_ connection: Int32) {
    turnedAway()
    let response = Response(503, ["retry-after": "2"], body: "This server has no descriptor left for a connection.\n")
      .serialized(keepsAlive: false, date: WallClock.now.imfFixdate)
    // The buffer of a new connection has space for it.
    _ = response.withUnsafeBytes { send(connection, $0.baseAddress, $0.count, Int32(MSG_NOSIGNAL)) }
    shutdown(connection, Int32(SHUT_WR))
    // Read what has arrived, because otherwise close would send a reset that overtakes the response.
    var buffer = [UInt8](repeating: 0, count: 16 * 1024)
    for _ in 0..<16 where recv(connection, &buffer, buffer.count, 0) <= 0 { break }
    close(connection)
  }

  /// What is lacking, how much of it, and what to do.
  private func exhaustion(_ code: Int32) -> String {
    let reason = String(cString: strerror(code))
    guard code == EMFILE else { return reason }
    // For a listening socket, this is the number of connections waiting to be accepted; tcp(7).
    var information = tcp_info()
    var length = socklen_t(MemoryLayout<tcp_info>.size)
    let isKnown = getsockopt(descriptor, Int32(IPPROTO_TCP), TCP_INFO, &information, &length) == 0
    return reason + DescriptorLimit.remedy(waiting: UInt(isKnown ? max(1, information.tcpi_unacked) : 1))
  }

  private func pause() {
    isPaused = true
    loop.deregister(descriptor)
    pauseTimer = loop.schedule(after: Self.pause) { [unowned self] in
      isShort = true
      resume()
    }
  }

  /// A descriptor is free again, or the pause is over.
  func resume() {
    guard isPaused, isOpen else { return }
    isPaused = false
    if let pauseTimer { loop.cancel(pauseTimer) }
    pauseTimer = nil
    if let (descriptor, peer) = waiting {
      waiting = nil
      guard take(descriptor, peer) else { return pause() }
    }
    do throws(SystemError) { try watch() } catch { pause() }
  }

  /// Stops listening. Accepted connections are unaffected.
  func stop() {
    guard isOpen else { return }
    isOpen = false
    if let pauseTimer { loop.cancel(pauseTimer) }
    if !isPaused { loop.deregister(descriptor) }
    if let waiting { close(waiting.descriptor) }
    waiting = nil
    close(descriptor)
    removeFile()
  }

  /// For a server that was made but never run.
  deinit {
    if isOpen {
      if let waiting { close(waiting.descriptor) }
      close(descriptor)
      removeFile()
    }
  }
}
