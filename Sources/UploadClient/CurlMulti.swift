// libcurl's multi socket interface on our epoll loop.
//
// libcurl says which sockets it wants watched and when it wants to be called; the loop says what happened. Two things
// are done differently from libcurl's examples, both to save system calls on a stream that sends a little, often: what
// libcurl wants watched is told to epoll only once it has made up its mind (it asks for "writable" and takes it back
// within one message), and a transfer whose source has new bytes is driven by its socket at once instead of by a timer.

internal import CCurl
internal import Digests
internal import EventLoops
internal import Glibc

/// Owned by the loop's thread after `init`; unchecked for that reason.
final class CurlMulti: @unchecked Sendable {
  private static let sendsInARow = 16
  /// Whether several transfers may use one connection at a time.
  let sharesConnections: Bool

  private let loop: EventLoop
  private let handle: UnsafeMutableRawPointer
  private let sockets: SocketTable
  private var changedSockets: [Int32] = []
  /// Whether epoll has refused to watch a socket, and is asked again soon.
  private var retriesWatches = false
  /// Sockets that libcurl has just stopped watching.
  private var unwatchedSockets: [Int32] = []
  var connections = ConnectionTable()
  let lookups: NameLookups
  private(set) var transfers: [UnsafeMutableRawPointer: CurlTransfer] = [:]
  /// Body bytes that libcurl has asked for and got, of all transfers.
  var handedOverByteCount: UInt64 = 0
  /// Connections over which the server's first bytes are still to come, where these tell whether it speaks HTTP/2.
  private var awaitedPrefaces: Set<curl_socket_t> = []
  /// How many there have been at once.
  private var mostTransfers = 0
  /// Set for `deadline`, no later than when libcurl wants to be called; nil when it does not.
  private var timer: EventLoop.Timer?
  private var deadline = MonotonicInstant(nanoseconds: 0)
  private var timerIsDue = false
  private var isInside = false

  /// - Parameters:
  ///   - sockets: of all on this loop.
  ///   - lookups: likewise.
  init(
    loop: EventLoop, sockets: SocketTable, lookups: NameLookups, connections kind: UploadSession.Connections
  ) throws(SystemError) {
    self.loop = loop
    self.sockets = sockets
    self.lookups = lookups
    // The process may end while a connection is encrypted on this thread.
    CryptoLibrary.keepUntilExit()
    guard curl_global_init(Int(CURL_GLOBAL_DEFAULT)) == CURLE_OK, let handle = curl_multi_init() else {
      throw SystemError(operation: "initialising libcurl", code: ENOMEM)
    }
    self.handle = handle
    switch kind {
    case .onePerUpload: _ = sluice_multi_setopt_long(handle, CURLMOPT_PIPELINING, Int(CURLPIPE_NOTHING))
    case .shared(let count):
      _ = sluice_multi_setopt_long(handle, CURLMOPT_PIPELINING, Int(CURLPIPE_MULTIPLEX))
      _ = sluice_multi_setopt_long(handle, CURLMOPT_MAX_CONCURRENT_STREAMS, count)
    }
    sharesConnections = kind != .onePerUpload
    let context = Unmanaged.passUnretained(self).toOpaque()
    // The callbacks get `context` back, which lives as long as the multi handle: `deinit` ends both.
    _ = sluice_multi_setopt_socket(
      handle,
      { easy, socket, what, context, _ in
        Unmanaged<CurlMulti>.fromOpaque(context!)._withUnsafeGuaranteedRef { $0.watch(socket, what, for: easy) }
        return 0
      }, context)
    _ = sluice_multi_setopt_timer(
      handle,
      { _, milliseconds, context in
        Unmanaged<CurlMulti>.fromOpaque(context!)._withUnsafeGuaranteedRef { $0.setTimer(milliseconds) }
        return 0
      }, context)
  }

  deinit { curl_multi_cleanup(handle) }

  // MARK: Transfers

  func start(_ transfer: CurlTransfer) {
    if transfer.task.isSuspended {
      // Until it is resumed, or the session ends.
      transfers[transfer.easy] = transfer
      return transfer.wait(in: self)
    }
    guard transfer.prepare(multi: self) else { return }
    transfers[transfer.easy] = transfer
    keepConnections()
    enter { curl_multi_add_handle(handle, transfer.easy) }
  }

  /// libcurl keeps four connections for every transfer of the moment, and closes the longest idle of the others. When
  /// many requests end in one turn, and each is to be followed by another on the same connection, the moment has few.
  private func keepConnections() {
    guard transfers.count > mostTransfers else { return }
    mostTransfers = transfers.count
    _ = sluice_multi_setopt_long(handle, CURLMOPT_MAXCONNECTS, 4 * mostTransfers)
  }

  /// Takes a transfer out, whatever it was doing. Its connection is closed unless its request was complete.
  func remove(_ transfer: CurlTransfer) {
    guard transfers[transfer.easy] != nil else { return }
    // The connection is closed in here, and what the kernel knows of it is read before: the transfer must still be
    // known.
    enter { curl_multi_remove_handle(handle, transfer.easy) }
    transfers[transfer.easy] = nil
    connections.forget(transfer)
  }

