// The state machine of one request, from its first byte to its response.

internal import EventLoops
internal import HTTPMessages

/// The rules of one upload request. Takes events, and returns actions. No I/O, no clock.
struct UploadStateMachine {
  enum State: Equatable {
    /// The body is being sent, or waits for bytes.
    case sending
    /// The body is complete, and the response is due.
    case awaitingResponse
    /// The head of a final response arrived. `early` is true if the body was not complete by then.
    case receivingResponse(HTTPResponse, early: Bool)
    case finished
  }

  enum Action: Equatable {
    case none
    /// Report an interim response to the caller.
    case tellInterim(HTTPResponse)
    /// From now on, the response must be complete within the limit. If it has begun, send nothing more.
    case startResponseLimit
    /// The head of the response after the body's end has arrived. Its own body gets a short time, and decides nothing.
    case startResponseBodyLimit
    /// The server has answered before the body's end. Send nothing more, and give the rest of its response a short
    /// time.
    case stopSending
    /// End now. The response before the body's end is complete, or its body is longer than the limit.
    case endEarly
    /// The end, successful or not.
    case finish(Result<UploadTask.Outcome, UploadError>)
  }

  private(set) var state = State.sending
  /// The number of bytes of a response's body to store.
  var responseBodyLimit = HTTPResponse.bodyLimit
  /// The number of bytes of it to read. It is larger, so that the connection can be reused. Nil means all.
  var responseBodyReadLimit: Int? = 1 << 20
  /// The number of its bytes read so far.
  private var responseBodyCount = 0
  /// The number of remaining bytes of the response's body. Nil if its head does not state it.
  private var responseBodyRemaining: Int?

  /// Whether a final response has begun. Nothing may be sent any more.
  var isAnswered: Bool {
    switch state {
    case .sending, .awaitingResponse: false
    case .receivingResponse, .finished: true
    }
  }

  /// Whether the request was sent completely, and its response has begun.
  var isReceiving: Bool { if case .receivingResponse(_, early: false) = state { true } else { false } }

  /// Whether the end was reported. Later events are ignored.
  var isOver: Bool { state == .finished }

  /// The body's last byte was passed to libcurl, or there is no body and the request is about to be sent.
  mutating func bodyEnded() -> Action {
    guard state == .sending else { return .none }
    state = .awaitingResponse
    return .startResponseLimit
  }

  /// A response head is complete.
  mutating func received(head: HTTPResponse) -> Action {
    switch state {
    case .sending, .awaitingResponse:
      if head.isInterim { return .tellInterim(head) }
      let early = state == .sending
      state = .receivingResponse(head, early: early)
      // RFC 9112, section 6.3: these two have no body, regardless of their fields.
      // libcurl decodes a body, and the field counts encoded bytes.
      let isEncoded = head["Content-Encoding"].map { !$0.isSameWord(as: "identity") } ?? false
      responseBodyRemaining =
        [204, 304].contains(head.status) ? 0 : isEncoded ? nil : head["Content-Length"].flatMap { Int($0) }
      if early {
        if responseBodyRemaining == 0 { return .endEarly }
        // The caller requests a body of known length, so it is incomplete without the rest.
        return responseBodyReadLimit == nil && responseBodyRemaining != nil ? .startResponseLimit : .stopSending
      }
      return responseBodyReadLimit == nil || responseBodyRemaining == 0 ? .none : .startResponseBodyLimit
    case .receivingResponse, .finished:
      // After a final response, nothing else counts.
      return .none
    }
  }

  /// A piece of a final response's body. Bytes beyond the limit are dropped.
  mutating func received<Bytes: Collection<UInt8>>(body bytes: Bytes) -> Action {
    guard case .receivingResponse(var response, let early) = state else { return .none }
    response.body.append(contentsOf: bytes.prefix(max(0, responseBodyLimit - response.body.count)))
    state = .receivingResponse(response, early: early)
    let before = responseBodyCount
    responseBodyCount = before.addingSaturated(bytes.count)
    if let limit = responseBodyReadLimit, before <= limit, responseBodyCount > limit { return .endEarly }
    guard let remaining = responseBodyRemaining else { return .none }
    responseBodyRemaining = remaining.subtractingReportingOverflow(bytes.count).partialValue
    // libcurl itself would continue. With a paused body, it never ends an exchange.
    return early && remaining > 0 && remaining <= bytes.count ? .endEarly : .none
  }

  /// All trailer fields of the final response.
  mutating func received(trailers: HeaderFields) {
    guard case .receivingResponse(var response, let early) = state else { return }
    response.trailers = trailers
    state = .receivingResponse(response, early: early)
  }

  /// libcurl has finished the request. `failure` is nil for a success.
  mutating func ended(failure: UploadError?) -> Action {
    defer { state = .finished }
    switch state {
    case .finished:
      return .none
    case .receivingResponse(let response, let early):
      // A final response counts even if the connection failed after it, because its head decides.
      var failure = failure
      if failure == nil, response.hasOddTransferCoding, responseBodyRemaining != 0 {
        failure = UploadError(.protocolViolation, "the response has a Transfer-Encoding other than chunked")
      }
      // The end of an early response of unknown length cannot be determined.
      let isKnown = !early || responseBodyRemaining ?? 0 > 0
      return .finish(
        .success(UploadTask.Outcome(response: response, isEarly: early, bodyFailure: isKnown ? failure : nil)))
    case .sending, .awaitingResponse:
      return .finish(.failure(failure ?? UploadError(.connectionLost, "the connection ended without a response")))
    }
  }
}
