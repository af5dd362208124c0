// Tests the samples around `serve --store`: a cluster's file without a cluster, and a consumer that follows a
// recording.

import BrokerTesting
import EventLoops
import Glibc
import HTTPServer
import JetStream
import NetworkTesting
import Testing

@Suite("The samples for a log")
struct ClusterSampleTests {
  /// The project is three levels above this file.
  private static let root = #filePath.split(separator: "/").dropLast(3).reduce("") { "\($0)/\($1)" }

  private static func text(_ path: String) throws -> String {
    String(decoding: try fileContents("\(root)/\(path)"), as: UTF8.self)
  }

  /// A Python that finds nats-py, which Debian does not ship. Nil if there is none.
  private static let python = ["\(TestBroker.installation)/bin/python3", "python3"].first { program in
    (try? TestProcess(program, ["-c", "import nats"]).wait()) == 0
  }

  // MARK: samples/kubernetes

  /// The arguments of a container of ingest.yaml, with other brokers than those of the cluster.
  private static func arguments(of command: String) throws -> [String] {
    let lines = try text("samples/kubernetes/ingest.yaml").split(separator: "\n").map { $0.drop { $0 == " " } }
    let first = try #require(lines.firstIndex { $0 == "- \(command)" })
    return lines[first...].prefix { $0.hasPrefix("- ") }.map { String($0.dropFirst(2)) }
  }

  @Test("the server of the Deployment starts with its options, except addresses and durability, and answers its probes")
  func deployment() throws {
    // A single broker that does not report when it syncs. Debian ships such a version.
    let broker = try TestBroker()
    let directory = try TemporaryDirectory()
    try directory.write("tokens", String(repeating: "0f", count: 32) + "\n")
    let replaced = [
      "--listen": "127.0.0.1:0", "--metrics": "127.0.0.1:0", "--store": broker.url, "--replicas": "1",
      "--token-file": "\(directory.path)/tokens",
    ]
    let arguments = try Self.arguments(of: "serve")
    #expect(arguments.contains("--durability=always") && arguments.contains { $0.hasPrefix("--store-monitor=http://") })
    let server = try sluice(
      arguments.filter { !$0.hasPrefix("--durability") && !$0.hasPrefix("--store-monitor") }.map { argument in
        let name = String(argument.prefix { $0 != "=" })
        return replaced[name].map { "\(name)=\($0)" } ?? argument
      })
    let figures = try server.lines.first("the figures") { $0.text.hasPrefix("serving metrics at ") }.text
    let address = figures.dropFirst("serving metrics at http://".count).prefix { $0 != "/" }
    let yaml = try Self.text("samples/kubernetes/ingest.yaml")
    for path in ["/readyz", "/healthz"] {
      #expect(yaml.contains("path: \(path), port: metrics"))
      try waitUntil("\(path) is answered with 200") {
        let client = try RawClient(try .init(String(address)))
        try client.request("GET", path, version: nil)
        return try client.final().answer.status == 200
      }
    }
    server.signal(SIGTERM)
    #expect(try server.wait() == 0)
  }

  @Test("the collector of the cluster's file starts with its options, except the brokers and the directory")
  func collector() throws {
    let broker = try TestBroker()
    let server = try sluice(["serve", "--listen", "127.0.0.1:0", "--store", broker.url])
    _ = try server.lines.first("the address") { $0.text.hasPrefix("listening on ") }
    let directory = try TemporaryDirectory()
    let arguments = try Self.arguments(of: "collect").map { argument in
      argument.hasPrefix("nats://")
        ? broker.url : argument.hasPrefix("--directory=") ? "--directory=\(directory.path)" : argument
    }
    let collector = try sluice(arguments)
    _ = try collector.lines.first("the beginning") { $0.text.hasPrefix("collecting") }
    collector.signal(SIGTERM)
    #expect(try collector.wait() == 0, "\(collector.errors)")
  }

  @Test("the image is built with all libraries that the project requires, and runs with those that the command loads")
  func image() throws {
    let makefile = try Self.text("Makefile")
    let needed = try #require(makefile.firstMatch(of: /BUILD_PACKAGES := (.*)/)).1.split(separator: " ")
    let image = try Self.text("samples/kubernetes/Dockerfile")
    for package in needed where package.hasSuffix("-dev") {
      #expect(image.contains(" \(package)"), "the image is built without \(package)")
    }
    let dump = try TestProcess("objdump", ["-p", sluicePath()])
    #expect(try dump.wait() == 0)
    let libraries = dump.output.compactMap { $0.firstMatch(of: /NEEDED +(\S+)/)?.1 }
    // The release build contains the libraries of Swift.
    for library in libraries where !library.hasPrefix("libswift") && !library.hasPrefix("ld-linux") {
      let search = try TestProcess("dpkg", ["-S", "*/\(library)"])
      #expect(try search.wait() == 0)
      let package = try #require(search.output.first).prefix { $0 != ":" }
      #expect(package == "libc6" || image.contains(" \(package) "), "the image runs without \(package)")
    }
  }

