// Sends the same requests to a server with a directory and to a server with a log. Collectors write the log into files.

import BrokerTesting
import DiskFiles
import Glibc
import JetStream
import NetworkTesting
import PropertyTesting
import Testing
import UploadClient
import UploadServer

/// A broker, two servers, and collector processes, each of which has one partition and its own directory.
final class CollectRig {
  /// The SHA-256 digests of "alice" and "bob".
  private static let tokens = """
    2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90 alice
    81b637d8fcd2c6da6359e6963113a1170de795e4b725b84d1e0b4cfd9ec58ce9 bob

    """

  /// The head of a live WAV stream, whose sizes are unknown.
  static let wavHead: [UInt8] = {
    func little(_ number: Int, _ count: Int) -> [UInt8] {
      (0..<count).map { UInt8(truncatingIfNeeded: number >> (8 * $0)) }
    }
    var head = Array("RIFF".utf8) + [255, 255, 255, 255] + Array("WAVEfmt ".utf8) + little(16, 4) + little(1, 2)
    head += little(1, 2) + little(48_000, 4) + little(96_000, 4) + little(2, 2) + little(16, 2)
    return head + Array("data".utf8) + [255, 255, 255, 255]
  }()

  let broker = try! TestBroker()
  private let scratch: TemporaryDirectory
  private let reference: TemporaryDirectory
  let directories: [TemporaryDirectory]
  private let options: [String]
  /// The server that stores into `reference`.
  private let files: UploadServer
  private let log: UploadServer
  private(set) var collectors: [TestProcess] = []
  /// The lines that all collectors have printed.
  private(set) var output: [String] = []

  init(collectors count: Int, _ options: [String] = []) throws {
    (scratch, reference) = (try TemporaryDirectory(), try TemporaryDirectory())
    directories = try (0..<count).map { _ in try TemporaryDirectory() }
    self.options = options
    let tokens = try scratch.write("tokens", Self.tokens)
    func server(_ storage: UploadServer.Storage) throws -> UploadServer {
      var configuration = UploadServer.Configuration(listen: [try ListenAddress("127.0.0.1:0")], storage: storage) {
        _ in
      }
      configuration.tokenFile = tokens
      configuration.software = "sluice/\(sluiceVersion)"
      let server = try UploadServer(configuration: configuration)
      try server.start()
      return server
    }
    files = try server(.directory(reference.path))
    log = try server(.brokers(UploadServer.Brokers(BrokerOptions(servers: [broker.url]))))
    for index in 0..<count { collectors.append(try start(index)) }
  }

  deinit {
    for server in [files, log] {
      server.shutdown(grace: .zero)
      server.waitUntilEnded()
    }
  }

  // MARK: Processes

  private func start(_ index: Int) throws -> TestProcess {
    let arguments = ["collect", broker.url, "--directory", directories[index].path]
    let process = try sluice(arguments + ["--partition", "\(index + 1)/\(directories.count)"] + options)
    try process.lines.first("the collector to begin") { $0.text.hasPrefix("collecting ") }
    return process
  }

