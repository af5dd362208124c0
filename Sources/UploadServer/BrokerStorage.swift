// The log that a server shares with others: connected and checked once, at the start, and then used by each loop.

internal import EventLoops
internal import JetStream
internal import LogServing

/// A connection to brokers, and the stream that holds the uploads. Any thread, but for what says otherwise.
final class BrokerStorage: @unchecked Sendable {
  private let connection: BrokerConnection
  /// Touched while the server is made, on one thread.
  private let stream: MessageStream

  /// Whether a broker is connected now.
  var isConnected: Bool { connection.isConnected }

  /// How often the connection was lost and made again.
  var reconnectCount: UInt64 { connection.reconnectCount }

  /// Connects, and opens the stream or creates it; waits for both.
  init(_ brokers: UploadServer.Brokers) throws(UploadServerError) {
    do throws(BrokerError) {
      connection = try BrokerConnection(brokers.options)
      stream = try Self.open(brokers, connection)
    } catch {
      throw .brokers(error)
    }
    guard stream.maximumMessageLength >= UploadLog.leastMessageLength else {
      throw .brokers(
        .unsuitableStream(
          brokers.stream,
          reason:
            "a message may have \(stream.maximumMessageLength) bytes, and \(UploadLog.leastMessageLength) are required "
            + "(max_payload of the brokers, max_msg_size of the stream)"))
    }
  }

  /// The stream, for one more loop that does not run yet.
  func stream(on loop: EventLoop) throws(UploadServerError) -> MessageStream {
    do throws(BrokerError) {
      return stream.attached(to: try BrokerClient(connection, on: loop))
    } catch {
      throw .brokers(error)
    }
  }

  /// Runs a loop on this thread until the broker has answered.
  private static func open(
    _ brokers: UploadServer.Brokers, _ connection: BrokerConnection
  ) throws(BrokerError) -> MessageStream {
    let loop: EventLoop
    do throws(SystemError) {
      loop = try EventLoop()
    } catch {
      throw .resources(error.description)
    }
    let client = try BrokerClient(connection, on: loop)
    var opened: Result<MessageStream, BrokerError> = .failure(.timedOut)
    MessageStream.open(brokers.stream, replicas: brokers.replicas, with: client) { result in
      opened = result
      loop.stop()
    }
    loop.run()
    return try opened.get()
  }
}
