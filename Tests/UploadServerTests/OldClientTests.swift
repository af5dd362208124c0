// Imitates URLSession, whose requests SwiftNIO's NIOResumableUploadTests show, and tests curl with our server.

import NetworkTesting
import Testing
import UploadServer

@Suite("Existing clients", .serialized)
struct OldClientTests {
  /// A version of the draft as Apple's systems use it.
  struct Dialect: CustomTestStringConvertible, Sendable {
    let version: Int
    let system: String
    /// The field that shows whether a request is the last, with its values for last and not last.
    let completeness: (name: String, last: String, part: String)
    let tellsProgress: Bool
    /// Further fields of its creations and appends.
    let creation: [String]
    let append: [String]
    var testDescription: String { "\(system), version \(version)" }
  }

  static let dialects = [
    Dialect(
      version: 3, system: "iOS 17", completeness: ("Upload-Incomplete", "?0", "?1"), tellsProgress: false,
      creation: [], append: []),
    Dialect(
      version: 4, system: "nobody's", completeness: ("Upload-Complete", "?1", "?0"), tellsProgress: false,
      creation: [], append: []),
    Dialect(
      version: 5, system: "iOS 18.0", completeness: ("Upload-Complete", "?1", "?0"), tellsProgress: true,
      // This field belongs to another version and must have no effect.
      creation: ["Upload-Length: 999"], append: []),
    Dialect(
      version: 6, system: "iOS 18.1", completeness: ("Upload-Complete", "?1", "?0"), tellsProgress: true,
      creation: ["Upload-Length: 10"],
      append: ["Upload-Length: 10", "Content-Type: application/partial-upload"]),
    Dialect(
      version: 7, system: "draft -08", completeness: ("Upload-Complete", "?1", "?0"), tellsProgress: true,
      creation: ["Upload-Length: 10"], append: ["Content-Type: application/partial-upload"]),
    Dialect(
      version: 8, system: "iOS 26", completeness: ("Upload-Complete", "?1", "?0"), tellsProgress: true,
      creation: ["Upload-Length: 10"], append: ["Content-Type: application/partial-upload"]),
  ]