  /// Lets a paused transfer, one that was started and is not over, ask its body for bytes again.
  func resume(_ transfer: CurlTransfer) {
    if sharesConnections { return resumeAlone(transfer) }
    enter {
      curl_easy_pause(transfer.easy, CURLPAUSE_CONT)
      // Told that the socket is writable, libcurl sends right away; if it is not, `send` says so and epoll watches it.
      // And again, until it finds nothing to send and pauses: or epoll would be told to watch for "writable" and to
      // leave it again for every message. Bounded, for the sake of the other transfers.
      for _ in 0..<Self.sendsInARow where transfer.socket != CURL_SOCKET_BAD {
        let sent = transfer.task.sentByteCount
        var running: Int32 = 0
        curl_multi_socket_action(handle, transfer.socket, CURL_CSELECT_OUT, &running)
        if transfer.isPaused || transfer.task.sentByteCount == sent { break }
      }
    }
  }

  /// On a connection that others use. An event of the socket would make libcurl look at every one of them, for each
  /// message; a transfer whose pause ends is looked at alone. It pauses again by itself when it finds nothing to send.
  private func resumeAlone(_ transfer: CurlTransfer) {
    let sentBefore = transfer.task.sentByteCount
    enter {
      curl_easy_pause(transfer.easy, CURLPAUSE_CONT)
      for _ in 0..<Self.sendsInARow {
        let sent = transfer.task.sentByteCount
        runDueTimers()
        if transfer.isPaused || transfer.task.sentByteCount == sent { break }
        // Only who was paused is looked at again.
        curl_easy_pause(transfer.easy, CURLPAUSE_SEND)
        curl_easy_pause(transfer.easy, CURLPAUSE_CONT)
      }
    }
    // What the socket did not take has to be known to be writable.
    if transfer.socket != CURL_SOCKET_BAD, transfer.task.sentByteCount > sentBefore { release(transfer.socket) }
  }

  /// Keeps a transfer from sending what libcurl has of its body; it goes on to receive.
  func pauseSending(_ transfer: CurlTransfer) {
    guard transfers[transfer.easy] != nil else { return }
    enter { curl_easy_pause(transfer.easy, CURLPAUSE_SEND) }
  }

  /// Lets a transfer that keeps a piece of its response pass that on, and read on.
  func resumeReceiving(_ transfer: CurlTransfer) {
    guard transfers[transfer.easy] != nil else { return }
    enter { curl_easy_pause(transfer.easy, transfer.isPaused ? CURLPAUSE_SEND : CURLPAUSE_CONT) }
  }

  /// libcurl closes a socket through here.
  func close(socket: curl_socket_t) -> Int32 {
    awaitedPrefaces.remove(socket)
    if let connection = connections.close(socket) {
      if let transfer = connection.user, transfer.connection === connection { transfer.connectionIsClosing() }
      connection.isClosed()
    }
    return Glibc.close(socket)
  }

  func close() {
    for transfer in transfers.values { transfer.cancel() }
  }

  // MARK: Into libcurl and out again

  /// Every call that may make libcurl call back goes through here.
  private func enter(_ body: () -> Void) {
    precondition(!isInside, "callbacks of libcurl may not call into it again: use the end of the turn")
    isInside = true
    body()
    runDueTimers()
    isInside = false
    updateWatches()
    takeMessages()
    // Nobody else would tell of an end that libcurl has read in passing, after epoll was asked.
    while let socket = unwatchedSockets.popLast() { noticeEnd(of: socket) }
  }

  private func runDueTimers() {
    var running: Int32 = 0
    while timerIsDue {
      timerIsDue = false
      curl_multi_socket_action(handle, CURL_SOCKET_TIMEOUT, 0, &running)
    }
  }

  private func takeMessages() {
    var left: Int32 = 0
    while let message = curl_multi_info_read(handle, &left) {
      guard message.pointee.msg == CURLMSG_DONE, let easy = message.pointee.easy_handle, let transfer = transfers[easy]
      else { continue }
      transfer.ended(sluice_message_result(message))
    }
  }

  private func watch(_ socket: curl_socket_t, _ what: Int32, for easy: UnsafeMutableRawPointer?) {
    if what != CURL_POLL_REMOVE, let context = sluice_getinfo_private(easy) {
      CurlTransfer.with(context) { $0.libcurl(watches: socket) }
    }
    var wanted: EventLoop.Interest = []
    if what == CURL_POLL_IN || what == CURL_POLL_INOUT { wanted.formUnion([.readable, .peerClosing]) }
    if what == CURL_POLL_OUT || what == CURL_POLL_INOUT { wanted.insert(.writable) }
    if what == CURL_POLL_REMOVE {
      // At once: libcurl closes the socket next, and its number may come back within this call.
      unwatchedSockets.append(socket)
      if sockets[socket]?.watched != nil { loop.deregister(socket) }
      sockets[socket] = nil
      return
    }
    sockets[socket] = SocketTable.Entry(wanted: wanted, watched: sockets[socket]?.watched)
    changedSockets.append(socket)
  }

