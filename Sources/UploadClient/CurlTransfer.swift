// One request in libcurl: its start, its end, and the handling of each event in between.

internal import CCurl
internal import EventLoops
internal import Glibc
internal import HTTPMessages

/// Owned by the loop's thread once started, and unchecked for that reason. The body is in `CurlTransfer+Body.swift`,
/// and the callbacks are in `CurlTransfer+Callbacks.swift`.
final class CurlTransfer: @unchecked Sendable {
  // The members that each piece of a body uses come first and adjacent. With thousands of transfers, the processor
  // waits for each cache line.

  let easy: UnsafeMutableRawPointer
  let task = UploadTask()
  let loop: EventLoop
  /// Set until the request is over.
  private(set) var multi: CurlMulti?
  let body: UploadBody
  let handler: @Sendable (UploadTask.Event) -> Void
  /// The connection of the request, once it is decided.
  var connection: Connection?
  /// Whether libcurl has decided without a report. The next socket that it watches is then the connection.
  var isConnectionUnknown = false
  /// Whether libcurl has asked for the body on this connection.
  var hasBegun = false
  var isPaused = false
  var resumeIsDue = false
  /// Whether libcurl retains a piece of the response's body, and reads no more.
  var isReceptionHeld = false
  /// The offset up to which ``UploadTask/Event/accepted(_:)`` was reported. Nil if it is not requested.
  var toldAccepted: UInt64?
  var acknowledgement = AcknowledgedBytes()
  var machine = UploadStateMachine()
  var head = ResponseHeadAssembler()

  let request: UploadRequest
  let kind: UploadBody.Kind
  /// Whether another request may use the connection after a final response. Nil leaves that to the request.
  let keepsConnection: (@Sendable (HTTPResponse) -> Bool)?
  private(set) var isStarted = false
  private var wasToldConnected = false
  /// Whether the request ends at the end of the turn with its current response.
  private(set) var isEndingEarly = false
  private var responseTimer: EventLoop.Timer?
  /// Runs while the request waits for a connection that others use or open.
  private var connectionTimer: EventLoop.Timer?
  /// Runs while the request has data for the peer.
  var stallTimer: EventLoop.Timer?
  private var fieldList: UnsafeMutablePointer<curl_slist>?
  private let errorBuffer = UnsafeMutablePointer<CChar>.allocate(capacity: Int(CURL_ERROR_SIZE))
  /// The part of the response's body that arrived in this turn and was not reported.
  var collected: [UInt8] = []
  /// The number of bytes of the final response's body so far.
  var responseByteCount: UInt64 = 0
  /// The reason for which a callback aborted the transfer. It is more accurate than libcurl's error.
  var ownFailure: UploadError?
  /// The reason why this machine refused the last socket. Nil if the last socket was opened.
  var refusal: SystemError?
  /// Whether libcurl is looking up a name for it.
  private var isLookingUp = false
  /// Whether its connection carried no request before this one.
  var isFirstOnConnection = false
  /// Set until the request is over. A session without other references ends after its last request.
  private(set) var session: UploadSession?
  /// Set for a measured request, once it has begun.
  var clock: RequestClock?

