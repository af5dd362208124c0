// How a download handles each kind of response, both when it begins and when it continues an earlier one.

import Digests
import DiskFiles
import EventLoops
import Glibc
import HTTPMessages
import LiveStreaming
import NetworkTesting
import Testing
import UploadClient

@testable import Downloads

@Suite("A download and its responses")
struct DownloadAnswersTests {
  private static let content = (0..<1000).map { UInt8(truncatingIfNeeded: $0 &* 31 ^ $0 >> 8) }
  private let directory: TemporaryDirectory

  init() throws { directory = try TemporaryDirectory() }

  /// Answers the first request with `first`, and each later one like a server with the content.
  private func server(_ first: @escaping @Sendable (ServerConnection) throws -> Void) throws -> ScriptedServer {
    let requestCount = Lock(0)
    return try ScriptedServer { connection, _ in
      _ = try connection.head()
      let number = requestCount.withLock { count -> Int in
        defer { count += 1 }
        return count
      }
      if number == 0 { return try first(connection) }
      try Self.send(connection, "200 OK", content: Self.content[...])
    }
  }

  private static func send(
    _ connection: ServerConnection, _ status: String, _ fields: [String] = [], content: ArraySlice<UInt8>
  ) throws {
    let lines = ["HTTP/1.1 \(status)", "Content-Length: \(content.count)", "Connection: close"] + fields
    try connection.send(lines.joined(separator: "\r\n") + "\r\n\r\n")
    try connection.send(Array(content))
  }

  /// The remains of an earlier download: the first bytes of the content.
  private func left(_ count: Int) throws -> DownloadResumeData {
    let part = try directory.write("file.part", Array(Self.content[..<count]))
    var status = stat()
    #expect(stat(part, &status) == 0)
    return DownloadResumeData(
      path: part, inode: UInt64(status.st_ino), byteCount: UInt64(count), validator: "\"a\"", length: nil)
  }

