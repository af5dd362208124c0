// The name of a server that may have moved to another address.

import NetworkTesting
import Testing
import UploadClient

@testable import LiveStreaming

@Suite("The name of a server that cannot be reached", .serialized)
struct MovedServerTests {
  @Test("is looked up again after each attempt without a connection, and not after a connection was lost")
  func lookups() throws {
    let lookups = try EventLog<Bool>()
    let port = try freePort()
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, "http://127.0.0.1:\(port)") {
        $0.request.isMeasured = true
        $0.measured = { _, request, _ in lookups.append(request.looksUpAgain) }
      }
      try source.push([1, 2, 3])
      try stream.waitForFailure(3)
      let server = try ScriptedServer(.port(port)) { connection, number in
        _ = try connection.head()
        guard number > 0 else { return connection.reset() }
        _ = try connection.body()
        try connection.respond("201 Created")
      }
      stream.streamer.finish()
      #expect(try stream.summary().error == nil)
      server.close()
    }
    let all = lookups.all
    #expect(all.first == false && all.last == false, "\(all)")
    #expect(all.count >= 5 && all.dropFirst().dropLast().allSatisfy { $0 }, "\(all)")
  }
}
