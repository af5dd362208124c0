// The system account of a NATS system, whose users may ask each broker how it is configured.

internal import EventLoops
internal import Glibc

/// Asks all brokers at once, at the subject `$SYS.REQ.SERVER.PING.VARZ`. Only users of the system account get answers.
package enum SystemAccount {
  private static let subject = "$SYS.REQ.SERVER.PING.VARZ"
  /// How long all answers together may take.
  private static let patience = Duration.seconds(3)

  /// What these brokers say of themselves, those that answer in time. Connects for that, and waits. Not for the thread of
  /// a loop.
  ///
  /// - Parameters:
  ///   - options: with the credentials of the system account.
  ///   - brokers: names or identifiers. All brokers of the system answer, and others do not count.
  /// - Throws: ``BrokerError``: ``BrokerError/invalidReply(_:)`` if nobody answers at all.
  package static func ask(_ options: BrokerOptions, about brokers: [String]) throws(BrokerError) -> [BrokerFacts] {
    let connection = try BrokerConnection(options)
    let answers: Answers
    do throws(SystemError) {
      answers = try Answers()
    } catch {
      throw .resources(error.description)
    }
    let inbox = BrokerClient.newInbox()
    let subscription = try connection.subscribe(inbox) { _, reply in answers.add(reply.payload) }
    defer { connection.unsubscribe(subscription) }
    connection.send(MessageContent(), to: subject, reply: inbox) { _ in }
    let deadline = ContinuousClock.now + patience
    var (facts, hasAnswers): ([BrokerFacts], Bool) = ([], false)
    while !brokers.allSatisfy({ broker in facts.contains { $0.isCalled(broker) } }), let answer = answers.next(deadline)
    {
      guard let data = try APIReply(answer)["data"] else { continue }
      hasAnswers = true
      let broker = try BrokerFacts(data)
      if brokers.contains(where: broker.isCalled) { facts.append(broker) }
    }
    guard hasAnswers else {
      throw .invalidReply(
        "no broker answers at \(subject): the credentials must be those of a user of the system account")
    }
    return facts
  }
}

/// What comes on a thread of libnats's, for one that waits.
private final class Answers: Sendable {
  private let all = Lock<[[UInt8]]>([])
  private let counter: EventCounter

  init() throws(SystemError) { counter = try EventCounter() }

  func add(_ answer: [UInt8]) {
    all.withLock { $0.append(answer) }
    counter.signal()
  }

  /// The next one that is not empty; nil if there is none by then.
  func next(_ deadline: ContinuousClock.Instant) -> [UInt8]? {
    while true {
      let answer: [UInt8]? = all.withLock { $0.isEmpty ? nil : $0.removeFirst() }
      if let answer {
        // An empty one says that nobody listens.
        if !answer.isEmpty { return answer }
        continue
      }
      let left = (deadline - ContinuousClock.now).nanoseconds / 1_000_000
      guard left > 0, waitUntilReady(counter.descriptor, for: POLLIN, timeout: Int32(clamping: left)) else {
        return nil
      }
      counter.drain()
    }
  }
}
