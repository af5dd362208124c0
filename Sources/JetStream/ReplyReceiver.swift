// Received messages as values. libnats calls it on threads of its own.

internal import CNats
internal import Glibc

/// The headers of received messages that are converted.
enum WantedHeaders: Sendable {
  case none
  case all
  /// Those with these names. Converting all headers of many messages costs more than anything else here.
  case named([String])

  var isEmpty: Bool { if case .none = self { true } else { false } }
}

/// A subscription, which is made again on each connection of libnats. Only on the sending thread of the
/// ``BrokerConnection``.
final class ReplySubscription: @unchecked Sendable {
  private let subject: String
  private let receiver: ReplyReceiver
  private var subscription: OpaquePointer?

  init(_ subject: String, _ receiver: ReplyReceiver) { (self.subject, self.receiver) = (subject, receiver) }

  /// Does nothing if it has begun.
  func begin(on connection: OpaquePointer) -> natsStatus {
    guard subscription == nil else { return NATS_OK }
    let receiver = Unmanaged.passRetained(receiver)
    let status = natsConnection_Subscribe(
      &subscription, connection, subject,
      { _, _, message, closure in
        // The closure is the retained receiver of this subscription, and each call has a message.
        guard let message, let closure else { return }
        Unmanaged<ReplyReceiver>.fromOpaque(closure).takeUnretainedValue().take(message)
      }, receiver.toOpaque())
    guard status == NATS_OK, let subscription else {
      receiver.release()
      return status
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
    return NATS_OK
  }

  /// Returns libnats's subscription, which receives no further messages, to be released; nil if it had not begun.
  func end() -> OpaquePointer? {
    guard let subscription else { return nil }
    natsSubscription_Unsubscribe(subscription)
    self.subscription = nil
    return subscription
  }
}

/// The subscriptions of one connection of libnats that have ended, until they can be released. Only on the sending
/// thread of the ``BrokerConnection``.
///
/// libnats before 3.6 finds the subscription of a message, copies the message, and then uses the subscription without a
/// reference to it (nats.c issue 637). A release meanwhile would abort the process or damage its memory. So a
/// subscription is released after the reading thread of libnats has begun with a later message, or has ended.
struct EndedSubscriptions {
  /// In the order of their ends, each with the number of messages that the connection had received by then.
  private var all: [(subscription: OpaquePointer, received: UInt64)] = []

  var count: Int { all.count }

  mutating func add(_ subscription: OpaquePointer, of connection: OpaquePointer) {
    // If memory is short, this one and those that follow wait for the end of the connection.
    guard let received = Self.messagesReceived(on: connection) else { return all.append((subscription, .max)) }
    let unused = all.prefix { $0.received < received }
    for ended in unused { natsSubscription_Destroy(ended.subscription) }
    all.removeFirst(unused.count)
    all.append((subscription, received))
  }

  /// Releases all of them, after the connection has been closed.
  mutating func releaseAll() {
    for ended in all { natsSubscription_Destroy(ended.subscription) }
    all = []
  }

  private static func messagesReceived(on connection: OpaquePointer) -> UInt64? {
    var (statistics, received): (OpaquePointer?, UInt64) = (nil, 0)
    guard natsStatistics_Create(&statistics) == NATS_OK else { return nil }
    defer { natsStatistics_Destroy(statistics) }
    natsConnection_GetStats(connection, statistics)
    natsStatistics_GetCounts(statistics, &received, nil, nil, nil, nil)
    return received
  }
}

/// Converts libnats's messages to values.
final class ReplyReceiver: Sendable {
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
