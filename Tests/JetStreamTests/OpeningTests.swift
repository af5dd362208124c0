// The requirements for a broker and a stream.

import BrokerTesting
import JetStream
import NetworkTesting
import Testing

@Suite("Opening a stream")
struct OpeningTests {
  @Test("a stream that may drop messages is refused, with the reason")
  func unsuitable() throws {
    let broker = try TestBroker()
    let loop = try BrokerLoop(BrokerOptions(servers: [broker.url]))
    let settings: [(String, String)] = [
      (#""discard":"old""#, "discards old"), (#""discard":"new","max_age":1000000000000"#, "max_age"),
      (#""discard":"new","storage":"memory""#, "in memory"),
      (#""discard":"new","retention":"interest""#, "retention"),
      (#""discard":"new","retention":"workqueue""#, "retention"),
      (#""discard":"new","max_msgs_per_subject":1"#, "max_msgs_per_subject"),
      (#""discard":"new","no_ack":true"#, "no_ack"),
      (#""discard":"new","subjects":["other.*"]"#, "does not have the subjects"),
    ]
    for (index, (setting, reason)) in settings.enumerated() {
      let name = "s\(index)"
      let subjects = setting.contains("subjects") ? "" : #","subjects":["\#(name).*"]"#
      let created: String = try loop.wait("the stream") { client, done in
        client.ask("STREAM.CREATE.\(name)", "{\"name\":\"\(name)\",\(setting)\(subjects)}", done)
      }
      #expect(created.contains("config"), "\(created)")
      do {
        _ = try loop.open(name)
        Issue.record("\(setting) was accepted")
      } catch BrokerError.unsuitableStream(name, let text) {
        #expect(text.contains(reason))
      }
    }
  }

  @Test("a reopened stream is the same one, even if its own limits refuse new messages")
  func suitable() throws {
    let broker = try TestBroker()
    let loop = try BrokerLoop(BrokerOptions(servers: [broker.url]))
    let last = try loop.open("audio").publish(MessageContent(payload: [1]), to: "a", after: 0).get()
    #expect(try loop.open("audio").lastMessage(of: "a")?.sequence == last)
    let created: String = try loop.wait("the stream") { client, done in
      client.ask(
        "STREAM.CREATE.small",
        #"{"name":"small","subjects":["small.>"],"discard":"new","max_msgs":1,"max_msg_size":99}"#,
        done)
    }
    #expect(created.contains("config"), "\(created)")
    let small = try loop.open("small")
    #expect(try small.maximumMessageLength == 99)
    let first = try small.publish(MessageContent(payload: [1]), to: "a", after: 0).get()
    let full = try small.publish(MessageContent(payload: [2]), to: "a", after: first)
    #expect(throws: BrokerError.self) { try full.get() }
    #expect(try small.messages(of: "a").map(\.content.payload) == [[1]])
  }

  @Test("the broker refuses more replicas than brokers")
  func replicas() throws {
    let broker = try TestBroker()
    let loop = try BrokerLoop(BrokerOptions(servers: [broker.url]))
    #expect(throws: BrokerError.self) { try loop.open("audio", replicas: 3) }
    _ = try loop.open("audio", replicas: 1)
    #expect(throws: BrokerError.unsuitableStream("audio", reason: "it has 1 replicas, and not 3")) {
      try loop.open("audio", replicas: 3)
    }
  }

  @Test("a broker without JetStream does not respond")
  func noJetStream() throws {
    let broker = try TestBroker(jetStream: false)
    let loop = try BrokerLoop(BrokerOptions(servers: [broker.url]))
    #expect(throws: BrokerError.noResponders) { try loop.open("audio") }
  }

  @Test("brokers of the list without JetStream are passed over, whichever is connected first")
  func passedOver() throws {
    let (broker, others) = (try TestBroker(), try (0..<3).map { _ in try TestBroker(jetStream: false) })
    func open(_ brokers: [TestBroker]) throws(BrokerError) -> String {
      try BrokerConnection.open(BrokerOptions(servers: brokers.map(\.url))) {
        (connection: BrokerConnection) throws(BrokerError) -> String in
        try connection.wait { client, done in
          MessageStream.open("audio", replicas: 1, with: client) { found in done(found.map(\.name)) }
        }
      }
    }
    // libnats tries them in random order.
    for _ in 0..<4 { #expect(try open(others + [broker]) == "audio") }
    #expect(throws: BrokerError.noResponders) { try open(others) }
    // The reason is not that this one cannot be reached.
    try broker.kill()
    #expect(throws: BrokerError.noResponders) { try open(others + [broker]) }
  }

  @Test("a broker that does not run is unreachable")
  func nobody() throws {
    let broker = try TestBroker()
    try broker.kill()
    do {
      _ = try BrokerConnection(BrokerOptions(servers: [broker.url]))
      Issue.record("connected to nobody")
    } catch BrokerError.unreachable(let reason) {
      #expect(!reason.isEmpty)
    }
  }

  @Test("the right token is accepted, and a wrong one is not")
  func token() throws {
    let broker = try TestBroker("authorization { token: \"right\" }")
    var options = BrokerOptions(servers: [broker.url])
    options.token = "right"
    _ = try BrokerLoop(options).open("audio")
    options.token = "wrong"
    #expect(throws: BrokerError.notAuthorized) { try BrokerConnection(options) }
  }

  @Test("the error for a missing credentials file names it")
  func noCredentials() throws {
    var options = BrokerOptions(servers: ["nats://127.0.0.1:1"])
    options.credentialsFile = "/nonexistent/a.creds"
    #expect(throws: BrokerError.unusableFile("/nonexistent/a.creds", reason: "No such file or directory")) {
      try BrokerConnection(options)
    }
  }

  @Test("over TLS, only a broker with a certificate of the given authority is accepted")
  func encrypted() throws {
    let directory = try TemporaryDirectory()
    try TestCertificates.make(in: directory)
    let path = directory.path
    let broker = try TestBroker("tls { cert_file: \"\(path)/server.pem\", key_file: \"\(path)/server.key\" }")
    var options = BrokerOptions(servers: ["tls://127.0.0.1:\(broker.port)"])
    options.authorityFile = "\(path)/ca.pem"
    _ = try BrokerLoop(options).open("audio")
    options.authorityFile = "\(path)/foreign.pem"
    #expect(throws: BrokerError.self) { try BrokerConnection(options) }
  }

  @Test("a broker that requires a client certificate accepts one of its authority, in one file with its key or in two")
  func clientCertificate() throws {
    let directory = try TemporaryDirectory()
    try TestCertificates.make(in: directory)
    let path = directory.path
    let broker = try TestBroker(
      "tls { cert_file: \"\(path)/server.pem\", key_file: \"\(path)/server.key\", ca_file: \"\(path)/ca.pem\", verify: true }"
    )
    var options = BrokerOptions(servers: ["nats://127.0.0.1:\(broker.port)"])
    options.authorityFile = "\(path)/ca.pem"
    #expect(throws: BrokerError.self) { try BrokerConnection(options) }
    (options.certificateFile, options.keyFile) = ("\(path)/foreign.pem", "\(path)/foreign.key")
    #expect(throws: BrokerError.self) { try BrokerConnection(options) }
    (options.certificateFile, options.keyFile) = ("\(path)/client.pem", "\(path)/client.key")
    _ = try BrokerLoop(options).open("audio")
    let both = try fileContents("\(path)/client.pem") + fileContents("\(path)/client.key")
    try directory.write("both.pem", String(decoding: both, as: UTF8.self))
    (options.certificateFile, options.keyFile) = ("\(path)/both.pem", nil)
    _ = try BrokerLoop(options).open("audio")
    // A certificate with a foreign key, and a file that contains neither.
    for (certificate, key) in [("client.pem", "server.key"), ("ca.pem", "ca.pem"), ("missing.pem", "client.key")] {
      (options.certificateFile, options.keyFile) = ("\(path)/\(certificate)", "\(path)/\(key)")
      #expect {
        try BrokerConnection(options)
      } throws: { error in
        guard case BrokerError.unusableFile(let files, _) = error else { return false }
        return files.contains(certificate)
      }
    }
  }

  @Test("lists of servers are NATS URLs, with or without the scheme")
  func lists() {
    #expect(BrokerOptions(list: "nats://a:1,b:2")?.servers == ["nats://a:1", "nats://b:2"])
    #expect(BrokerOptions(list: "tls://u:p@a")?.servers == ["tls://u:p@a"])
    for text in ["", "nats://", "nats://a,", "http://a", "nats://:4222", "nats://a/b"] {
      #expect(BrokerOptions(list: text) == nil, "\(text)")
    }
  }
}
