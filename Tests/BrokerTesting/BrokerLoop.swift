// A client of a broker on a loop of its own, for tests with one request after another.

internal import EventLoops
package import JetStream
internal import NetworkTesting

/// Runs a loop with a ``BrokerClient``, and waits for its requests. The loop ends when it is released.
package final class BrokerLoop: Sendable {
  package let connection: BrokerConnection
  private let loop: EventLoop
  /// Used on the loop's thread only.
  private nonisolated(unsafe) let client: BrokerClient

  package init(_ options: BrokerOptions) throws {
    connection = try BrokerConnection(options)
    loop = try EventLoop()
    client = BrokerClient(connection, on: loop)
    let loop = loop
    try NamedThread("test-broker-loop") { loop.run() }.detach()
  }

  deinit { loop.stop() }

  /// Runs `ask` on the loop's thread, and returns its result.
  package func wait<Value: Sendable>(
    _ what: String, _ ask: @escaping @Sendable (BrokerClient, @escaping (Value) -> Void) -> Void
  ) throws -> Value {
    let answers = try EventLog<Value>()
    loop.execute { [self] in ask(client) { answers.append($0) } }
    return try answers.wait(what) { $0.first }
  }

  /// Changes the maximum number of bytes of a stream; -1 for no limit.
  ///
  /// - Parameter dropsOldest: whether messages beyond the maximum replace the oldest ones.
  package func limit(_ name: String, toBytes count: Int, dropsOldest: Bool = false) throws {
    let settings = """
      {"name":"\(name)","subjects":["\(name).*"],"discard":"\(dropsOldest ? "old" : "new")","storage":"file",\
      "max_bytes":\(count)}
      """
    let answer: String = try wait("the limit") { client, done in client.ask("STREAM.UPDATE.\(name)", settings, done) }
    guard answer.contains("config") else { throw TestFailure(answer) }
  }

  /// Makes a stream lose a message.
  package func remove(_ sequence: UInt64, from name: String) throws {
    let answer: String = try wait("the removal") { client, done in
      client.ask("STREAM.MSG.DELETE.\(name)", "{\"seq\":\(sequence)}", done)
    }
    guard answer.contains("\"success\":true") else { throw TestFailure(answer) }
  }

  /// Opens a stream.
  package func open(_ name: String, replicas: Int = 1) throws -> TestStream {
    let opened: StreamBox = try wait("the stream \(name)") { client, done in
      MessageStream.open(name, replicas: replicas, with: client) { done(StreamBox(result: $0)) }
    }
    return TestStream(loop: self, stream: try opened.result.get())
  }
}

/// Carries a stream from the loop to the test, which uses it on the loop only.
private struct StreamBox: @unchecked Sendable { let result: Result<MessageStream, BrokerError> }

