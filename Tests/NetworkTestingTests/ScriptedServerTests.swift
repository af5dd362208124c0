// A client receives the last message of a scripted server, whatever it is doing.

import NetworkTesting
import PropertyTesting
import Testing

@Suite("A scripted server")
struct ScriptedServerTests {
  @Test("a response at the end of a script is not followed by a reset, however much the client continues to send")
  func lastWord() throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("403 Forbidden")
    }
    let client = try ServerConnection(connectingTo: "127.0.0.1:\(server.port)")
    try client.send("POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n")
    #expect(client.readToEnd().starts(with: "HTTP/1.1 403 Forbidden\r\n".utf8))
    // After a reset, only the first of them would be accepted.
    for _ in 0..<100 { try client.send("content that nobody wants") }
  }

  @Test("a script that stops while it reads ends the connection")
  func brokenOff() throws {
    let server = try ScriptedServer { connection, _ in
      try connection.send("HTTP/1.1 102 Processing\r\n\r\n")
      _ = try connection.head()
    }
    let client = try ServerConnection(connectingTo: "127.0.0.1:\(server.port)")
    try client.send("POST / HTTP/1.1\r\n\r\n")
    while client.waitForBytes(), try client.receive() != nil {}
    #expect(throws: TestFailure.self) { for _ in 0..<100 { try client.send("content that nobody reads") } }
  }
}
