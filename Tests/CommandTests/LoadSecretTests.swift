// Tests `sluice load` with URLs that contain secrets: user name, password, and values of the query.

import CommandTesting
import NetworkTesting
import Testing

@Suite("Secrets in the URLs of sluice load", .serialized)
struct LoadSecretTests {
  /// How a server answers a request.
  enum Answer: String, CaseIterable {
    case complete, notFound, refusal, unavailable, redirect, relativeRedirect, text, markup, json, reset, early
  }

  /// Repeats the target with its query in the answer, as many servers do.
  private static func answer(_ answer: Answer, _ connection: ServerConnection) throws {
    let target = try connection.head().line.split(separator: " ").dropFirst().first ?? ""
    switch answer {
    case .complete:
      _ = try connection.body()
      try connection.respond("200 OK")
    case .notFound: try connection.respond("404 Not Found", body: "Cannot POST \(target)")
    case .refusal: try connection.respond("403 Forbidden", body: "http://h\(target) is closed")
    case .unavailable: try connection.respond("503 Service Unavailable", body: "busy with '\(target)'.")
    case .redirect: try connection.respond("301 Moved Permanently", ["Location: https://me:SECRET@h\(target)#SECRET"])
    case .relativeRedirect: try connection.respond("307 Temporary Redirect", ["Location: \(target)"])
    case .text: try connection.respond("400 Bad Request", ["Content-Type: text/plain"], body: "GET \(target)\nis odd")
    case .markup:
      try connection.respond(
        "400 Bad Request", ["Content-Type: text/html"], body: "<title>400 for (\(target))</title>\(target)")
    case .json: try connection.respond("400 Bad Request", body: "{\"error\":\"no\",\"target\":\"\(target)\",\"n\":1}")
    case .reset: connection.reset()
    case .early: try connection.respond("200 OK", body: String(target))
    }
  }

  @Test(
    "no output of a run contains one, whatever the server answers", arguments: Answer.allCases,
    [[], ["--request-per-message"], ["--resumable", "never"]])
  func run(_ answer: Answer, _ options: [String]) throws {
    let server = try ScriptedServer { connection, _ in
      while true { try Self.answer(answer, connection) }
    }
    let directory = try TemporaryDirectory()
    let place = "127.0.0.1:\(server.port)"
    let load = try sluice(
      ["load", "http://me:SECRET@\(place)/a?key=SECRET&SECRET#SECRET", "http://\(place)/b?token=SECRET"]
        + ["-n", "2", "-d", "300ms", "--grace", "100ms", "--progress", "json", "--json", "\(directory.path)/r.json"]
        + ["--html", "\(directory.path)/r.html", "--csv", "\(directory.path)/r.csv"] + LoadProcess.tenASecond + options)
    _ = try load.wait()
    let files = try directory.names.map { String(decoding: try directory.contents($0), as: UTF8.self) }
    #expect(files.count == 3)
    for text in load.output + load.errors + files.flatMap({ $0.split(separator: "\n").map { String($0) } }) {
      #expect(!text.contains("SECRET"), "\(text.prefix(400))")
    }
    #expect(load.errors.contains { $0.contains("http://\(place)/a?key=...&...") })
    // The output still shows enough to identify the URL.
    if [.redirect, .relativeRedirect, .notFound, .refusal].contains(answer), options.isEmpty {
      let isNamed = load.errors.contains {
        ($0.contains("?key=...") || $0.contains("?token=...")) && !$0.hasPrefix("loading")
      }
      #expect(isNamed, "\(load.errors)")
    }
    let printed = try sluice(["report", "\(directory.path)/r.json"])
    _ = try printed.wait()
    #expect(!(printed.output + printed.errors).contains { $0.contains("SECRET") })
  }

  @Test(
    "no message of a run that does not begin contains one",
    arguments: [
      ["http://me:SECRET@h:port/?key=SECRET"], ["me:SECRET@h/?key=SECRET"], ["ftp://me:SECRET@h/?key=SECRET"],
      ["http:///?key=SECRET"], ["http://example.com/?key=SECRET"], ["http://h h/?key=SECRET"],
      ["http://127.0.0.1:1/", "http://example.com/?key=SECRET"], ["http://127.0.0.1:1/", "h?key=SECRET"],
      ["http://127.0.0.1:1/?key=SECRET", "-6"], ["http://127.0.0.1:1/?key=SECRET", "--proxy", "x://me:SECRET@h"],
      ["http://127.0.0.1:1/?key=SECRET", "--part", "2/1"], ["http://127.0.0.1:1/?key=SECRET", "-n", "x"],
      ["http://127.0.0.1:1/?key=SECRET", "--http2"], ["http://\u{FFFD}/?key=SECRET"],
      ["http://127.0.0.1:1/?key=SECRET", "--proxy", "http://me:SECRET@example.com:1"],
      ["http://127.0.0.1:1/\u{1B}?key=SECRET"], ["http://127.0.0.1:1/?key=SECRET\r\n"],
    ])
  func refused(_ arguments: [String]) throws {
    let load = try sluice(["load"] + arguments + ["-d", "100ms", "--grace", "100ms"])
    // Above these are the signals that end a process.
    #expect(try (1..<128).contains(load.wait()))
    #expect(!load.errors.isEmpty)
    for text in load.output + load.errors { #expect(!text.contains("SECRET"), "\(text)") }
  }
}