/// A stream with blocking calls.
package final class TestStream: Sendable {
  private let loop: BrokerLoop
  /// Used on the loop's thread only.
  private nonisolated(unsafe) let stream: MessageStream

  init(loop: BrokerLoop, stream: MessageStream) { (self.loop, self.stream) = (loop, stream) }

  package func publish(_ content: MessageContent, to token: String, after sequence: UInt64) throws -> Result<
    UInt64, BrokerError
  > {
    try loop.wait("the acknowledgement") { [self] _, done in
      stream.publish(content, to: token, after: sequence, done)
    }
  }

  /// Publishes several messages after the same one, each before the answers to those before it. Returns the answers in
  /// the order of the messages.
  package func publish(
    all contents: [MessageContent], to token: String, after sequence: UInt64
  ) throws -> [Result<UInt64, BrokerError>] {
    let answers = try EventLog<(index: Int, result: Result<UInt64, BrokerError>)>()
    let _: Bool = try loop.wait("the publishes") { [self] _, done in
      for (index, content) in contents.enumerated() {
        stream.publish(content, to: token, after: sequence) { answers.append((index, $0)) }
      }
      done(true)
    }
    let all = try answers.wait("all acknowledgements") { $0.count == contents.count ? $0 : nil }
    return all.sorted { $0.index < $1.index }.map(\.result)
  }

  package func lastMessage(of token: String) throws -> StoredMessage? {
    try loop.wait("the last message") { [self] _, done in stream.lastMessage(of: token, done) }.get()
  }

  package func message(of token: String, from sequence: UInt64) throws -> StoredMessage? {
    try loop.wait("a message") { [self] _, done in stream.message(of: token, from: sequence, done) }.get()
  }

  /// All messages of a subject, in order.
  package func messages(of token: String) throws -> [StoredMessage] {
    var messages: [StoredMessage] = []
    while let next = try message(of: token, from: (messages.last?.sequence ?? 0) + 1) {
      if let last = messages.last, next.sequence <= last.sequence {
        throw TestFailure("the broker answers \(last.sequence + 1) with message \(next.sequence)")
      }
      messages.append(next)
    }
    return messages
  }

  /// Publishes a byte 0 at offset 5 of an upload, as its next message, whose digest of the messages before it is wrong.
  ///
  /// - Parameters:
  ///   - id: the `Stream-ID` of the upload.
  ///   - more: further headers.
  package func forge(_ token: String, _ id: String, more: [MessageContent.Header] = []) throws {
    guard let last = try lastMessage(of: token), let number = last.content["Sluice-Number"].flatMap({ UInt64($0) })
    else { throw TestFailure("no upload \(token)") }
    // 0xD202EF8D is the checksum of one byte 0.
    let headers: [MessageContent.Header] = [
      .init("Stream-ID", id), .init("Stream-Offset", "5"), .init("Upload-Offset", "5"),
      .init("Sluice-CRC32", "d202ef8d"), .init("Sluice-Publisher", "p.1"), .init("Sluice-Number", "\(number + 1)"),
      .init("Sluice-Chain", String(repeating: "0", count: 64)),
    ]
    _ = try publish(.init(headers: headers + more, payload: [0]), to: token, after: last.sequence).get()
  }

  /// The creation time, as the broker formats it.
  package var created: String { get throws { try state.created } }

  package var state: MessageStreamState {
    get throws {
      let found: Result<MessageStreamState, BrokerError> = try loop.wait("the state") { [self] _, done in
        stream.extent(done)
      }
      return try found.get()
    }
  }

  package func purge(_ token: String) throws {
    try loop.wait("the purge") { [self] _, done in stream.purge(token, done) }.get()
  }

  package var maximumMessageLength: Int {
    get throws { try loop.wait("the limit") { [self] _, done in done(stream.maximumMessageLength) } }
  }
}

extension BrokerClient {
  /// Sends a request to JetStream's API. Returns the text of its reply, or of the error.
  package func ask(_ question: String, _ body: String, _ answer: @escaping (String) -> Void) {
    let content = MessageContent(payload: Array(body.utf8))
    request(content, to: "$JS.API.\(question)", within: MessageStream.patience) { result in
      switch result {
      case .success(let reply): answer(String(decoding: reply, as: UTF8.self))
      case .failure(let error): answer("\(error)")
      }
    }
  }
}

// MARK: Reading a whole stream

extension BrokerLoop {
  /// Passes all messages of a stream to `take`, in order and each once. `take` is called on the loop's thread.
  package func read(_ name: String, _ take: @escaping @Sendable (StoredMessage) -> Void) throws {
    /// Used on the loop's thread only, and kept until the end.
    final class Reading: @unchecked Sendable { var reader: MessageReader? }
    let (reading, events) = (Reading(), try EventLog<String?>())
    loop.execute { [self] in
      MessageStream.find(name, with: client) { found in
        guard case .success(let stream) = found else { return events.append("\(found)") }
        let reader = MessageReader(stream, after: 0, nil, identify: { "\($0.sequence)" }) { event in
          switch event {
          case .message(let message, _):
            take(message)
            reading.reader?.want(1)
          case .caughtUp: events.append(nil)
          case .interrupted: break
          case .rewound, .recreated, .failed: events.append("\(event)")
          }
        }
        reading.reader = reader
        reader.want(1000)
      }
    }
    let problem = try events.wait("the end of \(name)", within: .seconds(600)) { $0.first }
    _ = try wait("the reader's end") { (_, done: @escaping (Bool) -> Void) in
      reading.reader?.stop()
      done(true)
    }
    if let problem { throw TestFailure(problem) }
  }
}