  private func download(
    _ url: String, from count: Int, _ change: (inout FileDownload.Configuration) -> Void = { _ in }
  ) async throws -> (summary: DownloadSummary, startedOver: [UInt64], requests: [String]) {
    var configuration = FileDownload.Configuration(
      request: UploadRequest(url: url), to: "\(directory.path)/file")
    if count > 0 { configuration.resumeData = try left(count) }
    change(&configuration)
    var summary: DownloadSummary?
    var startedOver: [UInt64] = []
    var requests: [String] = []
    let download = FileDownload(configuration)
    for await event in download.events(on: try UploadSession()) {
      if case .ended(let end) = event { summary = end }
      if case .connecting(let offset, let attempt) = event { requests.append("\(attempt) from \(offset)") }
      if case .startedOver(_, let discarded) = event { startedOver.append(discarded) }
    }
    // Even while it is still referenced.
    try waitUntil("the file is closed") {
      try !fileNames(in: "/proc/self/fd").contains { name in
        var target = [CChar](repeating: 0, count: 4096)
        let count = readlink("/proc/self/fd/\(name)", &target, target.count)
        return count > 0
          && String(decoding: target[..<count].map(UInt8.init(bitPattern:)), as: UTF8.self).hasPrefix(directory.path)
      }
    }
    withExtendedLifetime(download) {}
    return (try #require(summary), startedOver, requests)
  }

  /// The field with the SHA-256 of these bytes, or of different ones.
  private static func digest(_ field: String, _ bytes: ArraySlice<UInt8>, isRight: Bool) -> String {
    var digest = RunningDigest(.sha256)
    digest.update(Array(bytes) + (isRight ? [] : [0]))
    return "\(field): \(DigestField([("sha-256", digest.value().bytes)]).value)"
  }

  @Test(
    "the file is compared with each digest that the server sends, and wrong bytes are removed",
    arguments: [0, 400, 999, 1000], ["Content-Digest", "Repr-Digest"])
  func digests(from start: Int, field: String) async throws {
    for isRight in [true, false] {
      let server = try server { connection in
        // The content of a 416 is a message, and not part of the file.
        let message = Array("There is no more.".utf8)
        let sent = start == 1000 ? message[...] : Self.content[start...]
        let range = start == 1000 ? "*/1000" : "\(start)-999/1000"
        try Self.send(
          connection, start == 0 ? "200 OK" : start == 1000 ? "416 Range Not Satisfiable" : "206 Partial Content",
          ["ETag: \"a\"", start > 0 ? "Content-Range: bytes \(range)" : "X-Range: none"]
            + [Self.digest(field, field == "Repr-Digest" ? Self.content[...] : sent, isRight: isRight)],
          content: sent)
      }
      let (summary, startedOver, _) = try await download(server.url, from: start)
      #expect(startedOver.isEmpty && summary.resumeData == nil, "\(summary)")
      let isCompared = field == "Repr-Digest" || start < 1000
      if isRight || !isCompared {
        #expect(summary.error == nil && summary.verified == (isCompared ? "sha-256" : nil), "\(summary)")
        #expect(try directory.names == ["file"] && directory.contents("file") == Self.content)
        unlink("\(directory.path)/file")
      } else {
        #expect(summary.error?.kind == .corrupt && directory.names == [], "\(summary), \(directory.names)")
      }
    }
  }

  @Test(
    "if a field has several digests, all of them are compared, in a file and in a pipe, before and after the content",
    arguments: ["", "sha-256", "sha-512"], [true, false])
  func severalDigests(wrong: String, isPipe: Bool) async throws {
    var digests: [(algorithm: String, value: [UInt8])] = []
    for algorithm in DigestAlgorithm.allCases {
      let bytes = algorithm.name == wrong ? [0] : Self.content
      digests.append((algorithm.name, Digest(algorithm, of: bytes.span.bytes).bytes))
    }
    let field = "Repr-Digest: \(DigestField(digests).value)"
    // In a pipe, a trailer is compared only if its algorithm is the requested one.
    for isTrailer in isPipe ? [false] : [false, true] {
      let server = try server { connection in
        guard isTrailer else {
          try Self.send(connection, "200 OK", [field], content: Self.content[...])
          return
        }
        try connection.send("HTTP/1.1 200 OK\r\nTrailer: Repr-Digest\r\nTransfer-Encoding: chunked\r\n\r\n")
        try connection.send("\(String(Self.content.count, radix: 16))\r\n")
        try connection.send(Self.content)
        try connection.send("\r\n0\r\n\(field)\r\n\r\n")
      }
      var ends: [Int32] = [-1, -1]
      try #require(pipe(&ends) == 0)
      defer { for end in ends { close(end) } }
      let output = ends[1]
      let (summary, _, _) = try await download(server.url, from: 0) {
        if isPipe { $0.output = .descriptor(output) }
      }
      #expect(summary.error?.kind == (wrong.isEmpty ? nil : .corrupt), "\(summary)")
      #expect(summary.error?.description.contains("Repr-Digest, \(wrong))") ?? wrong.isEmpty, "\(summary)")
      #expect(summary.verified == (wrong.isEmpty ? "sha-512" : nil), "\(summary)")
      #expect(directory.names == (isPipe || !wrong.isEmpty ? [] : ["file"]), "\(directory.names)")
      if !isPipe { unlink("\(directory.path)/file") }
    }
  }

  @Test(
    "bytes that go into a pipe are compared as they arrive, because they cannot be read again",
    arguments: ["Content-Digest", "Repr-Digest"], [true, false])
  func pipeDigest(name: String, isRight: Bool) async throws {
    let server = try server { connection in
      let field = Self.digest(name, Self.content[...], isRight: isRight)
      try Self.send(connection, "200 OK", [field], content: Self.content[...])
    }
    var ends: [Int32] = [-1, -1]
    try #require(pipe(&ends) == 0)
    defer { for end in ends { close(end) } }
    let output = ends[1]
    let (summary, _, _) = try await download(server.url, from: 0) { $0.output = .descriptor(output) }
    #expect(summary.error?.kind == (isRight ? nil : .corrupt), "\(summary)")
    #expect(isRight ? summary.verified == "sha-256" : summary.verified == nil, "\(summary)")
    var found = [UInt8](repeating: 0, count: 2000)
    #expect(read(ends[0], &found, found.count) == 1000 && found.prefix(1000).elementsEqual(Self.content))
  }

  @Test(
    "the bytes are compared with a digest that follows them, in a file and in a pipe",
    arguments: ["Content-Digest", "repr-digest"].flatMap { name in
      [true, false].flatMap { isRight in
        [true, false].flatMap { isPipe in [0, 400].compactMap { isPipe && $0 > 0 ? nil : (name, isRight, isPipe, $0) } }
      }
    } as [(String, Bool, Bool, Int)])
  func trailer(_ name: String, isRight: Bool, isPipe: Bool, start: Int) async throws {
    let server = try server { connection in
      let sent = Self.content[start...]
      let field = Self.digest(name, name == "repr-digest" ? Self.content[...] : sent, isRight: isRight)
      let lines =
        [
          start == 0 ? "HTTP/1.1 200 OK" : "HTTP/1.1 206 Partial Content", "ETag: \"a\"", "Trailer: \(name)",
          "Transfer-Encoding: chunked",
        ] + (start == 0 ? [] : ["Content-Range: bytes \(start)-999/1000"])
      try connection.send(lines.joined(separator: "\r\n") + "\r\n\r\n\(String(sent.count, radix: 16))\r\n")
      try connection.send(Array(sent))
      try connection.send("\r\n0\r\n\(field)\r\nX-More: x\r\n\r\n")
    }
    var ends: [Int32] = [-1, -1]
    try #require(pipe(&ends) == 0)
    defer { for end in ends { close(end) } }
    let output = ends[1]
    let (summary, _, _) = try await download(server.url, from: start) {
      if isPipe { $0.output = .descriptor(output) }
    }
    #expect(summary.error?.kind == (isRight ? nil : .corrupt), "\(summary)")
    #expect(summary.verified == (isRight ? "sha-256" : nil), "\(summary)")
    #expect(directory.names == (isPipe || !isRight ? [] : ["file"]), "\(directory.names)")
  }

  @Test("a server waits while the client accepts no bytes, and sends the rest afterwards")
  func heldUp() async throws {
    let total = 64 << 20
    let held = try EventLog<Int>()
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.send("HTTP/1.1 200 OK\r\nContent-Length: \(total)\r\n\r\n")
      let piece = [UInt8](repeating: 7, count: 1 << 16)
      var sent = 0
      while sent < total {
        var room = pollfd(fd: connection.descriptor, events: Int16(POLLOUT), revents: 0)
        // Such a long pause is not caused by the network, which is this machine.
        if held.all.isEmpty, poll(&room, 1, 1000) == 0 { held.append(sent) }
        try connection.send(piece)
        sent += piece.count
      }
      if held.all.isEmpty { held.append(total) }
    }
    var ends: [Int32] = [-1, -1]
    try #require(pipe(&ends) == 0)
    let (input, output) = (ends[0], ends[1])
    let read = try NamedThread("reader") {
      // The capacity of both sockets, and the bytes that wait for the disk.
      let sent = try? held.first("a pause") { _ in true }
      #expect(sent.map { $0 < total / 2 } == true, "\(sent ?? 0) bytes were sent before the first was taken")
      var buffer = [UInt8](repeating: 0, count: 1 << 16)
      var rest = total
      while rest > 0 {
        let count = Glibc.read(input, &buffer, min(buffer.count, rest))
        guard count > 0 else {
          Issue.record("the pipe ended")
          return
        }
        rest -= count
      }
    }
    let (summary, _, _) = try await download(server.url, from: 0) { $0.output = .descriptor(output) }
    #expect(summary.error == nil && summary.progress.written == UInt64(total), "\(summary)")
    close(output)
    read.join()
    close(input)
  }

