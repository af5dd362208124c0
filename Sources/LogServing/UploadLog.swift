// The log of all uploads, for one loop: subjects by their tokens, messages by what they say.

internal import EventLoops
internal import HTTPMessages
package import JetStream
internal import Metrics
internal import ResumableUploads
package import StreamServing

/// What the uploads of one loop are served with. Only on the loop's thread.
package final class UploadLog {
  /// How many bytes of an upload one message has at most.
  private static let largestBatch = 256 * 1024
  /// What a message needs besides its bytes: fields of a request, at most.
  private static let headerRoom = 20 * 1024
  /// How many bytes of content with a `Content-Digest` are held until it is compared: of one request, and of all.
  static let (largestVerifiable, verificationRoom) = (4 << 20, 64 << 20)
  /// The second part of a subject that is no upload's: what servers say of themselves.
  package static let ticks = ServedTime.token
  /// The shortest `max_payload` that uploads can be served with.
  package static let leastMessageLength = 32 * 1024

  /// What the marks of this loop's messages begin with: nobody else's do.
  private let name = StreamName.randomID()
  private var publisherCount: UInt64 = 0
  /// How many bytes requests hold until their `Content-Digest` is compared.
  var heldCount = 0
  let stream: MessageStream
  let context: ServingContext
  let options: UploadLimitsConfiguration
  /// The limits of any upload.
  let limits: UploadLimits
  /// What all servers have together.
  let usage: LogUsage
  /// The largest hole that a request of a plain stream may leave.
  let maximumHole: UInt64
  /// Whether the brokers keep what they acknowledge now, as far as that was asked for.
  private let isDurable: () -> Bool
  /// Whether something can be stored now.
  var isReady: Bool { stream.isConnected && isDurable() }
  var loop: EventLoop { context.loop }

  /// - Parameters:
  ///   - usage: of all loops.
  ///   - maximumBodyLength: of a request, which the parser judges.
  ///   - maximumHole: the largest hole that a request of a plain stream may leave.
  ///   - isDurable: whether the brokers keep what they acknowledge. Without it nothing is published.
  package init(
    _ context: ServingContext, stream: MessageStream, options: UploadLimitsConfiguration, usage: LogUsage,
    maximumBodyLength: UInt64?, maximumHole: UInt64, isDurable: @escaping () -> Bool = { true }
  ) {
    (self.isDurable, self.usage, self.maximumHole) = (isDurable, usage, maximumHole)
    (self.context, self.stream, self.options) = (context, stream, options)
    var limits = UploadLimits()
    limits.maximumSize = options.maximumSize
    limits.maximumAppendSize = [options.maximumAppendSize, maximumBodyLength].compactMap(\.self).min()
    limits.minimumAppendSize = options.minimumAppendSize
    limits.maximumAge = usage.lifetimes.toldOfAll
    self.limits = limits
  }

  /// The limits of an upload.
  func limits(isLive: Bool) -> UploadLimits {
    var limits = limits
    limits.maximumAge = usage.lifetimes.told(isLive: isLive)
    return limits
  }

  /// How many bytes of an upload a message may have now.
  var batchLimit: Int {
    max(1, min(Self.largestBatch, stream.maximumMessageLength - min(Self.headerRoom, stream.maximumMessageLength / 2)))
  }

  /// What publishes a message.
  enum Publisher: String {
    case append = ""
    case query = "q"
    case expiry = "x"
  }

  /// A publisher that there was never before.
  func newPublisher(_ kind: Publisher = .append) -> String {
    publisherCount += 1
    return "\(name)-\(kind.rawValue)\(publisherCount)"
  }

  /// Whether this loop has published a message in that way.
  func isOwn(_ mark: LogEntry.Mark, _ kind: Publisher = .append) -> Bool {
    guard mark.publisher.hasPrefix("\(name)-\(kind.rawValue)") else { return false }
    return mark.publisher.dropFirst(name.utf8.count + 1 + kind.rawValue.utf8.count).allSatisfy(\.isNumber)
  }

  func location(of token: String) -> String { options.publicURL + LogUploadHandler.prefix + token }

  func standing(_ entry: LogEntry, _ token: String) -> ServerAnswer.Standing {
    .init(
      offset: entry.end, length: entry.length, isComplete: entry.isComplete,
      limits: limits(isLive: entry.length == nil),
      location: location(of: token))
  }

  /// Publishes a message behind the one with that sequence, and counts what becomes of it.
  func publish(
    _ message: MessageContent, to token: String, after sequence: UInt64,
    _ completion: @escaping (Result<UInt64, BrokerError>) -> Void
  ) {
    guard isDurable() else {
      loop.schedule(after: .zero) { completion(.failure(.disconnected)) }
      return
    }
    let (figures, began) = (context.figures, MonotonicInstant.now)
    figures.values.publishesInFlight += 1
    stream.publish(message, to: token, after: sequence) { result in
      figures.values.publishesInFlight -= 1
      switch result {
      case .success: figures.values.publishDelays.record((MonotonicInstant.now - began).seconds)
      case .failure(let error) where error.isWrongLastSequence: figures.values.refusedPublishes += 1
      case .failure: figures.values.storageFailures += 1
      }
      completion(result)
    }
  }

  /// Whether the log has all messages of an upload, the last of which is `entry`.
  ///
  /// Of a complete upload, a collector may have purged all messages but the last. The brokers are asked once.
  func verify(
    _ entry: LogEntry, at sequence: UInt64, of token: String,
    _ completion: @escaping (LogVerification.Verdict) -> Void
  ) {
    LogVerification(
      self, token, upTo: entry.link, at: sequence, mayBePurged: entry.isComplete, patience: .zero, completion
    ).count()
  }

  /// Removes the messages of an upload before its last one: nothing of it is kept.
  func purge(_ token: String, _ completion: @escaping () -> Void) {
    stream.purge(token) { [context] result in
      if case .failure(let error) = result {
        context.emit(ServerEvent(.warning, reason: "the messages of the discarded upload \(token) stay: \(error)"))
      }
      completion()
    }
  }

  /// What the log says of an upload.
  enum Found {
    case entry(LogEntry, sequence: UInt64)
    /// There is none of that name, or it is somebody else's.
    case unknown
    /// Its last message is not what a server has written.
    case damaged
    case unavailable(BrokerError)
  }

  /// Reads where an upload stands.
  ///
  /// - Parameter credential: of who asks: somebody else's upload is as good as none (section "Security
  ///   Considerations").
  func find(_ token: String, for credential: [UInt8]?, _ completion: @escaping (Found) -> Void) {
    guard UploadToken.isResource(token) else { return completion(.unknown) }
    guard isReady else { return completion(.unavailable(.disconnected)) }
    stream.lastMessage(of: token) { [context] answer in
      switch answer {
      case .failure(let error): completion(.unavailable(error))
      case .success(nil): completion(.unknown)
      case .success(let message?):
        guard let entry = LogEntry(message.content) else {
          context.emit(
            ServerEvent(.warning, reason: "message \(message.sequence) of \(message.subject) is damaged"))
          return completion(.damaged)
        }
        completion(entry.owner == credential ? .entry(entry, sequence: message.sequence) : .unknown)
      }
    }
  }
}

extension UploadLog.Found {
  /// The refusal of a request to what was found; nil if there is an upload that is not over.
  var refusal: UploadRefusal? {
    switch self {
    case .entry(let entry, _): entry.deactivation.map { .deactivated($0) }
    case .unknown: .unknownResource
    case .damaged: .deactivated(.stateLost)
    case .unavailable(let error): UploadRefusal(error)
    }
  }
}

extension UploadRefusal {
  /// The refusal that a client gets for a broker's error.
  init(_ error: BrokerError) {
    switch error {
    case _ where error.isFull: self = .notStored("the brokers have no room: \(error)", isFull: true)
    case _ where error.isTransient: self = .outOfResources("the brokers cannot store anything now: \(error)")
    default: self = .notStored("the brokers did not store it: \(error)", isFull: false)
    }
  }
}
