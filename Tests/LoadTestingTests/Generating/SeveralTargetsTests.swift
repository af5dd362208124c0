// One run against several servers, and runs that are stopped while their streams end.

import EventLoops
import LiveStreaming
import LoadReports
import NetworkTesting
import Testing
import UploadClient

@testable import LoadTesting

@Suite("A load test of several servers")
struct SeveralTargetsTests {
  @Test("the streams use the URLs in turn, and one report counts them all", arguments: [false, true])
  func inTurn(sendsRequestPerMessage: Bool) throws {
    let counts = try (0..<3).map { _ in try EventLog<Int>() }
    let servers = try counts.map { log in
      try ScriptedServer { connection, number in
        log.append(number)
        while true {
          let head = try connection.head()
          guard let length = head["Content-Length"].flatMap({ Int($0) }) else {
            _ = try connection.body()
            try connection.respond("200 OK")
            continue
          }
          var missing = length
          while missing > 0, let part = try connection.receive(missing) { missing -= part.count }
          try connection.respond("200 OK")
        }
      }
    }
    let report = try loadTest(servers[0].url) {
      $0.otherURLs = servers.dropFirst().map(\.url)
      $0.streams = 7
      $0.resumable = .never
      $0.sendsRequestPerMessage = sendsRequestPerMessage
    }.run()
    #expect(report.totals.messages.acknowledged == 70 && report.totals.errorCount == 0)
    #expect(report.target == servers.map(\.url).joined(separator: ", "))
    if !sendsRequestPerMessage { #expect(counts.map { $0.all.count } == [3, 2, 2]) }
    #expect(counts.allSatisfy { !$0.all.isEmpty })
  }

  @Test("each URL must be permitted, and must be valid")
  func permission() {
    func error(_ urls: [String], permitted: [String] = []) -> LoadError? {
      var configuration = LoadConfiguration(request: UploadRequest(url: "http://127.0.0.1:1/"))
      configuration.otherURLs = urls
      configuration.permittedHosts = permitted
      do throws(LoadError) {
        _ = try LoadTest(configuration)
        return nil
      } catch {
        return error
      }
    }
    #expect(error(["http://127.0.0.2:1/", "http://a.example/"]) == .notPermitted(host: "a.example"))
    #expect(
      error(["http://a.example/", "http://b.example/"], permitted: ["a.example"]) == .notPermitted(host: "b.example"))
    #expect(error(["http://a.example/", "http://b.example/"], permitted: ["a.example", "b.example"]) == nil)
    guard case .invalid? = error(["nonsense"]) else {
      Issue.record("a URL that is none was accepted")
      return
    }
  }
}

@Suite("A stopped load test")
struct StoppedLoadTests {
  /// Streams that have ended by themselves are finished 25 at a time, 10 ms apart.
  @Test("it ends, even if it is stopped while its streams end", arguments: 0..<8)
  func whileEnding(step: Int) throws {
    let server = try StreamServer()
    let test = try loadTest(server.url) {
      $0.streams = 100
      $0.duration = .milliseconds(300)
    }
    let loop = try EventLoop()
    loop.schedule(after: .milliseconds(300 + 110 + 8 * step)) {
      test.stop()
      loop.stop()
    }
    let stopper = try NamedThread("stopper") { loop.run() }
    let report = try test.run()
    stopper.join()
    #expect(report.totals.streams.started == 100 && report.totals.streams.failed == 0)
  }
}