  init(
    request: UploadRequest, body: consuming UploadBody, loop: EventLoop, session: UploadSession,
    keepsConnection: (@Sendable (HTTPResponse) -> Bool)? = nil,
    handler: @escaping @Sendable (UploadTask.Event) -> Void
  ) {
    self.request = request
    self.keepsConnection = keepsConnection
    machine.responseBodyLimit = request.tellsResponse ? 0 : request.responseBodyLimit
    // A caller that requests the body gets it.
    if request.wantsResponseBody { machine.responseBodyReadLimit = nil }
    toldAccepted = request.tellsAccepted ? 0 : nil
    kind = body.kind
    self.body = body
    self.loop = loop
    self.session = session
    self.handler = handler
    // Only memory can be lacking here, and then Swift itself ends the process.
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

  /// Configures libcurl and opens the body. Returns false when libcurl refused an option, or a file cannot be opened.
  /// The handler has been called in that case.
  func prepare(multi: CurlMulti) -> Bool {
    self.multi = multi
    isStarted = true
    if request.isMeasured { clock = RequestClock() }
    do {
      try request.checkFiles()
      var options = CurlOptions(easy: easy)
      try options.set(request, kind)
      // Waiting for a connection that others are opening is better than opening another one.
      if multi.sharesConnections {
        try options.set(CURLOPT_PIPEWAIT, 1)
        limitWaitForConnection()
      }
      fieldList = options.fieldList
    } catch {
      finish(with: machine.ended(failure: error))
      return false
    }
    installCallbacks(errorBuffer)
    // Until it is closed at the request's end.
    body.open { [self] in bodyHasNews() }
    return true
  }

  /// libcurl does not count the time for which a request waits for others (its state `PENDING`). The others may need
  /// all of the limit, and the request needs its own time afterwards.
  private func limitWaitForConnection() {
    let limit = request.limits.connect * 2
    connectionTimer = loop.schedule(after: limit) { [weak self] in
      guard let self else { return }
      connectionTimer = nil
      end(timedOut: "no connection was available for \(limit.seconds) s")
    }
  }

  /// libcurl counts the rest, the request has a connection, or it is over.
  func endWaitForConnection() {
    if let connectionTimer { loop.cancel(connectionTimer) }
    connectionTimer = nil
  }

  /// Waits for the task to be resumed.
  func wait(in multi: CurlMulti) { self.multi = multi }

  /// libcurl is about to look up a name. Returns false if it must not.
  func mayLookUp() -> Bool {
    // Before its first lookup, libcurl opens a socket to check whether this machine supports IPv6 (`Curl_ipv6works`).
    // It does this once per multi handle. Without a descriptor for it, no later request would use IPv6.
    if let shortage = SystemError.shortage(ofDescriptors: 1) {
      ownFailure = UploadError(machine: shortage)
      return false
    }
    guard let lookups = multi?.lookups, !isLookingUp else { return true }
    isLookingUp = lookups.begin()
    if !isLookingUp {
      ownFailure = UploadError(
        .unknownHost, "the name servers do not answer: \(NameLookups.limit) earlier queries are still unanswered")
    }
    return isLookingUp
  }

  func lookedUp() {
    guard isLookingUp else { return }
    isLookingUp = false
    multi?.lookups.end()
  }

  /// libcurl has finished.
  func ended(_ code: CURLcode) {
    if code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_RESOLVE_PROXY { lookedUp() }
    var failure = ownFailure ?? machineFailure(code)
    if failure == nil, code != CURLE_OK, !isEndingEarly {
      var systemError = 0
      _ = sluice_getinfo_long(easy, CURLINFO_OS_ERRNO, &systemError)
      var proxyStatus = 0
      _ = sluice_getinfo_long(easy, CURLINFO_HTTP_CONNECTCODE, &proxyStatus)
      var certificateFault = 0
      _ = sluice_getinfo_long(easy, CURLINFO_SSL_VERIFYRESULT, &certificateFault)
      failure = UploadError(
        code: code, detail: String(cString: errorBuffer), systemError: Int32(truncatingIfNeeded: systemError),
        proxyStatus: proxyStatus, certificateFault: certificateFault,
        awaitsHead: wasToldConnected && !machine.isAnswered)
    }
    if !head.trailers.all.isEmpty { machine.received(trailers: head.trailers) }
    finish(with: machine.ended(failure: failure))
  }

  /// The failure if this machine lacks a resource, such as a descriptor. libcurl blames the network or a file for it.
  private func machineFailure(_ code: CURLcode) -> UploadError? {
    switch code {
    case CURLE_COULDNT_CONNECT: refusal.flatMap { $0.isTemporary ? UploadError(machine: $0) : nil }
    // A pair of sockets for libcurl, and a file or socket for getaddrinfo(3).
    case CURLE_COULDNT_RESOLVE_HOST, CURLE_COULDNT_RESOLVE_PROXY:
      SystemError.shortage(ofDescriptors: 3).map(UploadError.init(machine:))
    // The socket of the connection, which libcurl has closed again, and the file that OpenSSL could not open.
    case CURLE_SSL_CACERT_BADFILE, CURLE_SSL_CERTPROBLEM, CURLE_SSL_CRL_BADFILE:
      SystemError.shortage(ofDescriptors: 2).map(UploadError.init(machine:))
    default: nil
    }
  }

  /// The peer will send nothing more. The response so far is final.
  func peerEndedConnection() {
    // Within the body, libcurl would continue to send. Before it, libcurl itself tries another connection.
    let isSending = machine.state == .sending && acknowledgement.bodyByteCount > 0 && multi?.sharesConnections == false
    // Data that libcurl retains arrived before the end.
    guard isPaused || isSending, !isReceptionHeld else { return }
    let place = machine.isAnswered ? "within the response's body" : "without a response"
    finish(with: machine.ended(failure: UploadError(.connectionLost, "the peer ended the connection \(place)")))
  }

  func cancel() { finish(with: machine.ended(failure: UploadError(.cancelled, "the upload was cancelled"))) }

  func cancelWithConnection() {
    _ = sluice_setopt_long(easy, CURLOPT_FORBID_REUSE, 1)
    cancel()
  }

  func cut() {
    // Nothing needs to be delivered when libcurl closes the socket, so the kernel resets the connection (socket(7)). A
    // shared connection stays open, and must not be reset when it ends.
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
    endWaitForConnection()
    updateAcknowledged()
    task.note(passedOn: passedOnByteCount)
    let measured = measure()
    multi?.remove(self)
    if isLookingUp { multi?.lookups.abandon() }
    multi = nil
    task.isOver(measured)
    // It may carry another request from now on.
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
      // The rest of that body would arrive before the next response.
      if machine.isReceiving { _ = sluice_setopt_long(easy, CURLOPT_FORBID_REUSE, 1) }
      isEndingEarly = true
      // Not at once, because libcurl is on the stack.
      loop.atEndOfTurn { [self] in ended(CURLE_OK) }
    case .finish: finish(with: action)
    }
  }

  /// Only once, even if libcurl must connect again.
  func tellConnected() {
    guard !wasToldConnected else { return }
    wasToldConnected = true
    handler(.connected(isNew: isFirstOnConnection))
  }

  /// The longest time for the rest of an early response that is not requested, or of unknown length.
  private static let earlyResponseGrace = Duration.seconds(1)
  /// The longest time for the body of a response after its head.
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
      // The kernel was still delivering accepted bytes. A slow line may need longer than the limit for that alone.
      if !machine.isReceiving, task.acknowledgedByteCount > acknowledged { return endLater(after: limit) }
      if request.tellsResponse, heardByteCount > heard || isReceptionHeld { return endLater(after: limit) }
      end(
        timedOut: machine.isAnswered
          ? "the response's body did not end" : "no response within \(limit.seconds) s after the end of the body")
    }
  }

  /// The number of bytes that the server has sent.
  private var heardByteCount: UInt64 { responseByteCount &+ UInt64(clamping: task.responseHeaderByteCount) }

  /// The peer does not respond. An HTTP/2 connection would stay for the next request, which would also wait.
  func end(timedOut reason: String) {
    _ = sluice_setopt_long(easy, CURLOPT_FORBID_REUSE, 1)
    finish(with: machine.ended(failure: UploadError(.timedOut, reason)))
  }
}
