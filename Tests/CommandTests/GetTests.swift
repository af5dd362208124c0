// Tests sluice get as a process: each fault of a server, with and without a kill in between; a real server whose
// connections break anywhere; and files that must not be touched.

import CommandTesting
import Digests
import EventLoops
import Glibc
import HTTPMessages
import NetworkTesting
import PropertyTesting
import Synchronization
import Testing
import UploadServer

@Suite("sluice get", .serialized)
struct GetTests {
  private static func bytes(_ count: Int, version: UInt64 = 0) -> [UInt8] {
    var random = SplitMix64(state: version)
    var bytes: [UInt8] = []
    bytes.reserveCapacity(count + 8)
    while bytes.count < count { withUnsafeBytes(of: random.next()) { bytes += $0 } }
    return Array(bytes.prefix(count))
  }

  // MARK: A server that misbehaves

  /// How a server answers one request.
  enum Fault: String, CaseIterable {
    case none
    case cutBeforeHead, cutInHead, cutAfterHead, cutAtFirstByte, cutInBody, cutAtLastByte, reset
    case stall, busy, serverError, redirect, relativeRedirect
    case changed, ignoresRange, ignoresCondition, otherRange, laterRange, noContentRange, otherTotal, multipart
    case shorterPart, starPart, unsatisfied, preconditionFailed, excess, earlyEnd, encoded, wrongDigest
    case notFound, gone, badRequest, notImplemented, noContent, portal, redirectNowhere, oddLength, chunkedCut

    /// The reason in the event that reports a restart; nil if the download must not restart.
    var restart: String? {
      switch self {
      case .changed, .ignoresCondition, .preconditionFailed: "changed"
      case .ignoresRange, .chunkedCut: "ignored"
      case .otherRange, .laterRange, .noContentRange, .otherTotal, .multipart, .unsatisfied: "range"
      case .excess: "excess"
      default: nil
      }
    }
    /// The exit code of the process if it ends because of this fault.
    var code: Int32? {
      switch self {
      case .wrongDigest: 76
      default: nil
      }
    }
  }

  /// A resource, and the answers to successive requests for it.
  private final class Resource: Sendable {
    struct State {
      var version: UInt64 = 0
      var plan: [Fault]
    }
    static let size = 400_000

    let state: Mutex<State>
    let requests: EventLog<ServerConnection.Head>
    let validator: Validator

    enum Validator: String, CaseIterable { case tag, date, weak, none }

    init(_ plan: [Fault], _ validator: Validator = .tag) throws {
      state = Mutex(State(plan: plan))
      requests = try EventLog()
      self.validator = validator
    }

    var content: [UInt8] { GetTests.bytes(Self.size, version: state.withLock { $0.version }) }

    func serve() throws -> ScriptedServer {
      try ScriptedServer { [self] connection, _ in
        while true {
          let head = try connection.head()
          requests.append(head)
          try answer(head, connection)
        }
      }
    }