  @Test("only servers, collectors and brokers reach the brokers of the cluster's file")
  func networkPolicy() throws {
    let documents = try Self.text("samples/kubernetes/ingest.yaml").split(separator: "\n---\n")
    let policy = try #require(documents.first { $0.contains("kind: NetworkPolicy") })
    let brokers = try #require(documents.first { $0.contains("kind: StatefulSet") && $0.contains("name: nats") })
    // A policy without the right names permits everything, or nothing.
    #expect(brokers.contains("app.kubernetes.io/name: nats"))
    #expect(policy.contains("podSelector:\n    matchLabels:\n      app.kubernetes.io/name: nats\n"))
    for name in ["sluice-serve", "sluice-collect"] {
      #expect(policy.contains("app.kubernetes.io/name: \(name)\n"), "\(name)")
      #expect(documents.contains { !$0.contains("NetworkPolicy") && $0.contains("app.kubernetes.io/name: \(name)\n") })
    }
    for port in ["client", "cluster", "monitor"] {
      #expect(policy.contains("port: \(port) }"), "\(port)")
      #expect(brokers.contains("{ name: \(port), containerPort:"), "\(port)")
    }
  }

  // MARK: samples/jetstream

  @Test("the reader writes the bytes of a stream, and refuses a stream with a changed message")
  func readStream() throws {
    let broker = try TestBroker()
    let server = try sluice(["serve", "--listen", "127.0.0.1:0", "--store", broker.url])
    let address = try server.lines.first("the address") { $0.text.hasPrefix("listening on ") }.text
      .dropFirst("listening on ".count)
    func create(_ id: String) throws -> String {
      let client = try RawClient(try .init(String(address)))
      try client.request("POST", "/x", ["Upload-Complete: ?0", "Stream-ID: \(id)"], body: "hello")
      return try #require(try client.final().answer["location"])
    }
    func read(_ id: String) throws -> TestProcess {
      let reader = try TestProcess(
        "python3", ["\(Self.root)/samples/jetstream/read-stream.py", "127.0.0.1:\(broker.port)", id])
      try reader.wait()
      return reader
    }
    let location = try create("a")
    let client = try RawClient(try .init(String(address)))
    try client.patch(location, at: 5, completes: true, body: " again")
    #expect(try client.final().answer.status == 201)
    let whole = try read("a")
    #expect(try whole.wait() == 0 && whole.output == ["hello again"], "\(whole.errors)")
    let token = String(try create("b").dropFirst("/.uploads/".count))
    let stream = try BrokerLoop(.init(servers: [broker.url])).open("sluice")
    try stream.forge(token, "b", more: [.init("Upload-Complete", "?1")])
    let changed = try read("b")
    #expect(try changed.wait() == 1)
    #expect(changed.errors.joined().contains("was changed, or does not follow"), "\(changed.errors)")
  }

  // MARK: samples/consumer-python

  @Test(
    "the consumer shows the level of a microphone during the recording, and reports a stream without levels",
    .enabled(if: ClusterSampleTests.python != nil, "needs nats-py: make .build/brokers, or pip install nats-py"))
  func levels() throws {
    let broker = try TestBroker()
    let server = try sluice(["serve", "--listen", "127.0.0.1:0", "--store", broker.url])
    let address = try server.lines.first("the address") { $0.text.hasPrefix("listening on ") }.text
      .dropFirst("listening on ".count)
    let python = try #require(Self.python)
    let consumer = try TestProcess(python, ["\(Self.root)/samples/consumer-python/levels.py", broker.url])
    _ = try consumer.lines.first("that it follows") { $0.text.hasPrefix("following the streams") }
    let words = try sluice(["pipe", "http://\(address)/notes.txt", "--stream-id", "n"], input: .pipe)
    words.send(Array("no samples at all\n".utf8))
    words.endInput()
    let microphone = try sluice(["pipe", "http://\(address)/k.wav", "--stream-id", "kitchen"], input: .pipe)
    // Half of full scale, 48 kHz, one channel: -6.0 dBFS. The second piece begins in the middle of a sample.
    var wave = Array("RIFF".utf8) + [0xFF, 0xFF, 0xFF, 0xFF] + Array("WAVEfmt ".utf8)
    wave += [16, 0, 0, 0, 1, 0, 1, 0, 0x80, 0xBB, 0, 0, 0, 0x77, 1, 0, 2, 0, 16, 0]
    wave += Array("data".utf8) + [0xFF, 0xFF, 0xFF, 0xFF]
    wave += (0..<24_000).flatMap { $0 % 2 == 0 ? [0, 0x40] : [0, 0xC0] as [UInt8] }
    microphone.send(Array(wave[..<20_001]))
    _ = try consumer.lines.first("a level") { $0.text.contains("-6.0 dBFS") && $0.text.hasSuffix("/k.wav kitchen") }
    microphone.send(Array(wave[20_001...]))
    _ = try consumer.lines.first("half a second") { $0.text.contains("  0.5 s    -6.0 dBFS") }
    microphone.endInput()
    _ = try consumer.lines.first("the end") { $0.text == "/k.wav kitchen: complete" }
    #expect(try microphone.wait() == 0 && words.wait() == 0)
    // Another upload of the stream, which has no head. Its samples are half of full scale, too.
    let client = try RawClient(try .init(String(address)))
    try client.request(
      "POST", "/k.wav", ["Upload-Complete: ?0", "Stream-ID: kitchen", "Stream-Offset: \(wave.count)"],
      body: String(repeating: "@", count: 48_000))
    #expect(try client.final().answer.status == 201)
    _ = try consumer.lines.first("a whole second") { $0.text.contains("  1.0 s    -6.0 dBFS") }
    consumer.signal(SIGTERM)
    #expect(try consumer.wait() == 0, "\(consumer.errors)")
    #expect(consumer.output.contains("/notes.txt n: no WAV of 16-bit PCM, so its level is not shown"))
    #expect(!consumer.output.contains { $0.contains("damaged") || $0.contains("-96") }, "\(consumer.output)")
  }
}
