// What a session leaves when it has ended.

import FoundationUploads
import NetworkTesting
import Testing

@testable import FoundationUploadsCore

@Suite("Ends of sessions")
struct SessionEndTests {
  @Test("after the end of a session, neither a refused task nor a kept one has a network thread")
  func engineAfterEnd() throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("200 OK")
    }
    let test = TestSession()
    let kept = test.session.dataTask(with: try request(server.url))
    kept.resume()
    #expect(try test.recorder.end() == nil)
    weak let engine = try test.session.engine()
    test.session.finishTasksAndInvalidate()
    try test.recorder.log.first("the end") { $0 == .invalid }
    try waitUntil("its thread ends") { engine == nil }
    let late = test.session.dataTask(with: try request(server.url))
    late.resume()
    try waitUntil("it is refused") { late.state == .completed }
    for task in [kept, late] {
      task.cancel()
      task.suspend()
      task.resume()
    }
    try waitUntil("no thread is left") { try test.session.engine() == nil }
  }
}
