// One request in libcurl: options in, callbacks out, bytes from the bound pair's input end.

internal import CCurl
internal import EventLoops
internal import StreamBuffers

/// Owned by the loop's thread once started; unchecked for that reason.
final class CurlTransfer: @unchecked Sendable {
  let easy: UnsafeMutableRawPointer
  private(set) var task: UploadTask!  // set at the end of `init`, which needs `self` for the task's actions
  /// The connection's socket once the body has begun.
  private(set) var socket = CURL_SOCKET_BAD

  private var watchedSockets: [curl_socket_t] = []
  private let request: UploadRequest
  private let body: BoundPair.Input
  private let loop: EventLoop
  private let handler: @Sendable (UploadTask.Event) -> Void
  private weak var multi: CurlMulti?
  private var machine = UploadStateMachine()
  private var head = ResponseHeadAssembler()
  private var acknowledgement = AcknowledgedBytes()
  private var hasBegun = false
  private(set) var isPaused = false
  private var resumeIsDue = false
  private var bodyFailure: BoundPair.StreamError?
  private var responseTimer: EventLoop.Timer?
  private var fieldList: UnsafeMutablePointer<curl_slist>?
  private let errorBuffer = UnsafeMutablePointer<CChar>.allocate(capacity: Int(CURL_ERROR_SIZE))

  init(
    request: UploadRequest, body: consuming BoundPair.Input, loop: EventLoop,
    handler: @escaping @Sendable (UploadTask.Event) -> Void
  ) {
    self.request = request
    self.body = body
    self.loop = loop
    self.handler = handler
    // Only memory can be lacking here, and Swift itself ends the process then.
    easy = curl_easy_init()!
    errorBuffer.initialize(repeating: 0, count: Int(CURL_ERROR_SIZE))
    task = UploadTask(
      cancel: { [weak self] in loop.execute { [weak self] in self?.cancel() } },
      update: { [weak self] in self?.updateAcknowledged() })
  }

  deinit {
    curl_easy_cleanup(easy)
    curl_slist_free_all(fieldList)
    errorBuffer.deallocate()
  }

  // MARK: Starting and ending

  /// Sets libcurl up and opens the body; false when libcurl refused an option, which has then been told.
  func prepare(multi: CurlMulti) -> Bool {
    self.multi = multi
    do {
      var options = CurlOptions(easy: easy)
      try options.set(request)
      fieldList = options.fieldList
    } catch {
      finish(with: machine.ended(failure: error))
      return false
    }
    installCallbacks()
    body.open { [weak self] _ in self?.bodyHasNews() }
    return true
  }

  /// libcurl is done.
  func ended(_ code: CURLcode) {
    var failure: UploadError?
    if let bodyFailure {
      failure = UploadError(.bodyFailed, bodyFailure.description)
    } else if code != CURLE_OK {
      var systemError = 0
      _ = sluice_getinfo_long(easy, CURLINFO_OS_ERRNO, &systemError)
      var proxyStatus = 0
      _ = sluice_getinfo_long(easy, CURLINFO_HTTP_CONNECTCODE, &proxyStatus)
      failure = UploadError(
        code: code, detail: String(cString: errorBuffer), systemError: Int32(truncatingIfNeeded: systemError),
        proxyStatus: proxyStatus)
    }
    finish(with: machine.ended(failure: failure))
  }

  /// Nothing more will come from the peer: what it has answered by now is its answer.
  func peerEndedConnection() {
    guard isPaused else { return }
    finish(
      with: machine.ended(failure: UploadError(.connectionLost, "the peer ended the connection without a response")))
  }

  func cancel() { finish(with: machine.ended(failure: UploadError(.cancelled, "the upload was cancelled"))) }

  private func finish(with action: UploadStateMachine.Action) {
    guard case .finish(let result) = action else { return }
    if let responseTimer { loop.cancel(responseTimer) }
    updateAcknowledged()
    multi?.remove(self)
    switch result {
    case .success(let outcome):
      if outcome.response.isSuccess, !outcome.isEarly { task.note(acknowledged: acknowledgement.bodyByteCount) }
      body.close()
    case .failure(let error):
      body.fail(BoundPair.StreamError(error.description))
    }
    handler(.finished(result))
  }

  private func perform(_ action: UploadStateMachine.Action) {
    switch action {
    case .none: break
    case .tellInterim(let response): handler(.interimResponse(response))
    case .startResponseLimit: endLater(after: request.limits.response)
    case .stopSending: endLater(after: min(Self.earlyResponseGrace, request.limits.response))
    case .endEarly:
      // Not at once: libcurl is on the stack.
      loop.atEndOfTurn { [weak self] in self?.ended(CURLE_OK) }
    case .finish: finish(with: action)
    }
  }

  /// How long the rest of an early response may take whose head does not say how long it is.
  private static let earlyResponseGrace = Duration.seconds(1)

