// The log that a server shares with others. It is connected and checked once, at the start, and then used by each loop.

internal import EventLoops
internal import JetStream
internal import LogServing
internal import StreamServing

/// A connection to brokers, and the stream that contains the uploads. Any thread, unless stated otherwise.
final class BrokerStorage: @unchecked Sendable {
  private let connection: BrokerConnection
  /// Used only while the server is created, on one thread.
  private let stream: MessageStream

  /// What all servers have stored there.
  let usage: LogUsage
  /// Decides whether bytes may be stored there now.
  let guardian: StorageGuard
  /// Notes for an operator, one sentence each.
  let notes: [String]

  /// Whether uploads can be stored now, and it is known what other servers have stored.
  var isReady: Bool { connection.isConnected && guardian.mayStore && usage.isCurrent }

  /// How many times the connection was lost and restored.
  var reconnectCount: UInt64 { connection.reconnectCount }

  /// Connects, and opens the stream or creates it; waits for both.
  ///
  init(
    _ brokers: UploadServer.Brokers, _ configuration: UploadServer.Configuration
  ) throws(UploadServerError) {
    let durability = configuration.durability
    usage = LogUsage(configuration.uploads, finishAfter: configuration.finishAfter)
    do throws(BrokerError) {
      (connection, stream) = try BrokerConnection.open(brokers.options) {
        (connection: BrokerConnection) throws(BrokerError) -> (BrokerConnection, MessageStream) in
        (connection, try BrokerStorage.open(brokers, connection))
      }
      if durability == .always {
        notes = []
      } else if brokers.witnesses.isEmpty {
        notes = StorageProof.notes(isBefore210: stream.isBefore210)
      } else {
        notes = StorageProof.notes(try brokers.witnesses.facts(about: Self.brokers(of: brokers, connection)))
      }
    } catch {
      throw .brokers(error)
    }
    // The guard lives as long as the connection that calls it, so it must not retain the connection.
    weak let connection = connection
    let guardian = StorageGuard(requiresProof: durability == .always, brokers.witnesses) {
      connection?.isConnected ?? false
    } later: { work in
      connection?.schedule(after: .seconds(2), work)
    } brokers: { () throws(BrokerError) in
      guard let connection else { throw .disconnected }
      return try Self.brokers(of: brokers, connection)
    }
    self.guardian = guardian
    // Observe before the question, so that no change is missed.
    self.connection.observe { guardian.connectionChanged(isConnected: $0) }
    if durability == .always { try guardian.prove() }
    let (payload, message) = (self.connection.maximumMessageLength, stream.maximumMessageLength)
    let least = UploadLog.leastMessageLength
    guard payload >= least else { throw .brokers(.shortPayload(limit: payload, required: least)) }
    guard message >= least else {
      throw .brokers(
        .unsuitableStream(
          brokers.stream,
          reason: "it accepts messages of at most \(message) bytes (max_msg_size), and \(least) are required"))
    }
  }

  /// The stream for a further loop that does not run yet.
  func stream(on loop: EventLoop) -> MessageStream { stream.attached(to: BrokerClient(connection, on: loop)) }

  private static func open(
    _ brokers: UploadServer.Brokers, _ connection: BrokerConnection
  ) throws(BrokerError) -> MessageStream {
    try connection.wait { client, done in
      MessageStream.open(brokers.stream, replicas: brokers.replicas, with: client, done)
    }
  }

  /// The names of the brokers that have the stream, or the identifier of the only one.
  private static func brokers(
    of brokers: UploadServer.Brokers, _ connection: BrokerConnection
  ) throws(BrokerError) -> [String] {
    let found: [String] = try connection.wait { client, done in
      MessageStream.find(brokers.stream, replicas: brokers.replicas, with: client) { found in
        switch found {
        case .failure(let error): done(.failure(error))
        case .success(let stream): stream.extent { done($0.map(\.brokers)) }
        }
      }
    }
    // If a broker does not belong to a cluster, the answering broker is the only one.
    return found.isEmpty ? [connection.brokerIdentifier].compactMap(\.self) : found
  }
}