  /// Ends a collector with that signal and starts the next one. Both wait for the process that they end.
  func restart(_ index: Int, _ signal: Int32) throws {
    let ended = collectors[index]
    ended.signal(signal)
    let code = try ended.wait()
    if signal == SIGKILL { try loseTails(of: directories[index]) }
    if signal == SIGTERM { #expect(code == 0, "\(ended.errors)") }
    output += ended.output
    collectors[index] = try start(index)
  }

  private var killCount = 0

  /// Writes what a power failure may leave after the synced bytes: anything or nothing.
  private func loseTails(of directory: TemporaryDirectory) throws {
    killCount += 1
    let checkpoint = (try? directory.contents(".collected")).map { String(decoding: $0, as: UTF8.self) } ?? ""
    var synced: [String: off_t] = [:]
    for line in checkpoint.matches(of: /file="([^"]+)", part=1, length=([0-9]+)/) {
      synced["\(line.1).part"] = off_t(line.2)
    }
    for name in directory.names where name.hasSuffix(".part") {
      // The bytes are synced before the line that states their end.
      if try isEnded(name, in: directory) { continue }
      let descriptor = open("\(directory.path)/\(name)", O_WRONLY | O_APPEND | O_CLOEXEC)
      guard descriptor >= 0 else { throw TestFailure("cannot open \(name)") }
      defer { close(descriptor) }
      if killCount % 2 == 0 {
        // A collector that was killed as it ended the recording has synced more than its checkpoint states.
        let marked = off_t(try SyncedMark.of(descriptor)?.size ?? 0)
        guard ftruncate(descriptor, max(synced[name] ?? 0, marked)) == 0 else {
          throw TestFailure("cannot cut \(name)")
        }
      } else if write(descriptor, "never sent", 10) != 10 {
        throw TestFailure("cannot write \(name)")
      }
    }
  }

  /// Whether the last line about a growing recording in its stream's log has an end.
  private func isEnded(_ file: String, in directory: TemporaryDirectory) throws -> Bool {
    let name = file.dropLast(".part".count).split(separator: "~", maxSplits: 1)
    guard let log = try? directory.contents(".parts/\(name[0])") else { return false }
    let part = name.count > 1 ? Int(name[1]) ?? 0 : 1
    return String(decoding: log, as: UTF8.self).split(separator: "\n").last { $0.hasPrefix("part=\(part), ") }?
      .contains(", end=") ?? false
  }

  func restartBroker() throws {
    try broker.kill()
    try broker.start()
    try waitUntil("the server is connected again") { log.isReady }
  }

  /// Waits until the checkpoints of all collectors cover the whole log, and ends the collectors.
  func finish() throws {
    let last = try BrokerLoop(.init(servers: [broker.url])).open("sluice").lastMessage(of: "*")?.sequence ?? 0
    for directory in directories {
      try waitUntil("message \(last) is collected") {
        let text = String(decoding: try directory.contents(".collected"), as: UTF8.self)
        return text.firstMatch(of: /sequence=([0-9]+)/).flatMap { UInt64($0.1) } ?? 0 >= last
      }
    }
    for (index, collector) in collectors.enumerated() {
      collector.signal(SIGTERM)
      #expect(try collector.wait() == 0, "\(collector.errors)")
      output += collector.output
      // The next collector still has to compute the digests.
      collectors[index] = collector
    }
  }

  // MARK: Requests

  /// One of the two servers.
  enum Target: CaseIterable { case files, log }

  struct Answer {
    var status: Int
    var location: String?
    /// The offset that the server reports, if it reports one.
    var offset: Int?
    var isComplete = false
    /// Whether the same request may succeed later.
    var allowsRetry = false
  }

  func send(
    _ target: Target, _ method: String, _ path: String, owner: String, _ lines: [String], _ body: [UInt8]? = nil
  ) throws -> Answer {
    let client = try RawClient((target == .files ? files : log).localAddresses[0])
    var head = ["\(method) \(path) HTTP/1.1", "Host: h", "Upload-Draft-Interop-Version: 8"] + lines
    head.append("Authorization: Bearer \(owner)")
    if let body { head.append("Content-Length: \(body.count)") }
    try client.send(Array((head.joined(separator: "\r\n") + "\r\n\r\n").utf8) + (body ?? []))
    let answer = try client.final(withBody: method != "HEAD").answer
    return Answer(
      status: answer.status, location: answer["location"], offset: answer["upload-offset"].flatMap { Int($0) },
      isComplete: answer["upload-complete"] == "?1", allowsRetry: answer["retry-after"] != nil)
  }

  /// Works as ``send(_:_:_:owner:_:_:)``, and repeats the request while the server cannot store anything (503 with
  /// `Retry-After`). As a client would, it continues an append at the offset that the server has reached by then.
  ///
  /// - Parameter offset: the start of the request if it is an append.
  func sendAgain(
    _ target: Target, _ method: String, _ path: String, owner: String, _ lines: [String], _ body: [UInt8]?,
    at offset: Int
  ) throws -> Answer {
    var (lines, rest) = (lines, body)
    var answer = try send(target, method, path, owner: owner, lines, rest)
    try waitUntil("\(target) stores it") {
      guard answer.status == 503, answer.allowsRetry else { return true }
      if method == "PATCH", let body {
        let found = try send(target, "HEAD", path, owner: owner, [])
        guard let reached = found.offset, reached >= offset else { return false }
        let isRepeated = !lines.contains("Upload-Complete: ?1") && reached == offset + body.count
        if found.isComplete || isRepeated {
          answer = Answer(status: 204, offset: reached)
          return true
        }
        lines = lines.filter { !$0.hasPrefix("Upload-Offset:") } + ["Upload-Offset: \(reached)"]
        rest = Array(body.dropFirst(reached - offset))
      }
      answer = try send(target, method, path, owner: owner, lines, rest)
      return false
    }
    return answer
  }

  // MARK: Plain streams

  /// Sends a piece of a plain stream in a request of its own, which breaks off when everything is stored, or completes
  /// the stream. A server that asks for bytes before it gets the same request once more.
  ///
  /// - Returns: the status of the response, if the request was not left.
  @discardableResult
  func sendPlain(
    _ target: Target, _ path: String, id: String, owner: String, at offset: Int, _ body: [UInt8], completes: Bool
  ) throws -> Int? {
    let head = [
      "POST \(path) HTTP/1.1", "Host: h", "Authorization: Bearer \(owner)", "Stream-ID: \(id)",
      "Stream-Offset: \(offset)", "Transfer-Encoding: chunked", "Expect: 100-continue",
    ]
    var status = 503
    for _ in 0..<2 where status == 503 {
      let client = try RawClient((target == .files ? files : log).localAddresses[0])
      try client.send(head.joined(separator: "\r\n") + "\r\n\r\n")
      status = try client.answer().status
      guard status == 100 else { continue }
      if !body.isEmpty { try client.sendChunk(body) }
      if completes {
        try client.send("0\r\n\r\n")
        return try client.answer().status
      }
      try waitUntil("\(target) stores the piece at \(offset)") { try storedLength(target, id) >= offset + body.count }
      return nil
    }
    return status
  }

  /// Where the stored bytes of the only stream with that ID end.
  private func storedLength(_ target: Target, _ id: String) throws -> Int {
    switch target {
    case .files:
      let name = reference.names.first { $0.hasSuffix("-\(id).part") }
      return try name.map { try reference.contents($0).count } ?? 0
    case .log:
      let last = try BrokerLoop(.init(servers: [broker.url])).open("sluice").lastMessage(of: "*")
      guard let last, last.content["Stream-ID"] == id, !last.content.payload.isEmpty else { return 0 }
      return (last.content["Stream-Offset"].flatMap { Int($0) } ?? 0) + last.content.payload.count
    }
  }

  // MARK: What is stored

  /// The names and contents of the files in a directory; sidecars without times.
  private static func stored(in directory: TemporaryDirectory) throws -> [String: [UInt8]] {
    var files: [String: [UInt8]] = [:]
    for name in directory.names { files[name] = try directory.contents(name) }
    for name in directory.names where !name.hasSuffix(".part") && !name.hasSuffix(".gaps") {
      guard let dot = name.lastIndex(of: ".") else { continue }
      let sidecar = "\(name[..<dot]).sidecar"
      guard let text = try? directory.contents(sidecar) else { continue }
      let lines = String(decoding: text, as: UTF8.self).split(separator: "\n").filter { line in
        !["\"started", "\"ended\"", "\"first_seen\"", "\"clock_synchronized\""].contains { line.contains($0) }
      }
      files[sidecar] = Array(lines.joined(separator: "\n").utf8)
    }
    return files
  }

  /// Compares the files that the collectors have stored with those of the server that has a directory.
  func compare(_ seed: Seed) throws {
    /// A server writes digests when it is not busy, and after its next start.
    func isComplete(_ files: [String: [UInt8]]) -> Bool {
      files.keys.allSatisfy { name in
        guard !["part", "gaps", "sidecar"].contains(name.split(separator: ".").last ?? "") else { return true }
        return files["\(name[..<(name.lastIndex(of: ".") ?? name.endIndex)]).sidecar"] != nil
      }
    }
    var wanted: [String: [UInt8]] = [:]
    try waitUntil("the server's sidecars are written") {
      wanted = try Self.stored(in: reference)
      return isComplete(wanted)
    }
    var found: [String: [UInt8]] = [:]
    for index in directories.indices { collectors[index] = try start(index) }
    try waitUntil("the collectors' sidecars are written") {
      found = [:]
      for directory in directories { found.merge(try Self.stored(in: directory)) { $0 + $1 } }
      return isComplete(found)
    }
    for collector in collectors {
      collector.signal(SIGTERM)
      try collector.wait()
    }
    #expect(found.keys.sorted() == wanted.keys.sorted(), "\(seed)")
    for (name, bytes) in wanted {
      let isSame = found[name] == bytes
      let texts = name.hasSuffix(".gaps") || name.hasSuffix(".sidecar") ? [found[name] ?? [], bytes] : []
      #expect(
        isSame,
        """
        \(name): \(found[name]?.count ?? -1) of \(bytes.count) bytes, \(seed)
        \(texts.map { String(decoding: $0, as: UTF8.self) }.joined(separator: "\n--- instead of\n"))
        """)
    }
  }
}
