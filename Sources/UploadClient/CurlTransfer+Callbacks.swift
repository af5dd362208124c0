// What libcurl calls while it serves a request.

internal import CCurl

extension CurlTransfer {
  /// libcurl's callbacks get this transfer back as their context; it outlives its easy handle, which `deinit` ends.
  func installCallbacks(_ errorBuffer: UnsafeMutablePointer<CChar>) {
    let context = Unmanaged.passUnretained(self).toOpaque()
    _ = sluice_setopt_pointer(easy, CURLOPT_ERRORBUFFER, errorBuffer)
    _ = sluice_setopt_transfer(easy, CURLOPT_READFUNCTION) { buffer, size, count, context in
      CurlTransfer.from(context).readBody(into: UnsafeMutableRawBufferPointer(start: buffer, count: size * count))
    }
    _ = sluice_setopt_pointer(easy, CURLOPT_READDATA, context)
    _ = sluice_setopt_transfer(easy, CURLOPT_HEADERFUNCTION) { bytes, size, count, context in
      CurlTransfer.from(context).received(headerLine: UnsafeRawBufferPointer(start: bytes, count: size * count))
      return size * count
    }
    _ = sluice_setopt_pointer(easy, CURLOPT_HEADERDATA, context)
    _ = sluice_setopt_transfer(easy, CURLOPT_WRITEFUNCTION) { bytes, size, count, context in
      let transfer = CurlTransfer.from(context)
      transfer.perform(transfer.machine.received(body: UnsafeRawBufferPointer(start: bytes, count: size * count)))
      return size * count
    }
    _ = sluice_setopt_pointer(easy, CURLOPT_WRITEDATA, context)
    installConnectionCallbacks(context)
  }

  private func installConnectionCallbacks(_ context: UnsafeMutableRawPointer) {
    _ = sluice_setopt_sockopt(easy) { context, socket, _ in
      CurlTransfer.from(context).opened(socket) ? CURL_SOCKOPT_OK : CURL_SOCKOPT_ERROR
    }
    _ = sluice_setopt_pointer(easy, CURLOPT_SOCKOPTDATA, context)
    _ = sluice_setopt_prereq(easy) { context, remote, local, remotePort, localPort in
      let ends = ConnectionTable.Ends(
        local: local.map { String(cString: $0) } ?? "", localPort: localPort,
        remote: remote.map { String(cString: $0) } ?? "", remotePort: remotePort)
      return CurlTransfer.from(context).connected(ends) ? CURL_PREREQFUNC_OK : CURL_PREREQFUNC_ABORT
    }
    _ = sluice_setopt_pointer(easy, CURLOPT_PREREQDATA, context)
    // A connection may outlive this transfer in libcurl's pool: its closing is told to the multi handle's owner.
    _ = sluice_setopt_closesocket(easy) { context, socket in
      Unmanaged<CurlMulti>.fromOpaque(context!).takeUnretainedValue().close(socket: socket)
    }
    if let multi {
      _ = sluice_setopt_pointer(easy, CURLOPT_CLOSESOCKETDATA, Unmanaged.passUnretained(multi).toOpaque())
    }
  }

  private static func from(_ context: UnsafeMutableRawPointer?) -> CurlTransfer {
    // Never nil: it is what `installCallbacks` set.
    Unmanaged<CurlTransfer>.fromOpaque(context!).takeUnretainedValue()
  }

  private func received(headerLine bytes: UnsafeRawBufferPointer) {
    task.note(responseHeaderBytes: bytes.count)
    guard let complete = head.take(line: bytes) else { return }
    responseBegins()
    // Who refuses a request need not have read its content, which the kernel may have taken all the same: behind it, nobody would
    // read the next one.
    if complete.status >= 400, !kind.isWithoutBytes { _ = sluice_setopt_long(easy, CURLOPT_FORBID_REUSE, 1) }
    perform(machine.received(head: complete))
  }
}
