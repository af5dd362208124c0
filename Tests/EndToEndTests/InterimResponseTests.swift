// Which interim responses pass through which front end, by experiment. docs/resumable-uploads.md has the table.

import NetworkTesting
import TestRigs
import Testing

@Suite(
  "Interim responses through front ends",
  .enabled(if: FrontEnd.isInstalled, "nginx (package nginx-light) and caddy have to be installed"))
struct InterimResponseTests {
  /// The statuses that curl received for one POST to a server that sends these interim responses and then 201.
  private func seen(_ interims: [Int], _ route: Route) throws -> [Int] {
    let server = try ScriptedServer { connection, _ in
      let head = try connection.head()
      for status in interims { try connection.send("HTTP/1.1 \(status) Interim\r\nUpload-Offset: 0\r\n\r\n") }
      // Some have a length, and some are chunked.
      if head["Transfer-Encoding"] != nil { _ = try connection.body() }
      try connection.respond("201 Created", ["Location: /uploads/1", "Connection: close"])
    }
    let frontEnd = try FrontEnd(route.program, backend: "127.0.0.1:\(server.port)", changes: route.changes)
    let curl = try TestProcess(
      "curl",
      [
        "--silent", "--verbose", "--max-time", "20", "--cacert", frontEnd.certificate,
        route.isHTTP1 ? "--http1.1" : "--http2", "--request", "POST", "--header", "Expect:", "--upload-file", "-",
        frontEnd.url,
      ], input: .pipe)
    curl.send(Array("a body of no known length".utf8))
    curl.endInput()
    try curl.wait()
    return curl.errors.compactMap { line in
      line.hasPrefix("< HTTP/") ? line.split(separator: " ").dropFirst(2).first.flatMap { Int($0) } : nil
    }
  }

  @Test(
    "Caddy forwards up to five of them, and fails the request at the sixth",
    arguments: Route.all.filter { $0.program == .caddy })
  func caddy(route: Route) throws {
    for interims in [[100], [102], [103], [104], [100, 104, 104, 104, 104]] {
      let seen = try seen(interims, route)
      #expect(seen == interims + [201])
    }
    let six = try seen([104, 104, 104, 104, 104, 104], route)
    // It resets the HTTP/2 stream after its response. Curl may read the reset first.
    #expect(six.prefix(5) == [104, 104, 104, 104, 104] && [[], [502]].contains(six.dropFirst(5)), "\(six)")
  }

  @Test(
    "nginx treats the first as the final response: it does no harm over HTTP/1.1 by luck, and ends HTTP/2",
    arguments: Route.all.filter { $0.program == .nginx })
  func nginx(route: Route) throws {
    for interims in [[100], [102], [103], [104], [100, 104, 104]] {
      let seen = try seen(interims, route)
      // Over HTTP/2, curl aborts the stream after the first one or none.
      if route.isHTTP1 { #expect(seen == interims + [201]) } else { #expect(!seen.contains(201), "\(seen)") }
    }
    let none = try seen([], route)
    #expect(none == [201])
  }
}
