// One connection to a NATS system. libnats reads on threads of its own. A further thread sends, because libnats's calls
// write to the socket and may wait for it.

internal import CNats
internal import EventLoops
internal import Glibc
internal import Synchronization

/// A connection that libnats maintains. It reconnects by itself, to any broker of the cluster. Any thread.
///
/// Each loop that sends requests has its own ``BrokerClient`` on this connection.
package final class BrokerConnection: Sendable {
  /// Sends. Its thread may wait for the socket, and nothing waits for that thread.
  private let writer: EventLoop
  private nonisolated(unsafe) let connection: OpaquePointer
  private let observer: ConnectionObserver

  /// Connects, and waits for the connection. Do not call it on the thread of a loop.
  ///
  /// - Throws: ``BrokerError/unreachable(_:)``, ``BrokerError/notAuthorized``, ``BrokerError/unusableFile(_:reason:)``
  ///   or ``BrokerError/resources(_:)``.
  package init(_ options: BrokerOptions) throws(BrokerError) {
    let observer = ConnectionObserver()
    self.observer = observer
    connection = try Self.connect(options, observer)
    observer.connected(connection)
    do throws(SystemError) {
      let writer = try EventLoop()
      self.writer = writer
      try NamedThread("sluice-nats") { writer.run() }.detach()
    } catch {
      natsConnection_Destroy(connection)
      throw .resources(error.description)
    }
  }

  deinit {
    // Closing waits for libnats's threads.
    let connection = UInt(bitPattern: connection)
    writer.execute { natsConnection_Destroy(OpaquePointer(bitPattern: connection)) }
    writer.stop()
  }

  /// Whether a broker is connected now.
  package var isConnected: Bool { observer.isConnected.load(ordering: .relaxed) }

  /// Whether the connection has ended for good, because the brokers no longer accept the credentials.
  var isClosed: Bool { observer.isClosed.load(ordering: .relaxed) }

  /// The maximum length of a message that the connected broker accepts, headers included, in bytes.
  package var maximumMessageLength: Int { observer.maximumPayload.load(ordering: .relaxed) }

  /// The `server_id` of the connected broker; nil if there is none.
  package var brokerIdentifier: String? {
    var text = [CChar](repeating: 0, count: 128)
    guard natsConnection_GetConnectedServerId(connection, &text, text.count) == NATS_OK else { return nil }
    let bytes = text.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }
    return bytes.isEmpty ? nil : String(decoding: bytes, as: UTF8.self)
  }

  /// How often the connection was lost and restored.
  package var reconnectCount: UInt64 { observer.reconnects.load(ordering: .relaxed) }

  /// Calls `work` on a thread of libnats when the connection is established or lost.
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
  ///   - failed: receives the reason if it was not sent, on the sending thread.
  func send(
    _ content: MessageContent, to subject: String, reply: String, failed: @escaping @Sendable (BrokerError) -> Void
  ) {
    writer.execute { [self] in
      // libnats would keep it until it has a connection again, and nothing would wait for it any more.
      guard isConnected else { return failed(.disconnected) }
      let status = Self.publish(content, to: subject, reply: reply, on: connection)
      guard status == NATS_OK else { return failed(BrokerError(status)) }
    }
  }

  /// Subscribes to the answers of a client. The subscription ends with ``unsubscribe(_:)``.
  ///
  /// - Parameter headers: the headers of the answers to include.
  func subscribe(
    _ subject: String, headers: WantedHeaders = .none,
    _ received: @escaping @Sendable (_ subject: String, BrokerReply) -> Void
  ) throws(BrokerError) -> Subscription {
    let receiver = Unmanaged.passRetained(ReplyReceiver(headers, received))
    var subscription: OpaquePointer?
    let status = natsConnection_Subscribe(
      &subscription, connection, subject,
      { _, _, message, closure in
        // The closure is the retained receiver of this subscription, and each call has a message.
        guard let message, let closure else { return }
        Unmanaged<ReplyReceiver>.fromOpaque(closure).takeUnretainedValue().take(message)
      }, receiver.toOpaque())
    guard status == NATS_OK, let subscription else {
      receiver.release()
      throw BrokerError(status)
    }
    // Called when no further message will be delivered.
    natsSubscription_SetOnCompleteCB(
      subscription,
      { closure in
        guard let closure else { return }
        Unmanaged<ReplyReceiver>.fromOpaque(closure).release()
      }, receiver.toOpaque())
    // There are as many answers as requests, whose number is limited.
    natsSubscription_SetPendingLimits(subscription, -1, -1)
    return Subscription(pointer: UInt(bitPattern: subscription))
  }

  func unsubscribe(_ subscription: Subscription) {
    writer.execute {
      let pointer = OpaquePointer(bitPattern: subscription.pointer)
      natsSubscription_Unsubscribe(pointer)
      natsSubscription_Destroy(pointer)
    }
  }

  struct Subscription: Sendable { fileprivate let pointer: UInt }

  // MARK: libnats

  private static func publish(
    _ content: MessageContent, to subject: String, reply: String, on connection: OpaquePointer
  ) -> natsStatus {
    var message: OpaquePointer?
    let status = content.payload.withUnsafeBytes { bytes in
      natsMsg_Create(
        &message, subject, reply, bytes.baseAddress?.assumingMemoryBound(to: CChar.self), Int32(bytes.count))
    }
    guard status == NATS_OK else { return status }
    defer { natsMsg_Destroy(message) }
    for header in content.headers {
      let status = natsMsgHeader_Add(message, header.name, header.value)
      guard status == NATS_OK else { return status }
    }
    return natsConnection_PublishMsg(connection, message)
  }

  private static func connect(
    _ options: BrokerOptions, _ observer: ConnectionObserver
  ) throws(BrokerError) -> OpaquePointer {
    var created: OpaquePointer?
    guard natsOptions_Create(&created) == NATS_OK, let settings = created else {
      throw .resources("libnats cannot be initialized")
    }
    defer { natsOptions_Destroy(settings) }
    let servers = options.servers.map { strdup($0) }
    defer { for server in servers { free(server) } }
    var list = servers.map { UnsafePointer($0) }
    var status = natsOptions_SetServers(settings, &list, Int32(list.count))
    guard status == NATS_OK else { throw .unreachable(lastError(status)) }
    natsOptions_SetName(settings, options.name)
    natsOptions_SetTimeout(settings, max(1, options.connectTimeout.nanoseconds / 1_000_000))
    // For ever, because a server that lost its broker must recover as soon as there is one. libnats still ends the
    // connection if one broker refuses the credentials twice in a row.
    natsOptions_SetMaxReconnect(settings, -1)
    natsOptions_SetReconnectWait(settings, 250)
    // Detects a broker that has stopped without closing its connections within 30 s.
    natsOptions_SetPingInterval(settings, 10_000)
    // Otherwise libnats would wait up to a millisecond for more before it writes.
    natsOptions_SetSendAsap(settings, true)
    natsOptions_SetWriteDeadline(settings, 10_000)
    if options.requiresTLS { natsOptions_SetSecure(settings, true) }
    if let path = options.authorityFile {
      status = natsOptions_LoadCATrustedCertificates(settings, path)
      guard status == NATS_OK else { throw .unusableFile(path, reason: lastError(status)) }
    }
    if let path = options.credentialsFile {
      guard access(path, R_OK) == 0 else { throw .unusableFile(path, reason: String(cString: strerror(errno))) }
      status = natsOptions_SetUserCredentialsFromFiles(settings, path, nil)
      guard status == NATS_OK else { throw .unusableFile(path, reason: lastError(status)) }
    }
    if let token = options.token { natsOptions_SetToken(settings, token) }
    var connection: OpaquePointer?
    // libnats before 3.8 sends no signature if its first byte is 0 (nats.c pull request 705), so a broker refuses one
    // connection of 256. Each attempt signs other bytes.
    for _ in 0..<(options.credentialsFile == nil ? 1 : 4) {
      observer.attach(to: settings)
      status = natsConnection_Connect(&connection, settings)
      if status == NATS_OK { break }
      observer.detach()
      if status != NATS_CONNECTION_AUTH_FAILED { break }
    }
    guard status == NATS_OK, let connection else {
      if status == NATS_CONNECTION_AUTH_FAILED { throw .notAuthorized }
      let reason = lastError(status)
      // The file is read when a broker requests it.
      if let path = options.credentialsFile, reason.contains(path) { throw .unusableFile(path, reason: reason) }
      throw .unreachable(reason)
    }
    return connection
  }

  private static func lastError(_ status: natsStatus) -> String {
    var last = NATS_OK
    if let text = nats_GetLastError(&last), text.pointee != 0 {
      let text = String(cString: text)
      // libnats begins with the location in its own source: (conn.c:4212).
      guard text.hasPrefix("("), let end = text.firstRange(of: "): ") else { return text }
      return String(text[end.upperBound...])
    }
    return String(cString: natsStatus_GetText(status))
  }
}

