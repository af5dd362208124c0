// Tests small parts of the server: metrics of several loops, file names, rates, and files that are read or cannot be
// opened.

import EventLoops
import Glibc
import HTTPMessages
import Metrics
import NetworkTesting
import Testing

@testable import DiskFiles
@testable import HTTPServer
@testable import StreamServing

@Suite("Components of the server")
struct ServingPartsTests {
  /// Metrics that all have different values, beginning with `first`.
  private static func figures(from first: Int) -> ServerFigures {
    var next = first
    func value() -> Int {
      next += 1
      return next
    }
    var figures = ServerFigures()
    figures.connections.accepted = UInt64(value())
    figures.connections.refused = UInt64(value())
    figures.connections.open = value()
    figures.connections.handedOver = UInt64(value())
    figures.connections.receivedBytes = UInt64(value())
    for _ in 0..<value() { figures.connections.responded("PATCH", 204) }
    for _ in 0..<value() { figures.connections.respondedInterim(104) }
    for _ in 0..<value() { figures.connections.failed(.timeout) }
    for _ in 0..<value() { figures.happened(.continued) }
    figures.storageFailures = UInt64(value())
    figures.openUploads = value()
    figures.storedBytes = UInt64(value())
    figures.acknowledgedBytes = UInt64(value())
    figures.downloadedBytes = UInt64(value())
    figures.openDownloads = value()
    figures.acknowledgementDelays.record(1, count: UInt64(value()))
    figures.publishDelays.record(1, count: UInt64(value()))
    figures.publishesInFlight = value()
    figures.refusedPublishes = UInt64(value())
    figures.lags = [Double(value())]
    return figures
  }

  /// The values of the metrics in a fixed order.
  private static func values(_ figures: ServerFigures) -> [Int] {
    let connections = figures.connections
    let wide: [UInt64] = [
      connections.accepted, connections.refused, connections.handedOver, connections.receivedBytes,
      connections.responses(to: "PATCH", class: 2), connections.interimResponses[104] ?? 0,
      connections.failures(of: .timeout), figures.events.reduce(0, +), figures.storageFailures, figures.storedBytes,
      figures.acknowledgedBytes, figures.downloadedBytes, figures.acknowledgementDelays.count,
      figures.publishDelays.count, figures.refusedPublishes,
    ]
    return wide.map(Int.init) + [
      connections.open, figures.openUploads, figures.openDownloads, figures.publishesInFlight,
    ]
  }

  @Test("the metrics of a server are the sums of those of its loops, and arrive with the last of them")
  func sums() throws {
    let parts = [0, 100, 1000].map(Self.figures)
    let sum = FigureSum(of: parts.count)
    #expect(sum.add(parts[0]) == nil)
    #expect(sum.add(parts[1]) == nil)
    let all = try #require(sum.add(parts[2]))
    let columns = parts.map(Self.values)
    #expect(Self.values(all) == columns[0].indices.map { index in columns.reduce(0) { $0 + $1[index] } })
    #expect(all.lags == parts.flatMap(\.lags))
  }

  @Test(
    "a client's name never ends like one of the server's files, and is decoded first",
    arguments: [
      ("/k.wav", "k-a.wav"), ("/k.part", "k-a.bin"), ("/k.gaps", "k-a.bin"), ("/k.sidecar", "k-a.bin"),
      ("/k.SIDECAR", "k-a.bin"), ("/k", "k-a.bin"), ("/%6bitchen%2Ewav", "kitchen-a.wav"), ("/a%2Fb.wav", "b-a.wav"),
      ("/%7E%5Ak.wav", "_Zk-a.wav"), ("/", "stream-a.bin"),
    ])
  func names(_ path: String, _ file: String) {
    #expect(StreamName(path: path, streamID: "a", mediaType: nil).final == file)
  }

