// Messages as values, in both directions.

/// The content of a message, apart from its subject.
package struct MessageContent: Sendable, Equatable {
  /// Names and values, in the order of sending. Neither may contain a CR or an LF.
  package var headers: [Header]
  package var payload: [UInt8]

  package struct Header: Sendable, Equatable {
    package var name: String
    package var value: String
    package init(_ name: String, _ value: String) { (self.name, self.value) = (name, value) }
  }

  package init(headers: [Header] = [], payload: [UInt8] = []) { (self.headers, self.payload) = (headers, payload) }

  /// The value of the first header of that name. Names are case-sensitive, as in NATS.
  package subscript(name: String) -> String? { headers.first { $0.name == name }?.value }
}

/// A stored message of a stream.
package struct StoredMessage: Sendable, Equatable {
  package var subject: String
  /// Its number in the stream, counted from 1.
  package var sequence: UInt64
  /// When the brokers stored it, in nanoseconds since 1970 by their clock; 0 if unknown.
  package var time: Int64
  package var content: MessageContent

  package init(subject: String, sequence: UInt64, time: Int64, content: MessageContent) {
    (self.subject, self.sequence, self.time, self.content) = (subject, sequence, time, content)
  }
}

/// A reply as received from the broker.
struct BrokerReply: Sendable {
  var payload: [UInt8]
  var isNoResponders: Bool
  /// The subject for an answer to it. For a message delivered by a consumer, it contains the message's place in the
  /// stream.
  var replySubject: String?
  /// The headers in any order. Empty unless the subscription requests them.
  var headers: [MessageContent.Header] = []
}