    private func answer(_ head: ServerConnection.Head, _ connection: ServerConnection) throws {
      let (fault, version) = state.withLock { state -> (Fault, UInt64) in
        let isRedirected = head.line.contains("/moved")
        let fault = isRedirected || state.plan.isEmpty ? .none : state.plan.removeFirst()
        if [.changed, .ignoresCondition, .preconditionFailed].contains(fault) { state.version += 1 }
        return (fault, state.version)
      }
      let content = GetTests.bytes(Self.size, version: version)
      var fields: [String] =
        switch validator {
        case .tag: ["ETag: \"v\(version)\""]
        case .weak: ["ETag: W/\"v\(version)\""]
        case .date:
          ["Last-Modified: Sun, 06 Nov 1994 08:4\(version % 10):37 GMT", "Date: Sun, 06 Nov 1994 09:49:37 GMT"]
        case .none: []
        }
      let start = head["Range"].flatMap { Int($0.dropFirst(6).dropLast()) }
      let isCurrent =
        validator == .tag && head["If-Range"] == "\"v\(version)\""
        || validator == .date && head["If-Range"] == fields.first.map { String($0.dropFirst(15)) }
      func send(_ status: String, _ body: ArraySlice<UInt8>, length: Int? = nil, cut: Int? = nil) throws {
        let text =
          (["HTTP/1.1 \(status)"] + fields + ["Content-Length: \(length ?? body.count)"])
          .map { "\($0)\r\n" }.joined() + "\r\n"
        if fault == .cutInHead {
          try connection.send(String(text.prefix(text.utf8.count / 2)))
          throw TestFailure("cut")
        }
        try connection.send(text)
        try connection.send(Array(body.prefix(cut ?? body.count)))
        if fault == .reset { connection.reset() }
        if fault == .stall { _ = connection.waitForEnd() }
        if cut != nil || fault == .earlyEnd { throw TestFailure("cut") }
      }
      switch fault {
      case .cutBeforeHead: throw TestFailure("cut")
      case .busy: return try connection.respond("503 Service Unavailable", ["Retry-After: 0"])
      case .serverError: return try connection.respond("502 Bad Gateway", body: "no")
      case .notFound: return try connection.respond("404 Not Found", body: "no")
      case .gone: return try connection.respond("410 Gone", body: "no")
      case .badRequest: return try connection.respond("400 Bad Request", body: "no")
      case .notImplemented: return try connection.respond("501 Not Implemented", body: "no")
      case .noContent: return try connection.respond("204 No Content")
      case .portal: return try connection.respond("200 OK", ["Content-Type: text/html"], body: "<html>Log in</html>")
      case .redirectNowhere: return try connection.respond("302 Found")
      case .oddLength:
        try connection.send("HTTP/1.1 200 OK\r\nETag: \"v\(version)\"\r\nContent-Length: 1, \(content.count)\r\n\r\n")
        try connection.send(content)
        throw TestFailure("cut")
      case .chunkedCut:
        try connection.send(
          "HTTP/1.1 200 OK\r\nETag: \"v\(version)\"\r\nTransfer-Encoding: chunked\r\n\r\n1000\r\n")
        try connection.send(Array(content[..<4096]))
        throw TestFailure("cut")
      case .redirect: return try connection.respond("302 Found", ["Location: /moved/file.bin"])
      case .relativeRedirect: return try connection.respond("307 Found", ["Location: moved/../moved/file.bin?x"])
      case .preconditionFailed: if start != nil { return try connection.respond("412 Precondition Failed") }
      case .unsatisfied:
        if start != nil { return try connection.respond("416 No", ["Content-Range: bytes */\(start! / 2)"]) }
      case .encoded: fields.append("Content-Encoding: gzip")
      case .wrongDigest: fields.append("Repr-Digest: sha-256=:\(String(repeating: "A", count: 43))=:")
      default: break
      }
      guard let start, fault != .ignoresRange, isCurrent || fault == .ignoresCondition else {
        switch fault {
        case .excess:
          // libcurl reads no more than Content-Length announces. A part can announce less than the server sends.
          return try send("200 OK", content[...])
        default: return try send("200 OK", content[...], cut: cut(fault, content.count))
        }
      }
      func part(_ first: Int, _ last: Int, total: String = "\(Resource.size)") -> String {
        "Content-Range: bytes \(first)-\(last)/\(total)"
      }
      let end = content.count
      switch fault {
      case .otherRange:
        fields.append(part(start - 1, end - 1))
        try send("206 Partial Content", content[(start - 1)...])
      case .laterRange:
        fields.append(part(min(start + 7, end - 1), end - 1))
        try send("206 Partial Content", content[min(start + 7, end - 1)...])
      case .noContentRange: try send("206 Partial Content", content[start...])
      case .otherTotal:
        fields.append(part(start, end - 1, total: "\(end + 5)"))
        try send("206 Partial Content", content[start...])
      case .multipart:
        fields.append("Content-Type: multipart/byteranges; boundary=x")
        try send("206 Partial Content", content[start...])
      case .shorterPart:
        let middle = start + (end - start) / 2
        fields.append(part(start, middle - 1))
        try send("206 Partial Content", content[start..<middle])
      case .starPart:
        let middle = start + (end - start) / 2
        fields.append(part(start, middle - 1, total: "*"))
        try send("206 Partial Content", content[start..<middle])
      case .excess:
        fields.append(part(start, end - 2))
        try send("206 Partial Content", content[start...])
      default:
        fields.append(part(start, end - 1))
        try send("206 Partial Content", content[start...], cut: cut(fault, end - start))
      }
    }

    private func cut(_ fault: Fault, _ count: Int) -> Int? {
      switch fault {
      case .cutAfterHead: 0
      case .cutAtFirstByte: 1
      case .cutInBody, .reset, .stall, .earlyEnd: count / 2
      case .cutAtLastByte: count - 1
      default: nil
      }
    }
  }

  private static let patience = ["--retry-ceiling", "20ms", "--response-timeout", "300ms", "--progress", "json"]

