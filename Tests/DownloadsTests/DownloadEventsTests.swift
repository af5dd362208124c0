// The exact events of downloads, their requests, and their results, from servers that follow a script.

import Digests
import EventLoops
import Glibc
import HTTPMessages
import LiveStreaming
import NetworkTesting
import PropertyTesting
import Testing
import UploadClient

@testable import Downloads

@Suite("The events of a download")
struct DownloadEventsTests {
  private static let content = "0123456789"
  private static let digest = digestField(of: content)

  private static func digestField(of text: String) -> String {
    var digest = RunningDigest(.sha256)
    digest.update(Array(text.utf8))
    return DigestField([("sha-256", digest.value().bytes)]).value
  }

  private let directory: TemporaryDirectory

  init() throws { directory = try TemporaryDirectory() }

  /// One response, after which the connection ends.
  private static func answer(
    _ status: String, _ fields: [String] = [], _ content: String, length: Int? = nil
  ) -> String {
    let lines = ["HTTP/1.1 \(status)", "Content-Length: \(length ?? content.utf8.count)", "Connection: close"] + fields
    return lines.joined(separator: "\r\n") + "\r\n\r\n" + content
  }

  private static func rest(from start: Int, _ fields: [String] = []) -> String {
    answer(
      "206 Partial Content", ["ETag: \"a\"", "Content-Range: bytes \(start)-9/10"] + fields,
      String(content.dropFirst(start)))
  }

  private static func text(_ event: DownloadEvent) -> String? {
    switch event {
    case .opened: "opened"
    case .connecting(let offset, let attempt): "request \(attempt) from \(offset)"
    case .receiving(let offset, let length): "receiving from \(offset) of \(length.map { "\($0)" } ?? "?")"
    case .startedOver(let reason, let discarded): "\(reason.rawValue), without \(discarded)"
    case .resumable(let data): "\(data.validator) from \(data.byteCount) of \(data.length.map { "\($0)" } ?? "?")"
    case .outage(let attempt): "outage at \(attempt.acknowledged): " + text(attempt)
    case .attemptFailed(let attempt): "still at \(attempt.acknowledged): " + text(attempt)
    case .progress: nil
    case .ended: "ended"
    }
  }

  private static func text(_ attempt: FailedAttempt) -> String {
    let reason = attempt.reason.map { " (\($0))" } ?? ""
    return switch attempt.cause {
    case .connectionLost(let words): (words.hasPrefix("the response ended") ? words : "lost") + reason
    case .response(let status): "\(status)" + reason
    case .other(let words): (words == "\(DownloadRestart.excess)" ? words : "other") + reason
    default: "\(attempt.cause)" + reason
    }
  }

  private struct Course {
    var events: [String] = []
    var all: [DownloadEvent] = []
    var heads: [ServerConnection.Head] = []
    var summary: DownloadSummary
  }

  /// The remains of an earlier download.
  private func left(_ count: Int) throws -> DownloadResumeData {
    let part = try directory.write("file.part", String(Self.content.prefix(count)))
    var status = stat()
    #expect(stat(part, &status) == 0)
    return DownloadResumeData(
      path: part, inode: UInt64(status.st_ino), byteCount: UInt64(count), validator: "\"a\"", length: 10)
  }

  /// Downloads from a server that gives each request the next answer.
  private func download(
    _ answers: [String], from count: Int = 0, path: String = "/x",
    _ change: (inout FileDownload.Configuration) -> Void = { _ in }
  ) async throws -> Course {
    let heads = try EventLog<ServerConnection.Head>()
    let server = try ScriptedServer { connection, _ in
      let head = try connection.head()
      let number = heads.all.count
      heads.append(head)
      try connection.send(answers[min(number, answers.count - 1)])
    }
    var configuration = FileDownload.Configuration(
      request: UploadRequest(url: server.url + path), to: "\(directory.path)/file")
    if count > 0 { configuration.resumeData = try left(count) }
    configuration.retry.maximumCeiling = .milliseconds(5)
    change(&configuration)
    var all: [DownloadEvent] = []
    for await event in FileDownload(configuration).events(on: try UploadSession()) { all.append(event) }
    guard case .ended(let summary)? = all.last else { throw TestFailure("there is no end: \(all)") }
    return Course(events: all.compactMap(Self.text), all: all, heads: heads.all, summary: summary)
  }

