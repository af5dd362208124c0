// The log of all uploads for one loop.

internal import EventLoops
internal import HTTPMessages
package import JetStream
internal import Metrics
internal import ResumableUploads
package import StreamServing

/// The log and the limits with which one loop serves uploads. Only on the loop's thread.
package final class UploadLog {
  /// The maximum number of an upload's bytes in one message.
  private static let largestBatch = 256 * 1024
  /// The maximum length of a message besides these bytes, which is determined by the fields of a request.
  private static let headerRoom = 20 * 1024
  /// The maximum number of bytes with a `Content-Digest` that are held for the comparison, of one request and of all.
  static let (largestVerifiable, verificationRoom) = (4 << 20, 64 << 20)
  /// The second part of the subject of ticks, which does not belong to an upload.
  package static let ticks = ServedTime.token
  /// The second part of the subject of messages that confirm an answer.
  package static let barriers = ReadBarrier.token
  /// The minimum `max_payload` of the brokers.
  package static let leastMessageLength = 32 * 1024

  /// The unique beginning of the marks of this loop's messages.
  private let name = StreamName.randomID()
  private var publisherCount: UInt64 = 0
  /// The number of bytes that requests hold until their `Content-Digest` is compared.
  var heldCount = 0
  let stream: MessageStream
  let barrier: ReadBarrier
  let context: ServingContext
  let options: UploadLimitsConfiguration
  /// The limits of any upload.
  let limits: UploadLimits
  /// The uploads of all servers.
  let usage: LogUsage
  /// The maximum hole that a request of a plain stream may leave, in bytes.
  let maximumHole: UInt64
  /// Whether the brokers keep acknowledged messages now, if this is required.
  private let isDurable: () -> Bool
  /// Whether messages can be stored now.
  var isReady: Bool { stream.isConnected && isDurable() }
  var loop: EventLoop { context.loop }

  /// - Parameters:
  ///   - usage: the account of all loops.
  ///   - maximumBodyLength: of a request. The parser enforces it.
  ///   - maximumHole: the maximum hole that a request of a plain stream may leave, in bytes.
  ///   - isDurable: whether the brokers keep acknowledged messages. If not, nothing is published.
  package init(
    _ context: ServingContext, stream: MessageStream, options: UploadLimitsConfiguration, usage: LogUsage,
    maximumBodyLength: UInt64?, maximumHole: UInt64, isDurable: @escaping () -> Bool = { true }
  ) {
    (self.isDurable, self.usage, self.maximumHole) = (isDurable, usage, maximumHole)
    (self.context, self.stream, self.options) = (context, stream, options)
    barrier = ReadBarrier(stream, name: name)
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

  /// The maximum number of an upload's bytes in a message now.
  var batchLimit: Int {
    max(1, min(Self.largestBatch, stream.maximumMessageLength - min(Self.headerRoom, stream.maximumMessageLength / 2)))
  }

  /// The kind of the publisher of a message.
  enum Publisher: String {
    case append = ""
    case query = "q"
    case expiry = "x"
  }

  /// The unique name of a new publisher.
  func newPublisher(_ kind: Publisher = .append) -> String {
    publisherCount += 1
    return "\(name)-\(kind.rawValue)\(publisherCount)"
  }

  /// Whether a publisher of that kind in this loop has published a message.
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

  /// Publishes a message after the one with that sequence, and counts the result.
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
  /// A collector may have purged all messages of a complete upload except the last one. This asks the brokers once.
  func verify(
    _ entry: LogEntry, at sequence: UInt64, of token: String,
    _ completion: @escaping (LogVerification.Verdict) -> Void
  ) {
    LogVerification(
      self, token, upTo: entry.link, at: sequence, mayBePurged: entry.isComplete, patience: .zero, completion
    ).count()
  }

  /// Removes all bytes of an upload. Only its last message is kept. If this fails, the ``LogWatch`` of each server
  /// tries again, and reports it if that fails too.
  func purge(_ token: String, _ completion: @escaping () -> Void) {
    stream.purge(token) { _ in completion() }
  }

  /// The same for an upload that was discarded before. A ``LogWatch`` that began later does not know it.
  ///
  /// - Parameter epoch: the one in which the upload was found.
  func purgeAgain(_ token: String, epoch: UInt64, _ completion: @escaping () -> Void) {
    stream.purge(token) { [usage] result in
      if case .failure = result { usage.removalRefused(token, epoch: epoch) }
      completion()
    }
  }

  /// The state of an upload in the log.
  enum Found {
    case entry(LogEntry, sequence: UInt64)
    /// There is no such upload, or it belongs to another client.
    case unknown
    /// Its last message is not one that a server has written.
    case damaged
    case unavailable(BrokerError)
  }

  /// Reads the state of an upload.
  ///
  /// - Parameter credential: the credential of the request. An upload of another client is reported as unknown (section
  ///   "Security Considerations").
  func find(_ token: String, for credential: [UInt8]?, _ completion: @escaping (Found) -> Void) {
    guard UploadToken.isResource(token) else { return completion(.unknown) }
    find(token, for: credential, LogConfirmation(self), completion)
  }

  private func find(
    _ token: String, for credential: [UInt8]?, _ confirmation: LogConfirmation, _ completion: @escaping (Found) -> Void
  ) {
    guard isReady else { return completion(.unavailable(.disconnected)) }
    stream.lastMessage(of: token) { [self] answer in
      let last: (entry: LogEntry, sequence: UInt64)?
      switch answer {
      case .failure(let error): return completion(.unavailable(error))
      case .success(nil): last = nil
      case .success(let message?):
        guard let entry = LogEntry(message.content) else {
          context.emit(
            ServerEvent(.warning, reason: "message \(message.sequence) of \(message.subject) is damaged"))
          return completion(.damaged)
        }
        if entry.owner == credential { return completion(.entry(entry, sequence: message.sequence)) }
        last = (entry, message.sequence)
      }
      // An upload of another client takes the same time as none.
      confirmation.confirm(last?.entry, at: last?.sequence ?? 0, of: token, isAwaited: { true }) {
        completion(.unknown)
      } outdated: { [self] in
        find(token, for: credential, confirmation, completion)
      } unavailable: { error in
        completion(.unavailable(error))
      }
    }
  }
}

extension UploadLog.Found {
  /// The refusal of a request. Nil if there is an unfinished upload.
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
  /// The refusal for an error of the brokers.
  init(_ error: BrokerError) {
    switch error {
    case _ where error.isFull: self = .notStored("the brokers have no room: \(error)", isFull: true)
    case _ where error.isTransient: self = .outOfResources("the brokers cannot store anything now: \(error)")
    default: self = .notStored("the brokers did not store it: \(error)", isFull: false)
    }
  }
}
