// Tests a server with few descriptors. The clients' sockets do not count: they exist before the limit is set, and have
// numbers above it.

import EventLoops
import Glibc
import Metrics
import NetworkTesting
import PropertyTesting
import Recordings
import Testing

@testable import DiskFiles
@testable import ResumableServing
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

/// Runs in a separate process because the limit applies to the whole process.
private func limitDescriptors(_ count: UInt) {
  var limit = rlimit()
  getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
  limit.rlim_cur = count
  setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
}

/// Sockets for clients, to which the server's limit does not apply.
private final class Sockets {
  private var free: [Int32]
  init(_ count: Int) throws {
    limitDescriptors(4000)
    free = try (0..<count).map { _ in try RawClient.reservedSocket() }
  }
  func connect(_ address: ListenAddress) throws -> RawClient {
    guard let socket = free.popLast() else { throw TestFailure("too few sockets were reserved") }
    return try RawClient(address, reserved: socket)
  }
}

@Suite("Few descriptors", .serialized)
struct DescriptorTests {
  @Test("with 64 descriptors, 70 small uploads are accepted, resumed and completed")
  func smallUploads() async {
    await #expect(processExitsWith: .success) {
      for (threads, durability) in [(1, Durability.interval), (2, .always)] {
        let sockets = try Sockets(500)
        let test = try TestServer { ($0.threads, $0.durability) = (threads, durability) }
        limitDescriptors(64)
        var locations: [String] = []
        for number in 0..<70 {
          let client = try sockets.connect(test.address)
          try client.request(
            "POST", "/t.txt", ["Upload-Complete: ?0", "Stream-ID: s\(number)"], body: "upload \(number), ")
          let answer = try client.final().answer
          try require(answer.status == 201, "\(number) is created, and not \(answer)")
          locations.append(answer["location"] ?? "")
        }
        let client = try sockets.connect(test.address)
        for (number, location) in locations.enumerated() {
          let start = "upload \(number), ".utf8.count
          try client.patch(location, at: start, completes: true, body: "complete")
          let answer = try client.final().answer
          try require(answer.status == 201, "\(number) is completed, and not \(answer)")
          try require(try test.directory.text("t-s\(number).txt") == "upload \(number), complete", "\(number) is whole")
        }
        limitDescriptors(4000)
      }
    }
  }

  @Test("with 64 descriptors, running streams continue, additional ones receive 503, and none receives 500")
  func manyStreams() async {
    await #expect(processExitsWith: .success) {
      let seed = Seed.several(1)[0]
      print("DescriptorTests.manyStreams: \(seed)")
      var random = seed.generator
      for threads in [1, 2] {
        let sockets = try Sockets(1000)
        let test = try TestServer { ($0.threads, $0.durability) = (threads, .none) }
        let server = test.server
        let metrics = try MetricsListener(listen: try ListenAddress("127.0.0.1:0")) { server.figures($0) }
        try metrics.start()
        limitDescriptors(64)
        // The model: the bytes that each stream received.
        var streams: [(client: RawClient, id: String, text: String)] = []
        var (turnedAway, completed) = (0, 0)
        for round in 0..<150 {
          // First as many streams as fit, and then more.
          switch round < 40 ? 0 : Int.random(in: 0..<8, using: &random) {
          case 0 where streams.count < 60:
            let client = try sockets.connect(test.address)
            let id = "s\(round)"
            try? client.send(TestServer.head(id: id, more: "Expect: 100-continue\r\n"))
            let answer = try client.answer()
            if answer.status == 100 {
              streams.append((client, id, ""))
            } else {
              try require(answer.status == 503 && answer["retry-after"] != nil, "it is 503, and not \(answer)")
              turnedAway += 1
            }
          case 1 where streams.count > 8 && turnedAway > 3:
            let (client, id, text) = streams.remove(at: Int.random(in: 0..<streams.count, using: &random))
            try client.send("0\r\n\r\n")
            try require(try client.answer().status == 201, "\(id) is complete")
            try require(try test.directory.text("t-\(id).txt") == text, "\(id) is whole")
            completed += 1
          case 2 where round % 16 == 0:
            let client = try sockets.connect(metrics.localAddresses[0])
            try client.send("GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n")
            let answer = try client.answer()
            try require(answer.body.contains("process_open_fds"), "the figures are there, and not \(answer)")
          case 0...4:
            let client = try sockets.connect(test.address)
            // The client sends no upload, so the server closes the connection to make room.
            try client.send(round % 2 == 0 ? "GET / HTTP/1.1\r\nHost: h\r\n\r\n" : "GET / HT")
          default:
            guard let index = streams.indices.randomElement(using: &random) else { continue }
            let text = "\(round) of \(streams[index].id)\n"
            streams[index].text += text
            try streams[index].client.sendChunk(text)
          }
        }
        for (client, id, text) in streams {
          try client.send("0\r\n\r\n")
          try require(try client.answer().status == 201, "\(id) is complete")
          try require(try test.directory.text("t-\(id).txt") == text, "\(id) is whole")
        }
        print("threads \(threads): \(turnedAway) turned away, \(completed) + \(streams.count) completed")
        try require(turnedAway > 0 && streams.count > 5, "\(turnedAway) and \(streams.count) are enough")
        metrics.stop()
        limitDescriptors(4000)
      }
    }
  }

  @Test("a server that could not list its recordings at the start removes old ones later")
  func unlistedRecordings() async {
    await #expect(processExitsWith: .success) {
      var complaints = 0
      for spare in 1...24 {
        limitDescriptors(4000)
        let directory = TemporaryDirectory()
        var sidecar = RecordingSidecar(file: "t-a.txt")
        (sidecar.firstSeen, sidecar.stored) = ("2001-01-01T00:00:00.000Z", .init(bytes: 3, sha256: "0"))
        try directory.write("t-a.sidecar", Array(sidecar.text.utf8))
        try directory.write("t-a.txt", Array("abc".utf8))
        // The server itself needs some descriptors. The listing may be the first to fail. The process may have
        // inherited some between the free ones.
        let free = (0..<spare).map { _ in open("/dev/null", O_RDONLY | O_CLOEXEC) }
        for descriptor in free { close(descriptor) }
        limitDescriptors(UInt(free.max() ?? 0) + 1)
        guard
          let test = try? TestServer(
            in: directory,
            {
              $0.retention = RecordingRetention(longestAge: .seconds(100))
              $0.maintenancePause = .milliseconds(5)
              $0.retentionClock = RetentionState.Clock(isSynchronized: { true })
            })
        else { continue }
        try waitUntil("it complains or removes") {
          test.events.all.contains { $0.kind == .removed || $0.reason?.contains("cannot be listed") == true }
        }
        complaints += test.events.all.contains { $0.reason?.contains("cannot be listed") == true } ? 1 : 0
        limitDescriptors(4000)
        _ = try test.events.wait(.removed)
      }
      try require(complaints > 0, "some could not be listed")
    }
  }
}
