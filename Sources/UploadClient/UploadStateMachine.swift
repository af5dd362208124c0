// One request, from its first byte to its response: what happened so far and what follows from it.

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
    /// The server has answered before the body's end: send nothing more.
    case stopSending
    /// The end, one way or the other.
    case finish(Result<UploadTask.Outcome, UploadError>)
  }

  private(set) var state = State.sending

  /// The body's last byte was handed to libcurl.
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
      return early ? .stopSending : .none
    case .receivingResponse, .finished:
      // Trailers of a final response; nothing of an upload depends on them.
      return .none
    }
  }

  /// A piece of a final response's body; what is beyond the limit is dropped.
  mutating func received<Bytes: Sequence<UInt8>>(body bytes: Bytes) {
    guard case .receivingResponse(var response, let early) = state else { return }
    response.body.append(contentsOf: bytes.prefix(max(0, HTTPResponse.bodyLimit - response.body.count)))
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
      return .finish(.success(UploadTask.Outcome(response: response, isEarly: early)))
    case .sending, .awaitingResponse:
      return .finish(.failure(failure ?? UploadError(.protocolViolation, "the connection ended without a response")))
    }
  }
}