  @Test("a path names a recording unless it names a file of the server, or is invalid for a recording")
  func recordings() {
    for path in ["/k-a.wav", "/k-a~2.wav", "/x/k%2Da.wav"] {
      #expect(StreamName.recording(path: path) != nil, "\(path)")
    }
    for path in [
      "/k-a.part", "/k-a.gaps", "/k-a.sidecar", "/k-a", "/k-a.", "/.k-a.wav", "/.x/k-a.wav", "/-k.wav", "/k-a~1.wav",
      "/k-a~02.wav", "/k-a~2~3.wav", "/k a.wav",
    ] { #expect(StreamName.recording(path: path) == nil, "\(path)") }
    // An earlier server may have left any of these names.
    for file in ["k-a.part", "k-a~2.part"] { #expect(StreamName(partialFile: file)?.partial == file) }
    for file in ["k-a.wav", "k a.part", "k/a.part", ".k.part", "-k.part", ".part", "k~0.part", "k~x.part"] {
      #expect(StreamName(partialFile: file) == nil, "\(file)")
    }
  }

  @Test("a stream's requests belong to the loop of its name, for any method, and any loop serves the others")
  func owners() throws {
    func owner(_ method: String, _ fields: String) throws -> Int? {
      var (parser, position) = (RequestParser(limits: .init()), 0)
      let text = Array("\(method) /k.wav HTTP/1.1\r\nHost: h\r\n\(fields)\r\n".utf8)
      guard case .head(let head) = parser.next(text.span, &position) else { throw TestFailure("no head") }
      return LoopAssignment(index: 0, count: 7).owner(of: head)
    }
    for id in ["a", "b", "c"] {
      let loop = Int(LoopAssignment.key(StreamName(path: "/k.wav", streamID: id, mediaType: nil))) % 7
      for method in ["POST", "PUT"] { #expect(try owner(method, "Stream-ID: \(id)\r\n") == loop) }
      for method in ["GET", "HEAD", "PATCH"] { #expect(try owner(method, "Stream-ID: \(id)\r\n") == nil) }
    }
    #expect(try owner("PUT", "") == nil && owner("PUT", "Stream-ID: .a\r\n") == nil)
  }

  @Test("bytes count for the window in which they arrive, and each window is examined")
  func rates() throws {
    // In the first case all bytes came before; in the second, enough bytes arrive in some windows, and then none.
    for rising in [0, 20] {
      let loop = try EventLoop()
      let watch = RateWatch(loop)
      var (looks, isTooSlow) = (0, false)
      watch.watch(minimum: 100, window: .milliseconds(1)) {
        looks += 1
        // Without this the windows would never end.
        if looks > 200 { loop.stop() }
        return UInt64(100 + 100 * min(looks, rising))
      } tooSlow: {
        isTooSlow = true
        loop.stop()
      }
      loop.run()
      #expect(isTooSlow && looks > rising)
    }
  }

  @Test("a watch that was ended reports nothing, and another one still reports its client")
  func endedRate() throws {
    let loop = try EventLoop()
    let (ended, running) = (RateWatch(loop), RateWatch(loop))
    var reports: [String] = []
    ended.watch(minimum: 1, window: .milliseconds(1)) {
      0
    } tooSlow: {
      reports.append("ended")
    }
    running.watch(minimum: 1, window: .milliseconds(2)) {
      0
    } tooSlow: {
      reports.append("running")
      loop.stop()
    }
    ended.end()
    // The timer of the first one would be the earlier one.
    loop.runAtMostAMinute()
    #expect(reports == ["running"])
  }

  @Test("the bytes after a hole in one file are independent of the next file")
  func fileBehindHole() throws {
    let directory = TemporaryDirectory()
    func file(_ name: String, _ bytes: [UInt8], length: Int) -> FileStretch {
      let path = "\(directory.path)/\(name)"
      let descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
      pwrite(descriptor, bytes, bytes.count, 0)
      ftruncate(descriptor, off_t(length))
      var status = stat()
      fstat(descriptor, &status)
      return FileStretch(
        OpenFile(descriptor, path, in: AT_FDCWD, O_RDONLY, status, OpenFiles()), 0..<UInt64(length))
    }
    let reading = try #require(FileReading([file("hole", [], length: 9000), file("data", [7, 8, 9], length: 3)]))
    var read: [UInt8] = []
    while !reading.isAtEnd { _ = try reading.next(4096) { span in read += span.indices.map { span[$0] } } }
    #expect(read == [UInt8](repeating: 0, count: 9000) + [7, 8, 9])
  }

  @Test("if no descriptor is left and no file can be closed, opening fails at once")
  func noDescriptor() {
    var attempts = 0
    #expect(throws: SystemError(operation: "open it", code: EMFILE)) {
      try OpenFiles().open("open it") {
        attempts += 1
        // A different error ends the attempts, which would otherwise never end.
        errno = attempts < 10 ? EMFILE : EIO
        return -1
      }
    }
    #expect(attempts == 1)
  }

  @Test("octets are counted across the pieces of a body, at any split")
  func pieces() {
    let pieces = [0..<3, 5..<8, 10..<12]
    let octets = pieces.flatMap(Array.init)
    for count in 0...octets.count {
      #expect(pieces.prefix(octets: count).flatMap(Array.init) == Array(octets.prefix(count)), "\(count)")
      let rest = pieces.dropped(octets: count)
      #expect(rest.flatMap(Array.init) == Array(octets.dropFirst(count)), "\(count)")
      #expect(!rest.map(\.count).contains(0), "\(count)")
    }
  }
}
