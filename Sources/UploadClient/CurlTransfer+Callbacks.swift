// The callbacks that libcurl calls while it serves a request.

internal import CCurl
internal import EventLoops

extension CurlTransfer {
  /// libcurl's callbacks receive this transfer as their context. It outlives its easy handle, which `deinit` ends.
  func installCallbacks(_ errorBuffer: UnsafeMutablePointer<CChar>) {
    let context = Unmanaged.passUnretained(self).toOpaque()
    _ = sluice_setopt_pointer(easy, CURLOPT_PRIVATE, context)
    _ = sluice_setopt_pointer(easy, CURLOPT_ERRORBUFFER, errorBuffer)
    _ = sluice_setopt_transfer(easy, CURLOPT_READFUNCTION) { buffer, size, count, context in
      let free = UnsafeMutableRawBufferPointer(start: buffer, count: size * count)
      return CurlTransfer.with(context) { $0.readBody(into: free) }
    }
    _ = sluice_setopt_pointer(easy, CURLOPT_READDATA, context)
    _ = sluice_setopt_transfer(easy, CURLOPT_HEADERFUNCTION) { bytes, size, count, context in
      let line = UnsafeRawBufferPointer(start: bytes, count: size * count)
      return CurlTransfer.with(context) { transfer in
        // Data for an interrupted request is not a response to it.
        guard transfer.ownFailure == nil else { return 0 }
        transfer.received(headerLine: line)
        return line.count
      }
    }
    _ = sluice_setopt_pointer(easy, CURLOPT_HEADERDATA, context)
    _ = sluice_setopt_transfer(easy, CURLOPT_WRITEFUNCTION) { bytes, size, count, context in
      let piece = UnsafeRawBufferPointer(start: bytes, count: size * count)
      return CurlTransfer.with(context) { transfer in
        // libcurl keeps the piece, and passes it on later.
        if transfer.task.isReceptionPaused {
          transfer.isReceptionHeld = true
          return Int(CURL_WRITEFUNC_PAUSE)
        }
        transfer.received(body: piece)
        // libcurl reads as long as there is data. With a peer that sends faster than libcurl reads, the turn would
        // never end.
        return transfer.isEndingEarly ? Int(CURL_WRITEFUNC_ERROR) : piece.count
      }
    }
    _ = sluice_setopt_pointer(easy, CURLOPT_WRITEDATA, context)
    installConnectionCallbacks(context)
    watchHTTPVersion(context)
  }

  private func installConnectionCallbacks(_ context: UnsafeMutableRawPointer) {
    _ = sluice_setopt_opensocket(easy) { context, _, address in
      // libcurl always passes the address.
      CurlTransfer.with(context) { $0.openSocket(for: address!.pointee) }
    }
    _ = sluice_setopt_pointer(easy, CURLOPT_OPENSOCKETDATA, context)
    _ = sluice_setopt_sockopt(easy) { context, socket, _ in
      CurlTransfer.with(context) { $0.opened(socket) } ? CURL_SOCKOPT_OK : CURL_SOCKOPT_ERROR
    }
    _ = sluice_setopt_pointer(easy, CURLOPT_SOCKOPTDATA, context)
    _ = sluice_setopt_resolverstart(easy) { _, _, context in
      CurlTransfer.with(context) { $0.mayLookUp() } ? 0 : 1
    }
    _ = sluice_setopt_pointer(easy, CURLOPT_RESOLVER_START_DATA, context)
    _ = sluice_setopt_prereq(easy) { context, remote, local, remotePort, localPort in
      let ends = ConnectionTable.Ends(
        local: local.map { String(cString: $0) } ?? "", localPort: localPort,
        remote: remote.map { String(cString: $0) } ?? "", remotePort: remotePort)
      return CurlTransfer.with(context) { $0.connected(ends) } ? CURL_PREREQFUNC_OK : CURL_PREREQFUNC_ABORT
    }
    _ = sluice_setopt_pointer(easy, CURLOPT_PREREQDATA, context)
    // A connection may outlive this transfer in libcurl's pool. Its closing is reported to the owner of the multi
    // handle.
    _ = sluice_setopt_closesocket(easy) { context, socket in
      Unmanaged<CurlMulti>.fromOpaque(context!).takeUnretainedValue().close(socket: socket)
    }
    if let multi {
      _ = sluice_setopt_pointer(easy, CURLOPT_CLOSESOCKETDATA, Unmanaged.passUnretained(multi).toOpaque())
    }
  }

  /// The transfer of a callback. It is not retained, because there are ten callbacks per message. The owner of its
  /// multi handle keeps it while libcurl is on the stack.
  static func with<Result>(_ context: UnsafeMutableRawPointer?, _ body: (CurlTransfer) -> Result) -> Result {
    // Never nil, because `installCallbacks` set it.
    Unmanaged<CurlTransfer>.fromOpaque(context!)._withUnsafeGuaranteedRef(body)
  }

  private func received(headerLine bytes: UnsafeRawBufferPointer) {
    task.note(responseHeaderBytes: bytes.count)
    guard let complete = head.take(line: bytes) else { return }
    responseBegins()
    // This closes the connection when its last request is over. If others still use it (HTTP/2), libcurl ignores this
    // option, and the connection stays for them and for later requests.
    if !mayKeepConnection(after: complete) { _ = sluice_setopt_long(easy, CURLOPT_FORBID_REUSE, 1) }
    if !complete.isInterim, clock?.response == nil { clock?.response = .now }
    if request.tellsResponse, !complete.isInterim, !machine.isAnswered { handler(.response(complete)) }
    perform(machine.received(head: complete))
  }

  private func mayKeepConnection(after response: HTTPResponse) -> Bool {
    guard request.keepsConnection(after: response, sendsContent: !kind.isWithoutBytes) else { return false }
    return response.isInterim || machine.isAnswered || keepsConnection?(response) ?? true
  }

  private func received(body piece: UnsafeRawBufferPointer) {
    responseByteCount &+= UInt64(piece.count)
    if request.tellsResponse, !machine.isOver { collect(piece) }
    perform(machine.received(body: piece))
  }

  /// Keeps a piece of the response's body until the end of the turn.
  ///
  /// libcurl reads up to ``UploadRequest/receiveBufferSize`` bytes, and passes them on in pieces of 16 KiB. A separate
  /// event for each piece would cost its owner as much as one event for all of them.
  func collect(_ piece: UnsafeRawBufferPointer) {
    if collected.count + piece.count > ResponseBlocks.size { tellCollected() }
    if collected.isEmpty {
      // A full piece is usually followed by another.
      if piece.count >= Int(CURL_MAX_WRITE_SIZE), let blocks = session?.responseBlocks {
        collected = blocks.take(max(piece.count, ResponseBlocks.size))
      } else {
        collected.reserveCapacity(piece.count)
      }
      loop.atEndOfTurn { [self] in tellCollected() }
    }
    collected.append(contentsOf: piece)
  }

  /// Reports the received part of the response's body.
  func tellCollected() {
    guard !collected.isEmpty else { return }
    let bytes = collected
    collected = []
    handler(.responseBody(bytes))
  }
}
