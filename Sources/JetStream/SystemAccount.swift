// The system account of a NATS system, whose users may ask each broker how it is configured.

internal import EventLoops
internal import Glibc

/// Asks all brokers at once, at the subject `$SYS.REQ.SERVER.PING.VARZ`. Only users of the system account get answers.
package enum SystemAccount {
  private static let subject = "$SYS.REQ.SERVER.PING.VARZ"
  /// How long the first answer may take, and how long a further one after the last, in milliseconds.
  private static let (patience, silence): (Int32, Int32) = (3000, 500)

  /// What each broker says that answers in time. Connects for that, and waits. Not for the thread of a loop.
  ///
  /// - Parameter options: with the credentials of the system account.
  /// - Throws: ``BrokerError``: ``BrokerError/invalidReply(_:)`` if nobody answers.
  package static func ask(_ options: BrokerOptions) throws(BrokerError) -> [BrokerFacts] {
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
    connection.send(MessageContent(), to: subject, reply: inbox) { _ in answers.add([]) }
    var facts: [BrokerFacts] = []
    for answer in answers.wait(patience, then: silence) where !answer.isEmpty {
      if let data = try APIReply(answer)["data"] { facts.append(try BrokerFacts(data)) }
    }
    guard !facts.isEmpty else {
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

  /// All that came, once nothing more comes: within `first` milliseconds, and then each within `next`.
  func wait(_ first: Int32, then next: Int32) -> [[UInt8]] {
    var limit = first
    while waitUntilReady(counter.descriptor, for: POLLIN, timeout: limit) {
      counter.drain()
      limit = next
    }
    return all.withLock { $0 }
  }
}
