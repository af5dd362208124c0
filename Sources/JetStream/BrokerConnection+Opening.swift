// The first requests over a connection, before any loop runs: each waits for the answer of a broker.

internal import EventLoops

extension BrokerConnection {
  /// Connects, and uses the connection for requests to JetStream. Waits for both. Do not call it on the thread of a
  /// loop.
  ///
  /// A connection belongs to one broker of the list. If that one does not run JetStream, and belongs to no cluster that
  /// does, each broker is asked, and a connection to the others is used. A connection that is restored to such a broker
  /// later leaves it (``JetStreamAbsence``).
  ///
  /// - Parameter use: called with a connection, and again with another one if the first has no JetStream.
  package static func open<Value>(
    _ options: BrokerOptions, _ use: (BrokerConnection) throws(BrokerError) -> Value
  ) throws(BrokerError) -> Value {
    do throws(BrokerError) {
      return try use(BrokerConnection(options))
    } catch {
      guard error.lacksJetStream, options.servers.count > 1 else { throw error }
      var others = options
      // One that cannot be reached now may be the one with JetStream.
      others.servers = options.servers.filter { !lacksJetStream($0, options) }
      guard !others.servers.isEmpty else { throw error }
      let connection: BrokerConnection
      do throws(BrokerError) {
        connection = try BrokerConnection(others)
      } catch let failure {
        // Of the brokers that can be reached, none runs JetStream.
        if case .unreachable = failure { throw error }
        throw failure
      }
      return try use(connection)
    }
  }

  /// Whether a broker of the list is reached, and answers that it does not run JetStream.
  private static func lacksJetStream(_ server: String, _ options: BrokerOptions) -> Bool {
    var only = options
    only.servers = [server]
    do throws(BrokerError) {
      let connection = try BrokerConnection(only)
      let _: APIReply = try connection.wait { client, done in MessageStream.ask(client, "INFO") { done($0) } }
      return false
    } catch {
      return error.lacksJetStream
    }
  }

  /// Runs a loop on this thread until a broker has answered.
  package func wait<Value>(
    _ ask: (BrokerClient, @escaping (Result<Value, BrokerError>) -> Void) -> Void
  ) throws(BrokerError) -> Value {
    let loop: EventLoop
    do throws(SystemError) {
      loop = try EventLoop()
    } catch {
      throw .resources(error.description)
    }
    let client = BrokerClient(self, on: loop)
    var answer: Result<Value, BrokerError> = .failure(.timedOut)
    ask(client) { result in
      answer = result
      loop.stop()
    }
    loop.run()
    return try answer.get()
  }
}