  /// Begins a download, receives half of the content, and ends the process.
  private func begin(_ resource: Resource, _ server: ScriptedServer, _ path: String, kill: Bool) throws {
    resource.state.withLock { $0.plan = [.stall] + $0.plan }
    let process = try sluice(
      ["get", "\(server.url)/file.bin", "-o", path, "--progress", "none", "--response-timeout", "1h"])
    // The part contains all bytes that were sent.
    try waitUntil("half of it is there") { (try? fileContents(path + ".part"))?.count == Resource.size / 2 }
    process.signal(kill ? SIGKILL : SIGTERM)
    #expect(try process.wait() == (kill ? 128 + SIGKILL : 130))
    if !kill { #expect(process.errors.contains { $0.contains("resume with: sluice get --resume") }) }
  }

  @Test(
    "whatever a server does in the middle of a download, the file equals the resource, even after a kill",
    arguments: Fault.allCases.flatMap { fault in [(fault, nil), (fault, true)] as [(Fault, Bool?)] }
      + [(.none, false), (.changed, false), (.notFound, false), (.portal, false)])
  func faults(_ fault: Fault, kill: Bool?) throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/file.bin"
    let resource = try Resource(kill == nil ? [.cutInBody, fault] : [fault])
    let server = try resource.serve()
    if let kill { try begin(resource, server, path, kill: kill) }
    let more = kill == nil ? [] : ["--resume"]
    let arguments = ["get", "\(server.url)/file.bin", "-o", path] + Self.patience
    var process = try sluice(arguments + more)
    if let code = fault.code {
      #expect(try process.wait() == code, "\(process.errors)")
      if fault == .wrongDigest {
        #expect(directory.names.isEmpty, "what is not the resource is not kept: \(directory.names)")
        return
      }
      #expect(directory.names == ["file.bin.part", "file.bin.sluice"])
      process = try sluice(arguments + ["--resume"])
    }
    #expect(try process.wait() == 0, "\(process.errors) \(process.output)")
    #expect(try directory.contents("file.bin") == resource.content)
    #expect(directory.names == ["file.bin"])
    let restarts = process.output.filter { $0.contains("\"event\":\"started-over\"") }
    #expect(restarts.count == (fault.restart == nil ? 0 : 1), "\(restarts)")
    if let reason = fault.restart { #expect(restarts.allSatisfy { $0.contains("\"reason\":\"\(reason)\"") }) }
    // If the content has not changed, no byte is requested twice.
    if fault.restart == nil {
      #expect(resource.requests.all.dropFirst().allSatisfy { $0["Range"] != nil }, "\(resource.requests.all)")
    }
  }

  @Test(
    "a download that was killed after its file had its name is complete, and one with a renamed part is not",
    arguments: [true, false], [true, false])
  func killedBehindRename(isWhole: Bool, resumes: Bool) throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/file.bin"
    let resource = try Resource([])
    let server = try resource.serve()
    try begin(resource, server, path, kill: true)
    // Do what the process would have done next.
    if isWhole {
      let descriptor = open(path + ".part", O_WRONLY | O_APPEND)
      let rest = resource.content[(Resource.size / 2)...]
      #expect(rest.withUnsafeBytes { write(descriptor, $0.baseAddress, $0.count) } == rest.count)
      close(descriptor)
    }
    #expect(rename(path + ".part", path) == 0)
    let requests = resource.requests.all.count
    let process = try sluice(
      ["get", "\(server.url)/file.bin", "-o", path] + Self.patience + (resumes ? ["--resume"] : []))
    #expect(try process.wait() == (isWhole && resumes ? 0 : 74), "\(process.errors)")
    #expect(resource.requests.all.count == requests)
    #expect(try directory.contents("file.bin") == Array(resource.content.prefix(isWhole ? .max : Resource.size / 2)))
    #expect(directory.names == (isWhole ? ["file.bin"] : ["file.bin", "file.bin.sluice"]))
  }

