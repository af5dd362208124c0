// Messages as values, in both directions.

/// What a message consists of, beside where it goes.
public struct MessageContent: Sendable, Equatable {
  /// Names and values, in the order in which they are sent. Neither may hold a CR or an LF.
  public var headers: [Header]
  public var payload: [UInt8]

  public struct Header: Sendable, Equatable {
    public var name: String
    public var value: String
    public init(_ name: String, _ value: String) { (self.name, self.value) = (name, value) }
  }

  public init(headers: [Header] = [], payload: [UInt8] = []) { (self.headers, self.payload) = (headers, payload) }

  /// The value of the first header of that name. Case counts, as in NATS.
  public subscript(name: String) -> String? { headers.first { $0.name == name }?.value }
}

/// A message that a stream has.
public struct StoredMessage: Sendable, Equatable {
  public var subject: String
  /// Its place in the stream, counted from 1.
  public var sequence: UInt64
  public var content: MessageContent

  public init(subject: String, sequence: UInt64, content: MessageContent) {
    (self.subject, self.sequence, self.content) = (subject, sequence, content)
  }
}

/// A reply as it came from the broker.
struct BrokerReply: Sendable {
  var payload: [UInt8]
  var isNoResponders: Bool
  /// Where an answer to it goes: of a message that a consumer delivers, where it is in the stream.
  var replySubject: String?
  /// In no order. Only where the subscription asks for them.
  var headers: [MessageContent.Header] = []
}
