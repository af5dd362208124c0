import Glibc
import NetworkTesting
import PropertyTesting
import Testing
import UploadServer

/// Never answers.
private final class SilentHandler: RequestHandler {
  private let asked: EventLog<String>
  init(_ asked: EventLog<String>) { self.asked = asked }
  func begin(_ exchange: any Exchange) { asked.append(exchange.peer) }
  func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) {}
  func end() {}
  func aborted(_ reason: AbortReason) {}
  func serverStops() {}
}

@Suite("A server with faults", .serialized)
struct ServerFaultTests {
  @Test(
    "on a full disk the client receives the stored length, keeps the rest, and continues when there is space",
    .enabled(if: SmallDisk.isPossible, "mounting a small tmpfs needs CAP_SYS_ADMIN"))
  func diskFull() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let disk = try SmallDisk(at: directory.path)
      let test = try TestServer(in: directory) { $0.lingerTimeout = .seconds(60) }
      let bytes = OffsetPattern()[0..<3_000_000]
      let client = try test.connect()
      try client.send(TestServer.head())
      // The client sends more than fits, and keeps sending. It must still be able to read the refusal.
      for start in stride(from: 0, to: 2_000_000, by: 50_000) {
        do { try client.sendChunk(Array(bytes[start..<(start + 50_000)])) } catch { break }
      }
      let answer = try client.answer()
      try require(
        answer.status == 507 && answer["retry-after"] == "2" && answer["connection"] == "close", "507: \(answer)")
      let offset = answer["stream-offset"].flatMap { Int($0) } ?? 0
      try require(offset > 500_000 && offset <= 1_048_576, "\(offset) bytes are stored")
      let interrupted = try test.events.wait(.interrupted)
      try require(interrupted.status == 507 && interrupted.offset == UInt64(offset), "\(interrupted)")
      try require(try directory.contents("t-a.part") == Array(bytes[..<offset]), "they are those that were sent")

      // The disk is still full: the answer is the same, and no byte is lost or stored twice.
      let early = try test.connect()
      try early.send(TestServer.head(offset: offset))
      try early.sendChunk(Array(bytes[offset..<(offset + 1000)]))
      let still = try early.answer()
      try require(still.status == 507 && still["stream-offset"] == "\(offset)", "still full: \(still)")

