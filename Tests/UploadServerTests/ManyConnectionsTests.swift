import CallCounter
import Glibc
import NetworkTesting
import Testing
import UploadServer

@Suite("Many connections")
struct ManyConnectionsTests {
  static let count = 2000
  /// Whether this process may open enough files: both ends of each connection, a file for each stream, and a few
  /// others.
  static let mayOpenEnough: Bool = {
    var limit = rlimit()
    getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
    return limit.rlim_max > 3 * UInt(count) + 200
  }()

  @Test(
    "2,000 slow streams on one thread use little memory each, and each is stored completely",
    .enabled(if: mayOpenEnough, "needs a hard limit of more than 6,200 descriptors"),
    .enabled(if: call_counter_works(), "a sanitizer's memory is not the server's"))
  func slowStreams() async throws {
    let result = try await #require(processExitsWith: .success, observing: [\.standardOutputContent]) {
      var limit = rlimit()
      getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
      limit.rlim_cur = limit.rlim_max
      setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
      let count = ManyConnectionsTests.count
      let test = try TestServer { $0.durability = .none }
      // The first connection causes the one-time costs: the receive buffer and the tables of the runtime.
      let first = try test.connect()
      try first.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n")
      try require(try first.answer().status == 200, "the first client is served")
      let threads = threadCount()

      var clients: [RawClient] = []
      clients.reserveCapacity(count)
      let before = residentBytes()
      for _ in 0..<count { clients.append(try test.connect()) }
      // After an exchange on the last connection, all earlier ones are accepted.
      try clients[count - 1].send("GET / HTTP/1.1\r\nHost: h\r\n\r\n")
      try require(try clients[count - 1].answer().status == 200, "the last client is served")
      let idle = residentBytes()
      for (number, client) in clients.enumerated() { try client.send(TestServer.head(id: "\(number)")) }
      _ = try test.events.wait(.begun, count: count)
      let streaming = residentBytes()
      for round in 0..<3 {
        for (number, client) in clients.enumerated() { try client.sendChunk("\(round) of \(number)\n") }
      }
      for client in clients { try client.send("0\r\n\r\n") }
      for client in clients { try require(try client.answer().status == 201, "every stream is stored") }
      // The number of the runtime's own threads varies by a few.
      try require(threadCount() < threads + 20, "connections have no threads of their own")
      for number in 0..<count {
        let text = try test.directory.text("t-\(number).txt")
        try require(text == "0 of \(number)\n1 of \(number)\n2 of \(number)\n", "stream \(number) is whole")
      }
      let perIdle = (idle - before) / count
      let perStream = (streaming - before) / count
      print("\(count) connections: \(perIdle) bytes resident each when idle, \(perStream) with a stream, both ends")
      fflush(nil)
      // This includes both ends of each connection. A client's end takes a few hundred bytes.
      try require(perIdle < 4096, "an idle connection costs less than 4 kB, and not \(perIdle)")
      try require(perStream < 8192, "a stream costs less than 8 kB, and not \(perStream)")
    }
    print(String(decoding: result.standardOutputContent, as: UTF8.self))
  }
}

/// The resident memory (`VmRSS`) in bytes.
func residentBytes() -> Int {
  guard let text = try? fileContents("/proc/self/statm") else { return 0 }
  let fields = String(decoding: text, as: UTF8.self).split(separator: " ")
  return (fields.count > 1 ? Int(fields[1]) ?? 0 : 0) * Int(getpagesize())
}

/// How many threads this process has.
func threadCount() -> Int {
  guard let text = try? fileContents("/proc/self/status") else { return 0 }
  for line in String(decoding: text, as: UTF8.self).split(separator: "\n") where line.hasPrefix("Threads:") {
    return Int(line.dropFirst(8).filter(\.isNumber)) ?? 0
  }
  return 0
}
