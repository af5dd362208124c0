// The path of a request's body into libcurl: its flow, its pauses, and the bytes that the peer has received.

internal import CCurl
internal import EventLoops
internal import Glibc

extension CurlTransfer {
  /// The socket of the request's connection, once that is decided and while it is open.
  var socket: curl_socket_t {
    guard let connection, connection.isOpen else { return CURL_SOCKET_BAD }
    return connection.socket
  }

  // MARK: The connection

  /// libcurl requests a socket. It would report a refusal by this machine like an unreachable server.
  func openSocket(for address: curl_sockaddr) -> curl_socket_t {
    do throws(SystemError) {
      let type = address.socktype | Int32(SOCK_CLOEXEC.rawValue)
      return try retryingInterrupts("cannot open a socket") { Glibc.socket(address.family, type, address.protocol) }
    } catch {
      refusal = error
      return CURL_SOCKET_BAD
    }
  }

  /// libcurl has a new socket to connect. Returns false if it must not.
  func opened(_ socket: curl_socket_t) -> Bool {
    lookedUp()
    endWaitForConnection()
    refusal = nil
    guard mayBeSent() else { return false }
    request.apply(toSocket: socket)
    multi?.connections.opened(socket, by: self)
    return true
  }

  /// libcurl has a connection, and is about to send the request over it. Returns false if it must not.
  func connected(_ ends: ConnectionTable.Ends) -> Bool {
    // Some proxies look up the name only after their connection is established.
    lookedUp()
    endWaitForConnection()
    guard mayBeSent() else { return false }
    (hasBegun, isPaused) = (false, false)
    connection = multi?.connections.use(ends, by: self)
    isConnectionUnknown = connection == nil
    // Now, because the next user of a shared connection may come before libcurl asks for this request's body.
    isFirstOnConnection = connection?.isNew ?? false
    if request.httpVersion == .http2, !request.isSecure, isFirstOnConnection { multi?.awaitsPreface(on: socket) }
    if kind.isWithoutBytes {
      tellConnected()
      task.noteContentEnd()
      perform(machine.bodyEnded())
    } else {
      // libcurl asks for the body only after the head is sent.
      watchForStall()
    }
    return true
  }

  /// When a reused connection ends without a response, libcurl sends the request again on another one. libcurl would
  /// omit body bytes that it still retained, without any notice.
  private func mayBeSent() -> Bool {
    guard acknowledgement.bodyByteCount > 0 else { return true }
    ownFailure = UploadError(.connectionLost, "the reused connection ended within the body")
    return false
  }

  /// libcurl asks to watch a socket for this transfer.
  func libcurl(watches socket: curl_socket_t) {
    guard isConnectionUnknown else { return }
    isConnectionUnknown = false
    connection = multi?.connections.adopt(socket, by: self)
  }

  /// libcurl is about to close the connection.
  func connectionIsClosing() {
    updateAcknowledged()
    connection = nil
  }

  /// The number of bytes that the connection carried up to the body or the response, if it carried nothing else.
  private func bytesCarried() -> UInt64? {
    guard request.hasPlainFraming, let connection, connection.isOpen,
      let written = AcknowledgedBytes.bytesWritten(on: connection.socket)
    else {
      return nil
    }
    if !connection.isTransparent {
      var requestSize = 0
      _ = sluice_getinfo_long(easy, CURLINFO_REQUEST_SIZE, &requestSize)
      // A SOCKS handshake, TLS to a proxy or an unknown earlier request would show in the count of bytes.
      connection.isTransparent = written == requestSize
    }
    return connection.isTransparent ? written : nil
  }

  /// A response begins. A request without content has been sent completely.
  func responseBegins() {
    if kind.isWithoutBytes, connection?.isTransparent == false { _ = bytesCarried() }
  }

  // MARK: The flow

  /// The body has new bytes or its end. Any thread.
  func bodyHasNews() {
    guard loop.isOnThread else { return loop.execute { [self] in bodyHasNews() } }
    resumeLater()
  }