  private func updateWatches() {
    var refused: [Int32] = []
    for descriptor in changedSockets {
      guard let socket = sockets[descriptor], socket.effective != socket.watched else { continue }
      do {
        if socket.watched == nil {
          try loop.register(descriptor, socket.effective) { [unowned self] in serve(descriptor, $0) }
        } else {
          try loop.modify(descriptor, socket.effective)
        }
        sockets[descriptor]?.watched = socket.effective
      } catch {
        // ENOMEM or ENOSPC (epoll_ctl(2)). Nothing else would wake the transfer.
        refused.append(descriptor)
      }
    }
    changedSockets.removeAll(keepingCapacity: true)
    guard !refused.isEmpty else { return }
    changedSockets += refused
    guard !retriesWatches else { return }
    retriesWatches = true
    loop.schedule(after: Self.watchRetryDelay) { [weak self] in
      self?.retriesWatches = false
      self?.updateWatches()
    }
  }

  private static let watchRetryDelay = Duration.milliseconds(100)

  private func serve(_ socket: Int32, _ readiness: EventLoop.Readiness) {
    var flags: Int32 = 0
    if readiness.contains(.readable) || readiness.contains(.hangUp) { flags |= CURL_CSELECT_IN }
    if readiness.contains(.writable) { flags |= CURL_CSELECT_OUT }
    if readiness.contains(.error) { flags |= CURL_CSELECT_ERR }
    if !awaitedPrefaces.isEmpty, readiness.contains(.readable), awaitedPrefaces.remove(socket) != nil {
      look(atPrefaceOn: socket)
    }
    let handedOverBefore = handedOverByteCount
    enter {
      var running: Int32 = 0
      curl_multi_socket_action(handle, socket, flags, &running)
    }
    if sharesConnections {
      if flags == CURL_CSELECT_OUT, handedOverByteCount == handedOverBefore {
        restrain(socket)
      } else {
        release(socket)
      }
    }
    if !readiness.isDisjoint(with: [.peerClosing, .hangUp]) { noticeEnd(of: socket) }
  }

  /// libcurl 7.88 wants to know all the time that a connection is writable while flow control holds one of its streams
  /// up and others rest, and writes nothing. What it waits for is readable; the timer is for what nobody has thought
  /// of.
  private func restrain(_ socket: curl_socket_t) {
    sockets[socket]?.idleWrites += 1
    guard let state = sockets[socket], !state.isRestrained, state.idleWrites >= Self.idleWritesAllowed
    else { return }
    sockets[socket]?.isRestrained = true
    changedSockets.append(socket)
    updateWatches()
    loop.schedule(after: Self.restraint) { [weak self] in self?.release(socket) }
  }

  private func release(_ socket: curl_socket_t) {
    guard let state = sockets[socket], state.idleWrites > 0 else { return }
    sockets[socket]?.idleWrites = 0
    guard state.isRestrained else { return }
    sockets[socket]?.isRestrained = false
    changedSockets.append(socket)
    updateWatches()
  }

  private static let idleWritesAllowed = 3
  private static let restraint = Duration.milliseconds(100)

  /// libcurl reads the end of a connection and, while the body is paused, makes nothing of it: it waits until it can
  /// send again. So it is looked for here.
  private func noticeEnd(of socket: curl_socket_t) {
    guard let connection = connections[socket] else { return }
    var byte: UInt8 = 0
    // Nobody tells of it once more.
    let count = try? retryingInterrupts("recv") { recv(socket, &byte, 1, Int32(MSG_PEEK) | Int32(MSG_DONTWAIT)) }
    guard count == 0 else { return }
    for transfer in users(of: connection) where transfer.socket == socket { transfer.peerEndedConnection() }
  }

  /// What comes first over this new connection tells whether the server speaks HTTP/2.
  func awaitsPreface(on socket: curl_socket_t) { awaitedPrefaces.insert(socket) }

  /// With each message libcurl asks to be called at once, and then again at the next time limit of a request, seconds
  /// away. A timer that is set for an earlier one stays: called too early, libcurl says when it is to be called again.
  private func setTimer(_ milliseconds: Int) {
    timerIsDue = milliseconds == 0
    guard milliseconds != 0 else {
      if !isInside { loop.atEndOfTurn { [self] in enter {} } }
      return
    }
    let wanted = milliseconds < 0 ? nil : MonotonicInstant.now + .milliseconds(milliseconds)
    if let timer {
      if let wanted, deadline <= wanted { return }
      loop.cancel(timer)
    }
    timer = nil
    guard let wanted else { return }
    deadline = wanted
    timer = loop.schedule(at: wanted) { [weak self] in
      guard let self else { return }
      timer = nil
      timerIsDue = true
      enter {}
    }
  }
}
