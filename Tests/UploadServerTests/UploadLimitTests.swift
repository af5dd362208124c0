// Tests what the server allows to whom: limits, quotas, lifetimes, rates, tokens, and digests of the whole.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Testing
import UploadServer

@Suite("Limits of resumable uploads", .serialized)
struct UploadLimitTests {
  @Test(
    "a request beyond the sizes gets 413 with the limits, and the stored bytes stay (draft, section Limits)",
    arguments: Bed.all)
  func sizes(_ storage: Bed.Storage) throws {
    let bed = try Bed(storage)
    let test = try bed.server {
      $0.uploads.maximumSize = 10
      $0.uploads.maximumAppendSize = 6
    }
    let client = try test.connect()
    try client.request("POST", "/a", ["Upload-Complete: ?0", "Upload-Length: 11"], body: "")
    let refused = try client.final().answer
    #expect(refused.status == 413 && refused["upload-complete"] == "?0")
    #expect(refused["upload-limit"]?.hasPrefix("max-size=10, max-append-size=6") == true)
    if storage == .directory { #expect(refused["upload-limit"] == "max-size=10, max-append-size=6, max-age=3600") }
    let location = try test.create("/t.txt", ["Stream-ID: a"])
    let large = try test.connect()
    try large.patch(location, at: 0, body: "1234567")
    #expect(try large.final().answer.status == 413)
    let chunked = try test.connect()
    try chunked.patch(location, at: 0, chunked: true)
    try chunked.sendChunk("12345678")
    let cut = try chunked.final().answer
    #expect(cut.status == 413 && cut["upload-offset"] == "6")
    let rest = try test.connect()
    try rest.patch(location, at: 6, chunked: true)
    try rest.sendChunk("78901")
    #expect(try rest.final().answer["upload-offset"] == "10")
    let last = try test.connect()
    try last.patch(location, at: 10, completes: true, body: "")
    #expect(try last.final().answer.status == 201)
    #expect(try bed.stored("a") == "1234567890")
  }

  /// The state of a stream when an upload of it is created.
  enum Standing: CaseIterable { case absent, growing, closed }

  @Test(
    "an upload may begin with a hole of the maximum length, counted from the stored bytes, whatever its maximum size",
    arguments: Standing.allCases)
  func hole(_ standing: Standing) throws {
    let test = try TestServer {
      $0.uploads.maximumSize = 8
      $0.maximumHoleLength = 10
      if standing == .closed { $0.finishAfter = .milliseconds(100) }
    }
    if standing != .absent {
      try test.append(try test.create("/t.txt", ["Stream-ID: a"]), at: 0, "12345678")
    }
    if standing == .closed { _ = try test.events.wait(.closed) }
    for offset in [8, 10, 11, 18, 19, 1000] {
      let client = try test.connect()
      try client.request(
        "POST", "/t.txt", ["Stream-ID: a", "Stream-Offset: \(offset)", "Upload-Complete: ?0"], body: "")
      let isAllowed =
        switch standing {
        case .absent: offset <= 10
        case .growing: offset <= 18
        // The next part begins at that offset.
        case .closed: true
        }
      #expect(try client.final().answer.status == (isAllowed ? 201 : 409), "\(standing), \(offset)")
    }
  }

  @Test(
    "the number of uploads is limited, in total and per client, and an ended upload makes space for another (draft, section Security Considerations)"
  )
  func counts() throws {
    for perClient in [true, false] {
      let test = try TestServer {
        if perClient { $0.uploads.maximumCountPerClient = 2 } else { $0.uploads.maximumCount = 2 }
      }
      let first = try test.create()
      _ = try test.create()
      let client = try test.connect()
      try client.request("POST", "/a", ["Upload-Complete: ?0"], body: "")
      let refused = try client.final().answer
      #expect(refused.status == 503 && refused["retry-after"] == "2")
      try client.request("DELETE", first)
      #expect(try client.final().answer.status == 204)
      let third = try test.create()
      try client.patch(third, at: 0, completes: true, body: "abc")
      #expect(try client.final().answer.status == 201)
      _ = try test.create()
    }
  }

  @Test("content with a wrong digest uses no quota")
  func refutedQuota() throws {
    let test = try TestServer { $0.uploads.quota = 10 }
    let location = try test.create()
    let client = try test.connect()
    for _ in 0..<4 {
      // The SHA-256 of "abc" (FIPS 180-4).
      try client.patch(
        location, at: 0, ["Content-Digest: sha-256=:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=:"], body: "12345678")
      let refused = try client.final().answer
      #expect(refused.status == 400 && refused["upload-offset"] == "0")
    }
    try client.patch(location, at: 0, completes: true, body: "1234567890")
    #expect(try client.final().answer.status == 201)
  }

  @Test("the bytes of unfinished uploads are limited, even after a restart; a complete upload no longer counts")
  func quota() throws {
    let directory = TemporaryDirectory()
    var location = ""
    do {
      let test = try TestServer(in: directory) { $0.uploads.quota = 10 }
      location = try test.create()
      let client = try test.connect()
      try client.patch(location, at: 0, chunked: true)
      try client.sendChunk("1234567890123")
      let refused = try client.final().answer
      #expect(refused.status == 507 && refused["upload-offset"] == "10" && refused["retry-after"] == "2")
      client.disconnect()
      test.stop()
    }
    let test = try TestServer(in: directory) { $0.uploads.quotaPerClient = 10 }
    let client = try test.connect()
    try client.request("POST", "/b", ["Upload-Complete: ?0"], body: "")
    #expect(try client.final().answer.status == 507)
    let again = try test.connect()
    try again.patch(location, at: 10, completes: true, body: "")
    #expect(try again.final().answer["upload-complete"] == "?1")
    _ = try test.create()
  }

  @Test("an idle upload expires, and everything that it created is removed (draft, section Limits)")
  func expiry() throws {
    // A busy machine may let the upload expire before it has bytes.
    for seconds in [1, 5] {
      if try expires(after: seconds) { return }
    }
    #expect(try expires(after: 20), "it expires too early each time")
  }

  /// Lets an upload with bytes expire. Returns false if it expires before they arrive.
  private func expires(after seconds: Int) throws -> Bool {
    let test = try TestServer { $0.uploads.maximumAge = .seconds(seconds) }
    let location = try test.create("/t.txt", ["Upload-Length: 10"])
    let client = try test.connect()
    try client.patch(location, at: 0, body: "abc")
    let answer = try client.final().answer
    if answer.status == 410 { return false }
    #expect(answer["upload-limit"] == "max-age=\(seconds)")
    let expired = try test.events.wait(.expired)
    #expect(expired.offset == 3)
    #expect(test.directory.names == [".uploads"])
    #expect(try client.head(location).status == 410)
    return true
  }

  @Test("a running upload does not expire, however long it is silent")
  func silentButAtWork() throws {
    // A busy machine may let the upload expire before its request begins.
    for seconds in [1, 5] {
      do { return try staysWhileSilent(limit: seconds) } catch is TestFailure {}
    }
    try staysWhileSilent(limit: 20)
  }

  private func staysWhileSilent(limit: Int) throws {
    let test = try TestServer { $0.finishAfter = .seconds(limit) }
    let live = try test.connect()
    let location = try test.create()
    try live.patch(location, at: 0, chunked: true)
    try live.sendChunk("abc")
    try live.awaitProgress(3)
    // Another upload expires meanwhile, which shows that enough time has passed.
    _ = try test.create()
    _ = try test.events.wait(.expired)
    _ = try test.create()
    _ = try test.events.wait(.expired, count: 2)
    try live.sendChunk("def")
    try live.send("0\r\n\r\n")
    #expect(try live.final().answer["upload-offset"] == "6")
  }

  /// Works for a time, which is long in comparison to the lifetime of its upload.
  private final class Late: RequestHandler {
    private let work: Duration
    private let accepts: Bool
    private var exchange: (any Exchange)?

    /// - Parameter accepts: whether it accepts the body at once, and asks to retry after the work. If not, it accepts
    ///   the body after the work.
    init(work: Duration, accepts: Bool) { (self.work, self.accepts) = (work, accepts) }

    func begin(_ exchange: any Exchange) {
      self.exchange = exchange
      if accepts { return exchange.acceptBody() }
      exchange.loop.schedule(after: work) { exchange.acceptBody() }
    }

    func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) {}

    func end() {
      guard accepts, let exchange else { return }
      exchange.loop.schedule(after: work) { exchange.respond(Response(503, ["retry-after": "1"])) }
    }

    func aborted(_ reason: AbortReason) { exchange = nil }
    func serverStops() {}
  }