  @Test(
    "the client resumes and completes an interrupted upload, in the same version throughout", arguments: dialects,
    Bed.all)
  func resumed(_ dialect: Dialect, _ storage: Bed.Storage) throws {
    let bed = try Bed(storage)
    let test = try bed.server()
    let last = "\(dialect.completeness.name): \(dialect.completeness.last)"
    let first = try test.connect()
    try first.request(
      "POST", "/u.txt", version: dialect.version,
      [last, "Content-Length: 10", "Accept: */*", "Stream-ID: a"] + dialect.creation)
    let announced = try first.answer()
    #expect(announced.status == 104 && announced["upload-draft-interop-version"] == "\(dialect.version)")
    // A log has no limit here.
    if storage == .directory { #expect((announced["upload-limit"] != nil) == (dialect.version >= 6)) }
    if storage == .directory, dialect.version >= 6 {
      #expect(announced["upload-limit"] == (dialect.version == 6 ? "expires=86400" : "max-age=86400"))
    }
    let location = try #require(announced["location"])
    try first.send("01234")
    try waitUntil("all has arrived") { first.unacknowledged == 0 }
    first.shutdownWriting()
    _ = try test.events.wait(.interrupted)

    let second = try test.connect()
    try second.request("HEAD", location, version: dialect.version)
    let standing = try second.final(withBody: false).answer
    #expect(standing.status == 204 && standing["upload-offset"] == "5")
    #expect(standing["upload-draft-interop-version"] == "\(dialect.version)")
    #expect(standing[dialect.completeness.name] == dialect.completeness.part)
    try second.request(
      "PATCH", location, version: dialect.version, [last, "Upload-Offset: 5"] + dialect.append, body: "56789")
    let (answer, interim) = try second.final()
    #expect(answer.status == 201 && answer[dialect.completeness.name] == dialect.completeness.last)
    #expect(answer["upload-draft-interop-version"] == "\(dialect.version)")
    #expect(interim.isEmpty == !dialect.tellsProgress)
    #expect(interim.allSatisfy { $0["upload-draft-interop-version"] == "\(dialect.version)" })
    #expect(try bed.stored("a") == "0123456789")
  }

  @Test("an upload in parts, in each version", arguments: dialects, Bed.all)
  func parts(_ dialect: Dialect, _ storage: Bed.Storage) throws {
    let bed = try Bed(storage)
    let test = try bed.server()
    let (name, last, part) = dialect.completeness
    let client = try test.connect()
    try client.request("POST", "/u.txt", version: dialect.version, ["\(name): \(part)", "Stream-ID: a"], body: "01234")
    let created = try client.final().answer
    #expect(created.status == 201 && created[name] == part && created["upload-offset"] == "5")
    let location = try #require(created["location"])
    try client.request(
      "PATCH", location, version: dialect.version, ["\(name): \(part)", "Upload-Offset: 5"] + dialect.append,
      body: "567")
    let appended = try client.final().answer
    #expect(appended.status == (dialect.version < 7 ? 201 : 204) && appended[name] == part)
    try client.request(
      "PATCH", location, version: dialect.version, ["\(name): \(last)", "Upload-Offset: 8"] + dialect.append, body: "89"
    )
    #expect(try client.final().answer[name] == last)
    #expect(try bed.stored("a") == "0123456789")
  }

  @Test("ended and impossible uploads are answered with the statuses of each version", arguments: dialects, Bed.all)
  func statuses(_ dialect: Dialect, _ storage: Bed.Storage) throws {
    for _ in 0..<5 {
      do { return try checkStatuses(dialect, storage) } catch is BrokersAreSlow {}
    }
    Issue.record("the brokers do not answer in time")
  }

  /// A busy machine may let its brokers wait for longer than the server waits for them. Then the server asks the client
  /// to return later, and nobody knows whether the brokers have stored the change.
  private struct BrokersAreSlow: Error {}

  private func checkStatuses(_ dialect: Dialect, _ storage: Bed.Storage) throws {
    let test = try Bed(storage).server()
    let (name, last, part) = dialect.completeness
    let isEarly = dialect.version < 7
    let location = try test.create()
    func ask(_ method: String, _ lines: [String] = [], body: String? = nil) throws -> RawClient.Answer {
      // A refusal ends its connection if content remains.
      let client = try test.connect()
      try client.request(method, location, version: dialect.version, lines, body: body)
      let answer = try client.final(withBody: method != "HEAD").answer
      if storage == .log, answer.status == 503 { throw BrokersAreSlow() }
      return answer
    }
    func append(at offset: Int, _ complete: String, _ body: String) throws -> RawClient.Answer {
      let lines = ["\(name): \(complete)", "Upload-Offset: \(offset)"]
      return try ask("PATCH", lines + dialect.append.filter { !$0.hasPrefix("Upload-Length") }, body: body)
    }
    for method in ["HEAD", "GET", "DELETE"] {
      for line in ["Upload-Offset: 0", "Upload-Offset: x", "\(name): \(part)"] {
        guard isEarly || method != "DELETE" else { continue }
        let answer = try ask(method, [line])
        #expect(answer.status == (isEarly ? 400 : 204) && (answer["upload-offset"] == nil) == isEarly, "\(line)")
        #expect(answer["upload-draft-interop-version"] == "\(dialect.version)")
      }
    }
    #expect(try append(at: 0, last, "abc").status == 201)
    let standing = try ask("HEAD")
    #expect(standing.status == 204 && standing["upload-offset"] == "3" && standing[name] == last)
    for body in ["", "def"] {
      #expect(try append(at: 3, part, body).status == (dialect.version == 6 ? 400 : 409))
    }
    #expect(try append(at: 3, last, "").status == (dialect.version == 6 ? 400 : 201))
    #expect(try ask("DELETE").status == 204)
    let inactive = isEarly ? 404 : 410
    #expect(try ask("HEAD").status == inactive)
    #expect(try ask("DELETE").status == inactive)
    #expect(try append(at: 3, last, "").status == inactive)
  }

  @Test(
    "a request without a version is served as the future RFC, without 104 (draft, section Draft Version Identification)",
    arguments: Bed.all
  )
  func noVersion(_ storage: Bed.Storage) throws {
    let test = try Bed(storage).server()
    let client = try test.connect()
    try client.request("POST", "/u.txt", version: nil, ["Upload-Complete: ?0"], body: "abc")
    let (created, interim) = try client.final()
    #expect(created.status == 201 && interim.isEmpty && created["upload-draft-interop-version"] == nil)
    let location = try #require(created["location"])
    try client.request(
      "PATCH", location, version: nil,
      ["Upload-Complete: ?1", "Upload-Offset: 3", "Content-Type: application/partial-upload"], body: "def")
    let (answer, more) = try client.final()
    #expect(answer.status == 201 && more.isEmpty && answer["upload-complete"] == "?1")
  }

  @Test(
    "a forwarded creation gets no more interim responses than configured, its announcement included",
    arguments: [0, 1, 2])
  func forwarded(_ limit: Int) throws {
    let test = try TestServer { $0.uploads.maximumForwardedInterimCount = limit }
    let client = try test.connect()
    try client.request("POST", "/u.txt", ["Upload-Complete: ?1", "Via: 1.1 proxy"], body: "abc")
    let (answer, interim) = try client.final()
    // Without a limit, there would be two: the announcement, and the progress of the first bytes.
    #expect(answer.status == 201 && interim.count == limit, "\(interim)")
  }

  @Test("a part in an unknown version is refused, with the version that the server supports", arguments: Bed.all)
  func unknownVersion(_ storage: Bed.Storage) throws {
    let test = try Bed(storage).server()
    let client = try test.connect()
    try client.request("POST", "/u.txt", version: 9, ["Upload-Complete: ?0"], body: "")
    let answer = try client.final().answer
    #expect(answer.status == 400 && answer["upload-draft-interop-version"] == "8")
  }

  @Test("curl creates, queries, appends, completes and reads the responses")
  func curl() throws {
    let test = try TestServer()
    let directory = TemporaryDirectory()
    func curl(_ arguments: [String]) throws -> String {
      let status = try Command.run(
        "curl", ["-sS", "-D", "-", "-H", "Upload-Draft-Interop-Version: 8", "--max-time", "20"] + arguments,
        output: directory.path + "/out")
      let output = try directory.text("out")
      guard status == 0 else { throw TestFailure("curl ended with \(status): \(output)") }
      return output
    }
    let url = "http://\(test.address)"
    let created = try curl([
      url + "/c.txt", "-H", "Upload-Complete: ?0", "--data-binary", "abc", "-H", "Content-Type: text/plain",
      // The SHA-256 of "abcdef", computed by sha256sum.
      "-H", "Repr-Digest: sha-256=:vvV+x/U6bUC+tkCngKY5yDvCmsipgW8fxsXG3Nk8RyE=:",
    ])
    #expect(created.contains("HTTP/1.1 104") && created.contains("HTTP/1.1 201"))
    let line = try #require(created.split(separator: "\r\n").first { $0.hasPrefix("Location: ") })
    let location = url + line.dropFirst(10)
    #expect(try curl(["-I", location]).contains("Upload-Offset: 3\r\n"))
    let ended = try curl([
      location, "-X", "PATCH", "-H", "Upload-Complete: ?1", "-H", "Upload-Offset: 3", "-H",
      "Content-Type: application/partial-upload", "--data-binary", "def",
    ])
    #expect(ended.contains("HTTP/1.1 201") && ended.contains("Upload-Complete: ?1\r\n"))
    #expect(try test.directory.text(test.onlyFile) == "abcdef")
    #expect(try curl(["-X", "DELETE", location]).contains("HTTP/1.1 204"))
  }
}
