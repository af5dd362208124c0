// One JetStream stream, for publishing and reading.

/// The content of a stream at one moment.
package struct MessageStreamState: Sendable, Equatable {
  /// When it was created, as the broker formats it. It distinguishes the stream from another of the same name.
  package var created: String
  /// The sequence of its last message; 0 if it never had one.
  package var lastSequence: UInt64
  /// The names of the brokers that store it, the leader first.
  package var brokers: [String]
}

/// A stream of messages with subjects `NAME.<token>`, which keeps every acknowledged message. Only on the thread of its
/// client's loop.
package final class MessageStream {
  /// How long an answer may take before the request counts as lost.
  package static let patience = Duration.seconds(5)

  let client: BrokerClient
  package let name: String
  private let configuration: StreamConfiguration.Publishing

  private init(_ client: BrokerClient, name: String, _ configuration: StreamConfiguration.Publishing) {
    (self.client, self.name, self.configuration) = (client, name, configuration)
  }

  /// The same stream, for another loop.
  package func attached(to client: BrokerClient) -> MessageStream {
    MessageStream(client, name: name, configuration)
  }

  /// The maximum length of a message that can be published now, headers included, in bytes.
  package var maximumMessageLength: Int {
    min(client.connection.maximumMessageLength, configuration.maximumMessageLength ?? .max)
  }

  /// Whether several brokers store the messages, so that an answer can come from one that no longer leads the stream.
  package var isReplicated: Bool { configuration.isReplicated }

  /// Whether a purge of one subject can make consumers omit messages of others. NATS before 2.9.12 does that: it moves
  /// a consumer whose filter matches the purged subject forward to the first message that is left of that subject.
  var omitsMessages: Bool { configuration.isBefore210 }

  /// Whether the brokers are older than NATS 2.10.
  package var isBefore210: Bool { configuration.isBefore210 }

  /// Whether a broker is connected now.
  package var isConnected: Bool { client.connection.isConnected }

  /// Whether the text can be the name of a stream and the first token of its subjects.
  package static func isValidName(_ name: String) -> Bool {
    (1...64).contains(name.utf8.count)
      && name.utf8.allSatisfy { octet in
        (UInt8(ascii: "a")...UInt8(ascii: "z")).contains(octet | 0x20)
          || (UInt8(ascii: "0")...UInt8(ascii: "9")).contains(octet) || octet == UInt8(ascii: "_")
          || octet == UInt8(ascii: "-")
      }
  }

  // MARK: Opening

  /// Opens the stream of that name, or creates it with `replicas` copies, each on its own broker.
  ///
  /// - Parameters:
  ///   - name: accepted by ``isValidName(_:)``.
  ///   - completion: receives ``BrokerError/unsuitableStream(_:reason:)`` if a stream of that name may drop messages.
  package static func open(
    _ name: String, replicas: Int, with client: BrokerClient,
    _ completion: @escaping (Result<MessageStream, BrokerError>) -> Void
  ) {
    ask(client, "STREAM.INFO.\(name)") { answer in
      switch answer {
      case .success(let info): completion(judged(info, name, replicas, client))
      case .failure(.refused(_, BrokerError.streamNotFound, _)):
        create(name, replicas, client, completion)
      case .failure(let error): completion(.failure(error))
      }
    }
  }

  /// Opens the stream of that name.
  ///
  /// - Parameters:
  ///   - replicas: the least number of copies, each on its own broker.
  ///   - completion: receives an error with ``BrokerError/isStreamNotFound`` if there is none.
  package static func find(
    _ name: String, replicas: Int = 1, with client: BrokerClient,
    _ completion: @escaping (Result<MessageStream, BrokerError>) -> Void
  ) {
    ask(client, "STREAM.INFO.\(name)") { answer in
      switch answer {
      case .success(let info): completion(judged(info, name, replicas, client))
      case .failure(let error): completion(.failure(error))
      }
    }
  }

  private static func create(
    _ name: String, _ replicas: Int, _ client: BrokerClient,
    _ completion: @escaping (Result<MessageStream, BrokerError>) -> Void
  ) {
    let configuration = StreamConfiguration.json(name: name, replicas: replicas)
    ask(client, "STREAM.CREATE.\(name)", configuration) { answer in
      switch answer {
      case .success(let info): completion(judged(info, name, replicas, client))
      case .failure(let error): completion(.failure(error))
      }
    }
  }

  private static func judged(
    _ info: APIReply, _ name: String, _ replicas: Int, _ client: BrokerClient
  ) -> Result<MessageStream, BrokerError> {
    guard let json = info["config"] else { return .failure(.invalidReply("a stream without its configuration")) }
    let configuration = StreamConfiguration(json)
    if let flaw = configuration.flaw(name: name, replicas: replicas) {
      return .failure(.unsuitableStream(name, reason: flaw))
    }
    return .success(MessageStream(client, name: name, configuration.publishing))
  }

  // MARK: Messages

  /// Publishes a message, after another one of its subject if that is stated.
  ///
  /// - Parameters:
  ///   - token: the second token of the subject: letters, digits, `_` and `-`.
  ///   - sequence: the sequence of the subject's last message, 0 if there is none. If it is a different one, nothing is
  ///     published, and the error has ``BrokerError/isWrongLastSequence``. With nil, it does not matter.
  ///   - completion: receives the sequence of the message. After a transient error, the message may have been
  ///     published.
  package func publish(
    _ content: MessageContent, to token: String, after sequence: UInt64?,
    _ completion: @escaping (Result<UInt64, BrokerError>) -> Void
  ) {
    var content = content
    if let sequence {
      content.headers.append(.init("Nats-Expected-Last-Subject-Sequence", String(sequence)))
      // The broker always checks the first message of a subject. That one may also be published again, after an
      // operator has removed all messages of the subject.
      if configuration.isCheckedTooEarly, sequence > 0 {
        content.headers.append(.init("Nats-Msg-Id", "\(token) \(sequence)"))
      }
    }
    client.request(content, to: "\(name).\(token)", within: Self.patience) { answer in
      completion(
        Self.read(answer) { reply throws(BrokerError) in
          // The answer has the sequence of another message, or of an earlier attempt to publish this one.
          guard !reply.flag("duplicate") else { throw .alreadyFollowed }
          guard let sequence = reply.integer("seq"), sequence > 0 else { throw .invalidReply("no sequence") }
          return UInt64(sequence)
        })
    }
  }

  /// The last message of a subject, from a broker that leads the stream or did so until recently; nil if it has none.
  package func lastMessage(
    of token: String, _ completion: @escaping (Result<StoredMessage?, BrokerError>) -> Void
  ) {
    message("{\"last_by_subj\":\"\(name).\(token)\"}", completion)
  }

  /// The first message of a subject with at least that sequence; nil if there is none yet.
  package func message(
    of token: String, from sequence: UInt64, _ completion: @escaping (Result<StoredMessage?, BrokerError>) -> Void
  ) {
    message("{\"seq\":\(sequence),\"next_by_subj\":\"\(name).\(token)\"}", completion)
  }

  /// The message with that sequence; nil if the stream does not have it.
  package func message(
    at sequence: UInt64, _ completion: @escaping (Result<StoredMessage?, BrokerError>) -> Void
  ) {
    message("{\"seq\":\(sequence)}", completion)
  }

  private func message(
    _ question: String, _ completion: @escaping (Result<StoredMessage?, BrokerError>) -> Void
  ) {
    Self.ask(client, "STREAM.MSG.GET.\(name)", question) { answer in
      switch answer {
      case .success(let reply): completion(Self.message(in: reply).map { .some($0) })
      case .failure(.refused(_, BrokerError.messageNotFound, _)): completion(.success(nil))
      case .failure(let error): completion(.failure(error))
      }
    }
  }

  private static func message(in reply: APIReply) -> Result<StoredMessage, BrokerError> {
    guard let message = reply["message"], let subject = message.text("subject"),
      let sequence = message.integer("seq"), sequence > 0,
      let payload = Base64.decoded(message.text("data") ?? ""),
      let encoded = Base64.decoded(message.text("hdrs") ?? "")
    else { return .failure(.invalidReply("a message that cannot be read")) }
    // Anybody may publish to the stream. Unreadable headers are not ours.
    let headers = MessageHeaders.parsed(encoded) ?? []
    return .success(
      StoredMessage(
        subject: subject, sequence: UInt64(sequence), time: message.time("time") ?? 0,
        content: MessageContent(headers: headers, payload: payload)))
  }

  /// The number of messages of a subject, and a sequence that the stream had reached when they were counted.
  package func count(
    of token: String, _ completion: @escaping (Result<(messages: UInt64, reached: UInt64), BrokerError>) -> Void
  ) {
    let subject = "\(name).\(token)"
    Self.ask(client, "STREAM.INFO.\(name)", "{\"subjects_filter\":\"\(subject)\"}") { answer in
      completion(
        answer.flatMap { info in
          guard let state = info["state"], let last = state.integer("last_seq"), last >= 0 else {
            return .failure(.invalidReply("a stream without its state"))
          }
          // A subject without messages is not listed.
          let count = state["subjects"]?.integer(subject) ?? 0
          return .success((UInt64(max(0, count)), UInt64(last)))
        })
    }
  }

  /// Removes the messages of a subject before that sequence.
  package func purge(
    _ token: String, before sequence: UInt64, _ completion: @escaping (Result<Void, BrokerError>) -> Void
  ) {
    Self.ask(client, "STREAM.PURGE.\(name)", "{\"filter\":\"\(name).\(token)\",\"seq\":\(sequence)}") { answer in
      completion(answer.map { _ in })
    }
  }

  /// The range of messages in the stream, and when it was created.
  package func extent(_ completion: @escaping (Result<MessageStreamState, BrokerError>) -> Void) {
    Self.ask(client, "STREAM.INFO.\(name)") { answer in
      completion(
        answer.flatMap { info in
          guard let created = info.text("created"), let state = info["state"],
            let last = state.integer("last_seq"), last >= 0
          else { return .failure(.invalidReply("a stream without its state")) }
          let cluster = info["cluster"]
          let brokers = [cluster?.text("leader")] + (cluster?.objects("replicas") ?? []).map { $0.text("name") }
          return .success(
            MessageStreamState(created: created, lastSequence: UInt64(last), brokers: brokers.compactMap(\.self)))
        })
    }
  }

  /// Removes all messages of a subject except the last one.
  package func purge(_ token: String, _ completion: @escaping (Result<Void, BrokerError>) -> Void) {
    Self.ask(client, "STREAM.PURGE.\(name)", "{\"filter\":\"\(name).\(token)\",\"keep\":1}") { answer in
      completion(answer.map { _ in })
    }
  }

  // MARK: Requests

  static func ask(
    _ client: BrokerClient, _ question: String, _ body: String = "",
    _ completion: @escaping (Result<APIReply, BrokerError>) -> Void
  ) {
    let (content, connection) = (MessageContent(payload: Array(body.utf8)), client.connection)
    client.request(content, to: "$JS.API.\(question)", within: patience) { answer in
      let result: Result<APIReply, BrokerError> = read(answer) { reply throws(BrokerError) in reply }
      connection.answered(result)
      completion(result)
    }
  }

  private static func read<Value>(
    _ answer: Result<[UInt8], BrokerError>, _ value: (APIReply) throws(BrokerError) -> Value
  ) -> Result<Value, BrokerError> {
    do throws(BrokerError) {
      return .success(try value(APIReply(try answer.get())))
    } catch {
      return .failure(error)
    }
  }
}
