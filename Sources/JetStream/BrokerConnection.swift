// One connection to a NATS system. libnats reads on threads of its own. A further thread sends, because libnats's calls
// write to the socket and may wait for it.

internal import CNats
internal import EventLoops
internal import Glibc
internal import Synchronization

/// A connection that is restored for ever, to any broker of the cluster. Any thread.
///
/// libnats reconnects by itself, except after a broker has refused the credentials twice in a row. Then it ends the
/// connection. It is established anew here, with a pause before each attempt, because the credentials may become valid
/// again.
///
/// Each loop that sends requests has its own ``BrokerClient`` on this connection.
package final class BrokerConnection: Sendable {
  /// The pauses before the attempts to connect anew: the first, and the longest.
  private static let pauses = (first: Duration.seconds(1), longest: Duration.seconds(30))

  private struct State {
    /// libnats's connection. Replaced and destroyed only on the sending thread.
    nonisolated(unsafe) var connection: OpaquePointer
    var subscriptions: [UInt64: ReplySubscription] = [:]
    var lastNumber: UInt64 = 0
    /// Whether an attempt to connect anew is scheduled.
    var isAttemptDue = false
  }

  private let options: BrokerOptions
  /// Sends and connects anew. Its thread may wait for the socket, and nothing waits for that thread.
  private let writer: EventLoop
  private let state: Lock<State>
  private let observer: ConnectionObserver

  /// Connects, and waits for the connection. Do not call it on the thread of a loop.
  ///
  /// - Throws: ``BrokerError/unreachable(_:)``, ``BrokerError/notAuthorized``, ``BrokerError/unusableFile(_:reason:)``
  ///   or ``BrokerError/resources(_:)``.
  package init(_ options: BrokerOptions) throws(BrokerError) {
    let observer = ConnectionObserver()
    (self.options, self.observer) = (options, observer)
    let connection = try LibraryConnection.connect(options, observer)
    state = Lock(State(connection: connection))
    observer.connected(connection)
    do throws(SystemError) {
      let writer = try EventLoop()
      self.writer = writer
      try NamedThread("sluice-nats") { writer.run() }.detach()
    } catch {
      natsConnection_Destroy(connection)
      throw .resources(error.description)
    }
    weak let this = self
    observer.ended.withLock { $0 = { this?.connectAnew(after: Self.pauses.first) } }
    // It may have ended before that.
    if natsConnection_IsClosed(connection) { connectAnew(after: Self.pauses.first) }
  }

  deinit {
    // Closing waits for libnats's threads.
    let connection = state.withLock { UInt(bitPattern: $0.connection) }
    writer.execute { natsConnection_Destroy(OpaquePointer(bitPattern: connection)) }
    writer.stop()
  }

  /// Whether a broker is connected now.
  package var isConnected: Bool { observer.isConnected.load(ordering: .relaxed) }

  /// Why the brokers, or the file of the credentials, do not permit a connection; nil if they do.
  package var refusal: BrokerError? { observer.refusal.withLock { $0 } }

  /// The maximum length of a message that the connected broker accepts, headers included, in bytes.
  package var maximumMessageLength: Int { observer.maximumPayload.load(ordering: .relaxed) }

  /// The `server_id` of the connected broker; nil if there is none.
  package var brokerIdentifier: String? {
    var text = [CChar](repeating: 0, count: 128)
    let status = state.withLock { natsConnection_GetConnectedServerId($0.connection, &text, text.count) }
    guard status == NATS_OK else { return nil }
    let bytes = text.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }
    return bytes.isEmpty ? nil : String(decoding: bytes, as: UTF8.self)
  }

  /// How often the connection was lost and restored.
  package var reconnectCount: UInt64 { observer.reconnects.load(ordering: .relaxed) }

  /// Calls `work` on a thread of libnats, or on the sending thread, when the connection is established or lost.
  ///
  /// - Returns: a number for ``forget(_:)``, which ends this.
  @discardableResult
  package func observe(_ work: @escaping @Sendable (Bool) -> Void) -> UInt64 {
    observer.observers.withLock { observers in
      observers.lastNumber += 1
      observers.all[observers.lastNumber] = work
      return observers.lastNumber
    }
  }

  /// Ends the notifications of the observer with that number.
  func forget(_ number: UInt64) { observer.observers.withLock { _ = $0.all.removeValue(forKey: number) } }

  /// Sends a message.
  ///
  /// - Parameters:
  ///   - reply: the subject for an answer.
  ///   - failed: receives the reason if it was not sent, on this thread or on the sending one.
  func send(
    _ content: MessageContent, to subject: String, reply: String, failed: @escaping @Sendable (BrokerError) -> Void
  ) {
    // libnats would keep it until it has a connection again, and nothing would wait for it any more.
    guard isConnected else { return failed(.disconnected) }
    writer.execute { [self] in
      guard isConnected else { return failed(.disconnected) }
      let connection = state.withLock { $0.connection }
      let status = LibraryConnection.publish(content, to: subject, reply: reply, on: connection)
      guard status == NATS_OK else { return failed(BrokerError(status)) }
    }
  }

  /// Subscribes to the answers of a client. The subscription survives the loss of the connection, and ends with
  /// ``unsubscribe(_:)``.
  ///
  /// - Parameter headers: the headers of the answers to include.
  func subscribe(
    _ subject: String, headers: WantedHeaders = .none,
    _ received: @escaping @Sendable (_ subject: String, BrokerReply) -> Void
  ) throws(BrokerError) -> Subscription {
    let subscription = ReplySubscription(subject, ReplyReceiver(headers, received))
    let (number, status) = state.withLock { state in
      let status = subscription.begin(on: state.connection)
      state.lastNumber += 1
      if status == NATS_OK { state.subscriptions[state.lastNumber] = subscription }
      return (state.lastNumber, status)
    }
    guard status == NATS_OK else { throw BrokerError(status) }
    return Subscription(number: number)
  }

  func unsubscribe(_ subscription: Subscription) {
    writer.execute { [self] in
      state.withLock { $0.subscriptions.removeValue(forKey: subscription.number) }?.end()
    }
  }

  struct Subscription: Sendable { fileprivate let number: UInt64 }

  // MARK: After refused credentials

  /// libnats has ended the connection, or an attempt has failed. On a thread of libnats, or on the sending one.
  private func connectAnew(after pause: Duration) {
    let isDue = state.withLock { state in
      defer { state.isAttemptDue = true }
      return state.isAttemptDue
    }
    guard !isDue else { return }
    weak let this = self
    writer.execute { [writer] in
      writer.schedule(after: pause) { this?.tryAgain(after: pause) }
    }
  }

  private func tryAgain(after pause: Duration) {
    // The new connection may end at once.
    state.withLock { $0.isAttemptDue = false }
    do throws(BrokerError) {
      let connection = try LibraryConnection.connect(options, observer)
      try replace(by: connection)
      observer.refusal.withLock { $0 = nil }
      observer.reconnects.add(1, ordering: .relaxed)
      observer.connected(connection)
    } catch {
      if !error.isTransient { observer.refusal.withLock { $0 = error } }
      connectAnew(after: min(pause * 2, Self.pauses.longest))
    }
  }

  /// Moves the subscriptions to a new connection.
  private func replace(by connection: OpaquePointer) throws(BrokerError) {
    let address = UInt(bitPattern: connection)
    let (former, status) = state.withLock { state in
      let former = UInt(bitPattern: state.connection)
      for subscription in state.subscriptions.values { subscription.end() }
      guard let connection = OpaquePointer(bitPattern: address) else { return (former, NATS_ERR) }
      state.connection = connection
      let statuses = state.subscriptions.values.map { $0.begin(on: connection) }
      return (former, statuses.first { $0 != NATS_OK } ?? NATS_OK)
    }
    natsConnection_Destroy(OpaquePointer(bitPattern: former))
    guard status == NATS_OK else { throw BrokerError(status) }
  }
}
