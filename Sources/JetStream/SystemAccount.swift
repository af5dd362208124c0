// The system account of a NATS system, whose users may query the configuration of each broker.

internal import EventLoops
internal import Glibc

/// Queries all brokers at once, with the subject `$SYS.REQ.SERVER.PING.VARZ`. Only users of the system account get
/// answers.
package enum SystemAccount {
  private static let subject = "$SYS.REQ.SERVER.PING.VARZ"
  /// The time limit for all answers together.
  private static let patience = Duration.seconds(3)

  /// The information of these brokers, as far as they answer in time. Connects for that, and waits. Do not call it on
  /// the thread of a loop.
  ///
  /// - Parameters:
  ///   - options: with the credentials of the system account.
  ///   - brokers: names or identifiers. All brokers of the system answer, but others are ignored.
  /// - Throws: ``BrokerError``: ``BrokerError/invalidReply(_:)`` if no broker answers.
  package static func ask(_ options: BrokerOptions, about brokers: [String]) throws(BrokerError) -> [BrokerFacts] {
    let connection = try BrokerConnection(options)
    let answers: Answers
    do throws(SystemError) {
      answers = try Answers()
    } catch {
      throw .resources(error.description)
    }
    let inbox = BrokerClient.newInbox()
    let subscription = connection.subscribe(inbox) { _, reply in answers.add(reply.payload) }
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

/// Passes answers from a libnats thread to a waiting one.
private final class Answers: Sendable {
  private let all = Lock<[[UInt8]]>([])
  private let counter: EventCounter

  init() throws(SystemError) { counter = try EventCounter() }

  func add(_ answer: [UInt8]) {
    all.withLock { $0.append(answer) }
    counter.signal()
  }

  /// The next answer that is not empty; nil if none arrives by the deadline.
  func next(_ deadline: ContinuousClock.Instant) -> [UInt8]? {
    while true {
      let answer: [UInt8]? = all.withLock { $0.isEmpty ? nil : $0.removeFirst() }
      if let answer {
        // An empty one means that nothing listens.
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
