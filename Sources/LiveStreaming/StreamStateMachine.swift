// The interface between the shell of a stream and its rules, for both protocols.

internal import EventLoops
internal import ResumableUploads
internal import UploadClient

/// The rules of a stream to one kind of server. It takes events, and returns the next step. It uses no I/O, no clock
/// and no random numbers of its own.
protocol StreamStateMachine {
  var isEnded: Bool { get }
  /// Whether the server has every byte, and the upload resource stays incomplete, because the source failed.
  var isLeftIncomplete: Bool { get }
  /// The stream offset up to which the server has the stream, as far as this protocol shows.
  var acknowledged: UInt64 { get }
  /// The stream offset before which bytes and gaps need not be kept for another process. It is ``acknowledged``, or the
  /// beginning of a gap after which the server has nothing yet.
  var releasable: UInt64 { get }
  /// The offset after the last byte ever passed to the network.
  var sent: UInt64 { get }
  /// Outages so far. The rules for another protocol continue with them.
  var outages: OutageCount { get }
  /// The time without progress. The rules for another protocol continue with it.
  var clock: RetryClock { get }
  /// The number of bytes passed to the network more than once.
  var resent: UInt64 { get }
  /// Whether TCP acknowledgements count, because there is no better source.
  var trustsTransport: Bool { get }
  /// The number of bytes in the last request of the stream that count as acknowledged only because the buffer no longer
  /// contains them.
  var unconfirmedAtEnd: UInt64 { get }
  /// The stream offset at which the current representation begins.
  var base: UInt64 { get }
  /// The server's offset, if it is after the end of the data that an earlier process left. The pauses before it are
  /// passed.
  var confirmedSurplus: UInt64? { get }
  /// The data with which another process can continue the upload resource, or nil.
  var resumeData: ResumeData? { get }

  /// The events to report before the next step.
  mutating func takeEvents() -> [LiveStreamEvent]
  /// The delay after which ``expiresSoon()`` is due, counted from the response that was just handled. Nil if the
  /// response does not state how long the server keeps the upload.
  mutating func takeTimeToExpiry() -> Duration?

  mutating func start(_ supply: Supply, now: MonotonicInstant) -> StreamStep
  /// The request has a connection.
  mutating func connected()
  /// The peer's TCP has acknowledged the first `bodyCount` bytes of the request's body.
  mutating func acknowledgedByTransport(bodyCount: UInt64, now: MonotonicInstant)
  /// Bytes up to `cursor` were passed to the network.
  mutating func wrote(upTo cursor: UInt64)
  /// - Parameters:
  ///   - location: the response's `Location`, made absolute.
  ///   - sentUpTo: the stream offset up to which the request's body was passed to the network by now.
  mutating func received(
    interim response: HTTPResponse, location: String?, sentUpTo: UInt64, now: MonotonicInstant
  ) -> StreamStep
  /// - Parameter draw: 64 random bits, for ``RetryPolicy/delay(outage:retryAfter:draw:)``.
  mutating func requestEnded(_ end: RequestEnd, _ supply: Supply, now: MonotonicInstant, draw: UInt64) -> StreamStep
  /// The server refused the request because of a bearer token that was renewed in the meantime. A second refusal
  /// without progress is one like any other.
  mutating func tokenRenewed(_ end: RequestEnd, _ supply: Supply, now: MonotonicInstant, draw: UInt64) -> StreamStep
  /// The shell has interrupted a request with ``StreamRequest/rollsOver``, so that another one continues.
  mutating func rolledOver(sentUpTo: UInt64, now: MonotonicInstant, draw: UInt64) -> StreamStep
  /// The delay of ``StreamStep/wait(_:)`` or ``StreamStep/pause(_:)`` is over.
  mutating func retryIsDue(_ supply: Supply) -> StreamStep
  /// The bytes of ``StreamStep/awaitBytes(upTo:)`` are available.
  mutating func bytesAreReady(_ supply: Supply) -> StreamStep
  /// The stream must wait for more bytes than the buffer can keep. Once the server has acknowledged some, it is asked
  /// again. Before that, the result is nil, and this is an error.
  mutating func cannotKeep(upTo offset: UInt64, now: MonotonicInstant, draw: UInt64) -> StreamStep?
  /// The upload resource is about to expire. Returns whether the current request must end because of this.
  mutating func expiresSoon() -> Bool
  /// The bytes before a pause of the source are delivered, as far as TCP reports. The current request ends there.
  mutating func passedPause(at offset: UInt64, _ supply: Supply, now: MonotonicInstant) -> StreamStep
  /// The stream ends here for a reason outside of any request.
  mutating func stop(_ error: LiveStreamError) -> StreamStep
  /// Likewise, and asks the server to delete the upload.
  mutating func abandon(_ error: LiveStreamError) -> StreamStep
}

