// libcurl's multi socket interface on our epoll loop.
//
// libcurl names the sockets to watch and the time of its next call, and the loop reports events. Two things differ from
// libcurl's examples. Both save system calls on a stream that often sends a little. First, epoll learns of a watch only
// when libcurl has decided, because libcurl asks for "writable" and withdraws it within one message. Second, a transfer
// whose source has new bytes is driven by its socket at once instead of by a timer.

internal import CCurl
internal import Digests
internal import EventLoops
internal import Glibc

/// Owned by the loop's thread after `init`; unchecked for that reason.
final class CurlMulti: @unchecked Sendable {
  private static let sendsInARow = 16
  /// Whether several transfers may use one connection at the same time.
  let sharesConnections: Bool

  private let loop: EventLoop
  private let handle: UnsafeMutableRawPointer
  private let sockets: SocketTable
  private var changedSockets: [Int32] = []
  /// Whether epoll has refused to watch a socket, and is asked again soon.
  private var retriesWatches = false
  /// Sockets that libcurl has just stopped reading.
  private var unreadSockets: [Int32] = []
  var connections = ConnectionTable()
  let lookups: NameLookups
  private(set) var transfers: [UnsafeMutableRawPointer: CurlTransfer] = [:]
  /// The number of body bytes that were passed to libcurl, for all transfers.
  var handedOverByteCount: UInt64 = 0
  /// Connections whose first bytes from the server are awaited, because they show whether the server supports HTTP/2.
  private var awaitedPrefaces: Set<curl_socket_t> = []
  /// The highest number of simultaneous transfers.
  private var mostTransfers = 0
  /// Set for `deadline`, no later than libcurl's next call. Nil without one.
  private var timer: EventLoop.Timer?
  private var deadline = MonotonicInstant(nanoseconds: 0)
  private var timerIsDue = false
  private var isInside = false

  /// - Parameters:
  ///   - sockets: all sockets on this loop.
  ///   - lookups: all name lookups on this loop.
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

  /// libcurl keeps four connections for each current transfer, and closes the others, beginning with the longest idle.
  /// When many requests end in one turn, and each is followed by another on the same connection, few transfers are
  /// current.
  private func keepConnections() {
    guard transfers.count > mostTransfers else { return }
    mostTransfers = transfers.count
    _ = sluice_multi_setopt_long(handle, CURLMOPT_MAXCONNECTS, 4 * mostTransfers)
  }

  /// Removes a transfer in any state. Its connection is closed unless its request was complete.
  func remove(_ transfer: CurlTransfer) {
    guard transfers[transfer.easy] != nil else { return }
    // The connection is closed in this call, and the kernel's counts are read before that, so the transfer must still
    // be known.
    enter { curl_multi_remove_handle(handle, transfer.easy) }
    transfers[transfer.easy] = nil
    connections.forget(transfer)
  }

  /// Resumes a paused transfer that was started and is not over. It asks its body for bytes again.
  func resume(_ transfer: CurlTransfer) {
    if sharesConnections { return resumeAlone(transfer) }
    enter {
      curl_easy_pause(transfer.easy, CURLPAUSE_CONT)
      // When the socket is reported as writable, libcurl sends at once. If the socket is not writable, `send` fails and
      // epoll watches it. This is repeated until nothing is left to send and libcurl pauses. Otherwise, each message
      // would start and stop a watch for "writable". The loop is bounded in favour of the other transfers.
      for _ in 0..<Self.sendsInARow where transfer.socket != CURL_SOCKET_BAD {
        let sent = transfer.task.sentByteCount
        var running: Int32 = 0
        curl_multi_socket_action(handle, transfer.socket, CURL_CSELECT_OUT, &running)
        if transfer.isPaused || transfer.task.sentByteCount == sent { break }
      }
    }
  }

  /// For a shared connection. An event of the socket would make libcurl check all its transfers for each message,
  /// whereas the end of a pause affects one transfer. It pauses again by itself when nothing is left to send.
  private func resumeAlone(_ transfer: CurlTransfer) {
    let sentBefore = transfer.task.sentByteCount
    enter {
      curl_easy_pause(transfer.easy, CURLPAUSE_CONT)
      for _ in 0..<Self.sendsInARow {
        let sent = transfer.task.sentByteCount
        runDueTimers()
        if transfer.isPaused || transfer.task.sentByteCount == sent { break }
        // Only paused transfers are checked again.
        curl_easy_pause(transfer.easy, CURLPAUSE_SEND)
        curl_easy_pause(transfer.easy, CURLPAUSE_CONT)
      }
    }
    // The transfer must be woken when the socket accepts the rest.
    if transfer.socket != CURL_SOCKET_BAD, transfer.task.sentByteCount > sentBefore { release(transfer.socket) }
  }

