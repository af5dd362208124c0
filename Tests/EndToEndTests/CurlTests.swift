// curl as a client of the server: creates, queries, appends to and completes an upload by hand.

import CommandTesting
import NetworkTesting
import TestRigs
import Testing

@Suite("curl as a client of the server")
struct CurlTests {
  private let scratch = ScratchDirectory()
  /// For every request of the protocol.
  private static let version = ["--header", "Upload-Draft-Interop-Version: 8"]

  /// The responses that curl printed, including interim ones.
  private func curl(_ arguments: String...) throws -> [MessageHead] {
    let process = try TestProcess(
      "curl", ["--silent", "--show-error", "--include", "--max-time", "20"] + Self.version + arguments)
    guard try process.wait() == 0 else { throw TestFailure("curl \(arguments): \(process.errors)") }
    // Without their line ends, because the output is already split into lines.
    return process.output.split(whereSeparator: { $0 == "\r" || $0.isEmpty }).map { lines in
      MessageHead(Array((lines.joined(separator: "\n") + "\n\n").utf8))
    }.filter { $0.line.hasPrefix("HTTP/") }
  }

  @Test("a manual upload in two parts with an offset request is one file, and curl prints the 104s")
  func byHand() throws {
    let server = try ServeProcess(scratch.path)
    let whole = Array("The first half, and the second.\n".utf8)
    let parts = [whole.prefix(16), whole.dropFirst(16)].enumerated().map { index, part in
      scratch.write(Array(part), to: "part\(index)")
    }
    let site = "http://\(server.address)"

    let created = try curl(
      "--request", "POST", "--header", "Upload-Complete: ?0", "--data-binary", "", "--header",
      "Content-Type: text/plain", "\(site)/by-hand.txt")
    #expect(created.map(\.status) == [104, 201])
    let upload = try #require(created.last?["Location"])
    #expect(created.first?["Location"] == upload)
    #expect(upload.hasPrefix("/"))

    let first = try curl(
      "--request", "PATCH", "--header", "Content-Type: application/partial-upload", "--header", "Upload-Offset: 0",
      "--header", "Upload-Complete: ?0", "--data-binary", "@\(parts[0])", site + upload)
    #expect(first.last?.status == 204)
    #expect(first.last?["Upload-Complete"] == "?0")
    #expect(first.dropLast().allSatisfy { $0.status == 104 } && first.count > 1)

    let asked = try curl("--head", site + upload)
    #expect(asked.map(\.status) == [204])
    #expect(asked.last?["Upload-Offset"] == "16")
    #expect(asked.last?["Upload-Complete"] == "?0")

    let wrong = try curl(
      "--request", "PATCH", "--header", "Content-Type: application/partial-upload", "--header", "Upload-Offset: 10",
      "--header", "Upload-Complete: ?1", "--data-binary", "@\(parts[1])", site + upload)
    #expect(wrong.last?.status == 409)
    #expect(wrong.last?["Upload-Offset"] == "16")

    let last = try curl(
      "--request", "PATCH", "--header", "Content-Type: application/partial-upload", "--header", "Upload-Offset: 16",
      "--header", "Upload-Complete: ?1", "--data-binary", "@\(parts[1])", site + upload)
    #expect((200..<300).contains(last.last?.status ?? 0))
    #expect(last.last?["Upload-Complete"] == "?1")
    let ended = try server.event("ended")
    #expect(scratch.read(try #require(ended.text("file"))) == whole)
  }

  @Test("curl prints the 104 of an upload with everything in its creation, and the upload completes")
  func inOne() throws {
    let server = try ServeProcess(scratch.path)
    let path = scratch.write("all of it", to: "whole")
    let answers = try curl(
      "--request", "PUT", "--header", "Upload-Complete: ?1", "--header", "Expect:", "--upload-file", path,
      "http://\(server.address)/whole.txt")
    #expect(answers.first?.status == 104)
    #expect(answers.first?["Location"] != nil)
    #expect((200..<300).contains(answers.last?.status ?? 0))
    #expect(answers.last?["Upload-Complete"] == "?1")
    #expect(scratch.read(try #require(server.event("ended").text("file"))) == Array("all of it".utf8))
  }

  @Test("DELETE removes it from the server")
  func cancelled() throws {
    let server = try ServeProcess(scratch.path)
    let site = "http://\(server.address)"
    let created = try curl(
      "--request", "POST", "--header", "Upload-Complete: ?0", "--data-binary", "not for long", "\(site)/gone.txt")
    let upload = site + (try #require(created.last?["Location"]))
    #expect(try curl("--request", "DELETE", upload).last?.status == 204)
    try server.event("cancelled")
    #expect([404, 410].contains(try curl("--head", upload).last?.status ?? 0))
    #expect(StoredStream.names(in: scratch.path).isEmpty)
  }
}
