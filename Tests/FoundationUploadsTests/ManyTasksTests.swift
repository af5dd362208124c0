// A thousand tasks of one session at the same time.

import EventLoops
import FoundationUploads
import Glibc
import NetworkTesting
import Testing

@Suite("Many tasks")
struct ManyTasksTests {
  static let count = 1000
  /// Both ends of each connection are in one process.
  static let mayOpenEnough: Bool = {
    var limit = rlimit()
    getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
    return limit.rlim_max > 4 * UInt(count) + 200
  }()

  @Test(
    "1,000 concurrent tasks have one network thread, and each delivers its own response",
    .enabled(if: mayOpenEnough, "needs a hard limit of more than 4,200 descriptors"))
  func oneThread() async throws {
    await #expect(processExitsWith: .success) {
      var limit = rlimit()
      getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
      limit.rlim_cur = limit.rlim_max
      setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
      let count = ManyTasksTests.count
      let arrived = try EventLog<String>()
      let waiting = Lock<[(connection: ServerConnection, path: String)]>([])
      // No task ends before all of them run.
      let server = try ScriptedServer(inTurn: true) { connection, _ in
        let head = try connection.head()
        if head.line.hasPrefix("PUT") {
          var rest = 7
          while rest > 0, let bytes = try connection.receive() { rest -= bytes.count }
        }
        waiting.withLock { $0.append((connection, String(head.line.split(separator: " ")[1]))) }
        arrived.append(head.line)
      }
      let answers = try EventLog<(Int, String)>()
      let session = URLSession(configuration: .default)
      let data = Data("content".utf8)
      for number in 0..<count {
        let request = try request("\(server.url)/\(number)", number % 2 == 0 ? "GET" : "PUT")
        let answered: @Sendable (Data?, URLResponse?, (any Error)?) -> Void = { body, _, error in
          answers.append((number, body.map { String(decoding: $0, as: UTF8.self) } ?? "\(error as Any)"))
        }
        let task =
          number % 2 == 0
          ? session.dataTask(with: request, completionHandler: answered)
          : session.uploadTask(with: request, from: data, completionHandler: answered)
        task.resume()
      }
      _ = try arrived.wait("all requests") { $0.count == count ? true : nil }
      let names = ManyTasksTests.threadNames().filter { !$0.hasPrefix("test ") }
      try ManyTasksTests.check(names.filter { $0 == "sluice-network" }.count == 1, "one network thread: \(names)")
      // The runtime's own threads deliver the calls of the delegates.
      try ManyTasksTests.check(names.count < 30, "tasks have no threads of their own: \(names)")
      for (connection, path) in waiting.withLock({ $0 }) {
        try connection.respond("200 OK", ["Connection: close"], body: path)
        connection.shutdownWriting()
      }
      let all = try answers.wait("all responses") { $0.count == count ? $0 : nil }
      for (number, body) in all {
        try ManyTasksTests.check(body == "/\(number)", "task \(number) has its response: \(body)")
      }
    }
  }

  /// An issue of an exit test is not reported, but an error ends the process with a failure.
  private static func check(_ condition: Bool, _ what: @autoclosure () -> String) throws {
    guard condition else { throw TestFailure(what()) }
  }

  private static func threadNames() -> [String] {
    let tasks = (try? FileManager.default.contentsOfDirectory(atPath: "/proc/self/task")) ?? []
    return tasks.compactMap { try? String(contentsOfFile: "/proc/self/task/\($0)/comm", encoding: .utf8) }
      .map { $0.trimmingCharacters(in: .newlines) }
  }
}