  @Test(
    "a part of unknown length is continued to its end, whatever the first response stated",
    arguments: [true, false])
  func unknownLength(kills: Bool) throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/file.bin"
    let resource = try Resource([.chunkedCut, .starPart, .cutInBody, .starPart, .starPart])
    let server = try resource.serve()
    var arguments = ["get", "\(server.url)/file.bin", "-o", path] + Self.patience
    if kills {
      resource.state.withLock { $0.plan.insert(.stall, at: 1) }
      let process = try sluice(Array(arguments.prefix(4)) + ["--retry-ceiling", "20ms", "--response-timeout", "1h"])
      try waitUntil("half of the rest is there") { (try? fileContents(path + ".part"))?.count ?? 0 > Resource.size / 2 }
      process.signal(SIGKILL)
      _ = try process.wait()
      arguments.append("--resume")
    }
    let process = try sluice(arguments)
    #expect(try process.wait() == 0, "\(process.errors)")
    #expect(try directory.contents("file.bin") == resource.content)
  }

  @Test(
    "the digest of the first response applies to the whole file, even if later responses have none",
    arguments: [true, false], [nil, SIGTERM, SIGKILL])
  func digestOfTheFirst(isRight: Bool, signal: Int32?) throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/file.bin"
    let content = Self.bytes(Resource.size)
    var digest = try RunningDigest(.sha256)
    digest.update(content.span.bytes)
    let field = "Repr-Digest: \(DigestField([("sha-256", try digest.value().bytes)]).value)"
    let server = try ScriptedServer { connection, _ in
      while true {
        let head = try connection.head()
        let start = head["Range"].flatMap { Int($0.dropFirst(6).dropLast()) } ?? 0
        if start == 0 {
          try connection.send(
            "HTTP/1.1 200 OK\r\nETag: \"v\"\r\n\(field)\r\nContent-Length: \(content.count)\r\n\r\n")
          try connection.send(Array(content[..<200_000]))
          if signal != nil { _ = connection.waitForEnd() }
          throw TestFailure("cut")
        }
        var rest = Array(content[start...])
        if !isRight { rest[7] ^= 1 }
        try connection.send(
          "HTTP/1.1 206 Partial Content\r\nETag: \"v\"\r\nContent-Length: \(rest.count)\r\n"
            + "Content-Range: bytes \(start)-\(content.count - 1)/\(content.count)\r\n\r\n")
        try connection.send(rest)
      }
    }
    var arguments = ["get", "\(server.url)/file.bin", "-o", path, "--progress", "json", "--retry-ceiling", "20ms"]
    if let signal {
      let process = try sluice(arguments)
      try waitUntil("half of it is there") { (try? fileContents(path + ".part"))?.count == 200_000 }
      process.signal(signal)
      _ = try process.wait()
      arguments.append("--resume")
    }
    let process = try sluice(arguments)
    #expect(try process.wait() == (isRight ? 0 : 76), "\(process.errors)")
    #expect(directory.names == (isRight ? ["file.bin"] : []))
    if isRight { #expect(process.output.last?.contains("\"verified\":\"sha-256\"") == true) }
  }

  @Test("it ends at the first signal, even while its output is not read", arguments: [SIGINT, SIGTERM])
  func blockedReader(_ signal: Int32) throws {
    let directory = try TemporaryDirectory()
    let resource = try Resource([])
    let server = try resource.serve()
    mkfifo("\(directory.path)/pipe", 0o600)
    let reader = open("\(directory.path)/pipe", O_RDWR | O_CLOEXEC)
    defer { close(reader) }
    let process = try TestProcess(
      "/bin/sh",
      ["-c", "exec \"$0\" get \"$1/file.bin\" -o - > \"$2/pipe\"", try sluicePath(), server.url, directory.path])
    try waitUntil("the pipe is full") {
      var count: Int32 = 0
      return ioctl(reader, UInt(FIONREAD), &count) == 0 && count >= 65_536
    }
    process.signal(signal)
    #expect(try process.wait() == 130)
  }

  @Test("standard output that another program has made non-blocking receives all bytes")
  func nonBlockingOutput() throws {
    let directory = try TemporaryDirectory()
    let resource = try Resource([])
    let server = try resource.serve()
    mkfifo("\(directory.path)/pipe", 0o600)
    let reader = open("\(directory.path)/pipe", O_RDWR | O_NONBLOCK | O_CLOEXEC)
    defer { close(reader) }
    let script =
      "import os, sys; os.set_blocking(1, False); os.execv(sys.argv[1], ['sluice', 'get', sys.argv[2], '-o', '-'])"
    let process = try TestProcess(
      "/bin/sh",
      [
        "-c", "exec python3 -c \"$3\" \"$0\" \"$1/file.bin\" > \"$2/pipe\"", try sluicePath(), server.url,
        directory.path,
        script,
      ])
    var found: [UInt8] = []
    var buffer = [UInt8](repeating: 0, count: 4096)
    while found.count < Resource.size, waitUntilReadable(reader) {
      let count = read(reader, &buffer, buffer.count)
      if count > 0 { found += buffer[..<count] }
    }
    #expect(try process.wait() == 0, "\(process.errors)")
    #expect(found == resource.content)
  }

  @Test(
    "without a strong tag or a date that is old enough, the download starts again",
    arguments: Resource.Validator.allCases.map(\.rawValue), [true, false])
  func validators(_ name: String, kills: Bool) throws {
    let validator = try #require(Resource.Validator(rawValue: name))
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/file.bin"
    let resource = try Resource(kills ? [] : [.cutInBody], validator)
    let server = try resource.serve()
    if kills {
      resource.state.withLock { $0.plan = [.stall] }
      let process = try sluice(["get", "\(server.url)/file.bin", "-o", path, "--response-timeout", "1h"])
      try waitUntil("half of it is there") { (try? fileContents(path + ".part"))?.count == Resource.size / 2 }
      process.signal(SIGKILL)
      _ = try process.wait()
    }
    let process = try sluice(
      ["get", "\(server.url)/file.bin", "-o", path] + Self.patience + (kills ? ["--resume"] : []))
    #expect(try process.wait() == 0, "\(process.errors)")
    #expect(try directory.contents("file.bin") == resource.content)
    #expect(directory.names == ["file.bin"])
    let isResumed = resource.requests.all.contains { $0["Range"] != nil }
    #expect(isResumed == (validator == .tag || validator == .date))
    if !kills {
      #expect(process.output.contains { $0.contains("\"reason\":\"unknown\"") } == !isResumed)
    }
  }

  @Test("a page of a portal does not replace a download, with a tag or with a date", arguments: ["tag", "date"])
  func portal(_ name: String) throws {
    let directory = try TemporaryDirectory()
    let resource = try Resource([.cutInBody, .portal, .portal], try #require(Resource.Validator(rawValue: name)))
    let server = try resource.serve()
    let process = try sluice(["get", "\(server.url)/file.bin", "-o", "\(directory.path)/file.bin"] + Self.patience)
    #expect(try process.wait() == 0, "\(process.errors)")
    #expect(try directory.contents("file.bin") == resource.content)
    #expect(!process.output.contains { $0.contains("started-over") }, "\(process.output)")
  }

  @Test(
    "killed after another version without a usable validator has replaced the bytes, it continues neither of the two with the other"
  )
  func replacedVersion() throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/file.bin"
    let (old, new) = (Self.bytes(Resource.size, version: 1), Self.bytes(Resource.size, version: 2))
    let count = Mutex(0)
    let server = try ScriptedServer { connection, _ in
      while true {
        let head = try connection.head()
        let number = count.withLock { number in
          number += 1
          return number
        }
        // The second answer comes from a server that has a newer version. The others have the old one.
        let (content, tag) = number == 2 ? (new, "W/\"new\"") : (old, "\"old\"")
        let start = head["If-Range"] == tag ? head["Range"].flatMap { Int($0.dropFirst(6).dropLast()) } ?? 0 : 0
        let status = start > 0 ? "206 Partial Content" : "200 OK"
        let range = start > 0 ? "Content-Range: bytes \(start)-\(content.count - 1)/\(content.count)\r\n" : ""
        try connection.send(
          "HTTP/1.1 \(status)\r\nETag: \(tag)\r\n\(range)Content-Length: \(content.count - start)\r\n\r\n")
        guard number < 3 else {
          try connection.send(Array(content[start...]))
          continue
        }
        try connection.send(Array(content[..<(content.count / (number == 1 ? 2 : 4))]))
        if number == 2 { _ = connection.waitForEnd() }
        throw TestFailure("cut")
      }
    }
    let first = try sluice(
      [
        "get", "\(server.url)/file.bin", "-o", path, "--retry-ceiling", "20ms", "--progress", "json",
        "--response-timeout", "1h",
      ])
    try waitUntil("the new version is there") {
      (try? fileContents(path + ".part")).map { $0.count == Resource.size / 4 && new.starts(with: $0) } ?? false
    }
    first.signal(SIGKILL)
    _ = try first.wait()
    let second = try sluice(["get", "\(server.url)/file.bin", "-o", path, "--resume"] + Self.patience)
    #expect(try second.wait() == 0, "\(second.errors)")
    let found = try directory.contents("file.bin")
    #expect(
      found == old, "\(found.count) bytes, from \(zip(found, old).first { $0 != $1 } == nil ? "one" : "two") versions")
  }

  @Test("a resumed download that never reaches its server and is killed can still be resumed")
  func killedWithoutServer() throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/file.bin"
    let resource = try Resource([])
    let server = try resource.serve()
    try begin(resource, server, path, kill: true)
    resource.state.withLock { $0.plan = [.stall, .none] }
    let second = try sluice(
      ["get", "\(server.url)/file.bin", "-o", path, "--resume", "--progress", "json", "--response-timeout", "1h"])
    let asked = resource.requests.all.count
    try second.lines.first("the part is open") { $0.text.contains("\"connecting\"") }
    second.signal(SIGKILL)
    _ = try second.wait()
    resource.state.withLock { $0.plan = [] }
    let third = try sluice(["get", "\(server.url)/file.bin", "-o", path, "--resume"] + Self.patience)
    #expect(try third.wait() == 0, "\(third.errors)")
    #expect(try directory.contents("file.bin") == resource.content)
    #expect(resource.requests.all.dropFirst(asked).contains { $0["Range"] != nil })
  }

  // MARK: A real server

  @Test(
    "a recording of sluice serve comes back complete over interrupted connections, and after kills",
    arguments: Seed.several(2))
  func real(_ seed: Seed) throws {
    var random = seed.generator
    let directory = try TemporaryDirectory()
    let content = Self.bytes(6_000_000, version: seed.value)
    let stored = try StreamServer { $0.allowsDownloads = true }
    let file = try directory.write("data", content)
    #expect(try sluice(["put", file, stored.url + "/film.mkv", "--stream-id", "a"]).wait() == 0)
    // Each connection carries this many bytes and then ends in one of two ways.
    let budgets = Mutex((0..<12).map { _ in Int.random(in: 0...900_000, using: &random) })
    let resets = random.chance(50)
    let relay = try ScriptedServer { connection, _ in
      let far = try ServerConnection(connectingTo: "127.0.0.1:\(stored.port)")
      var budget = budgets.withLock { $0.isEmpty ? .max : $0.removeFirst() }
      while let bytes = try connection.receive() {
        try far.send(Array(bytes))
        guard try connection.relayAnswer(from: far, &budget) else {
          if resets { connection.reset() }
          return
        }
      }
    }
    let path = "\(directory.path)/copy.mkv"
    let arguments =
      ["get", "\(relay.url)/film-a.mkv", "-o", path, "--retry-ceiling", "10ms", "--progress", "json"]
    var isResuming = false
    for _ in 0..<3 {
      let process = try sluice(arguments + (isResuming ? ["--resume"] : []))
      let size = Int.random(in: 1...2_000_000, using: &random)
      try waitUntil("some of it is there, or all", within: 60) {
        let part = (try? fileContents(path + ".part"))?.count ?? 0
        return part >= size || access(path, F_OK) == 0
      }
      process.signal(SIGKILL)
      _ = try process.wait()
      if access(path, F_OK) == 0 { break }
      isResuming = true
    }
    if access(path, F_OK) != 0 {
      let process = try sluice(arguments + (isResuming ? ["--resume"] : []))
      #expect(try process.wait() == 0, "\(seed) \(process.errors)")
      #expect(process.output.last?.contains("\"verified\":\"sha-256\"") == true, "\(seed) \(process.output)")
    }
    #expect(try fileContents(path) == content, "\(seed)")
    #expect(!directory.names.contains("copy.mkv.part"), "\(seed)")
  }

  // MARK: Files

  @Test("a full disk ends it with an error that names the file, and the part can be resumed")
  func fullDisk() throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/file.bin"
    let resource = try Resource([])
    let server = try resource.serve()
    // The shell measures RLIMIT_FSIZE in units of 512 or 1,024 bytes. The limit is below the file size in both cases.
    let limited = try TestProcess(
      "/bin/sh",
      ["-c", "ulimit -f 300; exec \"$0\" \"$@\"", try sluicePath(), "get", "\(server.url)/file.bin", "-o", path])
    #expect(try limited.wait() == 74)
    let text = limited.errors.joined(separator: "\n")
    #expect(text.contains("file.bin.part") || text.contains("write"), "\(text)")
    #expect(text.contains("File too large") && text.contains("resume with:"), "\(text)")
    let process = try sluice(["get", "\(server.url)/file.bin", "-o", path, "--resume"] + Self.patience)
    #expect(try process.wait() == 0, "\(process.errors)")
    #expect(try directory.contents("file.bin") == resource.content)
    #expect(resource.requests.all.last?["Range"] != nil)
  }

  @Test("no existing file is overwritten, and with --force a file is replaced only at the end")
  func overwriting() throws {
    let directory = try TemporaryDirectory()
    let path = try directory.write("file.bin", "precious")
    let resource = try Resource([])
    let server = try resource.serve()
    let url = "\(server.url)/file.bin"
    let refused = try sluice(["get", url, "-o", directory.path])
    #expect(try refused.wait() == 74 && refused.errors.contains { $0.contains("--force") })
    #expect(try directory.contents("file.bin") == Array("precious".utf8))
    #expect(directory.names == ["file.bin"] && resource.requests.all.isEmpty)
    let forced = try sluice(["get", url, "-o", path, "--force"])
    #expect(try forced.wait() == 0)
    #expect(try directory.contents("file.bin") == resource.content)
    // The file is the part or the record of another download.
    unlink(path)
    for name in ["file.bin.part", "file.bin.sluice"] {
      let other = try directory.write(name, "precious\n")
      let process = try sluice(["get", url, "-o", path])
      #expect(try process.wait() == (name.hasSuffix("part") ? 74 : 65), "\(process.errors)")
      #expect(try directory.contents(name) == Array("precious\n".utf8))
      unlink(other)
      #expect(directory.names.isEmpty, "\(directory.names)")
    }
    // The file appears during the download.
    resource.state.withLock { $0.plan = [.cutInBody, .stall] }
    let late = try sluice(["get", url, "-o", path] + Self.patience)
    try waitUntil("it downloads") { access(path + ".part", F_OK) == 0 }
    try directory.write("file.bin", "precious")
    #expect(try late.wait() == 74)
    #expect(try directory.contents("file.bin") == Array("precious".utf8))
    #expect(try directory.contents("file.bin.part") == resource.content, "it is complete, and has another name")
  }

  @Test("two processes do not download one file at the same time")
  func twice() throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/file.bin"
    let resource = try Resource([.stall])
    let server = try resource.serve()
    let first = try sluice(["get", "\(server.url)/file.bin", "-o", path] + Self.patience)
    try waitUntil("it downloads") { access(path + ".part", F_OK) == 0 }
    let second = try sluice(["get", "\(server.url)/file.bin", "-o", path, "--resume"])
    #expect(try second.wait() == 74 && second.errors.contains { $0.contains("in use") }, "\(second.errors)")
    #expect(try first.wait() == 0)
    #expect(try directory.contents("file.bin") == resource.content)
  }

  @Test("an unfinished download is neither forgotten nor restarted by accident, and can be abandoned")
  func unfinished() throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/file.bin"
    let resource = try Resource([])
    let server = try resource.serve()
    try begin(resource, server, path, kill: true)
    let again = try sluice(["get", "\(server.url)/file.bin", "-o", path])
    #expect(try again.wait() == 64)
    #expect(again.errors.contains { $0.contains("--resume") && $0.contains("--abandon") }, "\(again.errors)")
    let other = try sluice(["get", "\(server.url)/other.bin", "-o", path, "--resume"])
    #expect(try other.wait() == 64 && other.errors.contains { $0.contains("/file.bin") }, "\(other.errors)")
    #expect(try sluice(["get", "\(server.url)/file.bin", "-o", path, "--abandon"]).wait() == 0)
    #expect(directory.names.isEmpty)
    #expect(try sluice(["get", "\(server.url)/file.bin", "-o", path]).wait() == 0)
    // The file that replaced the part is not touched.
    unlink(path)
    try begin(resource, server, path, kill: true)
    unlink(path + ".part")
    try directory.write("file.bin.part", [UInt8](repeating: 7, count: Resource.size))
    let replaced = try sluice(["get", "\(server.url)/file.bin", "-o", path, "--resume"])
    #expect(try replaced.wait() == 74, "\(replaced.errors)")
    #expect(try directory.contents("file.bin.part") == [UInt8](repeating: 7, count: Resource.size))
  }

  @Test("standard output receives the bytes in order, across outages, and an error if they cannot be withdrawn")
  func standardOutput() throws {
    let directory = try TemporaryDirectory()
    for (plan, code) in [([], 0), ([.cutInBody, .cutAtLastByte], 0), ([.cutInBody, .changed], 76)] as [([Fault], Int32)]
    {
      let resource = try Resource(plan)
      let server = try resource.serve()
      let process = try TestProcess(
        "/bin/sh",
        [
          "-c", "exec \"$0\" get \"$1/file.bin\" -o - --retry-ceiling 10ms > \"$2/out\"", try sluicePath(), server.url,
          directory.path,
        ])
      #expect(try process.wait() == code, "\(plan) \(process.errors)")
      if code == 0 { #expect(try directory.contents("out") == resource.content) }
      #expect(directory.names == ["out"])
    }
  }

  @Test("attempts that fail without progress belong to one outage, and a download that fails at once had none")
  func outages() throws {
    let directory = try TemporaryDirectory()
    let cases: [([Fault], code: Int32, outages: Int, attempts: Int)] = [
      ([], 0, 0, 0), ([.cutInBody], 0, 1, 0), ([.cutInBody, .busy, .serverError], 0, 1, 2),
      ([.cutInBody, .busy, .cutInBody, .busy, .busy], 0, 2, 3), ([.notFound], 76, 0, 0),
    ]
    for (number, (plan, code, outages, attempts)) in cases.enumerated() {
      let server = try Resource(plan).serve()
      let process = try sluice(
        ["get", "\(server.url)/file.bin", "-o", "\(directory.path)/\(number)"] + Self.patience)
      #expect(try process.wait() == code, "\(plan) \(process.errors)")
      let events = process.output.compactMap { FlatObject($0) }
      #expect(events.filter { $0.event == "outage" }.count == outages, "\(plan)")
      #expect(events.filter { $0.event == "attempt-failed" }.count == attempts, "\(plan)")
      #expect(events.last?.integer("outages") == outages, "\(plan)")
    }
  }

  @Test("an impossible download is refused with its code and a remedy")
  func misuse() throws {
    let directory = try TemporaryDirectory()
    let file = "\(directory.path)/file.bin"
    let cases: [([String], Int32, [String])] = [
      ([], 64, ["URL is missing"]), (["http://h/x", "more"], 64, ["one argument too many"]),
      (["http://h/"], 64, ["--output FILE"]), (["http://h"], 64, ["--output FILE"]),
      (["http://h/%2e%2e"], 64, ["--output FILE"]), (["http://h/a%2fb"], 64, ["--output FILE"]),
      (["http://h/-rf"], 64, ["--output FILE"]), (["http://h/.profile"], 64, ["--output FILE"]),
      (["http://h/a%0ab"], 64, ["--output FILE"]),
      (["ftp://h/x", "-o", file], 64, ["neither http:// nor https://"]),
      (["http://h/x", "-o", file, "--resume"], 64, ["no unfinished download", "Leave --resume"]),
      (["http://h/x", "-o", file, "--abandon"], 64, ["no unfinished download", "Leave --abandon"]),
      (["http://h/x", "-o", "-", "--resume"], 64, ["--resume", "--output -"]),
      (["http://h/x", "-o", "-", "--progress", "json"], 64, ["--progress json", "standard output"]),
      (["http://h/x", "-o", file, "-H", "Range: bytes=0-5"], 64, ["\"Range\"", "Leave it out"]),
      (["http://h/x", "-o", file, "-H", "Accept-Encoding: gzip"], 64, ["Accept-Encoding"]),
      (["http://h/x", "-o", file, "--resume", "--abandon"], 64, ["Choose one"]),
      (["http://h/x", "-o", "\(directory.path)/no/file"], 74, ["\(directory.path)/no/file.part", "No such file"]),
      (
        ["http://127.0.0.1:\(try freePort())/x", "-o", file, "--give-up", "100ms", "--retry-ceiling", "10ms"], 69,
        ["gave up"]
      ),
    ]
    for (arguments, code, says) in cases {
      let process = try sluice(["get"] + arguments)
      #expect(try process.wait() == code, "\(arguments) \(process.errors)")
      let text = process.errors.joined(separator: "\n")
      for part in says { #expect(text.contains(part), "\(arguments): \(text)") }
      #expect(directory.names.isEmpty, "\(arguments) \(directory.names)")
    }
  }

  @Test("a download that is killed before any change of its files leaves at most the file, its part and its record")
  func killedAnywhere() throws {
    let calls = "fsync,ftruncate,unlink,rename,renameat2,linkat"
    var number = 1
    while true {
      let directory = try TemporaryDirectory()
      let path = "\(directory.path)/file.bin"
      let resource = try Resource([.cutInBody, .changed])
      let server = try resource.serve()
      let arguments = ["get", "\(server.url)/file.bin", "-o", path] + Self.patience
      let process = try sluice(arguments, killedIn: calls, number: number)
      let hasEnded = try process.wait() == 0
      let names = directory.names
      #expect(Set(names).isSubset(of: ["file.bin", "file.bin.part", "file.bin.sluice"]), "call \(number): \(names)")
      if hasEnded {
        #expect(names == ["file.bin"] && number > 2)
        return
      }
      if !names.contains("file.bin") {
        // The remaining files do not prevent the next download.
        let next = try sluice(arguments)
        let code = try next.wait()
        #expect(code == 0 || code == 64 && names.contains("file.bin.part"), "call \(number): \(names) \(next.errors)")
      }
      number += 1
    }
  }

  @Test("a download that is killed while it creates its record leaves the record empty, and the next one succeeds")
  func killedWithEmptyRecord() throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/file.bin"
    let resource = try Resource([])
    let server = try resource.serve()
    let arguments = ["get", "\(server.url)/file.bin", "-o", path] + Self.patience
    let killed = try sluice(arguments, killedIn: "write", on: path + ".sluice")
    #expect(try killed.wait() == 128 + SIGKILL)
    #expect(try directory.contents("file.bin.sluice").isEmpty)
    let next = try sluice(arguments)
    #expect(try next.wait() == 0, "\(next.errors)")
    #expect(try directory.contents("file.bin") == resource.content)
    #expect(directory.names == ["file.bin"])
  }

  @Test("a secret is sent only to its server, and not to the target of a redirect")
  func secrets() throws {
    let directory = try TemporaryDirectory()
    let heads = try EventLog<ServerConnection.Head>()
    let other = try ScriptedServer { connection, _ in
      heads.append(try connection.head())
      try connection.respond("200 OK", body: "text")
    }
    let first = try ScriptedServer { connection, _ in
      heads.append(try connection.head())
      try connection.respond("302 Found", ["Location: \(other.url)/x"])
    }
    let token = try directory.write("token", "secret")
    let process = try sluice(
      ["get", first.url + "/x", "-o", "\(directory.path)/x", "--bearer-token-file", token, "-H", "X-Api-Key: secret"])
    #expect(try process.wait() == 0, "\(process.errors)")
    #expect(heads.all.count == 2 && heads.all[0]["Authorization"] == "Bearer secret")
    #expect(!heads.all[1].description.contains("secret"), "\(heads.all[1])")
    #expect(try directory.contents("x") == Array("text".utf8))
  }
}

extension ServerConnection {
  /// Relays one response as far as the budget allows. Returns false when the budget is used up.
  fileprivate func relayAnswer(from far: ServerConnection, _ budget: inout Int) throws -> Bool {
    let head = try far.head()
    var bytes = Array((head.line + "\r\n" + head.fields.map { "\($0.name): \($0.value)\r\n" }.joined() + "\r\n").utf8)
    var rest = head["Content-Length"].flatMap { Int($0) } ?? 0
    while true {
      let count = min(bytes.count, budget)
      try send(Array(bytes[..<count]))
      budget -= count
      if count < bytes.count { return false }
      guard rest > 0, let more = try far.receive(min(rest, 65_536)) else { return rest == 0 }
      bytes = Array(more)
      rest -= bytes.count
    }
  }
}
