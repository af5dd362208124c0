// Requests to a broker and their answers, for one loop. JetStream's whole interface consists of requests: a publish is
// one, whose answer is the acknowledgement, and so is each question about a stream. libnats's own calls for JetStream
// wait for the answer, or report only failures, so they are not used.

package import EventLoops

/// Sends requests to the brokers of a ``BrokerConnection`` and receives the answers on one loop. Only on the loop's
/// thread.
///
/// Nothing here blocks. Each request ends exactly once: with the answer, or with an error after its time limit.
package final class BrokerClient {
  private struct Pending {
    let timer: EventLoop.Timer
    let completion: (Result<[UInt8], BrokerError>) -> Void
  }

  package let connection: BrokerConnection
  package let loop: EventLoop
  /// The unique prefix of this client's reply subjects.
  let inbox: String
  private var subscription: BrokerConnection.Subscription?
  private var pending: [UInt64: Pending] = [:]
  private var lastNumber: UInt64 = 0
  private var observation: UInt64 = 0

  /// If the subscription to the answers fails, because the process lacks memory or threads, requests time out until it
  /// succeeds.
  package init(_ connection: BrokerConnection, on loop: EventLoop) {
    self.connection = connection
    self.loop = loop
    inbox = Self.newInbox()
    // Used on the loop's thread only.
    nonisolated(unsafe) weak let client = self
    subscription = connection.subscribe("\(inbox).*") { subject, reply in
      loop.execute { client?.received(reply, for: subject) }
    }
    observation = connection.observe { isConnected in
      if !isConnected { loop.execute { client?.lostConnection() } }
    }
  }

  /// A unique subject. The system generator uses getrandom(2).
  static func newInbox() -> String {
    "_INBOX." + String(UInt64.random(in: .min ... .max), radix: 36)
      + String(UInt64.random(in: .min ... .max), radix: 36)
  }

  deinit {
    connection.forget(observation)
    if let subscription { connection.unsubscribe(subscription) }
  }

  /// Sends a message and waits for its one answer.
  ///
  /// - Parameters:
  ///   - limit: how long the answer may take.
  ///   - completion: receives the answer's payload. Called once, never from within this call.
  package func request(
    _ content: MessageContent, to subject: String, within limit: Duration,
    _ completion: @escaping (Result<[UInt8], BrokerError>) -> Void
  ) {
    lastNumber += 1
    let number = lastNumber
    let timer = loop.schedule(after: limit) { [weak self] in self?.end(number, .failure(.timedOut)) }
    pending[number] = Pending(timer: timer, completion: completion)
    // Used on the loop's thread only.
    nonisolated(unsafe) weak let client = self
    let loop = loop
    connection.send(content, to: subject, reply: "\(inbox).\(number)") { error in
      loop.execute { client?.end(number, .failure(error)) }
    }
  }

  private func received(_ reply: BrokerReply, for subject: String) {
    guard let dot = subject.lastIndex(of: "."), let number = UInt64(subject[subject.index(after: dot)...]) else {
      return
    }
    end(number, reply.isNoResponders ? .failure(.noResponders) : .success(reply.payload))
  }

  /// The connection that pending answers would have used is gone.
  private func lostConnection() {
    for number in pending.keys.sorted() { end(number, .failure(.disconnected)) }
  }

  private func end(_ number: UInt64, _ result: Result<[UInt8], BrokerError>) {
    guard let ended = pending.removeValue(forKey: number) else { return }
    loop.cancel(ended.timer)
    ended.completion(result)
  }
}
