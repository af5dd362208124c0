// One request, from its first byte to its response: what happened so far and what follows from it.

internal import EventLoops

/// The rules of one upload request. Takes events, returns what to do; no I/O, no clock.
struct UploadStateMachine {
  enum State: Equatable {
    /// The body is being sent, or waits for bytes.
    case sending
    /// The body is complete; the response is due.
    case awaitingResponse
    /// The head of a final response came. `early` if the body was not complete then.
    case receivingResponse(HTTPResponse, early: Bool)
    case finished
  }

  enum Action: Equatable {
    case none
    /// Tell the caller about an interim response.
    case tellInterim(HTTPResponse)
    /// The response has to be complete within the limit from here on.
    case startResponseLimit
    /// The head of the response after the body's end has come: its own body is given a moment, and decides nothing.
    case startResponseBodyLimit
    /// The server has answered before the body's end: send nothing more, and give the rest of its answer a moment.
    case stopSending
    /// Nothing more is to be waited for: the answer before the body's end is complete, or has more of a body than is
    /// read.
    case endEarly
    /// The end, one way or the other.
    case finish(Result<UploadTask.Outcome, UploadError>)
  }

  private(set) var state = State.sending
  /// How much of a response's body is kept, in bytes.
  var responseBodyLimit = HTTPResponse.bodyLimit
  /// How much of it is read, in bytes: more of it than is kept, so that the connection can be used again. Nil for all.
  var responseBodyReadLimit: Int? = 1 << 20
  /// How much of it was read.
  private var responseBodyCount = 0
  /// How much of the response's body is due; nil where its head does not say.
  private var responseBodyRemaining: Int?

  /// Whether a final response has begun: nothing may be sent any more.
  var isAnswered: Bool {
    switch state {
    case .sending, .awaitingResponse: false
    case .receivingResponse, .finished: true
    }
  }

  /// Whether the request was sent as a whole, and its response has begun.
  var isReceiving: Bool { if case .receivingResponse(_, early: false) = state { true } else { false } }

  /// Whether the end was told: nothing that comes later matters.
  var isOver: Bool { state == .finished }

  /// The body's last byte was handed to libcurl, or there is none and the request is about to be sent.
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
      // RFC 9112, section 6.3: these two have no body, whatever else they say.
      responseBodyRemaining = [204, 304].contains(head.status) ? 0 : head["Content-Length"].flatMap { Int($0) }
      if early { return responseBodyRemaining == 0 ? .endEarly : .stopSending }
      return responseBodyReadLimit == nil || responseBodyRemaining == 0 ? .none : .startResponseBodyLimit
    case .receivingResponse, .finished:
      // Behind a final response, nothing else counts.
      return .none
    }
  }

  /// A piece of a final response's body; what is beyond the limit is dropped.
  mutating func received<Bytes: Collection<UInt8>>(body bytes: Bytes) -> Action {
    guard case .receivingResponse(var response, let early) = state else { return .none }
    response.body.append(contentsOf: bytes.prefix(max(0, responseBodyLimit - response.body.count)))
    state = .receivingResponse(response, early: early)
    let before = responseBodyCount
    responseBodyCount = before.addingSaturated(bytes.count)
    if let limit = responseBodyReadLimit, before <= limit, responseBodyCount > limit { return .endEarly }
    guard let remaining = responseBodyRemaining else { return .none }
    responseBodyRemaining = remaining.subtractingReportingOverflow(bytes.count).partialValue
    // libcurl itself would go on: with a paused body it never calls an exchange done.
    return early && remaining > 0 && remaining <= bytes.count ? .endEarly : .none
  }

  /// These are all trailer fields of the final response.
  mutating func received(trailers: [HTTPResponse.Field]) {
    guard case .receivingResponse(var response, let early) = state else { return }
    response.trailers = trailers
    state = .receivingResponse(response, early: early)
  }

  /// libcurl is done with the request: `failure` is nil when it is content.
  mutating func ended(failure: UploadError?) -> Action {
    defer { state = .finished }
    switch state {
    case .finished:
      return .none
    case .receivingResponse(let response, let early):
      // A final response counts even if the connection broke behind it: its head says all that matters.
      var failure = failure
      if failure == nil, response.hasOddTransferCoding, responseBodyRemaining != 0 {
        failure = UploadError(.protocolViolation, "the response has a Transfer-Encoding other than chunked")
      }
      return .finish(
        .success(UploadTask.Outcome(response: response, isEarly: early, bodyFailure: early ? nil : failure)))
    case .sending, .awaitingResponse:
      return .finish(.failure(failure ?? UploadError(.connectionLost, "the connection ended without a response")))
    }
  }
}