  /// A server with ``Late`` handlers. It adds the time when an upload expires to the log. Tests compare this time,
  /// which is later on a busy machine, but never earlier. The order of timers would prove less: one that is late also
  /// finds the uploads whose time has passed since.
  private func late(
    lifetime: Duration, work: Duration, accepts: Bool = true, _ log: EventLog<MonotonicInstant>
  ) throws -> TestServer {
    try TestServer {
      $0.uploads.maximumAge = lifetime
      $0.uploads.loadPatience = .seconds(60)
      $0.handler = { _ in Late(work: work, accepts: accepts) }
      let report = $0.onEvent
      $0.onEvent = { event in
        if event.kind == .expired { log.append(.now) }
        report(event)
      }
    }
  }

  @Test("a lifetime that ends while the handler processes the upload begins again")
  func silentProcessing() throws {
    let lifetime = Duration.milliseconds(600)
    let log = try EventLog<MonotonicInstant>()
    let test = try late(lifetime: lifetime, work: lifetime + .milliseconds(1), log)
    let client = try test.connect()
    let start = MonotonicInstant.now
    try client.request("POST", "/late", ["Upload-Complete: ?1"], body: "abc")
    #expect(try client.final().answer.status == 503)
    let end = try log.wait("the end of the upload") { $0.first }
    let least = lifetime * 2 - .milliseconds(1)
    #expect(end - start >= least)
  }