  private func resumeLater() {
    guard isPaused, !resumeIsDue, !machine.isAnswered, !task.isSuspended else { return }
    resumeIsDue = true
    // Not at once, because the writer is on the stack and has more to write.
    loop.atEndOfTurn { [self] in
      resumeIsDue = false
      guard isPaused, !task.isSuspended else { return }
      isPaused = false
      multi?.resume(self)
    }
  }

  /// The task was suspended or resumed, perhaps several times.
  func suspensionChanged() {
    guard !machine.isOver else { return }
    if !task.isSuspended {
      if isStarted { resumeLater() } else { multi?.start(self) }
    } else if hasBegun, !isPaused, machine.state == .sending {
      // Bytes that libcurl took and did not pass on stay there.
      isPaused = true
      multi?.pauseSending(self)
    }
  }

  /// The response's body may be received again.
  func receptionResumes() {
    guard isReceptionHeld, !machine.isOver, !task.isReceptionPaused else { return }
    isReceptionHeld = false
    multi?.resumeReceiving(self)
  }

  /// libcurl asks for body bytes.
  func readBody(into buffer: UnsafeMutableRawBufferPointer) -> Int {
    guard ownFailure == nil else { return Int(CURL_READFUNC_ABORT) }
    if !hasBegun { begin() }
    // libcurl asks for more only when all earlier bytes are on their way.
    let passedOn = acknowledgement.bodyByteCount
    if let told = toldAccepted, passedOn > told {
      toldAccepted = passedOn
      handler(.accepted(passedOn))
    }
    if machine.isAnswered || task.isSuspended { return pause() }
    switch body.fill(buffer, from: acknowledgement.bodyByteCount) {
    case .bytes(let count, let isLast):
      acknowledgement.handedOver(count)
      multi?.handedOverByteCount &+= UInt64(count)
      task.note(sent: acknowledgement.bodyByteCount)
      if stallTimer == nil { watchForStall() }
      // libcurl knows the length, and does not ask again.
      if isLast { bodyEnded() }
      return count
    case .nothingYet:
      acknowledgement.handedOver(0)
      return pause()
    case .end:
      bodyEnded()
      return 0
    case .failed(let reason):
      ownFailure = UploadError(.bodyFailed, reason)
      return Int(CURL_READFUNC_ABORT)
    case .unreadable(let error):
      // A damaged sector stays unreadable.
      let mayPass = error.isTemporary && error.code != EIO
      ownFailure = UploadError(.bodyFailed, error.description, mayPass: mayPass)
      return Int(CURL_READFUNC_ABORT)
    }
  }

  private func pause() -> Int {
    isPaused = true
    return Int(CURL_READFUNC_PAUSE)
  }

  private func bodyEnded() {
    // Only once, because libcurl may ask again on HTTP/2.
    guard machine.state == .sending else { return }
    task.noteContentEnd()
    if kind == .unknownLength { acknowledgement.bodyEnded() }
    perform(machine.bodyEnded())
  }

  /// The head is on its way. Determines the type of the body's connection.
  private func begin() {
    hasBegun = true
    acknowledgement.begin(
      isChunked: kind == .unknownLength, hasPlainFraming: request.hasPlainFraming,
      countsChunks: request.countsChunks, heldByLibcurl: request.mostHeldByteCount, bytesBefore: bytesCarried())
    tellConnected()
  }

  /// Whether no part of the body is in flight.
  var isDelivered: Bool {
    guard hasBegun, isPaused, let connection, connection.isOpen else { return false }
    return AcknowledgedBytes.kernel(of: connection.socket)?.queued == 0
  }

  /// Reads the peer's acknowledgements from the kernel. The socket must still be open.
  func updateAcknowledged() {
    guard hasBegun, let connection, connection.isOpen else { return }
    task.note(acknowledged: acknowledgement.update(socket: connection.socket))
  }
}