  @Test(
    "a server that cannot resume a part sends everything, and the file contains each byte once",
    arguments: [
      ("412 Precondition Failed", []), ("416 Range Not Satisfiable", []),
      ("416 Range Not Satisfiable", ["Content-Range: bytes */300"]),
      ("206 Partial Content", ["Content-Range: bytes 400-999/1000", "ETag: \"b\""]),
      ("206 Partial Content", ["Content-Range: bytes 400-402/1000"]),
      ("206 Partial Content", ["Content-Range: bytes 400-402/1000", "ETag: \"a\"", "ETag: \"b\""]),
      (
        "206 Partial Content",
        ["Content-Range: bytes 400-402/1000", "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT"]
      ),
      ("206 Partial Content", ["Content-Range: bytes 399-999/1000", "ETag: \"a\""]),
      ("206 Partial Content", ["Content-Range: bytes 401-999/1000", "ETag: \"a\""]),
      ("200 OK", ["ETag: \"a\""]), ("200 OK", ["ETag: \"b\""]),
    ])
  func restart(status: String, fields: [String]) async throws {
    let server = try server { connection in
      try Self.send(connection, status, fields, content: status.hasPrefix("200") ? Self.content[...] : [1, 2, 3])
    }
    let (summary, startedOver, requests) = try await download(server.url, from: 400)
    #expect(summary.error == nil && startedOver == [400], "\(summary), \(startedOver)")
    #expect(requests == ["1 from 400"] + (status.hasPrefix("200") ? [] : ["2 from 0"]))
    #expect(try directory.names == ["file"] && directory.contents("file") == Self.content)
  }