extension BrokerError {
  fileprivate init(_ status: natsStatus) {
    self =
      switch status {
      case NATS_MAX_PAYLOAD: .messageTooLarge
      case NATS_NO_MEMORY, NATS_SYS_ERROR: .resources(String(cString: natsStatus_GetText(status)))
      default: .disconnected
      }
  }
}

/// Receives libnats's callbacks about a connection. It outlives the connection until libnats has closed it.
private final class ConnectionObserver: Sendable {
  let isConnected = Atomic<Bool>(false)
  let isClosed = Atomic<Bool>(false)
  let maximumPayload = Atomic<Int>(0)
  let reconnects = Atomic<UInt64>(0)
  struct Observers {
    var all: [UInt64: @Sendable (Bool) -> Void] = [:]
    var lastNumber: UInt64 = 0
  }
  let observers = Lock(Observers())

  /// Retains itself until the connection is closed.
  func attach(to settings: OpaquePointer) {
    let this = Unmanaged.passRetained(self).toOpaque()
    natsOptions_SetDisconnectedCB(
      settings, { _, closure in ConnectionObserver.from(closure)?.changed(to: false) }, this)
    natsOptions_SetReconnectedCB(
      settings,
      { connection, closure in
        guard let connection, let observer = ConnectionObserver.from(closure) else { return }
        observer.reconnects.add(1, ordering: .relaxed)
        observer.connected(connection)
      }, this)
    natsOptions_SetClosedCB(
      settings,
      { _, closure in
        guard let closure else { return }
        let observer = Unmanaged<ConnectionObserver>.fromOpaque(closure).takeRetainedValue()
        observer.isClosed.store(true, ordering: .relaxed)
        observer.changed(to: false)
      }, this)
  }