  /// The reason why a request that took longer than the lifetime of its upload is refused.
  enum LateRefusal: CaseIterable { case handlerNotReady, length, digest }

  @Test(
    "an upload lives for a whole lifetime after a request that took longer than that, if its client may try again",
    arguments: LateRefusal.allCases)
  func lateRefusal(_ refusal: LateRefusal) throws {
    let lifetime = Duration.milliseconds(600)
    // The second lifetime since the beginning of the request ends soon after the work.
    let work = lifetime * 2 - .milliseconds(100)
    let log = try EventLog<MonotonicInstant>()
    let test = try late(lifetime: lifetime, work: work, accepts: refusal == .handlerNotReady, log)
    var start = MonotonicInstant.now
    var status = try self.status(of: refusal, test)
    var attempts = 1
    // The upload of a busy client may expire before the request that appends to it.
    while [404, 410].contains(status), attempts < 10 {
      attempts += 1
      start = .now
      status = try self.status(of: refusal, test)
    }
    #expect(status == (refusal == .handlerNotReady ? 503 : 400))
    let end = try log.wait("the end of the upload") { $0.count >= attempts ? $0[attempts - 1] : nil }
    let least = work + lifetime - .milliseconds(1)
    #expect(end - start >= least)
  }

  /// The status of the response to a request that is refused after the work.
  private func status(of refusal: LateRefusal, _ test: TestServer) throws -> Int {
    let client = try test.connect()
    switch refusal {
    case .handlerNotReady: try client.request("POST", "/late", ["Upload-Complete: ?1"], body: "abc")
    case .length:
      try client.patch(try test.create("/late", ["Upload-Length: 4"]), at: 0, completes: true, chunked: true)
      try client.sendChunk("abc")
      try client.send("0\r\n\r\n")
    case .digest:
      // The SHA-256 of "abc" (FIPS 180-4).
      let digest = "Content-Digest: sha-256=:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=:"
      try client.patch(try test.create("/late", ["Upload-Length: 4"]), at: 0, [digest], body: "abd")
    }
    return try client.final().answer.status
  }

  @Test("a client below the minimum rate is disconnected, and its bytes stay (draft, section Security Considerations)")
  func tooSlow() throws {
    let test = try TestServer {
      $0.uploads.minimumRate = 1000
      $0.uploads.rateWindow = .seconds(1)
    }
    let location = try test.create()
    let slow = try test.connect()
    try slow.patch(location, at: 0, chunked: true)
    try slow.sendChunk("abc")
    let answer = try slow.final().answer
    #expect(answer.status == 408 && answer["upload-offset"] == "3" && answer["upload-complete"] == "?0")
    #expect(try test.connect().head(location)["upload-offset"] == "3")
    // The same for a request that could ask for the response once more, and does not.
    let last = try test.connect()
    try last.patch(location, at: 3, completes: true, body: "")
    #expect(try last.final().answer.status == 201)
    let silent = try test.connect()
    try silent.patch(location, at: 3, completes: true, chunked: true)
    #expect(try silent.final().answer.status == 408)
    #expect(try test.connect().head(location)["upload-complete"] == "?1")
  }

