import CallCounter
import EventLoops
import Glibc
import NetworkTesting
import Testing

@testable import UploadClient

@Suite("Thousands of short requests")
struct ShortRequestTests {
  /// In a separate process, because other tests' memory does not belong to the session.
  @Test(
    "over thousands of requests of all kinds, memory is constant, and neither a task nor a descriptor leaks",
    .enabled(if: call_counter_works(), "a sanitizer's memory is not the session's"))
  func flat() async {
    await #expect(processExitsWith: .success) {
      let connections = try EventLog<Int>()
      let server = try ScriptedServer { connection, number in
        connections.append(number)
        while true {
          _ = try connection.anyBody(try connection.head())
          try connection.send("HTTP/1.1 204 No Content\r\n\r\n")
        }
      }
      let file = try PatternFile(size: 1000)
      try withSession { session throws in
        func run(_ rounds: Int) throws {
          for _ in 0..<rounds {
            for _ in 0..<8 { _ = try session.send(UploadRequest("HEAD", server.url)) }
            _ = try session.send(UploadRequest("PATCH", server.url), .empty)
            _ = try session.send(UploadRequest("PATCH", server.url), file: file)
            _ = try session.send(UploadRequest("PATCH", server.url), streaming: "text")
          }
        }
        try run(200)
        weak var forgotten: UploadTask?
        do {
          let request = try RunningRequest(session, UploadRequest("HEAD", server.url))
          _ = try request.response()
          forgotten = request.task
        }
        let before = try footprint(session)
        try run(600)
        let after = try footprint(session)
        // 6,600 requests. Leaking a transfer for each would be 30 MB, and the strings of a response 1 MB.
        guard after.residentBytes - before.residentBytes < 500_000, after.descriptors == before.descriptors,
          forgotten == nil, connections.all == [0]
        else {
          throw TestFailure(
            "\(before) → \(after), connections \(connections.all), \(forgotten == nil ? "" : "a task was kept")")
        }
      }
    }
  }
}

/// Measured after the session's thread has released the last request.
private func footprint(_ session: UploadSession) throws -> Footprint {
  let turns = try EventLog<Int>()
  for number in 0..<2 {
    session.loop.execute { turns.append(number) }
    try turns.first("a turn of the loop") { $0 == number }
  }
  return try Footprint()
}

/// The resources of this process: proc(5).
struct Footprint: CustomStringConvertible {
  let residentBytes: Int
  let descriptors: Int

  init() throws {
    let status = String(decoding: try fileContents("/proc/self/status"), as: UTF8.self)
    let line = status.split(separator: "\n").first { $0.hasPrefix("VmRSS:") }
    guard let kilobytes = line.flatMap({ Int($0.filter(\.isNumber)) }) else { throw TestFailure("no VmRSS") }
    residentBytes = kilobytes * 1024
    // Each open one has flags.
    descriptors = (0..<1024).count { fcntl(Int32($0), F_GETFD) >= 0 }
  }

  var description: String { "\(residentBytes / 1024) KiB, \(descriptors) descriptors" }
}