  @Test("a resource that has changed can be resumed once the part has no bytes of the earlier version")
  func changed() throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.send("HTTP/1.1 200 OK\r\nETag: \"b\"\r\nContent-Length: 1000\r\n\r\n")
      try connection.send(Array(Self.content[..<10]))
      _ = connection.waitForEnd()
    }
    var configuration = FileDownload.Configuration(
      request: UploadRequest(url: server.url), to: "\(directory.path)/file")
    let left = try left(400)
    configuration.resumeData = left
    let resumable = try EventLog<(data: DownloadResumeData, size: Int)>()
    let ended = try EventLog<DownloadSummary>()
    let session = try UploadSession()
    let download = FileDownload(configuration)
    download.start(on: session) { event in
      if case .resumable(let data) = event {
        var status = stat()
        resumable.append((data, lstat(left.path, &status) == 0 ? Int(status.st_size) : -1))
      }
      if case .ended(let summary) = event { ended.append(summary) }
    }
    let (data, size) = try resumable.first("the data for a resumption") { _ in true }
    #expect(data.validator == "\"b\"" && data.byteCount == 0 && (0...10).contains(size), "\(data), \(size)")
    download.cancel()
    #expect(try ended.first("the end") { _ in true }.error?.kind == .cancelled)
  }

  @Test("bytes that the disk refuses at the end of a cancelled download do not count", arguments: [1, 10])
  func refusedAtEnd(count: Int) throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.send("HTTP/1.1 200 OK\r\nETag: \"a\"\r\nContent-Length: 1000\r\n\r\n")
      try connection.send(Array(Self.content[..<count]))
      _ = connection.waitForEnd()
    }
    var configuration = FileDownload.Configuration(
      request: UploadRequest(url: server.url), to: "\(directory.path)/file")
    configuration.progressInterval = .milliseconds(5)
    let (written, ended) = (try EventLog<UInt64>(), try EventLog<DownloadSummary>())
    let session = try UploadSession()
    let download = FileDownload(configuration)
    download.start(on: session) { event in
      if case .progress(let progress) = event { written.append(progress.written) }
      if case .ended(let summary) = event { ended.append(summary) }
    }
    try written.first("the bytes in the part") { $0 == UInt64(count) }
    try directory.breakDescriptor(of: "file.part")
    download.cancel()
    let summary = try ended.first("the end") { _ in true }
    #expect(summary.error?.kind == .cancelled && summary.resumeData == nil, "\(summary)")
  }

  @Test("if a file of that name appears during a download, every byte stays in the part, even without a version")
  func takenName() async throws {
    let directory = directory
    let server = try server { connection in
      _ = try directory.write("file", "mine")
      try Self.send(connection, "200 OK", content: Self.content[...])
    }
    let (summary, _, _) = try await download(server.url, from: 0)
    #expect(summary.error?.kind == .exists && summary.resumeData == nil, "\(summary)")
    #expect(summary.error?.systemError?.operation.hasPrefix("rename ") == true, "\(summary)")
    #expect(Set(directory.names) == ["file", "file.part"])
    #expect(try directory.contents("file") == Array("mine".utf8) && directory.contents("file.part") == Self.content)
  }

  @Test("a download whose every response breaks off after some bytes does not give up")
  func slowly() async throws {
    let server = try ScriptedServer { connection, _ in
      let head = try connection.head()
      let start = head["Range"].flatMap { Int($0.dropFirst(6).dropLast()) } ?? 0
      let range = start > 0 ? "Content-Range: bytes \(start)-999/1000\r\n" : ""
      try connection.send(
        "HTTP/1.1 \(start > 0 ? 206 : 200) x\r\nETag: \"a\"\r\n\(range)Content-Length: \(1000 - start)\r\n\r\n")
      try connection.send(Array(Self.content[start..<start + 100]))
    }
    let (summary, startedOver, requests) = try await download(server.url, from: 0) {
      $0.retry.maximumCeiling = .milliseconds(5)
      // The third attempt in a row without progress would be the last one.
      $0.retry.giveUpAfter = .zero
    }
    #expect(summary.error == nil && startedOver.isEmpty, "\(summary), \(startedOver)")
    #expect(requests == (0..<10).map { "\($0 + 1) from \($0 * 100)" })
    #expect(try directory.names == ["file"] && directory.contents("file") == Self.content)
  }

  @Test(
    "a server whose responses break off, and that contradicts itself when the rest is requested, ends the download",
    arguments: [
      ("HTTP/1.1 200 OK\r\nETag: \"a\"\r\nContent-Length: 200\r\n\r\n", "different lengths", "200"),
      ("HTTP/1.1 416 Range Not Satisfiable\r\nContent-Range: bytes */100\r\nContent-Length: 0\r\n\r\n", "refuses", "0"),
      (
        "HTTP/1.1 206 OK\r\nETag: \"a\"\r\nContent-Range: bytes 0-99/100\r\nContent-Length: 100\r\n\r\n", "other bytes",
        "100"
      ),
    ])
  func contradicts(_ later: String, _ reason: String, _ length: String) async throws {
    let server = try ScriptedServer { connection, number in
      _ = try connection.head()
      guard number.isMultiple(of: 2) else { return try connection.send(later) }
      try connection.send("HTTP/1.1 200 OK\r\nETag: \"a\"\r\nContent-Length: 100\r\n\r\n")
      try connection.send(Array(Self.content[..<10]))
    }
    let (summary, startedOver, requests) = try await download(server.url, from: 0) {
      $0.retry.maximumCeiling = .milliseconds(10)
    }
    #expect(summary.error?.kind == .protocolBroken && summary.resumeData == nil, "\(summary)")
    #expect(summary.error?.description.contains(reason) == true, "\(summary)")
    #expect(summary.response?["Content-Length"] == length, "\(summary)")
    #expect(startedOver == [10, 10])
    #expect(requests == ["1 from 0", "2 from 10", "3 from 0", "4 from 10", "5 from 0", "6 from 10"])
    #expect(directory.names == [])
  }

  @Test(
    "a connection on which every request fails is left after its first response",
    arguments: ["429 Too Many Requests", "500 Internal Server Error", "502 Bad Gateway", "503 Service Unavailable"])
  func badConnection(status: String) async throws {
    let requests = try EventLog<Int>()
    let server = try ScriptedServer { connection, number in
      while true {
        _ = try connection.head()
        requests.append(number)
        if number == 0 {
          try connection.respond(status)
        } else {
          try Self.send(connection, "200 OK", content: Self.content[...])
        }
      }
    }
    let (summary, _, _) = try await download(server.url, from: 0) {
      $0.retry.maximumCeiling = .milliseconds(20)
      $0.retry.giveUpAfter = .seconds(3)
    }
    #expect(summary.error == nil && requests.all == [0, 1], "\(summary), \(requests.all)")
    #expect(try directory.names == ["file"] && directory.contents("file") == Self.content)
  }

  @Test(
    "a status that is valid only for a resumed download ends a new one",
    arguments: ["412 Precondition Failed", "416 Range Not Satisfiable"])
  func refused(status: String) async throws {
    let server = try server { try Self.send($0, status, content: [1, 2, 3]) }
    let (summary, _, _) = try await download(server.url, from: 0)
    #expect(summary.error?.kind == .refused && directory.names == [], "\(summary), \(directory.names)")
  }

  @Test("a 304 ends a new download with its meaning, although nothing asked for it")
  func notModified() async throws {
    let server = try server { try Self.send($0, "304 Not Modified", ["ETag: \"a\""], content: []) }
    let (summary, _, _) = try await download(server.url, from: 0)
    #expect(summary.error?.kind == .refused && directory.names == [], "\(summary), \(directory.names)")
    let text = summary.error?.description ?? ""
    #expect(text.contains("304 (Not Modified)") && text.contains("a copy is current") && text.hasSuffix("."), "\(text)")
  }

  @Test(
    "a response with a Transfer-Encoding other than chunked does not count as complete",
    arguments: ["identity", "", "bogus"], [true, false])
  func oddCoding(coding: String, isFirst: Bool) async throws {
    // Not only on the first connection, which may be one that failed earlier, or of another test that still looks for a
    // server at this port. A client that asks again and again is answered in the end.
    let server = try ScriptedServer { connection, number in
      _ = try connection.head()
      guard number < 5 else { return try Self.send(connection, "200 OK", content: Self.content[...]) }
      let fields = ["Content-Length: 1000", "Transfer-Encoding: \(coding)"]
      let lines = ["HTTP/1.1 200 OK", "ETag: \"a\""] + (isFirst ? fields : fields.reversed())
      try connection.send(lines.joined(separator: "\r\n") + "\r\n\r\n")
      try connection.send(Array(Self.content[..<10]))
    }
    let (summary, _, _) = try await download(server.url, from: 0)
    #expect(summary.error?.kind == .protocolBroken && directory.names == [], "\(summary), \(directory.names)")
  }

  @Test("at most 16 redirects in a row are followed", arguments: [0, 1, 15, 16, 17], [false, true])
  func redirects(count: Int, isAbsolute: Bool) async throws {
    let server = try ScriptedServer { connection, number in
      let head = try connection.head()
      guard number < count else { return try Self.send(connection, "200 OK", content: Self.content[...]) }
      let host = isAbsolute ? "http://\(head["Host"] ?? "")" : ""
      try Self.send(connection, "302 Found", ["Location: \(host)/\(number)"], content: [])
    }
    let (summary, _, _) = try await download("\(server.url)/x", from: 0)
    #expect(summary.error?.kind == (count > 16 ? .refused : nil), "\(summary)")
    #expect(directory.names == (count > 16 ? [] : ["file"]))
  }

  @Test("a file has the requested permissions, or by default those of new files of the process")
  func permissions() async throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try Self.send(connection, "200 OK", content: Self.content[...])
    }
    let other = open("\(directory.path)/other", O_WRONLY | O_CREAT | O_CLOEXEC, 0o666)
    close(other)
    for permissions in [nil, 0o777, 0o600] as [UInt32?] {
      let (summary, _, _) = try await download(server.url, from: 0) {
        ($0.permissions, $0.replaces) = (permissions, true)
      }
      #expect(summary.error == nil, "\(summary)")
      var (status, usual) = (stat(), stat())
      #expect(stat("\(directory.path)/file", &status) == 0 && stat("\(directory.path)/other", &usual) == 0)
      #expect(status.st_mode & 0o777 == permissions ?? usual.st_mode & 0o777, "\(String(status.st_mode, radix: 8))")
    }
  }

  @Test("a part that another process downloads is refused, and can be continued when that process ends")
  func locked() throws {
    let data = try left(400)
    let worker = BackgroundWorker()
    for _ in 0..<2 {
      let other = open(data.path, O_RDONLY | O_CLOEXEC)
      #expect(flock(other, LOCK_EX | LOCK_NB) == 0)
      do {
        _ = try PartialFile(resuming: data, worker)
        Issue.record("two processes write one part")
      } catch {
        #expect(error.code == EBUSY)
      }
      close(other)
      let file = try PartialFile(resuming: data, worker)
      #expect(file.written == 400)
      file.unlock()
    }
  }
}
