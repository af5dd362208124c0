// Tests that the server's last answer decides: exit code, report and events must agree with it.

import CommandTesting
import EventLoops
import Glibc
import NetworkTesting
import TestRigs
import Testing

@Suite("The server's final response") struct ServerWordTests {
  @Test(
    "a plain upload fails if its 2xx reports missing bytes",
    arguments: ["Upload-Complete: ?0", "Upload-Offset: 0", "Upload-Offset: 3", "Upload-Offset: many", "Server: plain"],
    ["put", "pipe"])
  func deniedSuccess(_ field: String, _ subcommand: String) throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", "text")
    let server = try ScriptedServer { connection, _ in
      let head = try connection.head()
      if head["Content-Length"] != nil { _ = try connection.receive() } else { _ = try connection.body() }
      try connection.respond("201 Created", [field, "Connection: close"])
    }
    let process = try SluiceProcess(
      (subcommand == "put" ? ["put", file] : ["pipe"]) + [
        server.url + "/x", "--resumable", "never", "--progress", "json",
      ],
      input: file)
    #expect(try process.exitCode() == (field.hasPrefix("Server") ? 0 : 76))
    let ended = try process.event("ended")
    func count(_ key: String) -> Int { ended.integer(key) ?? -1 }
    #expect(count("captured") == 4 && count("acknowledged") + count("lost") + count("unsent") == 4, "\(ended)")
  }

  @Test("a header line that is too long is an outage with this reason, and the download continues without it")
  func longHeaderLine() throws {
    let directory = try TemporaryDirectory()
    let server = try ScriptedServer { connection, number in
      _ = try connection.head()
      let value = String(repeating: "a", count: number == 0 ? 200_000 : 1)
      try connection.respond("200 OK", ["X-Long: \(value)", "Connection: close"], body: "text")
    }
    let process = try SluiceProcess(
      ["get", server.url + "/x", "-o", "\(directory.path)/x", "--progress", "json"])
    try process.event("outage") {
      $0.text("cause")?.contains("a line of the response's head is longer than libcurl accepts") == true
    }
    let code = try process.exitCode()
    #expect(code == 0, "\(process.output.text)")
    #expect(try directory.contents("x") == Array("text".utf8))
  }

  @Test(
    "put --resumable always fails if a portal answers everything with 200, and a plain server may answer like this",
    arguments: [("always", 76), ("auto", 0)] as [(String, Int32)])
  func portal(_ resumable: String, _ code: Int32) throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", "text")
    let server = try ScriptedServer { connection, _ in
      let head = try connection.head()
      if head["Content-Length"] != nil { _ = try connection.receive() }
      try connection.respond("200 OK", ["Content-Type: text/html", "Connection: close"], body: "<html>login</html>")
    }
    let process = try SluiceProcess(["put", file, server.url + "/x", "--resumable", resumable, "--progress", "json"])
    #expect(try process.exitCode() == code)
    let ended = try process.event("ended")
    #expect(ended.integer("acknowledged") == (code == 0 ? 4 : 0), "\(ended)")
    #expect(code == 0 || ended.text("error")?.contains("does not name the upload resource") == true, "\(ended)")
    #expect(directory.names == ["data"])
  }

  @Test(
    "--give-up-on-refusal applies before the first acknowledged byte: the upload is repeated until the server accepts it",
    arguments: ["302 Found", "404 Not Found", "409 Conflict", "410 Gone", "501 Not Implemented"], ["auto", "never"])
  func refusedForAWhile(_ status: String, _ resumable: String) throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", "text")
    let server = try ScriptedServer { connection, number in
      let head = try connection.head()
      if head["Content-Length"] != nil, !head.line.hasPrefix("OPTIONS") { _ = try connection.receive() }
      let fields = ["Location: http://127.0.0.1:1/login", "Connection: close"]
      if number < 6 { try connection.respond(status, fields) } else { try connection.respond("201 Created", fields) }
    }
    let process = try SluiceProcess([
      "put", file, server.url + "/x", "--resumable", resumable, "--give-up-on-refusal", "1min", "--retry-ceiling",
      "20ms", "--progress", "json",
    ])
    #expect(try process.exitCode() == 0)
    #expect(try process.event("ended").integer("acknowledged") == 4)
    #expect(process.events("outage").count >= 1)
  }

  @Test(
    "--give-up-on-refusal also applies to a creation whose answer names no upload resource", arguments: [nil, "1min"])
  func namelessForAWhile(_ limit: String?) throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", "text")
    let server = try ScriptedServer { connection, number in
      let head = try connection.head()
      var rest = head["Content-Length"].flatMap { Int($0) } ?? 0
      while rest > 0, let piece = try connection.receive(rest) { rest -= piece.count }
      let fields = ["Upload-Draft-Interop-Version: 8", "Connection: close"]
      if head.line.hasPrefix("PATCH") {
        try connection.respond("200 OK", fields + ["Upload-Complete: ?1", "Upload-Offset: 4"])
      } else {
        try connection.respond("201 Created", fields + ["Upload-Complete: ?0"] + (number < 6 ? [] : ["Location: /u"]))
      }
    }
    let process = try SluiceProcess(
      [
        "put", file, server.url + "/x", "--resumable", "always", "--retry-ceiling", "20ms", "--progress", "json",
      ] + (limit.map { ["--give-up-on-refusal", $0] } ?? []))
    #expect(try process.exitCode() == (limit == nil ? 76 : 0))
    let ended = try process.event("ended")
    #expect(ended.integer("acknowledged") == (limit == nil ? 0 : 4), "\(ended)")
    #expect(limit != nil || ended.text("error")?.contains("does not name the upload resource") == true, "\(ended)")
  }

  @Test(
    "bytes that only the server reports as missing cause an event, count as lost, and cause exit code 4",
    arguments: ["0", "1", "3", "4", "5", "18446744073709551615", "many"], ["put", "pipe"])
  func missing(_ count: String, _ subcommand: String) throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", "text")
    let server = try ScriptedServer { connection, _ in
      let head = try connection.head()
      if head["Content-Length"] != nil { _ = try connection.receive() } else { _ = try connection.body() }
      try connection.respond("201 Created", ["Stream-Missing: \(count)", "Connection: close"])
    }
    let process = try SluiceProcess(
      (subcommand == "put" ? ["put", file] : ["pipe"]) + [
        server.url + "/x", "--resumable", "never", "--progress", "json",
      ],
      input: file)
    let lost = min(UInt64(count) ?? 0, 4)
    #expect(try process.exitCode() == (lost > 0 ? 4 : 0))
    let ended = try process.event("ended")
    #expect(ended.integer("lost") == Int(lost) && ended.integer("gaps") == (lost > 0 ? 1 : 0), "\(ended)")
    #expect(ended.integer("acknowledged") == 4 - Int(lost) && ended.integer("unsent") == 0, "\(ended)")
    #expect(ended.integer("missing_at_server") == (UInt64(count) == nil ? nil : Int(lost)), "\(ended)")
    #expect(process.events("missing-at-server").map { $0.integer("length") } == (lost > 0 ? [Int(lost)] : []))
  }

  @Test(
    "put --abandon: report, record and exit code agree, even if the upload is already gone",
    arguments: [
      ("204 No Content", 0), ("404 Not Found", 0), ("410 Gone", 0), ("503 Service Unavailable", 69), ("200 OK", 69),
    ], ["json", "none"])
  func abandons(_ answer: (status: String, code: Int32), _ progress: String) throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", [UInt8](repeating: 1, count: 3_000_000))
    let server = try HalfServer(keeps: 1000, delete: answer.status)
    let first = try SluiceProcess(["put", file, "\(server.url)/x", "--progress", "json"])
    try first.event("upload-created")
    first.signal(SIGINT)
    #expect(try first.exitCode() == 130)
    let process = try SluiceProcess(["put", "--abandon", file, "\(server.url)/x", "--progress", progress])
    #expect(try process.exitCode() == answer.code)
    #expect(directory.names == (answer.code == 0 ? ["data"] : ["data", "data.sluice"]))
    let number = String(answer.status.prefix(3))
    if progress == "json" {
      let error = try process.event("ended").text("error")
      #expect((error == nil) == (answer.code == 0) && error?.contains(number) ?? true, "\(error ?? "")")
    } else {
      let isGone = ["404", "410"].contains(number)
      let words =
        answer.code != 0
        ? "it answered \(number)" : isGone ? "no longer had the upload (it answered \(number))" : "has deleted"
      #expect(process.output.text.contains { $0.contains(words) }, "\(process.output.text)")
    }
  }
}
