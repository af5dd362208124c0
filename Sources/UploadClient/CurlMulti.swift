// libcurl's multi socket interface on our epoll loop.
//
// libcurl says which sockets it wants watched and when it wants to be called; the loop says what happened. Two things are
// done differently from libcurl's examples, both to save system calls on a stream that sends a little, often:
// what libcurl wants watched is told to epoll only once it has made up its mind (it asks for "writable" and takes it back
// within one message), and a transfer whose source has new bytes is driven by its socket at once instead of by a timer.

internal import CCurl
internal import EventLoops
internal import Glibc

/// Owned by the loop's thread after `init`; unchecked for that reason.
final class CurlMulti: @unchecked Sendable {
  private struct Socket {
    var wanted: EventLoop.Interest
    /// What epoll was last told; nil before the first time.
    var watched: EventLoop.Interest?
  }

  private static let sendsInARow = 16
  /// Whether several transfers may use one connection at a time.
  let sharesConnections: Bool

  private let loop: EventLoop
  private let handle: UnsafeMutableRawPointer
  /// By descriptor, which are small numbers: libcurl asks several times for each message.
  private var sockets: [Socket?] = []
  private var changedSockets: [Int32] = []
  /// Sockets that libcurl has just stopped watching.
  private var unwatchedSockets: [Int32] = []
  var connections = ConnectionTable()
  private var transfers: [UnsafeMutableRawPointer: CurlTransfer] = [:]
  /// How many there have been at once.
  private var mostTransfers = 0
  /// Set for `deadline`, no later than when libcurl wants to be called; nil when it does not.
  private var timer: EventLoop.Timer?
  private var deadline = MonotonicInstant(nanoseconds: 0)
  private var timerIsDue = false
  private var isInside = false

  init(loop: EventLoop, connections kind: UploadSession.Connections) throws(SystemError) {
    self.loop = loop
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

  /// libcurl keeps four connections for every transfer of the moment, and closes the longest idle of the others. When many
  /// requests end in one turn, and each is to be followed by another on the same connection, the moment has few.
  private func keepConnections() {
    guard transfers.count > mostTransfers else { return }
    mostTransfers = transfers.count
    _ = sluice_multi_setopt_long(handle, CURLMOPT_MAXCONNECTS, 4 * mostTransfers)
  }

  /// Takes a transfer out, whatever it was doing. Its connection is closed unless its request was complete.
  func remove(_ transfer: CurlTransfer) {
    guard transfers[transfer.easy] != nil else { return }
    // The connection is closed in here, and what the kernel knows of it is read before: the transfer must still be known.
    enter { curl_multi_remove_handle(handle, transfer.easy) }
    transfers[transfer.easy] = nil
    connections.forget(transfer)
  }

  /// Lets a paused transfer, one that was started and is not over, ask its body for bytes again.
  func resume(_ transfer: CurlTransfer) {
    enter {
      curl_easy_pause(transfer.easy, CURLPAUSE_CONT)
      // Told that the socket is writable, libcurl sends right away; if it is not, `send` says so and epoll watches it.
      // And again, until it finds nothing to send and pauses: or epoll would be told to watch for "writable" and to leave
      // it again for every message. Bounded, for the sake of the other transfers.
      for _ in 0..<Self.sendsInARow where transfer.socket != CURL_SOCKET_BAD {
        let sent = transfer.task.sentByteCount
        var running: Int32 = 0
        curl_multi_socket_action(handle, transfer.socket, CURL_CSELECT_OUT, &running)
        if transfer.isPaused || transfer.task.sentByteCount == sent { break }
      }
    }
  }

  /// Keeps a transfer from sending what libcurl has of its body; it goes on to receive.
  func pauseSending(_ transfer: CurlTransfer) {
    guard transfers[transfer.easy] != nil else { return }
    enter { curl_easy_pause(transfer.easy, CURLPAUSE_SEND) }
  }

  /// libcurl closes a socket through here.
  func close(socket: curl_socket_t) -> Int32 {
    if let connection = connections.close(socket), let transfer = connection.user, transfer.connection === connection {
      transfer.connectionIsClosing()
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
    var running: Int32 = 0
    while timerIsDue {
      timerIsDue = false
      curl_multi_socket_action(handle, CURL_SOCKET_TIMEOUT, 0, &running)
    }
    isInside = false
    updateWatches()
    takeMessages()
    // Nobody else would tell of an end that libcurl has read in passing, after epoll was asked.
    while let socket = unwatchedSockets.popLast() { noticeEnd(of: socket) }
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
      guard sockets.indices.contains(Int(socket)) else { return }
      if sockets[Int(socket)]?.watched != nil { loop.deregister(socket) }
      sockets[Int(socket)] = nil
      return
    }
    while sockets.count <= Int(socket) { sockets.append(nil) }
    sockets[Int(socket)] = Socket(wanted: wanted, watched: sockets[Int(socket)]?.watched)
    changedSockets.append(socket)
  }

  private func updateWatches() {
    for descriptor in changedSockets {
      guard let socket = sockets[Int(descriptor)], socket.wanted != socket.watched else { continue }
      do {
        if socket.watched == nil {
          try loop.register(descriptor, socket.wanted) { [unowned self] in serve(descriptor, $0) }
        } else {
          try loop.modify(descriptor, socket.wanted)
        }
        sockets[Int(descriptor)]?.watched = socket.wanted
      } catch {
        // Without a watch the transfer would hang: let libcurl find out by the socket itself.
        timerIsDue = true
      }
    }
    changedSockets.removeAll(keepingCapacity: true)
  }

  private func serve(_ socket: Int32, _ readiness: EventLoop.Readiness) {
    var flags: Int32 = 0
    if readiness.contains(.readable) || readiness.contains(.hangUp) { flags |= CURL_CSELECT_IN }
    if readiness.contains(.writable) { flags |= CURL_CSELECT_OUT }
    if readiness.contains(.error) { flags |= CURL_CSELECT_ERR }
    enter {
      var running: Int32 = 0
      curl_multi_socket_action(handle, socket, flags, &running)
    }
    if !readiness.isDisjoint(with: [.peerClosing, .hangUp]) { noticeEnd(of: socket) }
  }

  /// libcurl reads the end of a connection and, while the body is paused, makes nothing of it: it waits until it can send
  /// again. So it is looked for here.
  private func noticeEnd(of socket: curl_socket_t) {
    guard let transfer = connections[socket]?.user, transfer.socket == socket else { return }
    var byte: UInt8 = 0
    if recv(socket, &byte, 1, Int32(MSG_PEEK) | Int32(MSG_DONTWAIT)) == 0 { transfer.peerEndedConnection() }
  }

  /// With each message libcurl asks to be called at once, and then again at the next time limit of a request, seconds away. A timer
  /// that is set for an earlier one stays: called too early, libcurl says when it is to be called again.
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
    timer = loop.schedule(at: wanted) { [unowned self] in
      timer = nil
      timerIsDue = true
      enter {}
    }
  }
}
