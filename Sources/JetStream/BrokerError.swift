// Why a request to a broker was not carried out, as a value.

/// What failed between us and a broker. ``description`` contains the cause in words. The caller states the remedy.
public enum BrokerError: Error, Equatable, Sendable, CustomStringConvertible {
  /// None of the brokers could be reached, or none accepted the connection.
  case unreachable(String)
  /// The broker does not accept the credentials.
  case notAuthorized
  /// A file that the options name cannot be used.
  case unusableFile(String, reason: String)
  /// There is no connection at the moment. A request that was under way may have been carried out.
  case disconnected
  /// No answer came in time. The request may have been carried out.
  case timedOut
  /// Nothing answers such requests: the broker has no JetStream, or no broker currently leads the stream.
  case noResponders
  /// JetStream refuses. `number` is its own (`err_code`), and `code` resembles an HTTP status.
  case refused(code: Int, number: Int, reason: String)
  /// An answer that does not conform to JetStream's API.
  case invalidReply(String)
  /// The message is larger than the broker allows.
  case messageTooLarge
  /// A stream of that name exists, but may drop or refuse messages that it should keep.
  case unsuitableStream(String, reason: String)
  /// The brokers accept messages of at most `limit` bytes, and `required` are needed.
  case shortPayload(limit: Int, required: Int)
  /// The process lacks memory, threads or descriptors.
  case resources(String)

  /// The error number of a publish that names a sequence other than that of the subject's last message.
  static let wrongLastSequence = 10071
  /// Another message follows the one that a publish names.
  static let alreadyFollowed = refused(
    code: 400, number: wrongLastSequence, reason: "wrong last sequence: the subject already has a later message")
  /// Another publish for the subject is under way in a cluster, and the last message is still undecided.
  static let undecidedLastSequence = 10164
  /// There is no such stream.
  static let streamNotFound = 10059
  /// There is no such message.
  static let messageNotFound = 10037

  /// Whether there is no stream with the requested name.
  public var isStreamNotFound: Bool {
    if case .refused(_, Self.streamNotFound, _) = self { true } else { false }
  }

  /// Whether a publish was refused because the subject's last message is not the one that the publish names.
  public var isWrongLastSequence: Bool {
    if case .refused(_, Self.wrongLastSequence, _) = self { true } else { false }
  }

  /// Whether the stream, the account or the brokers' disks have no room: 10002 and 10047 are limits of an account and a
  /// broker, 10023 a broker that lacks resources, 10077 a store that does not take the message.
  public var isFull: Bool {
    if case .refused(_, let number, _) = self { [10002, 10023, 10047, 10077].contains(number) } else { false }
  }

  /// Whether the same may succeed a little later, with this broker or with another one.
  public var isTransient: Bool {
    switch self {
    case .unreachable, .disconnected, .timedOut, .noResponders: true
    // 408, 500 and 503: a cluster without a leader, or an overloaded one. 429: too many publishes of the stream wait in
    // its cluster (10167, since NATS 2.11).
    case .refused(let code, let number, _):
      number == Self.undecidedLastSequence
        || !isWrongLastSequence && !isFull && (code == 408 || code == 429 || code >= 500)
    case .notAuthorized, .unusableFile, .invalidReply, .messageTooLarge, .unsuitableStream, .shortPayload, .resources:
      false
    }
  }

  /// Whether the broker, or the account there, has no JetStream: 10039 is an account without it, 10076 a broker.
  /// A cluster without a leader looks the same.
  package var lacksJetStream: Bool {
    switch self {
    case .noResponders: true
    case .refused(_, let number, _): [10039, 10076].contains(number)
    default: false
    }
  }

  /// Whether the process lacks memory, threads or descriptors, which it may have again a little later.
  var isShortage: Bool { if case .resources = self { true } else { false } }

  /// The cause, in words.
  public var description: String {
    switch self {
    case .unreachable(let reason): "no broker can be reached: \(reason)"
    case .notAuthorized: "the broker does not accept the credentials"
    case .unusableFile(let path, let reason): "cannot use \"\(path)\": \(reason)"
    case .disconnected: "there is no connection to a broker"
    case .timedOut: "the broker did not answer in time"
    case .noResponders: "no broker answers for JetStream"
    case .refused(_, let number, let reason): "JetStream refused: \(reason) (error \(number))"
    case .invalidReply(let reason): "the broker's answer cannot be read: \(reason)"
    case .messageTooLarge: "the message is larger than the broker's max_payload"
    case .unsuitableStream(let name, let reason): "the JetStream stream \"\(name)\" is unsuitable: \(reason)"
    case .shortPayload(let limit, let required):
      "the brokers accept messages of at most \(limit) bytes (max_payload), and \(required) are required"
    case .resources(let reason): reason
    }
  }
}