  // MARK: Tokens

  /// The SHA-256 digests of `alpha` and `beta`, computed by sha256sum.
  private static let tokens = """
    # who may stream
    8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8  the kitchen

    F44E64E75F3948E9F73F8DFA94721C4CE8CBB4F265C4790C702B2D41CFBF2753
    """

  /// A server that admits `alpha` and `beta`.
  private func guarded(_ directory: TemporaryDirectory = TemporaryDirectory()) throws -> TestServer {
    let path = directory.path + "/tokens"
    try write(Self.tokens, path)
    return try TestServer(in: directory) { $0.tokenFile = path }
  }

  private func write(_ text: String, _ path: String) throws {
    guard let file = fopen(path, "w") else { throw TestFailure("cannot write \(path)") }
    fputs(text, file)
    fclose(file)
  }

  private let alpha = "Authorization: Bearer alpha"
  private let beta = "Authorization: bearer beta"

  @Test("the server serves nothing without a token of the file")
  func unauthorized() throws {
    let test = try guarded()
    for lines in [[], ["Authorization: Bearer gamma"], ["Authorization: Basic alpha"], ["Authorization: Bearer "]] {
      for method in ["GET", "OPTIONS", "POST"] {
        let client = try test.connect()
        try client.request(method, "/", lines, body: "")
        let answer = try client.final().answer
        #expect(answer.status == 401 && answer["www-authenticate"] == "Bearer")
      }
    }
    let client = try test.connect()
    try client.request("GET", "/", [alpha])
    #expect(try client.final().answer.status == 200)
  }

  @Test(
    "an upload and a stream belong to the token that created them, even after a restart (draft, section Security Considerations)"
  )
  func owners() throws {
    let directory = TemporaryDirectory()
    var location = ""
    func check(_ test: TestServer, offset: Int) throws {
      let other = try test.connect()
      for method in ["HEAD", "DELETE"] {
        try other.request(method, location, [beta])
        #expect(try other.final(withBody: method != "HEAD").answer.status == 404)
      }
      try other.patch(location, at: offset, [beta], body: "")
      #expect(try other.final().answer.status == 404)
      try other.request("POST", "/t.txt", ["Upload-Complete: ?0", "Stream-ID: s", beta], body: "")
      #expect(try other.final().answer.status == 403)
      try other.request("POST", "/t.txt", version: nil, ["Stream-ID: s", beta], body: "")
      #expect(try other.answer().status == 403)
      let own = try test.connect()
      try own.patch(location, at: offset, [alpha], body: "abc")
      let answer = try own.final().answer
      #expect(answer["upload-offset"] == "\(offset + 3)", "\(answer)")
    }
    let test = try guarded(directory)
    location = try test.create("/t.txt", ["Stream-ID: s", alpha])
    let own = try test.connect()
    try own.patch(location, at: 0, [alpha], body: "abc")
    #expect(try own.final().answer.status == 204)
    own.disconnect()
    try check(test, offset: 3)
    test.stop()
    try check(try guarded(directory), offset: 6)
    // The token itself is stored in no file.
    #expect(try Command.run("grep", ["-rqe", "alpha", directory.path]) == 1)
  }

  @Test("a withdrawn token completes nothing (draft, section Security Considerations)", arguments: [true, false])
  func withdrawn(completes: Bool) throws {
    let directory = TemporaryDirectory()
    let test = try guarded(directory)
    let location = try test.create("/t.txt", [alpha])
    let client = try test.connect()
    try client.patch(location, at: 0, completes: completes, [alpha], chunked: true)
    try client.sendChunk("abc")
    try client.awaitProgress(3)
    try withdrawAll(test)
    try client.send("0\r\n\r\n")
    let answer = try client.final().answer
    #expect(answer.status == 401 && answer["upload-complete"] == "?0" && answer["upload-offset"] == "3")
    #expect(test.directory.names.contains { $0.hasSuffix(".part") })
  }