  // MARK: Outages

  @Test("a download through two failures reports each step, and the result is exact")
  func outages() async throws {
    let began = MonotonicInstant.now
    let result = try await download([
      Self.answer("200 OK", ["ETag: \"a\"", "Repr-Digest: \(Self.digest)"], "0123", length: 10),
      Self.answer("503 Service Unavailable", [], "busy"), Self.rest(from: 4),
    ])
    #expect(
      result.events == [
        "opened", "request 1 from 0", "receiving from 0 of 10", "\"a\" from 0 of 10", "outage at 4: lost",
        "request 2 from 4", "still at 4: 503 (busy)", "request 3 from 4", "receiving from 4 of 10",
        "\"a\" from 4 of 10", "ended",
      ])
    let summary = result.summary
    #expect(summary.error == nil && summary.resumeData == nil && summary.resumedFrom == 0)
    #expect(summary.verified == "sha-256" && summary.response?.status == 206)
    let progress = summary.progress
    #expect(progress.written == 10 && progress.length == 10 && !progress.isConnected && progress.outageCount == 1)
    #expect(progress.elapsed > .zero && progress.elapsed <= MonotonicInstant.now - began)
    #expect(result.heads.map(\.line) == [String](repeating: "GET /x HTTP/1.1", count: 3))
    #expect(result.heads.allSatisfy { $0["Accept-Encoding"] == "identity" && $0["Want-Repr-Digest"] == "sha-256=1" })
    #expect(result.heads.map { $0["Range"] } == [nil, "bytes=4-", "bytes=4-"])
    #expect(result.heads.map { $0["If-Range"] } == [nil, "\"a\"", "\"a\""])
    var status = stat()
    #expect(stat("\(directory.path)/file", &status) == 0)
    let birth = WallClock(birthOf: "\(directory.path)/file", in: AT_FDCWD)?.sinceEpoch
    for event in result.all {
      if case .opened(let path, let inode, let found) = event {
        #expect(path == "\(directory.path)/file.part" && inode == UInt64(status.st_ino) && found == birth)
      }
      guard case .resumable(let data) = event else { continue }
      #expect(data.path == "\(directory.path)/file.part" && data.inode == UInt64(status.st_ino) && data.birth == birth)
      #expect(data.digest == Self.digest)
    }
  }

  @Test("bytes without a version are discarded when their response breaks off")
  func unknownVersion() async throws {
    let result = try await download([
      Self.answer("200 OK", [], "0123", length: 10), Self.answer("200 OK", [], Self.content),
    ])
    #expect(
      result.events == [
        "opened", "request 1 from 0", "receiving from 0 of 10", "outage at 4: lost", "unknown, without 4",
        "request 2 from 0", "receiving from 0 of 10", "ended",
      ])
    #expect(try result.summary.error == nil && directory.contents("file") == Array(Self.content.utf8))
    #expect(result.heads.allSatisfy { $0["Range"] == nil })
  }

  /// The head of a response that ends with its connection.
  private static func unlimited(_ fields: [String], by field: String = "Repr-Digest") -> String {
    (["HTTP/1.1 200 OK", "Connection: close", "\(field): \(digest)"] + fields).joined(separator: "\r\n") + "\r\n\r\n"
  }

  @Test(
    "if a response without a length does not match the server's digest, the rest is requested",
    arguments: ["Repr-Digest", "Content-Digest"], [false, true])
  func cutWithoutLength(field: String, isPipe: Bool) async throws {
    let answers = [Self.unlimited(["ETag: \"a\""], by: field) + "0123", Self.rest(from: 4)]
    let (result, text) = try await isPipe ? piped(answers) : (download(answers), Self.content)
    // Nothing can continue a pipe later.
    let ofFile = ["opened", "\"a\" from 0 of ?", "\"a\" from 4 of 10"]
    #expect(
      result.events
        == [
          "opened", "request 1 from 0", "receiving from 0 of ?", "\"a\" from 0 of ?", "outage at 4: lost",
          "request 2 from 4", "receiving from 4 of 10", "\"a\" from 4 of 10", "ended",
        ].filter { !isPipe || !ofFile.contains($0) })
    #expect(result.heads.last?["Range"] == "bytes=4-" && result.heads.last?["If-Range"] == "\"a\"")
    #expect(result.summary.error == nil && result.summary.verified == "sha-256", "\(result.summary)")
    #expect(text == Self.content && directory.names == (isPipe ? [] : ["file"]))
    if !isPipe { #expect(try directory.contents("file") == Array(Self.content.utf8)) }
  }

  @Test("a response without a length is requested again if it was cut off before its first byte")
  func cutWithoutContent() async throws {
    let head = Self.unlimited(["ETag: \"a\""])
    let result = try await download([head, head + Self.content])
    #expect(result.heads.count == 2 && result.heads.allSatisfy { $0["Range"] == nil }, "\(result.events)")
    #expect(result.summary.error == nil, "\(result.summary)")
    #expect(try directory.contents("file") == Array(Self.content.utf8))
  }

  /// The answers to successive requests, the number of requests, and a part of the final error.
  private static let cutResponses: [([String], Int, String)] = [
    ([unlimited([]) + "0123"], 1, "neither a strong ETag"),
    ([unlimited(["ETag: \"a\"", "Accept-Ranges: none"]) + "0123"], 1, "does not support ranges"),
    ([unlimited(["ETag: \"a\""]) + "0123"], 2, "does not support ranges"),
    (
      [
        unlimited(["ETag: \"a\""]) + "012345678x",
        answer("416 x", ["ETag: \"a\"", "Content-Range: bytes */10"], "There is no more."),
      ], 2, "(Repr-Digest, sha-256)"
    ),
    (
      [
        unlimited(["ETag: \"a\""]) + "012345678x", answer("416 x", ["Content-Range: bytes */10"], "no"),
        unlimited(["ETag: \"a\""]) + "012345678x",
      ], 3, "(Repr-Digest, sha-256)"
    ),
    (
      [
        unlimited(["ETag: \"a\""], by: "Content-Digest") + "012345678x",
        answer("416 x", ["ETag: \"a\"", "Content-Range: bytes */10"], "There is no more."),
      ], 2, "(Repr-Digest, sha-256)"
    ),
    // The resource grows after the digest was computed, so each response contains another version.
    (
      ["0", "01", "012", "0123", "01234"].map { unlimited(["ETag: \"\($0.utf8.count)\""]) + $0 }, 3,
      "3 responses did not match the server's digest"
    ),
    // It shrinks.
    (
      ["01234", "0123", "012", "01", "0"].map { unlimited(["ETag: \"\($0.utf8.count)\""]) + $0 }, 3,
      "3 responses did not match the server's digest"
    ),
  ]

  @Test(
    "a response without a length that cannot be continued, or lacks nothing, ends the download with the reason",
    arguments: cutResponses)
  func cutForGood(_ answers: [String], requestCount: Int, _ reason: String) async throws {
    let result = try await download(answers)
    #expect(result.heads.count == requestCount, "\(result.events)")
    #expect(result.summary.error?.kind == .corrupt && result.summary.resumeData == nil, "\(result.summary)")
    #expect(result.summary.error?.description.contains(reason) == true, "\(result.summary)")
    #expect(directory.names == [])
  }

  @Test("over HTTP/2, a response without a length whose bytes do not match the server's digest is not continued")
  func wrongOverHTTP2() async throws {
    let server = try ScriptedServer { connection, _ in
      let http2 = try HTTP2Connection(connection)
      while true {
        let stream = try http2.request()
        let fields = [(name: "etag", value: "\"a\""), (name: "repr-digest", value: Self.digest)]
        try connection.send(HTTP2Connection.response(200, fields, body: Array("012345678x".utf8), to: stream))
      }
    }
    var configuration = FileDownload.Configuration(
      request: UploadRequest(url: server.url), to: "\(directory.path)/file")
    configuration.request.httpVersion = .http2
    configuration.retry.maximumCeiling = .milliseconds(5)
    var events: [String] = []
    var error: DownloadError?
    for await event in FileDownload(configuration).events(on: try UploadSession()) {
      if let text = Self.text(event) { events.append(text) }
      if case .ended(let summary) = event { error = summary.error }
    }
    #expect(
      events == ["opened", "request 1 from 0", "receiving from 0 of ?", "\"a\" from 0 of ?", "ended"], "\(events)")
    #expect(error?.kind == .corrupt && error?.description.contains("(Repr-Digest, sha-256)") == true, "\(events)")
    #expect(directory.names == [])
  }

  /// The answer to the first request, its events, and the first byte of the second request.
  private static let badResponses: [(String, [String], Int)] = [
    // Not from the server of the existing bytes.
    (answer("200 OK", [], "portal"), ["outage at 4: 200 (portal)"], 4),
    (answer("403 Forbidden", [], "no"), ["outage at 4: 403 (no)"], 4),
    (answer("404 Not Found", [], "no"), ["outage at 4: 404 (no)"], 4),
    ("SSH-2.0-server\r\n\r\n", ["outage at 4: other"], 4),
    (
      answer("206 x", ["ETag: \"a\"", "Content-Range: bytes 4-9/10", "Content-Encoding: gzip"], "456789"),
      ["outage at 4: 206"], 4
    ),
    (
      answer("206 x", ["ETag: \"a\"", "Content-Range: bytes 4-9/10"], "456"),
      [
        "receiving from 4 of 10", "\"a\" from 4 of 10",
        "outage at 7: the response ended before the last byte of its content",
      ], 7
    ),
    (
      answer("206 x", ["ETag: \"a\"", "Content-Range: bytes 4-6/10"], "456"),
      ["receiving from 4 of 10", "\"a\" from 4 of 10"], 7
    ),
    (
      answer("206 x", ["ETag: \"a\"", "Content-Range: bytes 4-9/10"], "45678901"),
      [
        "receiving from 4 of 10", "\"a\" from 4 of 10", "excess, without 4",
        "outage at 0: the server sent more than it had announced",
      ], 0
    ),
    (answer("206 x", ["ETag: \"b\"", "Content-Range: bytes 4-9/10"], "xxxxxx"), ["changed, without 4"], 0),
    (answer("206 x", ["ETag: \"a\"", "Content-Range: bytes 5-9/10"], "56789"), ["range, without 4"], 0),
    (answer("206 x", ["Content-Range: bytes 4-9/10"], "456789"), ["unidentified, without 4"], 0),
    (answer("412 x", [], "no"), ["changed, without 4"], 0),
    (answer("416 x", [], "no"), ["range, without 4"], 0),
  ]

  @Test(
    "a resumed download reports each kind of bad response once, and then continues",
    arguments: badResponses)
  func badResponse(_ first: String, _ expected: [String], next start: Int) async throws {
    let whole = Self.answer("200 OK", ["ETag: W/\"w\""], Self.content)
    let result = try await download([first, start > 0 ? Self.rest(from: start) : whole], from: 4)
    let last =
      start > 0
      ? ["receiving from \(start) of 10", "\"a\" from \(start) of 10", "ended"] : ["receiving from 0 of 10", "ended"]
    #expect(
      result.events == ["opened", "request 1 from 4"] + expected + ["request 2 from \(start)"] + last,
      "\(result.events)")
    #expect(result.summary.error == nil, "\(result.summary)")
    #expect(result.summary.resumedFrom == (start > 0 ? 4 : 0), "discarded bytes are none of the file's")
    #expect(try directory.contents("file") == Array(Self.content.utf8))
    #expect(result.heads.last?["Range"] == (start > 0 ? "bytes=\(start)-" : nil))
  }

  @Test("a 416 that confirms the end completes a download, with its own length and response")
  func complete() async throws {
    let answer = Self.answer("416 x", ["ETag: \"a\"", "Content-Range: bytes */10"], "There is no more.")
    let result = try await download([answer], from: 10) { $0.resumeData?.length = nil }
    #expect(result.events == ["opened", "request 1 from 10", "ended"])
    #expect(result.summary.error == nil && result.summary.response?.status == 416)
    #expect(result.summary.progress.length == 10 && result.summary.progress.written == 10)
  }

  @Test(
    "if a 416 has no version and no length is known, a digest decides whether the existing bytes are the whole file",
    arguments: [nil, true, false] as [Bool?], [true, false])
  func completeByDigest(isRight: Bool?, isKnown: Bool) async throws {
    let digest = isRight.map { Self.digestField(of: $0 ? Self.content : "other") }
    let later = isKnown ? nil : digest.map { "Repr-Digest: \($0)" }
    let answer = Self.answer("416 x", ["Content-Range: bytes */10", later ?? "X: x"], "There is no more.")
    let result = try await download([answer, Self.answer("200 OK", [], Self.content)], from: 10) {
      $0.resumeData?.length = nil
      if isKnown { $0.resumeData?.digest = digest }
    }
    let again = ["range, without 10", "request 2 from 0", "receiving from 0 of 10"]
    #expect(result.events == ["opened", "request 1 from 10"] + (isRight == true ? [] : again) + ["ended"])
    #expect(result.summary.error == nil && result.summary.verified == (isRight == true ? "sha-256" : nil))
    #expect(try directory.names == ["file"] && directory.contents("file") == Array(Self.content.utf8))
  }

  /// The beginning of a version of the resource, whose connection is then lost.
  private static func beginning(_ version: String, _ count: Int, from start: Int = 0) -> String {
    let range = start > 0 ? ["Content-Range: bytes \(start)-9/10"] : []
    return answer(
      start > 0 ? "206 x" : "200 OK", ["ETag: \"\(version)\""] + range,
      String(content.dropFirst(start).prefix(count)), length: 10 - start)
  }

  @Test(
    "the bytes of a changed resource are progress, also those before the end of the discarded ones", arguments: [0, 8])
  func changedProgress(from count: Int) async throws {
    var answers = [0, 2, 4, 6, 8].map { Self.beginning("b", 2, from: $0) }
    var outages = [2, 4, 6, 8].map { "outage at \($0): lost" }
    if count == 0 {
      answers.insert(Self.beginning("a", 8), at: 0)
      outages.insert("outage at 8: lost", at: 0)
    }
    let result = try await download(answers, from: count) {
      // The third attempt in a row without progress would be the last one.
      $0.retry.giveUpAfter = .zero
    }
    let failures = result.events.filter { $0.hasPrefix("outage") || $0.hasPrefix("still") }
    #expect(failures == outages, "\(result.events)")
    #expect(result.summary.error == nil && result.events.contains("changed, without 8"), "\(result.summary)")
    #expect(try directory.contents("file") == Array(Self.content.utf8))
  }

  @Test("the bytes of a fifth version are no progress if there were never more bytes than of the first")
  func changesForEver() async throws {
    let result = try await download((1...12).map { Self.beginning("\($0)", 4) }) { $0.retry.giveUpAfter = .zero }
    #expect(result.summary.error?.kind == .unreachable && result.heads.count == 6, "\(result.events)")
    let failures = result.events.filter { $0.hasPrefix("outage") || $0.hasPrefix("still") }
    let expected = [String](repeating: "outage at 4: lost", count: 4) + ["still at 4: lost"]
    #expect(failures == expected, "\(result.events)")
  }

  @Test("a download without progress gives up, although each attempt receives the same bytes again")
  func withoutProgress() async throws {
    let result = try await download([Self.answer("200 OK", [], "0123", length: 10)]) { $0.retry.giveUpAfter = .zero }
    #expect(result.summary.error?.kind == .unreachable && result.summary.progress.outageCount == 1)
    #expect(
      result.events.filter { $0.hasPrefix("outage") || $0.hasPrefix("still") } == [
        "outage at 4: lost", "still at 4: lost",
      ])
    #expect(directory.names == [])
  }

  // MARK: Ends

  @Test(
    "a response that ends a new download is explained",
    arguments: [
      ("300 x", .refused, "the server refused the download (300): no"),
      ("302 x", .refused, "the server redirects to an invalid URL, or too many times (302)"),
      ("305 x", .refused, "the server refused the download (305): no"),
      ("306 x", .refused, "the server refused the download (306): no"),
      ("309 x", .refused, "the server refused the download (309): no"),
      ("400 x", .refused, "the server refused the download (400): no"),
      ("401 x", .notPermitted, "the server requires valid credentials (401): no"),
      ("402 x", .refused, "the server refused the download (402): no"),
      ("403 x", .notPermitted, "the server does not permit this (403): no. Check the credentials and the URL's path."),
      ("404 x", .refused, "the URL does not exist (404): no. Check the path."),
      ("405 x", .refused, "the server refused the download (405): no"),
      ("406 x", .refused, "the server refused the download (406): no"),
      ("407 x", .notPermitted, "the proxy requires valid credentials (407): no"),
      ("410 x", .refused, "the URL does not exist (410): no. Check the path."),
      ("411 x", .refused, "the server refused the download (411): no"),
      ("412 x", .refused, "the server refused the download (412): no"),
      ("202 x", .refused, "the server refused the download (202): no"),
    ] as [(String, DownloadError.Kind, String)])
  func refusal(_ status: String, _ kind: DownloadError.Kind, _ words: String) async throws {
    let result = try await download([Self.answer(status, [], "no.")])
    #expect(result.events == ["opened", "request 1 from 0", "ended"])
    let error = result.summary.error
    #expect(error?.kind == kind && error?.description == words && error?.systemError == nil, "\(result.summary)")
    #expect(error?.remedy == (status == "401 x" ? .credentials : status == "407 x" ? .proxyCredentials : nil))
    #expect(result.summary.response.map { "\($0.status) x" } == status && result.summary.resumeData == nil)
    #expect(result.summary.progress.written == 0 && directory.names == [])
  }

  @Test("a server that only receives is named as such, without advice")
  func receivesOnly() async throws {
    let result = try await download([Self.answer("404 x", [], FileDownload.receivesOnly)])
    #expect(
      result.summary.error?.description
        == "the URL does not exist (404): This server receives streams. It does not offer downloads")
  }

  @Test("a peer without HTTP, and a URL that cannot be requested, end a new download")
  func unusable() async throws {
    let garbage = try await download(["SSH-2.0-server\r\n\r\n"])
    #expect(garbage.summary.error?.kind == .protocolBroken && garbage.events.last == "ended", "\(garbage.summary)")
    #expect(garbage.events.count == 3 && directory.names == [])
    let invalid = try await download([""]) { $0.request.url = "http://" }
    #expect(invalid.summary.error?.kind == .invalidRequest, "\(invalid.summary)")
    #expect(invalid.heads.isEmpty && directory.names == [])
  }

  // MARK: Error pages

  @Test("each explanation is that of its own response")
  func explanations() async throws {
    let result = try await download([
      Self.answer("503 x", [], "first"), Self.answer("502 x", [], ""), Self.answer("404 x", [], "third"),
    ])
    #expect(
      result.events == [
        "opened", "request 1 from 0", "outage at 0: 503 (first)", "request 2 from 0", "still at 0: 502",
        "request 3 from 0", "ended",
      ])
    #expect(result.summary.error?.description == "the URL does not exist (404): third. Check the path.")
  }

  @Test(
    "of a long error page, only the beginning is kept", arguments: [16_383, 16_384, 16_385, 40_000, 65_536, 65_537])
  func longPage(count: Int) async throws {
    let page = String(repeating: "x", count: count)
    let result = try await download([Self.answer("404 x", [], page)])
    #expect(result.summary.response?.body == Array(page.utf8.prefix(16 * 1024)))
  }

  @Test("an endless error page is left after 64 KiB, and reported once")
  func endlessPage() async throws {
    let server = try ScriptedServer { connection, number in
      _ = try connection.head()
      if number > 0 { return try connection.respond("200 OK", body: Self.content) }
      try connection.send("HTTP/1.1 503 x\r\nContent-Length: 1000000000\r\n\r\n")
      try connection.send([UInt8](repeating: 0, count: (64 << 10) + 1))
      // Pieces arrive until the client has left.
      connection.sendUntilEnd(slowly: false, [UInt8](repeating: 0, count: 1 << 16))
    }
    var configuration = FileDownload.Configuration(
      request: UploadRequest(url: server.url), to: "\(directory.path)/file")
    configuration.retry.maximumCeiling = .milliseconds(5)
    var events: [String] = []
    for await event in FileDownload(configuration).events(on: try UploadSession()) {
      if let text = Self.text(event) { events.append(text) }
    }
    #expect(
      events == [
        "opened", "request 1 from 0", "outage at 0: 503", "request 2 from 0", "receiving from 0 of 10", "ended",
      ])
  }

  // MARK: Redirects

  /// Answers by path with a number of requests to it so far.
  private func follow(
    resuming data: DownloadResumeData? = nil, _ answer: @escaping @Sendable (_ path: String, _ count: Int) -> String
  ) async throws -> (paths: [String], summary: DownloadSummary?) {
    let requests = try EventLog<String>()
    let server = try ScriptedServer { connection, _ in
      let path = String(try connection.head().line.split(separator: " ")[1])
      let count = requests.all.count { $0 == path }
      requests.append(path)
      try connection.send(answer(path, count))
    }
    var configuration = FileDownload.Configuration(
      request: UploadRequest(url: server.url + "/a/x"), to: "\(directory.path)/file")
    configuration.retry.maximumCeiling = .milliseconds(5)
    configuration.resumeData = data
    var summary: DownloadSummary?
    for await event in FileDownload(configuration).events(on: try UploadSession()) {
      if case .ended(let end) = event { summary = end }
    }
    return (requests.all, summary)
  }

  @Test(
    "a redirect is relative to the redirecting URL, and an outage returns to the first one",
    arguments: [301, 302, 303, 307, 308])
  func redirects(status: Int) async throws {
    let (paths, summary) = try await follow { path, count in
      switch path {
      case "/a/x": Self.answer("\(status) x", ["Location: b/y"], "")
      case "/a/b/y": Self.answer("\(status) x", ["Location: z"], "")
      default: count == 0 ? Self.answer("200 x", ["ETag: \"a\""], "0123", length: 10) : Self.rest(from: 4)
      }
    }
    #expect(summary?.error == nil && paths == ["/a/x", "/a/b/y", "/a/b/z", "/a/x", "/a/b/y", "/a/b/z"], "\(paths)")
    #expect(try directory.contents("file") == Array(Self.content.utf8))
  }

  @Test("each attempt may follow 16 redirects")
  func redirectsOfEachAttempt() async throws {
    let (paths, summary) = try await follow { path, count in
      let number = path == "/a/x" ? 0 : Int(path.dropFirst(3)) ?? 0
      if number < 16 { return Self.answer("302 x", ["Location: /a/\(number + 1)"], "") }
      return count == 0 ? Self.answer("503 x", [], "") : Self.answer("200 x", [], Self.content)
    }
    #expect(summary?.error == nil && paths.count == 34, "\(paths)")
  }

  @Test("everything is requested from the server that has no rest, without another redirect")
  func redirectThenAgain() async throws {
    let data = try left(4)
    let (paths, summary) = try await follow(resuming: data) { path, count in
      if path == "/a/x" { return Self.answer("302 x", ["Location: /y"], "") }
      return count == 0 ? Self.answer("416 x", [], "") : Self.answer("200 x", [], Self.content)
    }
    #expect(summary?.error == nil && paths == ["/a/x", "/y", "/y"], "\(paths)")
  }

  // MARK: Requests

  @Test("each request has a new token, if the download has one at all")
  func tokens() async throws {
    let numbers = Lock(0)
    let next = { @Sendable () -> String? in
      numbers.withLock { number in
        number += 1
        return number == 2 ? nil : "token\(number)"
      }
    }
    let answers = [
      Self.answer("200 OK", ["ETag: \"a\""], "0123", length: 10), Self.answer("503 x", [], ""), Self.rest(from: 4),
    ]
    let result = try await download(answers) {
      $0.request.bearerToken = "old"
      $0.bearerToken = next
    }
    #expect(result.heads.map { $0["Authorization"] } == ["Bearer token1", "Bearer old", "Bearer token3"])
    unlink("\(directory.path)/file")
    let without = try await download(answers) { $0.bearerToken = next }
    #expect(without.heads.count == 3 && without.heads.allSatisfy { $0["Authorization"] == nil })
    let count = numbers.withLock { $0 }
    #expect(count == 3)
  }

  // MARK: Pipes

  /// The download into a pipe, and what the pipe then contains.
  private func piped(_ answers: [String]) async throws -> (Course, String) {
    var ends: [Int32] = [-1, -1]
    try #require(pipe(&ends) == 0)
    defer { for end in ends { close(end) } }
    let output = ends[1]
    let records = try EventLog<Bool>()
    let result = try await download(answers) {
      $0.output = .descriptor(output)
      $0.record = { _ in
        records.append(true)
        return false
      }
    }
    #expect(records.all.isEmpty, "nothing can be continued after the process")
    #expect(directory.names == [] && result.summary.resumeData == nil)
    var found = [UInt8](repeating: 0, count: 100)
    // The last bytes may follow the end.
    try #require(waitUntilReadable(ends[0]))
    let count = max(0, read(ends[0], &found, found.count))
    return (result, String(decoding: found[..<count], as: UTF8.self))
  }

  @Test(
    "a download into a pipe continues after an outage, compares the later digests, and no process can continue it",
    arguments: [nil, "Content-Digest", "Repr-Digest"], [true, false])
  func pipeContinues(field: String?, isRight: Bool) async throws {
    let first = Self.answer("200 OK", ["ETag: \"a\""], "0123", length: 10)
    let compared = field == "Content-Digest" ? "456789" : Self.content
    let fields = field.map { ["\($0): \(Self.digestField(of: isRight ? compared : "other"))"] } ?? []
    let (result, text) = try await piped([first, Self.rest(from: 4, fields)])
    #expect(
      result.events == [
        "request 1 from 0", "receiving from 0 of 10", "outage at 4: lost", "request 2 from 4",
        "receiving from 4 of 10", "ended",
      ])
    #expect(result.summary.error?.kind == (isRight || field == nil ? nil : .corrupt), "\(result.summary)")
    #expect(result.summary.verified == (isRight && field != nil ? "sha-256" : nil) && text == Self.content)
  }

  @Test(
    "a download into a pipe ends when it would have to start over",
    arguments: [("ETag: \"a\"", "the resource has changed"), ("X: x", "\(DownloadRestart.unknown)")])
  func pipeCannotStartOver(field: String, reason: String) async throws {
    let first = Self.answer("200 OK", [field], "0123", length: 10)
    let (result, text) = try await piped([first, Self.answer("200 OK", ["ETag: \"b\""], Self.content)])
    #expect(
      result.events
        == ["request 1 from 0", "receiving from 0 of 10", "outage at 4: lost"]
        + (field == "X: x" ? [] : ["request 2 from 4"]) + ["ended"])
    #expect(result.summary.error?.kind == .protocolBroken && text == "0123")
    #expect(
      result.summary.error?.description
        == "the download cannot start over, because its beginning was written: \(reason)")
  }

  @Test("a full output ends a download with the advice to free space")
  func fullOutput() async throws {
    let device = open("/dev/full", O_WRONLY | O_CLOEXEC)
    try #require(device >= 0)
    defer { close(device) }
    let result = try await download([Self.answer("200 OK", ["ETag: \"a\""], Self.content)]) {
      $0.output = .descriptor(device)
    }
    let error = result.summary.error
    #expect(error?.kind == .file && error?.systemError?.code == ENOSPC && result.summary.resumeData == nil)
    #expect(error?.description.hasSuffix(". Free space, and download it again.") == true, "\(result.summary)")
  }
}
