// Tests which files `allowsDownloads` serves, to whom, and how: real requests to a real server are compared with a
// model. Recordings, tokens and clients also disappear during downloads.

import Digests
import Glibc
import HTTPMessages
import NetworkTesting
import PropertyTesting
import Recordings
import Testing
import UploadServer

@Suite("Downloads of recordings")
struct DownloadTests {
  // MARK: Who gets what

  /// A state that the files of a recording can be in.
  private enum State: CaseIterable {
    case complete, digesting, closed, split, empty, growing, unknown, foreign, unowned, changed, link, directory, gaps,
      sidecar, hidden, record
    static let available: Set<State> = [.complete, .digesting, .closed, .split, .empty]
  }

  private static let content = "The quick brown fox jumps over the lazy dog."

  private static func sha256(_ text: String) -> Digest { Digest(.sha256, of: Array(text.utf8).span.bytes) }

  /// Creates the files of a state, and returns the path for requests.
  private static func make(
    _ state: State, _ base: String, _ owner: Digest?, _ foreign: Digest, in directory: TemporaryDirectory
  ) throws -> String {
    let fileBase = state == .split ? "\(base)~2" : base
    let file = fileBase + ".wav"
    let text = state == .empty ? "" : content
    var sidecar = RecordingSidecar(file: file)
    sidecar.stored = .init(bytes: UInt64(text.utf8.count), sha256: sha256(text).hexadecimal)
    sidecar.state = state == .closed ? .interrupted : state == .split ? .split : .complete
    if state == .digesting || state == .growing { sidecar.stored?.sha256 = nil }
    mkdir(directory.path + "/.owners", 0o700)
    if state != .unowned, let recorded = state == .foreign ? foreign : owner {
      try directory.write(".owners/\(base)", recorded.bytes)
    }
    switch state {
    case .growing: try directory.write(fileBase + ".part", Array(text.utf8))
    case .link: symlink("/etc/passwd", directory.path + "/" + file)
    case .directory: mkdir(directory.path + "/" + file, 0o755)
    case .changed: try directory.write(file, Array((text + "!").utf8))
    default: try directory.write(file, Array(text.utf8))
    }
    // If only a later part of a stream remains, the stream has a log of its parts.
    if state == .split { try directory.write("\(base).wav", Array(text.utf8)) }
    if state == .closed || state == .gaps { try directory.write(fileBase + ".gaps", [0x0A]) }
    if state != .unknown {
      // The sidecar gets its final name later than the recording.
      let name = state == .digesting || state == .growing ? ".\(fileBase).sidecar" : "\(fileBase).sidecar"
      try directory.write(name, Array(sidecar.text.utf8))
    }
    return switch state {
    case .growing: "/\(fileBase).part"
    case .gaps: "/\(fileBase).gaps"
    case .sidecar: "/\(fileBase).sidecar"
    case .hidden: "/.owners/\(base)"
    case .record: "/.sluice.lock"
    default: "/\(file)"
    }
  }

  /// Who sends the request.
  private enum Client: CaseIterable { case owner, other, none }

