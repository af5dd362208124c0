// One connection to a NATS system. libnats reads on threads of its own. A further thread sends, because libnats's calls
// write to the socket and may wait for it.

internal import CNats
internal import EventLoops
internal import Glibc
internal import Synchronization

/// A connection that is always restored, to any broker of the cluster. Any thread.
///
/// libnats reconnects by itself, except after a broker has refused the credentials twice in a row, or after errors that
/// it does not handle. Then it ends the connection. It is established again here, with a pause before each attempt,
/// because the credentials may become valid again.
///
/// Each loop that sends requests has its own ``BrokerClient`` on this connection.
package final class BrokerConnection: Sendable {
  /// The pauses before the attempts to reconnect.
  private static let pauses = RetryPauses(.seconds(1)...(.seconds(30)))

  private struct State {
    /// libnats's connection. Replaced and destroyed only on the sending thread.
    nonisolated(unsafe) var connection: OpaquePointer
    var callbacks: ConnectionCallbacks
    var subscriptions: [UInt64: ReplySubscription] = [:]
  }

  private let options: BrokerOptions
  /// Sends and reconnects. Its thread may wait for the socket, and nothing waits for that thread.
  private let writer: EventLoop
  private let state: Lock<State>
  /// Subscriptions of the present connection of libnats. On the sending thread only.
  private(set) nonisolated(unsafe) var ended = EndedSubscriptions()
  private let observer: ConnectionObserver
  /// The number of the last subscription.
  private let lastNumber = Atomic<UInt64>(0)

  /// Connects, and waits for the connection. Do not call it on the thread of a loop.
  ///
  /// - Throws: ``BrokerError/unreachable(_:)``, ``BrokerError/notAuthorized``, ``BrokerError/unusableFile(_:reason:)``
  ///   or ``BrokerError/resources(_:)``.
  package init(_ options: BrokerOptions) throws(BrokerError) {
    let observer = ConnectionObserver(options)
    (self.options, self.observer) = (options, observer)
    let callbacks = ConnectionCallbacks(observer)
    let connection = try LibraryConnection.connect(options, callbacks)
    state = Lock(State(connection: connection, callbacks: callbacks))
    do throws(SystemError) {
      let writer = try EventLoop()
      self.writer = writer
      try NamedThread("sluice-nats") { writer.run() }.detach()
    } catch {
      natsConnection_Destroy(connection)
      throw .resources(error.description)
    }
    weak let this = self
    observer.ended.withLock { $0 = { this?.connectAnew(Self.pauses) } }
    callbacks.begin(connection)
  }

  deinit {
    // Closing waits for libnats's threads.
    let connection = state.withLock { state in
      state.callbacks.drop()
      return UInt(bitPattern: state.connection)
    }
    nonisolated(unsafe) var ended = ended
    writer.execute {
      natsConnection_Destroy(OpaquePointer(bitPattern: connection))
      ended.releaseAll()
    }
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

  /// Calls `work` on the sending thread after a pause. It must not block.
  package func schedule(after pause: Duration, _ work: @escaping @Sendable () -> Void) {
    writer.execute { [writer] in writer.schedule(after: pause) { work() } }
  }

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

  /// Subscribes to the answers of a client, before all messages that are sent later. The subscription survives the loss
  /// of the connection, and ends with ``unsubscribe(_:)``.
  ///
  /// Done on the sending thread, because libnats makes it wait while it tries to reconnect.
  ///
  /// - Parameters:
  ///   - headers: the headers of the answers to include.
  ///   - failed: receives the reason if there is no subscription, on the sending thread.
  func subscribe(
    _ subject: String, headers: WantedHeaders = .none, failed: @escaping @Sendable (BrokerError) -> Void = { _ in },
    _ received: @escaping @Sendable (_ subject: String, BrokerReply) -> Void
  ) -> Subscription {
    let subscription = ReplySubscription(subject, ReplyReceiver(headers, received))
    // Without the lock, because libnats may make its holder wait.
    let number = lastNumber.wrappingAdd(1, ordering: .relaxed).newValue
    writer.execute { [self] in
      state.withLock { $0.subscriptions[number] = subscription }
      begin(number, failed)
    }
    return Subscription(number: number)
  }

  /// Begins a subscription, again and again if the process lacks memory or threads. On the sending thread.
  private func begin(_ number: UInt64, _ failed: @escaping @Sendable (BrokerError) -> Void) {
    let (subscription, connection) = state.withLock { ($0.subscriptions[number], UInt(bitPattern: $0.connection)) }
    guard let subscription, let connection = OpaquePointer(bitPattern: connection) else { return }
    let status = subscription.begin(on: connection)
    guard status != NATS_OK else { return }
    failed(BrokerError(status))
    weak let this = self
    writer.schedule(after: Self.pauses.shortest) { this?.begin(number, failed) }
  }

  func unsubscribe(_ subscription: Subscription) {
    writer.execute { [self] in
      let (subscription, connection) = state.withLock { state in
        (state.subscriptions.removeValue(forKey: subscription.number), UInt(bitPattern: state.connection))
      }
      guard let ended = subscription?.end(), let connection = OpaquePointer(bitPattern: connection) else { return }
      self.ended.add(ended, of: connection)
    }
  }

  /// A request to JetStream's API has ended with this answer. A broker without JetStream is left after some time.
  func answered(_ answer: Result<APIReply, BrokerError>) {
    switch answer {
    // On the sending thread, because it examines the descriptors of the process.
    case .failure(let error) where error.lacksJetStream: writer.execute { [observer] in observer.lacksJetStream() }
    case .success, .failure(.refused): observer.hasJetStream()
    // Says nothing about JetStream.
    case .failure: break
    }
  }

  struct Subscription: Sendable { fileprivate let number: UInt64 }

  // MARK: After the end of libnats's connection

  /// libnats has ended the connection, or an attempt has failed. On a thread of libnats, or on the sending one.
  private func connectAnew(_ pauses: RetryPauses) {
    weak let this = self
    writer.execute { [writer] in
      var pauses = pauses
      writer.schedule(after: pauses.next()) { [pauses] in this?.tryAgain(pauses) }
    }
  }

  /// - Parameter pauses: those that follow if this attempt fails too.
  private func tryAgain(_ pauses: RetryPauses) {
    do throws(BrokerError) {
      let callbacks = ConnectionCallbacks(observer)
      let connection = try LibraryConnection.connect(options, callbacks)
      try replace(by: connection, callbacks)
      observer.refusal.withLock { $0 = nil }
      observer.reconnects.add(1, ordering: .relaxed)
      callbacks.begin(connection)
    } catch {
      if !error.isTransient, !error.isShortage { observer.refused(error) }
      connectAnew(pauses)
    }
  }

  /// Moves the subscriptions to a new connection. If that fails, the new one is closed.
  private func replace(by connection: OpaquePointer, _ callbacks: ConnectionCallbacks) throws(BrokerError) {
    let subscriptions = state.withLock { Array($0.subscriptions.values) }
    // libnats has ended their former connection.
    for subscription in subscriptions { natsSubscription_Destroy(subscription.end()) }
    for subscription in subscriptions {
      let status = subscription.begin(on: connection)
      guard status == NATS_OK else {
        let ended = subscriptions.compactMap { $0.end() }
        natsConnection_Destroy(connection)
        for subscription in ended { natsSubscription_Destroy(subscription) }
        throw BrokerError(status)
      }
    }
    let address = UInt(bitPattern: connection)
    let former = state.withLock { state in
      let former = UInt(bitPattern: state.connection)
      state.callbacks.drop()
      state.callbacks = callbacks
      state.connection = OpaquePointer(bitPattern: address) ?? state.connection
      return former
    }
    natsConnection_Destroy(OpaquePointer(bitPattern: former))
    ended.releaseAll()
  }
}