extension StreamStateMachine {
  /// The end of a plain request is the end of its stream.
  var isLeftIncomplete: Bool { false }
  var outageCount: Int { outages.count }
  var unconfirmedAtEnd: UInt64 { 0 }
  var confirmedSurplus: UInt64? { nil }
  mutating func cannotKeep(upTo offset: UInt64, now: MonotonicInstant, draw: UInt64) -> StreamStep? { nil }
  /// Without an upload resource, no request rolls over.
  mutating func rolledOver(sentUpTo: UInt64, now: MonotonicInstant, draw: UInt64) -> StreamStep { .none }
  /// For a server that reports its offset itself, nothing changes: the response to the request contains the offset.
  mutating func passedPause(at offset: UInt64, _ supply: Supply, now: MonotonicInstant) -> StreamStep { .none }
}

/// The next step of a stream.
enum StreamStep: Equatable {
  case none
  /// Send this request. A current request is dropped.
  case request(StreamRequest)
  /// Nothing to send until the stream reaches this offset, or ends.
  case awaitBytes(upTo: UInt64)
  /// Report the outage, and ask again after its delay.
  case wait(FailedAttempt)
  /// Nothing has failed. Ask again after this delay.
  case pause(Duration)
  /// The server supports only plain uploads, for this reason. `method` is the method to use if it is not the user's.
  case fallBack(String, method: String?)
  case end(LiveStreamError?)
}

/// One request of a stream.
struct StreamRequest: Equatable {
  /// A factor for ``UploadRequest/Limits/response``.
  enum AnswerLimit: Equatable {
    case usual
    case atMost(Duration)
    case times(Int)
  }

  enum Content: Equatable {
    case absent, empty
    /// The stream from `start` on, to its end or with at most this number of bytes.
    case bytes(maximum: UInt64?)
  }

  /// The stream offset of its first byte.
  var start: UInt64
  /// Nil for the user's own.
  var method: String?
  /// Nil for the stream's own. Absolute.
  var url: String?
  var fields: HeaderFields
  var content: Content
  /// Whether the source's header precedes the stream's bytes.
  var hasHeader = false
  /// Whether the request has the fields that describe the representation, such as `Content-Type`.
  var describesRepresentation = true
  /// The longest time until the response.
  var answerLimit = AnswerLimit.usual
  /// Whether the request may end at any byte from `minimumEnd` on, so that another one continues.
  var rollsOver = false
  /// A stream offset.
  var minimumEnd: UInt64 = 0

  /// Whether its response may show that the server supports only plain uploads: that of OPTIONS or of a creation.
  var mayBecomePlain: Bool { method == "OPTIONS" || describesRepresentation }
}

/// The end of a request.
struct RequestEnd {
  var result: Result<UploadTask.Outcome, UploadError>
  /// The response's `Location`, made absolute.
  var location: String?
  /// Whether there is a `Location` that is not followed, because it leads from https to http.
  var isLocationInsecure = false
  /// The stream offset up to which its body was passed to the network.
  var sentUpTo: UInt64
  /// The number of bytes in the body before those of the stream.
  var headerLength: UInt64 = 0
}
