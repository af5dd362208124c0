// Messages as values, in both directions.

/// What a message consists of, beside where it goes.
package struct MessageContent: Sendable, Equatable {
  /// Names and values, in the order in which they are sent. Neither may hold a CR or an LF.
  package var headers: [Header]
  package var payload: [UInt8]

  package struct Header: Sendable, Equatable {
    package var name: String
    package var value: String
    package init(_ name: String, _ value: String) { (self.name, self.value) = (name, value) }
  }

  package init(headers: [Header] = [], payload: [UInt8] = []) { (self.headers, self.payload) = (headers, payload) }

  /// The value of the first header of that name. Case counts, as in NATS.
  package subscript(name: String) -> String? { headers.first { $0.name == name }?.value }
}

/// A message that a stream has.
package struct StoredMessage: Sendable, Equatable {
  package var subject: String
  /// Its place in the stream, counted from 1.
  package var sequence: UInt64
  package var content: MessageContent

  package init(subject: String, sequence: UInt64, content: MessageContent) {
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