  private func endLater(after limit: Duration) {
    if let responseTimer { loop.cancel(responseTimer) }
    responseTimer = loop.schedule(after: limit) { [weak self] in
      guard let self else { return }
      responseTimer = nil
      finish(
        with: machine.ended(
          failure: UploadError(.timedOut, "no response within \(limit.seconds) s after the end of the body")))
    }
  }

  // MARK: The body

  /// The pair's input end has something to tell; on any thread.
  private func bodyHasNews() {
    guard loop.isOnThread else { return loop.execute { [weak self] in self?.bodyHasNews() } }
    guard isPaused, !resumeIsDue, !machine.isAnswered else { return }
    resumeIsDue = true
    // Not at once: the writer is on the stack and has more to write.
    loop.atEndOfTurn { [weak self] in
      guard let self else { return }
      resumeIsDue = false
      guard isPaused else { return }
      isPaused = false
      multi?.resume(self)
    }
  }

  /// libcurl wants up to `capacity` body bytes. The writer refills the pair from within `read`, on this thread, as often as
  /// that is needed to fill libcurl's buffer: one chunk and one `send` for many small pieces.
  private func readBody(into buffer: UnsafeMutableRawPointer, capacity: Int) -> Int {
    if !hasBegun { begin() }
    if machine.isAnswered {
      isPaused = true
      return Int(CURL_READFUNC_PAUSE)
    }
    var filled = 0
    reading: while filled < capacity {
      var free = MutableRawSpan(_unsafeStart: buffer + filled, byteCount: capacity - filled)
      switch body.read(into: &free) {
      case .bytes(let count):
        filled += count
      case .empty:
        break reading
      case .end, .refused:
        if filled == 0 {
          acknowledgement.bodyEnded()
          perform(machine.bodyEnded())
          return 0
        }
        break reading
      case .failed(let error):
        bodyFailure = error
        return Int(CURL_READFUNC_ABORT)
      }
    }
    acknowledgement.handedOver(filled)
    if filled == 0 {
      isPaused = true
      return Int(CURL_READFUNC_PAUSE)
    }
    task.note(sent: acknowledgement.bodyByteCount)
    return filled
  }

  /// The head is on its way: learn what the body's connection is.
  private func begin() {
    hasBegun = true
    // Not CURLINFO_ACTIVESOCKET: libcurl knows that only once the request is over.
    socket = watchedSockets.last ?? CURL_SOCKET_BAD
    var version = 0
    _ = sluice_getinfo_long(easy, CURLINFO_HTTP_VERSION, &version)
    var requestSize = 0
    _ = sluice_getinfo_long(easy, CURLINFO_REQUEST_SIZE, &requestSize)
    acknowledgement.begin(
      socket: socket, requestSize: requestSize,
      hasPlainFraming: !request.url.lowercased().hasPrefix("https:") && version != CURL_HTTP_VERSION_2_0,
      heldByLibcurl: request.uploadBufferSize)
    if socket != CURL_SOCKET_BAD { multi?.note(socket: socket, of: self) }
    handler(.connected)
  }

  /// libcurl wants a socket watched for this transfer, or no longer. While it connects there may be several.
  func libcurl(watches socket: curl_socket_t, _ isWatched: Bool) {
    watchedSockets.removeAll { $0 == socket }
    if isWatched { watchedSockets.append(socket) }
  }

  /// Reads from the kernel how far the peer has acknowledged. The socket must still be open.
  func updateAcknowledged() {
    guard socket != CURL_SOCKET_BAD else { return }
    task.note(acknowledged: acknowledgement.update(socket: socket))
  }

  /// libcurl is about to close the connection.
  func socketIsClosing() {
    updateAcknowledged()
    socket = CURL_SOCKET_BAD
  }

  // MARK: Callbacks

  /// libcurl's callbacks get this transfer back as their context; it outlives its easy handle, which `deinit` ends.
  private func installCallbacks() {
    let context = Unmanaged.passUnretained(self).toOpaque()
    _ = sluice_setopt_pointer(easy, CURLOPT_ERRORBUFFER, errorBuffer)
    _ = sluice_setopt_transfer(easy, CURLOPT_READFUNCTION) { buffer, size, count, context in
      CurlTransfer.from(context).readBody(into: buffer!, capacity: size * count)
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
    _ = sluice_setopt_sockopt(easy) { context, socket, _ in
      CurlTransfer.from(context).request.apply(toSocket: socket)
      return CURL_SOCKOPT_OK
    }
    _ = sluice_setopt_pointer(easy, CURLOPT_SOCKOPTDATA, context)
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
    var line = bytes[...]
    while let last = line.last, last == UInt8(ascii: "\r") || last == UInt8(ascii: "\n") { line.removeLast() }
    // Latin-1, as HTTP's obsolete text is: a byte that is no UTF-8 must not lose the field.
    let text = String(String.UnicodeScalarView(line.map { Unicode.Scalar($0) }))
    if let complete = head.take(line: text[...]) { perform(machine.received(head: complete)) }
  }
}
