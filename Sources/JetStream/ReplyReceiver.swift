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

  func end() {
    guard let subscription else { return }
    natsSubscription_Unsubscribe(subscription)
    natsSubscription_Destroy(subscription)
    self.subscription = nil
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
