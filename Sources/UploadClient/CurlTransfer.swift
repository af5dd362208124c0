// One request in libcurl: its beginning, its end, and what follows from each event in between.

internal import CCurl
internal import EventLoops
internal import Glibc

/// Owned by the loop's thread once started; unchecked for that reason. Its body is in `CurlTransfer+Body.swift`, what
/// libcurl calls in `CurlTransfer+Callbacks.swift`.
final class CurlTransfer: @unchecked Sendable {
  // What each piece of a body needs comes first, side by side: with thousands of transfers, each line of memory that
  // one touches is to be waited for.

  let easy: UnsafeMutableRawPointer
  let task = UploadTask()
  let loop: EventLoop
  /// Until the request is over.
  private(set) var multi: CurlMulti?
  let body: UploadBody
  let handler: @Sendable (UploadTask.Event) -> Void
  /// What carries the request, once that is decided.
  var connection: Connection?
  /// Whether libcurl has decided, and has not told: then the next socket that it wants watched is it.
  var isConnectionUnknown = false
  /// Whether libcurl has asked for the body on this connection.
  var hasBegun = false
  var isPaused = false
  var resumeIsDue = false
  /// Whether libcurl keeps a piece of the response's body, and asks the peer for no more.
  var isReceptionHeld = false
  /// Up to where ``UploadTask/Event/accepted(_:)`` was told; nil where nobody wants to be.
  var toldAccepted: UInt64?
  var acknowledgement = AcknowledgedBytes()
  var machine = UploadStateMachine()
  var head = ResponseHeadAssembler()

  let request: UploadRequest
  let kind: UploadBody.Kind
  private(set) var isStarted = false
  private var wasToldConnected = false
  /// Whether the request is over at the end of the turn, with the response that it has.
  private(set) var isEndingEarly = false
  private var responseTimer: EventLoop.Timer?
  /// Runs while the request has work for the peer.
  var stallTimer: EventLoop.Timer?
  private var fieldList: UnsafeMutablePointer<curl_slist>?
  private let errorBuffer = UnsafeMutablePointer<CChar>.allocate(capacity: Int(CURL_ERROR_SIZE))
  /// What has come of the response's body in this turn, and was not told.
  var collected: [UInt8] = []
  /// Bytes of the final response's body so far.
  var responseByteCount: UInt64 = 0
  /// Why a callback broke the transfer off: truer than what libcurl makes of it.
  var ownFailure: UploadError?
  /// Whether libcurl is looking up a name for it.
  private var isLookingUp = false
  /// Whether its connection has carried no request before this one.
  var isFirstOnConnection = false
  /// Until the request is over: a session that nobody else refers to ends after its last request.
  private var session: UploadSession?
  /// Where the request is measured, once it has begun.
  var clock: RequestClock?

  init(
    request: UploadRequest, body: consuming UploadBody, loop: EventLoop, session: UploadSession,
    handler: @escaping @Sendable (UploadTask.Event) -> Void
  ) {
    self.request = request
    machine.responseBodyLimit = request.tellsResponse ? 0 : request.responseBodyLimit
    // Whoever wants the body gets it.
    if request.wantsResponseBody { machine.responseBodyReadLimit = nil }
    toldAccepted = request.tellsAccepted ? 0 : nil
    kind = body.kind
    self.body = body
    self.loop = loop
    self.session = session
    self.handler = handler
    // Only memory can be lacking here, and Swift itself ends the process then.
    easy = curl_easy_init()!
    errorBuffer.initialize(repeating: 0, count: Int(CURL_ERROR_SIZE))
    task.begins(self)
  }

  deinit {
    curl_easy_cleanup(easy)
    curl_slist_free_all(fieldList)
    errorBuffer.deallocate()
  }

  // MARK: Starting and ending

  /// Sets libcurl up and opens the body; false when libcurl refused an option, or a file cannot be opened; the
  /// handler has been told then.
  func prepare(multi: CurlMulti) -> Bool {
    self.multi = multi
    isStarted = true
    if request.isMeasured { clock = RequestClock() }
    do {
      try request.checkFiles()
      var options = CurlOptions(easy: easy)
      try options.set(request, kind)
      // Better to wait for a connection that others are opening than to open one each.
      if multi.sharesConnections { try options.set(CURLOPT_PIPEWAIT, 1) }
      fieldList = options.fieldList
    } catch {
      finish(with: machine.ended(failure: error))
      return false
    }
    installCallbacks(errorBuffer)
    // Until it is closed, at the request's end.
    body.open { [self] in bodyHasNews() }
    return true
  }

  /// Waits for the task to be resumed.
  func wait(in multi: CurlMulti) { self.multi = multi }

  /// libcurl is about to look up a name; false if it must not.
  func mayLookUp() -> Bool {
    guard let lookups = multi?.lookups, !isLookingUp else { return true }
    isLookingUp = lookups.begin()
    if !isLookingUp {
      ownFailure = UploadError(
        .unknownHost, "the name servers do not answer: \(NameLookups.limit) earlier questions are still open")
    }
    return isLookingUp
  }

  func lookedUp() {
    guard isLookingUp else { return }
    isLookingUp = false
    multi?.lookups.end()
  }

