// An upload at some offset of a stream, whose client speaks any version of the draft.

import NetworkTesting
import UploadServer

/// An upload whose client speaks one version of the draft.
final class PlacedUpload: @unchecked Sendable {
  /// The server that has it, which a test may start anew.
  var test: TestServer
  private let version: Int
  /// Fields of each request.
  private let fields: [String]
  private var location = ""

  init(_ test: TestServer, version: Int, _ fields: [String] = []) {
    (self.test, self.version, self.fields) = (test, version, fields)
  }

  /// The status of an upload that is over.
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

  /// Sends the beginning of an append of `length` bytes, and does not wait for an answer.
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

  /// nil if an answer does not speak of it.
  func saysIncomplete(_ answer: RawClient.Answer) -> Bool? {
    version == 3 ? answer["upload-incomplete"].map { $0 == "?1" } : answer["upload-complete"].map { $0 == "?0" }
  }
}