  @Test(
    "a token downloads its own complete recordings, and nothing else, by every range and condition",
    arguments: Seed.several(2), [true, false])
  func product(_ seed: Seed, asksForTokens: Bool) throws {
    var random = seed.generator
    let directory = TemporaryDirectory()
    let (alpha, beta) = (Self.sha256("alpha"), Self.sha256("beta"))
    try directory.write("tokens", Array("\(alpha.hexadecimal)\n\(beta.hexadecimal)\n".utf8))
    // The files must exist before the server starts and searches the directory.
    let paths = try State.allCases.enumerated().map { index, state in
      (state, try Self.make(state, "s\(index)-a", asksForTokens ? alpha : nil, beta, in: directory))
    }
    let server = try TestServer(in: directory) {
      if asksForTokens { $0.tokenFile = directory.path + "/tokens" }
      $0.allowsDownloads = true
    }
    let client = try server.connect()
    for (state, path) in paths {
      for asker in Client.allCases where asksForTokens || asker == .none {
        let credentials = [Client.owner: "Authorization: Bearer alpha\r\n", .other: "Authorization: Bearer beta\r\n"][
          asker]
        func ask(_ method: String, _ lines: [String]) throws -> RawClient.Answer {
          try client.send(
            "\(method) \(path) HTTP/1.1\r\nHost: h\r\n\(credentials ?? "")" + lines.map { $0 + "\r\n" }.joined()
              + "\r\n")
          return try client.answer(withBody: method == "GET")
        }
        let context: Comment = "\(seed) \(state) \(path) asked by \(asker)"
        if asksForTokens, asker == .none {
          #expect(try ask("GET", []).status == 401, context)
          continue
        }
        let isOwner = !asksForTokens || asker == .owner || state == .foreign
        // Without tokens, anybody may get a recording that has no owner.
        let isAvailable =
          State.available.contains(state) && (asker != .other || !asksForTokens)
          || state == .foreign && asker == .other || state == .unowned && !asksForTokens
        guard isAvailable else {
          for method in ["GET", "HEAD"] {
            let answer = try ask(method, ["Range: bytes=0-3"])
            #expect(
              answer.status == 404 && answer["etag"] == nil && !answer.body.contains("quick"), "\(context) \(answer)")
            #expect(
              answer["cache-control"] == "private, no-cache" && answer["vary"] == "authorization",
              "\(context) \(answer)")
          }
          continue
        }
        #expect(isOwner, context)
        let head = try ask("HEAD", [])
        let tag = try #require(head["etag"], context)
        let date = try #require(head["last-modified"], context)
        let text = state == .empty ? "" : Self.content
        #expect(head.status == 200 && head["content-length"] == "\(text.utf8.count)" && head.body.isEmpty, context)
        for _ in 0..<12 {
          try Self.check(ask, text, tag: tag, date: date, isDigested: state != .digesting, context, &random)
        }
      }
    }
  }

  /// Sends a random request for a recording that the client may read, and checks the answer.
  private static func check(
    _ ask: (String, [String]) throws -> RawClient.Answer, _ text: String, tag: String, date: String, isDigested: Bool,
    _ context: Comment, _ random: inout SplitMix64
  ) throws {
    let octets = Array(text.utf8)
    let form = ["", "0-", "3-5", "-4", "10-99999", "0-0", "44-", "0-1,5-6", "9-3", "-0", "99-,100-"]
      .randomElement(using: &random)!
    let ifRange = [nil, tag, "\"other\"", "W/" + tag, date].randomElement(using: &random)!
    let ifMatch = [nil, nil, nil, tag, "*", "\"other\""].randomElement(using: &random)!
    let ifNone = [nil, nil, nil, tag, "\"other\""].randomElement(using: &random)!
    var lines: [String] = []
    if !form.isEmpty { lines.append("Range: bytes=\(form)") }
    if let ifRange { lines.append("If-Range: \(ifRange)") }
    if let ifMatch { lines.append("If-Match: \(ifMatch)") }
    if let ifNone { lines.append("If-None-Match: \(ifNone)") }
    let answer = try ask("GET", lines)
    let told: Comment = "\(context) \(lines): \(answer)"
    #expect(answer["etag"] == tag, told)
    let isCached = [200, 206, 304].contains(answer.status)
    #expect(!isCached || answer["cache-control"] == "private, no-cache" && answer["vary"] == "authorization", told)
    if ifMatch == "\"other\"" { return #expect(answer.status == 412, told) }
    if ifNone == tag { return #expect(answer.status == 304 && answer.body.isEmpty, told) }
    // The files are so new that their date does not identify their content.
    let isCurrent = ifRange == nil || ifRange == tag
    let parts: [String: Range<Int>] = [
      "0-": 0..<octets.count, "3-5": 3..<6, "-4": max(0, octets.count - 4)..<octets.count,
      "10-99999": 10..<max(10, octets.count), "0-0": 0..<1,
    ]
    let isUnsatisfiable =
      ["44-", "-0", "99-,100-"].contains(form) || octets.isEmpty && parts[form] != nil && form != "-4"
      || octets.isEmpty && form == "0-1,5-6"
    if ifRange == date, answer.status == 206 || answer.status == 416 {
      // The test has taken so long that the date does identify the content.
    } else if isCurrent, isUnsatisfiable {
      #expect(answer.status == 416 && answer["content-range"] == "bytes */\(octets.count)", told)
      return
    } else if !isCurrent || parts[form] == nil || octets.isEmpty {
      #expect(answer.status == 200 && answer.body == text && answer["content-range"] == nil, told)
    }
    if answer.status == 206, let part = parts[form] {
      #expect(Array(answer.body.utf8) == Array(octets[part]), told)
      #expect(answer["content-range"] == "bytes \(part.lowerBound)-\(part.upperBound - 1)/\(octets.count)", told)
    } else if isCurrent, !octets.isEmpty {
      #expect(parts[form] == nil, told)
    }
    guard answer.status < 300 else { return }
    #expect(answer["x-content-type-options"] == "nosniff" && answer["accept-ranges"] == "bytes", told)
    #expect(answer["content-disposition"]?.hasPrefix("attachment; filename=\"s") == true, told)
    let digest = DigestField([("sha-256", sha256(text).bytes)]).value
    // The server is still computing the missing digests.
    #expect(answer["repr-digest"] == digest || !isDigested && answer["repr-digest"] == nil, told)
  }

  /// The existing files of a stream that a token continues.
  enum Claim: CaseIterable { case new, put, post, growing }

  @Test("without allowsDownloads, and without sidecars, the response to GET is unchanged")
  func offByDefault() throws {
    for (allowsDownloads, writesSidecars) in [(false, true), (true, false), (false, false)] {
      let server = try TestServer { ($0.allowsDownloads, $0.writesSidecars) = (allowsDownloads, writesSidecars) }
      let path = try Self.make(.complete, "s-a", nil, Self.sha256("beta"), in: server.directory)
      let client = try server.connect()
      try client.send("GET \(path) HTTP/1.1\r\nHost: h\r\n\r\n")
      let answer = try client.answer()
      #expect(answer.status == 404 && answer.body.contains("does not offer downloads"))
      try client.send("HEAD \(path) HTTP/1.1\r\nHost: h\r\n\r\n")
      #expect(try client.answer(withBody: false).status == 404)
    }
  }

  @Test("a server with downloads describes itself at /")
  func information() throws {
    let server = try TestServer { $0.allowsDownloads = true }
    let client = try server.connect()
    try client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\nHEAD / HTTP/1.1\r\nHost: h\r\n\r\n")
    let answer = try client.answer()
    #expect(answer.status == 200 && answer.body.contains("Sluice"))
    let head = try client.answer(withBody: false)
    #expect(head.status == 200 && head["content-length"] == answer["content-length"])
  }

  @Test(
    "a token that continues a recording without an owner does not receive the existing bytes", arguments: Claim.allCases
  )
  func claim(_ claim: Claim) throws {
    let directory = TemporaryDirectory()
    let alpha = Self.sha256("alpha")
    try directory.write("tokens", Array("\(alpha.hexadecimal)\n".utf8))
    if claim == .new {
      mkdir(directory.path + "/.owners", 0o700)
    } else if claim == .growing {
      try directory.write("kitchen-a.part", Array(Self.content.utf8))
    } else {
      _ = try Self.make(.unowned, "kitchen-a", nil, alpha, in: directory)
    }
    let server = try TestServer(in: directory) {
      $0.tokenFile = directory.path + "/tokens"
      $0.allowsDownloads = true
    }
    let lines = "Host: h\r\nAuthorization: Bearer alpha\r\n"
    let offset = claim == .growing ? "Stream-Offset: \(Self.content.utf8.count)\r\n" : ""
    for _ in 0..<2 {
      let client = try server.connect()
      try client.send(
        "\(claim == .put ? "PUT" : "POST") /kitchen.wav HTTP/1.1\r\n\(lines)Stream-ID: a\r\nContent-Length: 4\r\n"
          + offset + "\r\nmore")
      let answer = try client.answer()
      if claim == .new || claim == .growing {
        #expect([200, 201].contains(answer.status), "\(answer)")
        break
      }
    }
    let reader = try server.connect()
    try reader.send("GET /kitchen-a.wav HTTP/1.1\r\n\(lines)\r\n")
    let answer = try reader.answer()
    #expect(answer.status == (claim == .new ? 200 : 404) && !answer.body.contains("quick"), "\(answer)")
  }

  // MARK: The life of one

  @Test("the digest of a recording applies unless the recording was written after its sidecar")
  func writtenLater() throws {
    let server = try TestServer { $0.allowsDownloads = true }
    let path = try Self.make(.complete, "s-a", nil, Self.sha256("beta"), in: server.directory)
    func setTime(_ name: String, nanoseconds: Int) {
      let time = timespec(tv_sec: 1_700_000_000, tv_nsec: nanoseconds)
      #expect(utimensat(AT_FDCWD, "\(server.directory.path)/\(name)", [time, time], 0) == 0)
    }
    setTime("s-a.sidecar", nanoseconds: 5)
    let digest = DigestField([("sha-256", Self.sha256(Self.content).bytes)]).value
    let cases: [(nanoseconds: Int, digest: String?)] = [(4, digest), (5, digest), (6, nil)]
    for (nanoseconds, expected) in cases {
      setTime("s-a.wav", nanoseconds: nanoseconds)
      let client = try server.connect()
      try client.send("GET \(path) HTTP/1.1\r\nHost: h\r\n\r\n")
      let answer = try client.answer()
      #expect(answer.status == 200 && answer["repr-digest"] == expected, "\(nanoseconds): \(answer)")
    }
  }

  @Test("a complete recording has a constant ETag, and its digest as soon as it is computed")
  func life() throws {
    let server = try TestServer { $0.allowsDownloads = true }
    let client = try server.connect()
    try client.send(
      "POST /kitchen HTTP/1.1\r\nHost: h\r\nStream-ID: a\r\nContent-Type: text/plain\r\nContent-Length: 11\r\n\r\nhello "
    )
    let other = try server.connect()
    _ = try server.events.wait(.begun)
    try other.send("GET /kitchen-a.txt HTTP/1.1\r\nHost: h\r\n\r\n")
    #expect(try other.answer().status == 404, "it grows")
    try client.send("world")
    #expect(try client.answer().status == 201)
    var tags: Set<String?> = []
    var digest: String?
    // The digest is computed soon, but no event reports it, so each answer is checked.
    for _ in 0..<10_000 where digest == nil {
      try other.send("GET /archive/2026/kitchen-a.txt HTTP/1.1\r\nHost: h\r\n\r\n")
      let answer = try other.answer()
      #expect(answer.status == 200 && answer.body == "hello world")
      tags.insert(answer["etag"])
      digest = answer["repr-digest"]
    }
    #expect(tags.count == 1 && tags.first != nil)
    #expect(digest == DigestField([("sha-256", Self.sha256("hello world").bytes)]).value)
    let event = try server.events.wait(.downloaded)
    #expect(event.file == "kitchen-a.txt" && event.stream == "a" && event.bytes == 11 && event.status == 200)
  }

  // MARK: What goes away

  private static let block = 1 << 16

  /// Creates a file that is too large for all socket buffers. Each block of 64 KiB begins with its number.
  private static func makeLarge(
    _ base: String = "big-a", in directory: TemporaryDirectory, blocks: Int = 1024
  ) throws -> [UInt8] {
    var random = SplitMix64(state: 1)
    let noise = (0..<block / 8).flatMap { _ in withUnsafeBytes(of: random.next()) { Array($0) } }
    var bytes: [UInt8] = []
    bytes.reserveCapacity(blocks * block)
    for index in 0..<blocks {
      withUnsafeBytes(of: UInt64(index).littleEndian) { bytes += $0 }
      bytes += noise[8...]
    }
    try directory.write("\(base).bin", bytes)
    var sidecar = RecordingSidecar(file: "\(base).bin")
    sidecar.stored = .init(bytes: UInt64(bytes.count))
    try directory.write("\(base).sidecar", Array(sidecar.text.utf8))
    return bytes
  }

  /// All bytes after the head until the server closes the connection.
  private static func body(_ client: RawClient) throws -> [UInt8] {
    var bytes: [UInt8] = []
    var buffer = [UInt8](repeating: 0, count: 1 << 20)
    while true {
      let count = recv(client.descriptor, &buffer, buffer.count, 0)
      if count <= 0 { break }
      bytes += buffer[..<count]
    }
    let end = try #require(bytes.firstRange(of: Array("\r\n\r\n".utf8)))
    return Array(bytes[end.upperBound...])
  }

  private enum Loss: CaseIterable { case none, unlinked, moved, replaced, shortened, rewritten, token }

  @Test(
    "a client never receives bytes of another recording, and detects that the rest is missing", arguments: Loss.allCases
  )
  private func loss(_ loss: Loss) throws {
    let directory = TemporaryDirectory()
    let bytes = try Self.makeLarge(in: directory)
    let alpha = Self.sha256("alpha")
    try directory.write("tokens", Array("\(alpha.hexadecimal)\n".utf8))
    mkdir(directory.path + "/.owners", 0o700)
    try directory.write(".owners/big-a", alpha.bytes)
    let server = try TestServer(in: directory) {
      $0.allowsDownloads = true
      $0.tokenFile = directory.path + "/tokens"
    }
    let client = try server.connect()
    try client.send("GET /big-a.bin HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAuthorization: Bearer alpha\r\n\r\n")
    // Some bytes have arrived. The rest does not fit into the kernel's buffers.
    var first = [UInt8](repeating: 0, count: 1)
    #expect(recv(client.descriptor, &first, 1, Int32(MSG_PEEK)) == 1)
    let path = directory.path + "/big-a.bin"
    switch loss {
    case .none: break
    case .unlinked: unlink(path)
    case .moved: rename(path, directory.path + "/elsewhere")
    case .replaced:
      try directory.write("other", [UInt8](repeating: 7, count: bytes.count))
      rename(directory.path + "/other", path)
    case .shortened: truncate(path, 3 << 20)
    case .rewritten:
      let file = open(path, O_WRONLY)
      let sevens = [UInt8](repeating: 7, count: Self.block)
      for index in stride(from: 1023, through: 0, by: -1) {
        pwrite(file, sevens, sevens.count, off_t(index * Self.block))
      }
      close(file)
    case .token: try directory.write("tokens", Array("\(Self.sha256("beta").hexadecimal)\n".utf8))
    }
    if loss == .token {
      // As soon as the other token is accepted, the first one is not.
      let other = try server.connect()
      var status = 401
      for _ in 0..<1_000_000 where status == 401 {
        try other.send("HEAD /big-a.bin HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer beta\r\n\r\n")
        status = try other.answer(withBody: false).status
      }
      #expect(status == 404)
    }
    let body = try Self.body(client)
    if loss == .none {
      #expect(body == bytes)
      #expect(try server.events.wait(.downloaded).bytes == UInt64(bytes.count))
    } else {
      #expect(body.count < bytes.count, "\(body.count)")
      #expect(body == Array(bytes[..<body.count]), "\(body.count)")
      let event = try server.events.wait(.downloadInterrupted)
      #expect(event.bytes == UInt64(body.count) && event.reason != nil && event.file == "big-a.bin", "\(event)")
    }
  }

  @Test("a download with a slow client keeps no recording open")
  func stalled() throws {
    let directory = TemporaryDirectory()
    _ = try Self.makeLarge(in: directory)
    let server = try TestServer(in: directory) { $0.allowsDownloads = true }
    let client = try server.connect()
    try client.send("GET /big-a.bin HTTP/1.1\r\nHost: h\r\n\r\n")
    var first = [UInt8](repeating: 0, count: 1)
    #expect(recv(client.descriptor, &first, 1, Int32(MSG_PEEK)) == 1)
    unlink(directory.path + "/big-a.bin")
    try waitUntil("nothing has the removed recording open") {
      try openPaths().allSatisfy { !$0.hasPrefix(directory.path + "/big-a.bin") }
    }
    withExtendedLifetime((client, server)) {}
  }

  /// How the server distinguishes clients.
  enum Identity: CaseIterable { case token, address }

  /// A socket whose connection comes from that address, so that the server sees another client.
  private static func socket(at address: String) throws -> Int32 {
    let descriptor = Glibc.socket(AF_INET, Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue), 0)
    guard try IPv4Address(address).withPointer({ bind(descriptor, $0, $1) }) == 0 else {
      throw TestFailure("bind to \(address): \(String(cString: strerror(errno)))")
    }
    return descriptor
  }

  @Test(
    "a client that disconnects frees its slot, and the number of downloads is limited, in total and to half per client",
    arguments: Identity.allCases)
  func places(_ identity: Identity) throws {
    let directory = TemporaryDirectory()
    let names = ["alpha", "beta", "gamma"]
    let digests = names.map { Self.sha256($0) }
    try directory.write("tokens", Array(digests.map { $0.hexadecimal + "\n" }.joined().utf8))
    if identity == .token { mkdir(directory.path + "/.owners", 0o700) }
    for (name, digest) in zip(names, digests) {
      _ = try Self.makeLarge("\(name)-a", in: directory, blocks: 512)
      if identity == .token { try directory.write(".owners/\(name)-a", digest.bytes) }
    }
    let server = try TestServer(in: directory) {
      $0.allowsDownloads = true
      $0.maximumDownloadCount = 5
      if identity == .token { $0.tokenFile = directory.path + "/tokens" }
    }
    /// A client that requests a download and does not read it.
    func request(_ number: Int) throws -> RawClient {
      let socket = try identity == .token ? nil : Self.socket(at: "127.0.0.\(number + 1):0")
      let client = try RawClient(server.address, reserved: socket)
      let token = identity == .token ? "Authorization: Bearer \(names[number])\r\n" : ""
      try client.send("GET /\(names[number])-a.bin HTTP/1.1\r\nHost: h\r\n\(token)\r\n")
      return client
    }
    func begin(_ number: Int) throws -> RawClient {
      let client = try request(number)
      var first = [UInt8](repeating: 0, count: 12)
      #expect(recv(client.descriptor, &first, 12, Int32(MSG_PEEK)) == 12)
      #expect(String(decoding: first, as: UTF8.self) == "HTTP/1.1 200")
      return client
    }
    func isRefused(_ number: Int) throws -> Bool {
      let answer = try request(number).answer()
      return answer.status == 503 && answer["retry-after"] != nil
    }
    var clients = [try begin(0), try begin(0)]
    #expect(try isRefused(0))
    #expect(try server.events.wait(.refused).status == 503)
    clients += [try begin(1), try begin(1)]
    #expect(try isRefused(1))
    clients.append(try begin(2))
    // This client has less than its half, but all places are taken.
    #expect(try isRefused(2))
    func open() throws -> Double { try figure("sluice_server_downloads_open", of: server.server) }
    #expect(try open() == 5)
    clients[0].reset()
    _ = try server.events.wait(.downloadInterrupted)
    clients.append(try begin(2))
    for client in clients.dropFirst() { client.reset() }
    try waitUntil("no download is counted as open") { try open() == 0 }
  }

  @Test("a client that accepts nothing is disconnected after a while, and a slow one is not")
  func silence() throws {
    // A busy machine may stop the slow client for as long as the limit.
    for limit in [.milliseconds(500), .seconds(3)] as [Duration] {
      if try completesSlowDownload(limit) { return }
    }
    #expect(try completesSlowDownload(.seconds(15)), "the slow client is disconnected each time")
  }

  /// Lets a client read slowly until the server disconnects another one, which accepts nothing. Returns false if the
  /// slow client does not receive everything.
  private func completesSlowDownload(_ limit: Duration) throws -> Bool {
    let directory = TemporaryDirectory()
    let bytes = try Self.makeLarge(in: directory, blocks: 512)
    let server = try TestServer(in: directory) {
      $0.allowsDownloads = true
      $0.headTimeout = limit
    }
    let (idle, reader) = (try server.connect(), try server.connect())
    for client in [idle, reader] {
      try client.send("GET /big-a.bin HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    }
    var buffer = [UInt8](repeating: 0, count: 1 << 18)
    var head = 0
    // One client reads until the other is disconnected, and then reads the rest.
    while !server.events.all.contains(where: { $0.kind == .downloadInterrupted }) {
      head += recv(reader.descriptor, &buffer, 1 << 10, 0)
    }
    var count = head
    while case let got = recv(reader.descriptor, &buffer, buffer.count, 0), got > 0 { count += got }
    guard count > bytes.count else { return false }
    #expect(try server.events.wait(.downloadInterrupted).reason?.contains("too long") == true)
    #expect(try server.events.wait(.downloaded).bytes == UInt64(bytes.count))
    return true
  }

  @Test("requests after a download on the same connection are answered in order", arguments: [1, 3])
  func pipelined(_ threads: Int) throws {
    let directory = TemporaryDirectory()
    let server = try TestServer(in: directory) {
      $0.allowsDownloads = true
      $0.threads = threads
    }
    for index in 0..<4 { _ = try Self.make(.complete, "s\(index)-a", nil, Self.sha256("beta"), in: directory) }
    let client = try server.connect()
    try client.send(
      (0..<40).map { "GET /s\($0 % 5)-a.wav HTTP/1.1\r\nHost: h\r\nRange: bytes=\($0)-\($0 + 1)\r\n\r\n" }.joined())
    for index in 0..<40 {
      let answer = try client.answer()
      if index % 5 == 4 {
        #expect(answer.status == 404)
      } else {
        #expect(answer.body == String(Self.content.dropFirst(index).prefix(2)), "\(index) \(answer)")
      }
    }
  }
}
