// A request's body on its way into libcurl: when it flows, when it rests, and how much of it the peer has.

internal import CCurl
internal import EventLoops

extension CurlTransfer {
  /// The socket of the request's connection, once that is decided and while it is open.
  var socket: curl_socket_t {
    guard let connection, connection.isOpen else { return CURL_SOCKET_BAD }
    return connection.socket
  }

  // MARK: The connection

  /// libcurl has a new socket, which it is about to connect; false if it must not.
  func opened(_ socket: curl_socket_t) -> Bool {
    lookedUp()
    guard mayBeSent() else { return false }
    request.apply(toSocket: socket)
    multi?.connections.opened(socket, by: self)
    return true
  }

  /// libcurl has a connection and is about to send the request over it; false if it must not.
  func connected(_ ends: ConnectionTable.Ends) -> Bool {
    // Behind some proxies the name is looked up only when their connection stands.
    lookedUp()
    guard mayBeSent() else { return false }
    (hasBegun, isPaused) = (false, false)
    connection = multi?.connections.use(ends, by: self)
    isConnectionUnknown = connection == nil
    // Now: where several share it, the next one may come before this one's body is asked for.
    isFirstOnConnection = connection?.isNew ?? false
    if request.httpVersion == .http2, !request.isSecure, isFirstOnConnection { multi?.awaitsPreface(on: socket) }
    if kind.isWithoutBytes {
      tellConnected()
      task.noteContentEnd()
      perform(machine.bodyEnded())
    } else {
      // libcurl asks for the body only when the head has gone.
      watchForStall()
    }
    return true
  }

  /// When a connection that was used before ends without a response, libcurl sends the request once more on another
  /// one. Of a body it counts only what it has passed on itself: bytes that it still held would be left out, and nobody
  /// would know.
  private func mayBeSent() -> Bool {
    guard acknowledgement.bodyByteCount > 0 else { return true }
    ownFailure = UploadError(.connectionLost, "the connection, which had carried a request before, ended in the body")
    return false
  }

  /// libcurl wants a socket watched for this transfer.
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

  /// All bytes that the connection has carried up to the body or the response, if it has carried nothing else.
  private func bytesCarried() -> UInt64? {
    guard request.hasPlainFraming, let connection, connection.isOpen,
      let written = AcknowledgedBytes.bytesWritten(on: connection.socket)
    else {
      return nil
    }
    if !connection.isTransparent {
      var requestSize = 0
      _ = sluice_getinfo_long(easy, CURLINFO_REQUEST_SIZE, &requestSize)
      // A SOCKS handshake, TLS to a proxy, a request of which this is not known: each shows in the count of bytes so
      // far.
      connection.isTransparent = written == requestSize
    }
    return connection.isTransparent ? written : nil
  }

  /// A response begins: a request without content is on the wire as a whole.
  func responseBegins() {
    if kind.isWithoutBytes, connection?.isTransparent == false { _ = bytesCarried() }
  }

  // MARK: The flow

  /// The body has something to tell; on any thread.
  func bodyHasNews() {
    guard loop.isOnThread else { return loop.execute { [self] in bodyHasNews() } }
    resumeLater()
  }

  private func resumeLater() {
    guard isPaused, !resumeIsDue, !machine.isAnswered, !task.isSuspended else { return }
    resumeIsDue = true
    // Not at once: the writer is on the stack and has more to write.
    loop.atEndOfTurn { [self] in
      resumeIsDue = false
      guard isPaused, !task.isSuspended else { return }
      isPaused = false
      multi?.resume(self)
    }
  }

  /// The task was suspended or resumed, perhaps several times since.
  func suspensionChanged() {
    guard !machine.isOver else { return }
    if !task.isSuspended {
      if isStarted { resumeLater() } else { multi?.start(self) }
    } else if hasBegun, !isPaused, machine.state == .sending {
      // What libcurl has taken and not passed on stays where it is.
      isPaused = true
      multi?.pauseSending(self)
    }
  }

  /// The response's body may come again.
  func receptionResumes() {
    guard isReceptionHeld, !machine.isOver, !task.isReceptionPaused else { return }
    isReceptionHeld = false
    multi?.resumeReceiving(self)
  }

  /// libcurl wants body bytes.
  func readBody(into buffer: UnsafeMutableRawBufferPointer) -> Int {
    guard ownFailure == nil else { return Int(CURL_READFUNC_ABORT) }
    if !hasBegun { begin() }
    // libcurl asks for more only when all that it was given before is on its way.
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
      // libcurl knows by the length, and does not ask again.
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
    }
  }

  private func pause() -> Int {
    isPaused = true
    return Int(CURL_READFUNC_PAUSE)
  }

  private func bodyEnded() {
    // Once: libcurl may ask again, on HTTP/2.
    guard machine.state == .sending else { return }
    task.noteContentEnd()
    if kind == .unknownLength { acknowledgement.bodyEnded() }
    perform(machine.bodyEnded())
  }

  /// The head is on its way: learn what the body's connection is.
  private func begin() {
    hasBegun = true
    acknowledgement.begin(
      isChunked: kind == .unknownLength, hasPlainFraming: request.hasPlainFraming,
      countsChunks: request.countsChunks, heldByLibcurl: request.mostHeldByteCount, bytesBefore: bytesCarried())
    tellConnected()
  }

  /// Whether nothing of the body is under way.
  var isDelivered: Bool {
    guard hasBegun, isPaused, let connection, connection.isOpen else { return false }
    return AcknowledgedBytes.kernel(of: connection.socket)?.queued == 0
  }

  /// Reads from the kernel how far the peer has acknowledged. The socket must still be open.
  func updateAcknowledged() {
    guard hasBegun, let connection, connection.isOpen else { return }
    task.note(acknowledged: acknowledgement.update(socket: connection.socket))
  }
}