  /// A request whose token is withdrawn while its bytes arrive.
  private struct Sending {
    let client: RawClient
    let location: String
    let isChunked: Bool

    func send(_ text: String) throws { try isChunked ? client.sendChunk(text) : client.send(text) }
  }

  @Test("soon after its token is withdrawn, no request stores bytes, and its upload can be continued with the token")
  func withdrawnMeanwhile() throws {
    let test = try guarded()
    var sendings: [Sending] = []
    for (isCreation, completes) in [(true, true), (true, false), (false, true), (false, false)] {
      for isChunked in [true, false] {
        let lines = [alpha] + (isChunked ? [] : ["Content-Length: 1000000"])
        let id = "Stream-ID: s\(sendings.count)"
        let client = try test.connect()
        var location: String?
        if isCreation {
          let completeness = "Upload-Complete: ?\(completes ? 1 : 0)"
          try client.request("POST", "/t.txt", lines + [id, completeness], chunked: isChunked)
          location = try client.answer()["location"]
        } else {
          location = try test.create("/t.txt", [id, alpha])
          try client.patch(location ?? "", at: 0, completes: completes, lines, chunked: isChunked)
        }
        let sending = Sending(client: client, location: try #require(location), isChunked: isChunked)
        try sending.send("abc")
        try client.awaitProgress(3)
        sendings.append(sending)
      }
    }
    try withdrawAll(test)
    var offsets: [Int] = []
    for (number, sending) in sendings.enumerated() {
      // Repeats until the server has checked the token again. Bytes that it stored before still count.
      let answer = try sending.client.final { try sending.send("abc") }
      #expect(answer.status == 401 && answer["upload-complete"] == "?0", "\(number): \(answer)")
      let offset = try #require(answer["upload-offset"].flatMap { Int($0) })
      #expect(try test.directory.text("t-s\(number).part").utf8.count == offset)
      offsets.append(offset)
    }
    try write(Self.tokens, test.directory.path + "/tokens")
    for (sending, offset) in zip(sendings, offsets) {
      var next: RawClient.Answer?
      try waitUntil("the token is valid again") {
        let client = try test.connect()
        try client.patch(sending.location, at: offset, [alpha], body: "def")
        next = try client.final().answer
        return next?.status != 401
      }
      #expect(next?.status == 204 && next?["upload-offset"] == "\(offset + 3)")
    }
  }

  /// Each loop of the server checks the file at most once per second. When one of them has noticed the change, others
  /// may not have, but after that second, each checks the file before it admits a token.
  private func withdrawAll(_ test: TestServer) throws {
    try write("# nobody\n", test.directory.path + "/tokens")
    let noticed = MonotonicInstant.now + .seconds(1)
    try waitUntil("the token is withdrawn") { try !admitsAlpha(test) && MonotonicInstant.now >= noticed }
  }

  private func admitsAlpha(_ test: TestServer) throws -> Bool {
    try test.connect().rawStatus("GET / HTTP/1.1\r\nHost: h\r\n\(alpha)\r\n\r\n") == 200
  }

  @Test("a withdrawn token completes no plain stream, and soon none of its bytes are stored")
  func withdrawnPlain() throws {
    for sendsMore in [false, true] {
      let test = try guarded()
      let client = try test.connect()
      try client.send(TestServer.head(more: alpha + "\r\n"))
      try client.sendChunk("abc")
      _ = try test.events.wait(.begun)
      try withdrawAll(test)
      if sendsMore {
        // Repeats until the server has checked the file again. Bytes that it stored before still count.
        while (try? client.sendChunk("abc")) != nil, !client.hasAnswer { poll(nil, 0, 10) }
      } else {
        try client.send("0\r\n\r\n")
      }
      let answer = try client.answer()
      #expect(answer.status == 401 && answer["www-authenticate"] == "Bearer" && answer["retry-after"] == nil)
      #expect(try test.events.wait(.interrupted).status == 401)
      #expect(try test.directory.text("t-a.part").utf8.count == answer["stream-offset"].flatMap { Int($0) })
      #expect(!test.directory.exists("t-a.txt"))
    }
  }

  @Test("the error for an invalid line of the token file has its number")
  func malformedTokenFile() throws {
    let directory = TemporaryDirectory()
    let path = directory.path + "/tokens"
    try write("# fine\n\nalpha\n", path)
    #expect(throws: UploadServerError.tokenFile(path, line: 3, reason: "it does not begin with 64 hexadecimal digits"))
    {
      do { _ = try TestServer { $0.tokenFile = path } } catch { throw error }
    }
    #expect(throws: UploadServerError.self) { _ = try TestServer { $0.tokenFile = path + "s" } }
  }

  // MARK: Digests of the whole

  // The SHA-256 and SHA-512 of "abc" (FIPS 180-4).
  private let sha256 = "sha-256=:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=:"
  private let sha512 =
    "sha-512=:3a81oZNherrMQXNJriBBMRLm+k6JqX6iCp7u5ktV05ohkpkqJ0/BqDa6PCOj/uu9RU1EI2Q86A4qmslPpUyknw==:"

  @Test(
    "a representation that does not match its Repr-Digest is not processed (draft, section Representation Digests)",
    arguments: Bed.all)
  func representationDigest(_ storage: Bed.Storage) throws {
    for (text, isRight) in [("abc", true), ("abd", false)] {
      for digests in [sha256, sha512, "md5=:AA==:, \(sha256), \(sha512)"] {
        let bed = try Bed(storage)
        let test = try bed.server()
        let location = try test.create("/t.txt", ["Stream-ID: a", "Repr-Digest: \(digests)"])
        let client = try test.connect()
        try client.patch(location, at: 0, body: String(text.prefix(1)))
        _ = try client.final()
        try client.patch(location, at: 1, completes: true, body: String(text.dropFirst()))
        let answer = try client.final().answer
        #expect(answer.status == (isRight ? 201 : 400))
        if storage == .directory || isRight { #expect(answer["upload-complete"] == "?1") }
        #expect(try bed.stored("a") == (isRight ? text : ""))
        if storage == .directory {
          #expect(isRight ? test.onlyFile.hasSuffix(".txt") : test.onlyFile == "none")
          #expect(try client.head(location)["upload-complete"] == "?1")
        }
      }
    }
  }

  @Test(
    "a client that wants a digest of the stored bytes receives it in each response, even after a restart (draft, section Representation Digests)",
    arguments: Bed.all
  )
  func wantedDigest(_ storage: Bed.Storage) throws {
    let bed = try Bed(storage)
    var location = ""
    do {
      let test = try bed.server()
      location = try test.create("/t.txt", ["Want-Repr-Digest: md5=9, sha-512=1, sha-256=8"])
      let client = try test.connect()
      try client.patch(location, at: 0, body: "abc")
      #expect(try client.final().answer["repr-digest"] == sha256)
      client.disconnect()
    }
    let test = try bed.server()
    let client = try test.connect()
    try client.patch(location, at: 3, completes: true, body: "")
    #expect(try client.final().answer["repr-digest"] == sha256)
    // This also applies to a repeated answer.
    try client.patch(location, at: 3, completes: true, body: "")
    #expect(try client.final().answer["repr-digest"] == sha256)
  }

  @Test("after a restart, the server computes the digest of a long upload while more bytes arrive")
  func caughtUp() throws {
    let directory = TemporaryDirectory()
    let half = OffsetPattern()[0..<8_000_000]
    var location = ""
    do {
      let test = try TestServer(in: directory)
      location = try test.create("/t.bin", ["Want-Repr-Digest: sha-256=1"])
      let client = try test.connect()
      try client.patch(location, at: 0, ["Content-Length: \(half.count)"])
      try client.send(half)
      _ = try client.final()
      client.disconnect()
      test.stop()
    }
    let test = try TestServer(in: directory)
    let client = try test.connect()
    try client.patch(location, at: half.count, completes: true, ["Content-Length: \(half.count)"])
    try client.send(half)
    let answer = try client.final().answer
    let file = directory.path + "/" + test.onlyFile
    try Command.run(
      "sh", ["-c", "openssl dgst -sha256 -binary '\(file)' | base64 -w0"], output: directory.path + "/sum")
    #expect(answer["repr-digest"] == "sha-256=:\(try directory.text("sum")):")
  }
}

extension RawClient {
  fileprivate func rawStatus(_ text: String) throws -> Int {
    try send(text)
    return try answer().status
  }
}