  /// libcurl is done.
  func ended(_ code: CURLcode) {
    if code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_RESOLVE_PROXY { lookedUp() }
    var failure = ownFailure
    if failure == nil, code != CURLE_OK, !isEndingEarly {
      var systemError = 0
      _ = sluice_getinfo_long(easy, CURLINFO_OS_ERRNO, &systemError)
      var proxyStatus = 0
      _ = sluice_getinfo_long(easy, CURLINFO_HTTP_CONNECTCODE, &proxyStatus)
      var certificateFault = 0
      _ = sluice_getinfo_long(easy, CURLINFO_SSL_VERIFYRESULT, &certificateFault)
      failure = UploadError(
        code: code, detail: String(cString: errorBuffer), systemError: Int32(truncatingIfNeeded: systemError),
        proxyStatus: proxyStatus, certificateFault: certificateFault)
    }
    if !head.trailers.isEmpty { machine.received(trailers: head.trailers) }
    finish(with: machine.ended(failure: failure))
  }

  /// Nothing more will come from the peer: what it has answered by now is its answer.
  func peerEndedConnection() {
    // What libcurl keeps came before the end.
    guard isPaused, !isReceptionHeld else { return }
    finish(
      with: machine.ended(failure: UploadError(.connectionLost, "the peer ended the connection without a response")))
  }

  func cancel() { finish(with: machine.ended(failure: UploadError(.cancelled, "the upload was cancelled"))) }

  func cut() {
    // Nothing is to be delivered any more when libcurl closes the socket: the kernel resets the connection (socket(7)).
    // One that others use stays open, and is not to be reset when it ends.
    var linger = Glibc.linger(l_onoff: 1, l_linger: 0)
    if let connection, connection.isOpen, multi?.sharesConnections == false {
      setsockopt(connection.socket, SOL_SOCKET, SO_LINGER, &linger, socklen_t(MemoryLayout<Glibc.linger>.size))
    }
    finish(with: machine.ended(failure: UploadError(.cut, "the connection was cut on purpose")))
  }

  private func finish(with action: UploadStateMachine.Action) {
    guard case .finish(let result) = action else { return }
    if let responseTimer { loop.cancel(responseTimer) }
    if let stallTimer { loop.cancel(stallTimer) }
    updateAcknowledged()
    let measured = measure()
    multi?.remove(self)
    if isLookingUp { multi?.lookups.abandon() }
    multi = nil
    task.isOver(measured)
    // It may carry another request from here on.
    connection?.isLeft(by: self)
    (connection, isConnectionUnknown) = (nil, false)
    switch result {
    case .success(let outcome):
      if outcome.response.isSuccess, !outcome.isEarly { task.note(acknowledged: acknowledgement.bodyByteCount) }
      body.close(nil)
    case .failure(let error):
      body.close(error)
    }
    tellCollected()
    handler(.finished(result))
    session = nil
  }

  func measure() -> RequestMeasurements? { clock.map { RequestMeasurements(self, clock: $0) } }

  // MARK: In between

  func perform(_ action: UploadStateMachine.Action) {
    switch action {
    case .none: break
    case .tellInterim(let response): handler(.interimResponse(response))
    case .startResponseLimit: endLater(after: request.limits.response)
    case .startResponseBodyLimit: endLater(after: min(Self.responseBodyGrace, request.limits.response))
    case .stopSending: endLater(after: min(Self.earlyResponseGrace, request.limits.response))
    case .endEarly:
      // What still comes of that body would come before the next response.
      if machine.isReceiving { _ = sluice_setopt_long(easy, CURLOPT_FORBID_REUSE, 1) }
      isEndingEarly = true
      // Not at once: libcurl is on the stack.
      loop.atEndOfTurn { [self] in ended(CURLE_OK) }
    case .finish: finish(with: action)
    }
  }

  /// Once, even if libcurl has to connect again.
  func tellConnected() {
    guard !wasToldConnected else { return }
    wasToldConnected = true
    handler(.connected(isNew: isFirstOnConnection))
  }

  /// How long the rest of an early response may take whose head does not say how long it is.
  private static let earlyResponseGrace = Duration.seconds(1)
  /// How long the body of a response may take once its head is there.
  private static let responseBodyGrace = Duration.seconds(5)

  private func endLater(after limit: Duration) {
    if let responseTimer { loop.cancel(responseTimer) }
    updateAcknowledged()
    let acknowledged = task.acknowledgedByteCount
    let heard = heardByteCount
    responseTimer = loop.schedule(after: limit) { [weak self] in
      guard let self else { return }
      responseTimer = nil
      updateAcknowledged()
      // The kernel was still delivering what it had taken: a slow line may need longer than the limit for that alone.
      if !machine.isReceiving, task.acknowledgedByteCount > acknowledged { return endLater(after: limit) }
      if request.tellsResponse, heardByteCount > heard || isReceptionHeld { return endLater(after: limit) }
      end(
        timedOut: machine.isReceiving
          ? "the response's body did not end" : "no response within \(limit.seconds) s after the end of the body")
    }
  }

  /// Everything that the server has said.
  private var heardByteCount: UInt64 { responseByteCount &+ UInt64(clamping: task.responseHeaderByteCount) }

  /// The peer does not do its part. An HTTP/2 connection would stay for the next request, which would wait in its turn.
  func end(timedOut reason: String) {
    _ = sluice_setopt_long(easy, CURLOPT_FORBID_REUSE, 1)
    finish(with: machine.ended(failure: UploadError(.timedOut, reason)))
  }
}