      try disk.resize("8m")
      let later = try test.connect()
      try later.send(TestServer.head(offset: offset))
      try later.sendChunk(Array(bytes[offset...]))
      try later.send("0\r\n\r\n")
      try require(try later.answer()["stream-offset"] == "3000000", "all of it is stored")
      try require(try directory.contents("t-a.txt") == bytes, "as it was sent")
    }
  }

  @Test(
    "an unwritable directory is refused with a reason",
    .enabled(if: SmallDisk.isPossible, "a read-only mount is needed"))
  func unwritable() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let disk = try SmallDisk(at: directory.path, "ro")
      let error = failure(listen: "127.0.0.1:0", directory: directory.path)
      try require(
        error == .unwritableDirectory(directory.path, reason: "Read-only file system")
          && error?.remedy == .otherDirectory && error?.description.contains("--") == false,
        "\(String(describing: error))")
      withExtendedLifetime(disk) {}
    }
  }

  @Test("a missing directory is created, and one without a parent is refused")
  func missingDirectory() throws {
    let directory = TemporaryDirectory()
    #expect(failure(listen: "127.0.0.1:0", directory: directory.path + "/new") == nil)
    #expect(directory.exists("new"))
    guard case .noDirectory = failure(listen: "127.0.0.1:0", directory: directory.path + "/a/b") else {
      Issue.record("expected noDirectory")
      return
    }
  }

  @Test("two servers cannot store into one directory")
  func directoryInUse() throws {
    let test = try TestServer()
    #expect(failure(listen: "127.0.0.1:0", directory: test.directory.path) == .directoryInUse(test.directory.path))
    test.stop()
    #expect(failure(listen: "127.0.0.1:0", directory: test.directory.path) == nil)
  }

  @Test("a server runs once")
  func runsOnce() async {
    await #expect(processExitsWith: .failure) {
      // The server's own thread may not run yet. An error before the second run is not the expected failure.
      guard let test = try? TestServer(), (try? test.connect().head("/")) != nil else { exit(EXIT_SUCCESS) }
      test.stop()
      test.server.serveOnThisThread()
    }
  }

  @Test("a port in use is refused with its owner")
  func portTaken() throws {
    let test = try TestServer()
    let error = failure(listen: test.address.description)
    guard case .listening(.portTaken(let address, let owner)) = error else {
      Issue.record("expected portTaken, got \(String(describing: error))")
      return
    }
    #expect(address == test.address.description)
    #expect(owner?.contains("(pid \(getpid()))") == true)
    #expect(error?.remedy == .address(.otherAddress) && error?.description.contains("--") == false)
  }

  @Test("a socket path of a listening server is in use, and one of a killed server is not")
  func unixSocketTaken() throws {
    let directory = TemporaryDirectory()
    let path = directory.path + "/socket"
    let test = try TestServer(listen: "unix:\(path)")
    guard case .listening(.portTaken) = failure(listen: "unix:\(path)", directory: directory.path) else {
      Issue.record("expected portTaken")
      return
    }
    test.stop()
    let stale = socket(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0)
    var name = sockaddr_un()
    name.sun_family = sa_family_t(AF_UNIX)
    withUnsafeMutableBytes(of: &name.sun_path) { $0.copyBytes(from: path.utf8) }
    withUnsafePointer(to: name) {
      $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
        _ = bind(stale, $0, socklen_t(MemoryLayout<sockaddr_un>.size))
      }
    }
    close(stale)
    #expect(failure(listen: "unix:\(path)", directory: directory.path) == nil)
  }

  @Test(
    "invalid addresses are refused", arguments: ["", "8080", "a:b", "::1:80", "1.2.3.4:65536", "unix:", "[]:80"])
  func malformedAddress(_ text: String) {
    #expect(throws: ListenError.malformedAddress(text)) { try ListenAddress(text) }
  }

  @Test("an address of another machine, and an unknown host, are refused")
  func otherAddresses() {
    // The message names the address that was looked up, however it is written.
    for text in ["192.0.2.1:80", "192.0.513:80"] {
      #expect(failure(listen: text) == .listening(.notOurAddress("192.0.2.1:80")))
    }
    guard case .listening(.unknownHost) = failure(listen: "no.such.host.invalid:80") else {
      Issue.record("expected unknownHost")
      return
    }
  }

  @Test("a server that stops sends each stream its stored length, and the next server continues there")
  func shutdown() throws {
    let directory = TemporaryDirectory()
    let sockets = TemporaryDirectory()
    // Another process may be given the number of a free port at any moment.
    let test = try TestServer(in: directory, listen: "unix:\(sockets.path)/socket")
    let live = try test.connect()
    try live.send(TestServer.head() + "5\r\nhello\r\n")
    let idle = try test.connect()
    try idle.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    #expect(try idle.answer().status == 200)
    _ = try test.events.wait(.begun)
    let ending = try test.connect()
    try ending.send(TestServer.head("/u", id: nil) + "3\r\nabc\r\n")
    _ = try test.events.wait(.begun, count: 2)

    test.server.shutdown(grace: .seconds(20))
    #expect(idle.isClosedByServer())
    #expect(throws: TestFailure.self) { try test.connect() }
    // A stream that ends within the grace period is complete. The other client can continue its stream, and learns
    // this.
    try ending.send("0\r\n\r\n")
    let answer = try ending.answer()
    #expect(answer.status == 201 && answer["connection"] == "close")
    ending.disconnect()
    let told = try live.answer()
    #expect(told.status == 503 && told["stream-offset"] == "5" && told["retry-after"] == "2")
    live.disconnect()
    test.server.waitUntilEnded()
    let names = directory.names.filter { !$0.hasPrefix(".") }
    #expect(names.count == 2 && names.first == "t-a.part" && names.last?.hasSuffix(".txt") == true)
    let next = try TestServer(in: directory)
    let client = try next.connect()
    try client.send(TestServer.head(offset: 5) + "1\r\n!\r\n0\r\n\r\n")
    #expect(try client.answer().status == 200)
    #expect(try directory.text("t-a.txt") == "hello!")
  }

  @Test("a lack of descriptors is reported, nothing spins, and the server accepts again when some are free")
  func descriptorsExhausted() async {
    // Runs in a separate process because the limit applies to the whole process.
    await #expect(processExitsWith: .success) {
      let asked = try EventLog<String>()
      let test = try TestServer { $0.handler = { $0.target.path == "/wait" ? SilentHandler(asked) : nil } }
      // This connection has a request in progress. An idle one would be closed to make room.
      let client = try test.connect()
      try client.send("GET /wait HTTP/1.1\r\nHost: h\r\n\r\n")
      try asked.first("the request") { _ in true }
      var limit = rlimit(rlim_cur: 200, rlim_max: 200)
      setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
      // Uses all numbers below the limit except the one for the client's end of the next connection.
      var taken: [Int32] = []
      while case let descriptor = dup(0), descriptor >= 0 { taken.append(descriptor) }
      close(taken.removeLast())
      let late = try test.connect()
      let told = try test.events.wait(.refused).reason ?? ""
      try require(told.contains("`ulimit -n 400`"), "the cause and the remedy are reported: \(told)")
      // A server that spins would retry a few thousand times in this time, and report each failure.
      poll(nil, 0, 300)
      try require(test.events.all.count { $0.kind == .refused } == 1, "accepting rests")
      client.reset()
      try late.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n")
      try require(try late.answer().status == 200, "the late client is served")
    }
  }
}

/// The error of creating such a server; nil if it succeeds.
private func failure(listen: String, directory: String? = nil) -> UploadServerError? {
  let own = TemporaryDirectory()
  return withExtendedLifetime(own) {
    guard let address = try? ListenAddress(listen) else { return .listening(.malformedAddress(listen)) }
    do throws(UploadServerError) {
      _ = try UploadServer(configuration: .init(listen: [address], directory: directory ?? own.path))
      return nil
    } catch {
      return error
    }
  }
}

/// Replaces `#require` in code that runs in a separate process.
func require(_ condition: Bool, _ claim: String) throws {
  if !condition { throw TestFailure("not so: \(claim)") }
}