  /// There was no connection, and no callback will follow.
  func detach() { Unmanaged.passUnretained(self).release() }

  func connected(_ connection: OpaquePointer) {
    maximumPayload.store(Int(natsConnection_GetMaxPayload(connection)), ordering: .relaxed)
    changed(to: true)
  }

  private func changed(to isConnected: Bool) {
    self.isConnected.store(isConnected, ordering: .relaxed)
    for observer in observers.withLock({ Array($0.all.values) }) { observer(isConnected) }
  }

  fileprivate static func from(_ closure: UnsafeMutableRawPointer?) -> ConnectionObserver? {
    closure.map { Unmanaged<ConnectionObserver>.fromOpaque($0).takeUnretainedValue() }
  }
}

/// The headers of received messages that are converted.
enum WantedHeaders: Sendable {
  case none
  case all
  /// Those with these names. Converting all headers of many messages costs more than anything else here.
  case named([String])

  var isEmpty: Bool { if case .none = self { true } else { false } }
}

/// Converts libnats's messages to values.
private final class ReplyReceiver: Sendable {
  private let wanted: WantedHeaders
  /// The names of ``WantedHeaders/named(_:)``, each with its final zero.
  private let names: [(text: String, bytes: ContiguousArray<CChar>)]
  private let received: @Sendable (String, BrokerReply) -> Void

  init(_ wanted: WantedHeaders, _ received: @escaping @Sendable (String, BrokerReply) -> Void) {
    (self.wanted, self.received) = (wanted, received)
    names = if case .named(let names) = wanted { names.map { ($0, $0.utf8CString) } } else { [] }
  }

  func take(_ message: OpaquePointer) {
    defer { natsMsg_Destroy(message) }
    guard let subject = natsMsg_GetSubject(message) else { return }
    let bytes = UnsafeRawBufferPointer(start: natsMsg_GetData(message), count: Int(natsMsg_GetDataLength(message)))
    var reply = BrokerReply(payload: Array(bytes), isNoResponders: natsMsg_IsNoResponders(message))
    switch wanted {
    case .none: break
    case .all: reply.headers = Self.headers(of: message)
    case .named:
      reply.headers = names.compactMap { name in
        name.bytes.withUnsafeBufferPointer { Self.header(name.text, $0.baseAddress, of: message) }
      }
    }
    if !wanted.isEmpty { reply.replySubject = natsMsg_GetReply(message).map { String(cString: $0) } }
    received(String(cString: subject), reply)
  }

  private static func headers(of message: OpaquePointer) -> [MessageContent.Header] {
    var keys: UnsafeMutablePointer<UnsafePointer<CChar>?>?
    var count: Int32 = 0
    guard natsMsgHeader_Keys(message, &keys, &count) == NATS_OK else { return [] }
    defer { free(keys) }
    return (0..<Int(count)).compactMap { index in
      guard let key = keys?[index] else { return nil }
      return header(String(cString: key), key, of: message)
    }
  }

  /// - Parameter key: the name, which ends with a zero.
  private static func header(
    _ name: String, _ key: UnsafePointer<CChar>?, of message: OpaquePointer
  ) -> MessageContent.Header? {
    var value: UnsafePointer<CChar>?
    guard natsMsgHeader_Get(message, key, &value) == NATS_OK, let value else { return nil }
    return MessageContent.Header(name, String(cString: value))
  }
}