  /// Stops a transfer from sending body bytes that libcurl has. It continues to receive.
  func pauseSending(_ transfer: CurlTransfer) {
    guard transfers[transfer.easy] != nil else { return }
    enter { curl_easy_pause(transfer.easy, CURLPAUSE_SEND) }
  }

  /// Lets a transfer pass on a retained piece of its response, and continue to read.
  func resumeReceiving(_ transfer: CurlTransfer) {
    guard transfers[transfer.easy] != nil else { return }
    enter { curl_easy_pause(transfer.easy, transfer.isPaused ? CURLPAUSE_SEND : CURLPAUSE_CONT) }
  }

  /// libcurl closes a socket through this function.
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

  // MARK: Calls into libcurl

  /// All calls with which libcurl may call back go through this function.
  private func enter(_ body: () -> Void) {
    precondition(!isInside, "callbacks of libcurl must not call libcurl. Use the end of the turn")
    isInside = true
    body()
    runDueTimers()
    isInside = false
    updateWatches()
    takeMessages()
    // No other event would report an end that libcurl read incidentally, after epoll was asked.
    while let socket = unreadSockets.popLast() { noticeEnd(of: socket) }
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
    if !wanted.contains(.readable), what == CURL_POLL_REMOVE || sockets[socket]?.wanted.contains(.readable) == true {
      unreadSockets.append(socket)
    }
    if what == CURL_POLL_REMOVE {
      // At once, because libcurl closes the socket next, and its number may be reused within this call.
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
        // ENOMEM or ENOSPC (epoll_ctl(2)). No other event would wake the transfer.
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
      if flags == CURL_CSELECT_OUT, !sharesConnections { keepSending(over: socket, since: handedOverBefore) }
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

  /// libcurl sends one buffer per event. As long as the socket accepts more, asking epoll in between would only cost
  /// time.
  private func keepSending(over socket: curl_socket_t, since start: UInt64) {
    var handedOver = start
    for _ in 1..<Self.sendsInARow where handedOverByteCount > handedOver {
      handedOver = handedOverByteCount
      var running: Int32 = 0
      curl_multi_socket_action(handle, socket, CURL_CSELECT_OUT, &running)
    }
  }

  /// libcurl 7.88 requests writability events continuously while flow control blocks one of a connection's streams and
  /// others rest, and writes nothing. The event that it waits for is readability. The timer is for unforeseen cases.
  func restrain(_ socket: curl_socket_t) {
    sockets[socket]?.idleWrites += 1
    guard let state = sockets[socket], !state.isRestrained, state.idleWrites >= Self.idleWritesAllowed
    else { return }
    sockets[socket]?.isRestrained = true
    changedSockets.append(socket)
    updateWatches()
    loop.schedule(after: Self.restraint) { [weak self] in self?.release(socket) }
  }

  func release(_ socket: curl_socket_t) {
    guard let state = sockets[socket], state.idleWrites > 0 else { return }
    sockets[socket]?.idleWrites = 0
    guard state.isRestrained else { return }
    sockets[socket]?.isRestrained = false
    changedSockets.append(socket)
    updateWatches()
  }

  private static let idleWritesAllowed = 3
  private static let restraint = Duration.milliseconds(100)

  /// libcurl reads the end of a connection and ignores it within the body, until it cannot send any more. So the end is
  /// detected here.
  private func noticeEnd(of socket: curl_socket_t) {
    guard let connection = connections[socket] else { return }
    var byte: UInt8 = 0
    // No other event reports it again.
    let count = try? retryingInterrupts("recv") { recv(socket, &byte, 1, Int32(MSG_PEEK) | Int32(MSG_DONTWAIT)) }
    guard count == 0 else { return }
    for transfer in users(of: connection) where transfer.socket == socket { transfer.peerEndedConnection() }
  }

  /// The first bytes over this new connection show whether the server supports HTTP/2.
  func awaitsPreface(on socket: curl_socket_t) { awaitedPrefaces.insert(socket) }

  /// With each message, libcurl asks for an immediate call, and then for one at the next time limit of a request,
  /// seconds later. A timer for an earlier time stays. If libcurl is called too early, it states its next time again.
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
