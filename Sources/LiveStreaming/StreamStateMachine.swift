// What the shell of a stream asks of its rules, whichever protocol these are of.

internal import EventLoops
internal import ResumableUploads
internal import UploadClient

/// The rules of a stream over one kind of server: events in, the next step out. No I/O, no clock and no dice of its
/// own.
protocol StreamStateMachine {
  var isEnded: Bool { get }
  /// Stream offset up to which the server has the stream, as far as this protocol can know.
  var acknowledged: UInt64 { get }
  /// One past the highest byte ever handed to the network.
  var sent: UInt64 { get }
  /// Outages so far.
  var dropouts: Int { get }
  /// Bytes handed to the network more than once.
  var resent: UInt64 { get }
  /// Whether what TCP has acknowledged counts, for want of anything better.
  var trustsTransport: Bool { get }
  /// How many bytes of a request that has ended the stream count as acknowledged only because they are not kept any
  /// more.
  var unconfirmedAtEnd: UInt64 { get }
  /// Stream offset at which the representation begins that is being uploaded.
  var base: UInt64 { get }
  /// The server's offset, if it is behind the end of what an earlier process has left: the pauses before it are passed.
  var confirmedSurplus: UInt64? { get }
  /// The upload resource as another process needs it; nil where there is none.
  var resumeData: ResumeData? { get }

  /// What is to be told before the next step is taken.
  mutating func takeEvents() -> [LiveStreamEvent]
  /// How long the server keeps what it has, counted from the response just handled; nil if that did not say.
  mutating func takeLifetime() -> Duration?

  mutating func start(_ supply: Supply, now: MonotonicInstant) -> StreamStep
  /// The request's connection stands.
  mutating func connected()
  /// The first `bodyCount` bytes of the request's body are acknowledged by the peer's TCP.
  mutating func acknowledgedByTransport(bodyCount: UInt64, now: MonotonicInstant)
  /// Bytes up to `cursor` were handed to the network.
  mutating func wrote(upTo cursor: UInt64)
  /// - Parameters:
  ///   - location: the response's `Location`, made absolute.
  ///   - sentUpTo: stream offset up to which the request's body was handed over by now.
  mutating func received(
    interim response: HTTPResponse, location: String?, sentUpTo: UInt64, now: MonotonicInstant
  ) -> StreamStep
  /// - Parameter draw: 64 random bits, for ``RetryPolicy/delay(outage:retryAfter:draw:)``.
  mutating func requestEnded(_ end: RequestEnd, _ supply: Supply, now: MonotonicInstant, draw: UInt64) -> StreamStep
  /// The delay of ``StreamStep/wait(_:)`` is over.
  mutating func retryIsDue(_ supply: Supply) -> StreamStep
  /// What ``StreamStep/awaitBytes(upTo:)`` waited for is there.
  mutating func bytesAreReady(_ supply: Supply) -> StreamStep
  /// More bytes are to be awaited than can be kept. Once the server has acknowledged some, that is asked for once more;
  /// nil before, when it is an error.
  mutating func cannotKeep(upTo offset: UInt64, now: MonotonicInstant, draw: UInt64) -> StreamStep?
  /// The server is about to forget what it has: whether the request under way has to end for that.
  mutating func expiresSoon() -> Bool
  /// The bytes before a pause of the source are delivered, as far as TCP tells. The request under way ends there.
  mutating func passedPause(at offset: UInt64, _ supply: Supply, now: MonotonicInstant) -> StreamStep
  /// The stream ends here, for a reason that no request has.
  mutating func stop(_ error: LiveStreamError) -> StreamStep
  /// Likewise, and what the server has of it shall be forgotten.
  mutating func abandon(_ error: LiveStreamError) -> StreamStep
}

extension StreamStateMachine {
  var unconfirmedAtEnd: UInt64 { 0 }
  var confirmedSurplus: UInt64? { nil }
  mutating func cannotKeep(upTo offset: UInt64, now: MonotonicInstant, draw: UInt64) -> StreamStep? { nil }
  /// Where the server itself tells what it has, the request's answer does.
  mutating func passedPause(at offset: UInt64, _ supply: Supply, now: MonotonicInstant) -> StreamStep { .none }
}

/// What the rules of a stream want done next.
enum StreamStep: Equatable {
  case none
  /// Send this; what is under way, if anything, is of no interest any more.
  case request(StreamRequest)
  /// Nothing to send until the stream reaches this offset, or ends.
  case awaitBytes(upTo: UInt64)
  /// Tell the dropout, and ask again after its delay.
  case wait(Dropout)
  /// The server takes plain uploads only; why, in words, and by which method if not by the user's.
  case fallBack(String, method: String?)
  case end(LiveStreamError?)
}

/// One request of a stream.
struct StreamRequest: Equatable {
  /// In relation to ``UploadRequest/Limits/response``.
  enum AnswerLimit: Equatable {
    case usual
    case atMost(Duration)
    case times(Int)
  }

  enum Content: Equatable {
    case absent, empty
    /// The stream from `start` on, to its end or to this number of bytes.
    case bytes(maximum: UInt64?)
  }

  /// Stream offset of its first byte.
  var start: UInt64
  /// nil for the user's own.
  var method: String?
  /// nil for the stream's own; absolute.
  var url: String?
  var fields: [HTTPResponse.Field]
  var content: Content
  /// Whether the source's header comes in front of the stream's bytes.
  var hasHeader = false
  /// Whether it carries what describes the representation: `Content-Type` and its like.
  var describesRepresentation = true
  /// How long its answer may take.
  var answerLimit = AnswerLimit.usual
  /// Whether it may end at any byte from `minimumEnd` on, for another to go on.
  var rollsOver = false
  /// Stream offset.
  var minimumEnd: UInt64 = 0
}

/// How a request ended.
struct RequestEnd {
  var result: Result<UploadTask.Outcome, UploadError>
  /// The response's `Location`, made absolute.
  var location: String?
  /// Whether there is one that is not followed, because it leads from https to http.
  var isLocationInsecure = false
  /// Stream offset up to which its body was handed over.
  var sentUpTo: UInt64
  /// Whether the server has refused a bearer token that was renewed meanwhile.
  var isTokenRenewed = false
  /// Bytes of the body in front of the stream's.
  var headerLength: UInt64 = 0
}
