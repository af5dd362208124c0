// Compares our parser with nginx's.

import HTTPServer
import NetworkTesting
import Testing

@Suite("Comparison with nginx", .serialized)
struct NginxTests {
  @Test(
    "nginx accepts and refuses the same requests, except for the differences in the table",
    .enabled(if: Nginx.isInstalled, "needs nginx: apt-get install nginx-light"))
  func nginx() throws {
    let nginx = try Nginx()
    let server = try StreamServer()
    for row in RequestCase.all {
      let theirs = try nginx.verdict(row.octets)
      let agrees = (row.verdict == "accepted") == (theirs == "accepted")
      if let reason = row.nginxDiffers {
        #expect(!agrees, "\(row.name): nginx (\(theirs)) does not differ any more; expected, since \(reason)")
      } else {
        #expect(agrees, "\(row.name): ours \(row.verdict), nginx \(theirs)")
      }
      // The same bytes through our socket: the client must see the parser's verdict.
      let client = try RawClient(.tcp(host: "127.0.0.1", port: server.port))
      try client.send(row.octets)
      client.shutdownWriting()
      let ours = (try? client.answer()).map { "\($0.status)" } ?? "incomplete"
      switch row.verdict {
      // In either case, an answer may come from the handler instead of the parser: 404 for GET, 411, 409.
      case "accepted": #expect(["200", "201", "404", "409", "411"].contains(ours), "\(row.name): \(ours)")
      default: #expect(ours == row.verdict, "\(row.name)")
      }
      if ours == "incomplete" { #expect(client.isClosedByServer(), "\(row.name)") }
    }
  }
}
