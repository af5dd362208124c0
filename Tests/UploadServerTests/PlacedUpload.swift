// An upload at a given offset of a stream. Its client uses one version of the draft.

import NetworkTesting
import UploadServer

/// An upload whose client uses one version of the draft.
final class PlacedUpload: @unchecked Sendable {
  /// The server of the upload. A test may restart it.
  var test: TestServer
  private let version: Int
  /// The fields of each request.
  private let fields: [String]
  private var location = ""

  init(_ test: TestServer, version: Int, _ fields: [String] = []) {
    (self.test, self.version, self.fields) = (test, version, fields)
  }

  /// The status that the server returns for an ended upload.
  var inactive: Int { version < 7 ? 404 : 410 }

  private func completeness(_ completes: Bool) -> String {
    version == 3 ? "Upload-Incomplete: ?\(completes ? 0 : 1)" : "Upload-Complete: ?\(completes ? 1 : 0)"
  }

  private func lines(at offset: Int, completes: Bool = false) -> [String] {
    fields + [completeness(completes), "Upload-Offset: \(offset)"]
      + (version < 6 ? [] : ["Content-Type: application/partial-upload"])
  }

  func create(_ lines: [String]) throws {
    let client = try test.connect()
    try client.request("POST", "/t.txt", version: version, fields + [completeness(false)] + lines, body: "")
    let answer = try client.final().answer
    guard answer.status == 201, let location = answer["location"] else { throw TestFailure("no upload: \(answer)") }
    self.location = location
  }

  func append(at offset: Int, completes: Bool = false, _ bytes: [UInt8]) throws -> RawClient.Answer {
    let client = try test.connect()
    try client.request(
      "PATCH", location, version: version, lines(at: offset, completes: completes),
      body: String(decoding: bytes, as: UTF8.self))
    return try client.final().answer
  }

  /// Sends the beginning of an append of `length` bytes without waiting for an answer.
  func appendPart(at offset: Int, _ bytes: [UInt8], of length: Int) throws {
    let client = try test.connect()
    try client.request("PATCH", location, version: version, lines(at: offset) + ["Content-Length: \(length)"])
    // The server may have answered, and closed the connection.
    try? client.send(bytes)
    client.disconnect()
  }

  func head() throws -> RawClient.Answer { try request("HEAD") }
  func delete() throws -> RawClient.Answer { try request("DELETE") }

  private func request(_ method: String) throws -> RawClient.Answer {
    let client = try test.connect()
    try client.request(method, location, version: version, fields)
    return try client.final(withBody: method != "HEAD").answer
  }

  func isIncomplete(_ standing: RawClient.Answer) -> Bool {
    standing.status == 204 && saysIncomplete(standing) == true
  }

  /// Whether an answer reports the upload as incomplete; nil if it does not report this.
  func saysIncomplete(_ answer: RawClient.Answer) -> Bool? {
    version == 3 ? answer["upload-incomplete"].map { $0 == "?1" } : answer["upload-complete"].map { $0 == "?0" }
  }
}
