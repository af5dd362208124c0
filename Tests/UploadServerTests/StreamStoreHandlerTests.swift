// Tests how the handler of a stream carries out the results of its state machine, with real files.

import EventLoops
import Glibc
import HTTPMessages
import NetworkTesting
import PropertyTesting
import ResumableUploads
import Testing

@testable import DiskFiles
@testable import HTTPServer
@testable import StreamServing
@testable import StreamStore

@Suite("The handler of a stream")
struct StreamStoreHandlerTests {
  /// A connection that records the calls that it receives.
  private final class Connection: Exchange {
    let loop: EventLoop
    var peer: String { "192.0.2.1:9" }
    var isAccepted = false
    var response: Response?
    /// Called for bytes that have arrived but were not delivered yet.
    var arrived: () -> Void = {}
    var responded: () -> Void = {}

    init(_ loop: EventLoop) { self.loop = loop }

    func acceptBody() { isAccepted = true }
    func sendInterim(_ status: Int, _ fields: HeaderFields) {}
    func respond(_ response: Response) {
      self.response = response
      responded()
    }
    func takeArrived() { arrived() }
    func pauseBody() {}
    func resumeBody() {}
    func disconnect() {}
  }

  /// An upload that has bytes in a recording.
  private final class Upload: RecordingHolder {
    var ownsFile = false
    var isLive: Bool { true }
    var hasAcknowledgedBytes: Bool { true }
    var continuesRecording: Bool { true }
    var owner: UploadOwner { UploadOwner(credential: nil, address: "192.0.2.2") }
    var overtakings = 0
    var closings = 0

    func lostRecording() { ownsFile = false }
    func tookRecording(ownsFile: Bool) { self.ownsFile = ownsFile }
    func recordingWasClosed() { closings += 1 }
    func overtaken() { overtakings += 1 }
  }

  private let directory = TemporaryDirectory()
  private let loop: EventLoop
  private let registry: StreamRegistry
  private let events: EventLog<ServerEvent>

  init() throws {
    let events = try EventLog<ServerEvent>()
    self.events = events
    loop = try EventLoop()
    var limits = UploadLimitsConfiguration()
    limits.quota = 20
    let usage = UploadUsage(limits)
    let store = try FileStore(
      path: directory.path, durability: .none, closedLifetime: .zero, files: OpenFiles(), usage)
    let context = ServingContext(
      loop: loop, assignment: .only, figures: ServerLoopFigures(), finishAfter: .milliseconds(10),
      isValid: { _ in true },
      emit: { events.append($0) })
    registry = StreamRegistry(
      context, store: store,
      limits: StreamLimits(options: limits, usage: usage, accounts: store.accounts, worker: store.worker, loop: loop),
      maximumHole: 1_000, maximumGapLines: 1)
  }

  private func handler(at offset: Int, id: String = "a", _ fields: HeaderFields = [:]) throws -> StreamStoreHandler {
    let octets = Array("/t".utf8)
    var all: HeaderFields = ["stream-id": id, "stream-offset": "\(offset)"]
    all.append(contentsOf: fields)
    let head = RequestHead(
      method: "PUT", target: try RequestTarget(octets.span, method: "PUT"), minorVersion: 1, fields: all,
      framing: .chunked, expectsContinue: false, keepsAlive: true)
    return StreamStoreHandler(head: head, registry: registry)
  }

  private func send(_ text: String, to handler: StreamStoreHandler) {
    let bytes = Array(text.utf8)
    handler.receive(bytes.span, pieces: [0..<bytes.count])
  }

  /// How many more bytes the quota permits.
  private var room: UInt64 { registry.limits.usage.room(of: nil) }

  /// Runs the loop until a recording is closed, and returns the event.
  private func runUntilClosed() throws -> ServerEvent {
    var attempts = 0
    func stopWhenClosed() {
      attempts += 1
      if attempts > 30_000 || events.all.contains(where: { $0.kind == .closed }) { return loop.stop() }
      loop.schedule(after: .milliseconds(1)) { stopWhenClosed() }
    }
    stopWhenClosed()
    loop.run()
    return try #require(events.all.first { $0.kind == .closed }, "\(events.all)")
  }

  /// An upload that has sent three bytes of the stream.
  private func begun() throws -> (Upload, StreamStoreHandler) {
    let upload = Upload()
    let keeper = try handler(at: 0)
    keeper.beginKeeping(Connection(loop), for: upload)
    let bytes = Array("abc".utf8)
    #expect(keeper.keep(bytes.span, pieces: [0..<3]) == nil)
    #expect(keeper.keptCount == 3)
    return (upload, keeper)
  }

  @Test("a hole ends the uploads before it once the digest of the bytes after it is right, and not before")
  func heldHole() throws {
    let (upload, _) = try begun()
    let connection = Connection(loop)
    // SHA-256 of "def".
    let plain = try handler(at: 6, ["content-digest": "sha-256=:y4N5rCCYqhZQKeOTilHaC87PwAj9Z5X0AReGR/lsWzQ=:"])
    plain.begin(connection)
    #expect(connection.isAccepted)
    send("def", to: plain)
    #expect(upload.overtakings == 0, "they may be dropped again, and the hole with them")
    plain.end()
    #expect(connection.response?.status == 200)
    #expect(upload.overtakings == 1)
    #expect(try directory.text("t-a.bin") == "abc\0\0\0def")
  }

  @Test("an upload's hole ends the uploads before it as soon as its bytes cannot be withdrawn")
  func releasedHole() throws {
    let (first, _) = try begun()
    let (second, keeper) = (Upload(), try handler(at: 6))
    keeper.beginKeeping(Connection(loop), for: second)
    keeper.hold()
    let bytes = Array("ghi".utf8)
    #expect(keeper.keep(bytes.span, pieces: [0..<3]) == nil)
    #expect(first.overtakings == 0)
    keeper.release()
    #expect(first.overtakings == 1 && second.overtakings == 0)
  }

  @Test("a refused close is reported once and adds nothing to the stream's log, and uploads learn of a successful one")
  func refusedClose() throws {
    let (upload, keeper) = try begun()
    keeper.park()
    let name = StreamName(path: "/t", streamID: "a", mediaType: nil)
    func log() -> String { (try? directory.text(".parts/t-a")) ?? "" }
    let before = log()
    // Another program has taken the recording's name.
    try directory.write("t-a.bin", [1])
    for attempt in 1...3 {
      registry.closeMisplaced(name, for: nil)
      #expect(log() == before, "\(attempt)")
    }
    #expect(events.all.count { $0.reason?.hasPrefix("cannot close ") == true } == 1, "\(events.all)")
    #expect(try directory.text("t-a.part") == "abc")
    #expect(upload.closings == 0)
    unlink("\(directory.path)/t-a.bin")
    registry.closeMisplaced(name, for: nil)
    #expect(try directory.text("t-a.bin") == "abc")
    #expect(upload.closings == 1)
  }

  @Test("a recording that is closed at the second attempt is reported with the reason of the first one")
  func reasonOfRefusedClose() throws {
    // The server has found all uploads of the earlier one.
    registry.restored()
    let plain = try handler(at: 0)
    plain.begin(Connection(loop))
    send("abc", to: plain)
    try directory.write("t-a.bin", [1])
    registry.closeMisplaced(StreamName(path: "/t", streamID: "a", mediaType: nil), for: nil)
    try #require(events.all.contains { $0.reason?.hasPrefix("cannot close ") == true }, "\(events.all)")
    unlink("\(directory.path)/t-a.bin")
    let closed = try runUntilClosed()
    #expect(closed.reason == "interrupted: the next bytes of the stream have no place in it")
    #expect(try directory.text("t-a.bin") == "abc")
  }

  @Test("bytes of an upload that waits while its recording is being closed are not synced by a close that fails")
  func failedClose() throws {
    let (upload, keeper) = try begun()
    keeper.park()
    let name = StreamName(path: "/t", streamID: "a", mediaType: nil)
    registry.finishing.begin(name)
    let waiting = try handler(at: 0)
    waiting.restoreKeeping(Connection(loop), for: upload, at: 3)
    var (counts, codes): ([UInt64], [Int32?]) = ([], [])
    waiting.synchronize { count, error in
      counts.append(count)
      codes.append(error?.code)
      loop.stop()
    }
    // The recording grows again, and the next sync of the stream has an error of the disk.
    (registry.store as? FileStore)?.refusals.add(SystemError(operation: "sync", code: EIO), name)
    registry.finishing.end(name) {}
    #expect(counts.isEmpty, "the file was not synced")
    loop.runAtMostAMinute()
    #expect(counts == [3] && codes == [EIO], "\(counts), \(codes)")
  }

  @Test("an upload of a stream that another request has completed has no part in a later stream of that name")
  func completedByOther() throws {
    registry.restored()
    let (upload, _) = try begun()
    let completing = try handler(at: 3)
    completing.begin(Connection(loop))
    send("def", to: completing)
    completing.end()
    #expect(try directory.text("t-a.bin") == "abcdef")
    unlink("\(directory.path)/t-a.bin")
    let later = try handler(at: 0)
    later.begin(Connection(loop))
    send("xyz", to: later)
    registry.takeOver(StreamName(path: "/t", streamID: "a", mediaType: nil))
    let closed = try runUntilClosed()
    #expect(closed.reason?.hasPrefix("interrupted: no request came for it") == true, "\(closed)")
    #expect(!upload.ownsFile && upload.closings == 0)
    #expect(try directory.text("t-a.bin") == "xyz")
  }

  @Test("bytes with a wrong digest are dropped, with the hole before them, and the stream is unchanged")
  func refuted() throws {
    let (upload, _) = try begun()
    let connection = Connection(loop)
    let plain = try handler(at: 6, ["content-digest": "sha-256=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:"])
    plain.begin(connection)
    send("def", to: plain)
    plain.end()
    #expect(connection.response?.status == 400)
    #expect(connection.response?.fields.single("stream-offset") == "3")
    #expect(upload.overtakings == 0)
    #expect(try directory.text("t-a.part") == "abc")
  }

  @Test("a hole without space is refused before the body is requested")
  func noRoom() throws {
    let (refused, fitting) = (Connection(loop), Connection(loop))
    let plain = try handler(at: 19)
    refused.responded = { [loop] in
      loop.schedule(after: .zero) {
        plain.begin(fitting)
        loop.stop()
      }
    }
    try handler(at: 21).begin(refused)
    // The response comes when the disk has removed the file.
    loop.run()
    #expect(!refused.isAccepted)
    #expect(refused.response?.status == 507, "\(refused.response?.status ?? 0)")
    #expect(fitting.isAccepted && fitting.response == nil)
    send("xy", to: plain)
    #expect(fitting.response?.fields.single("stream-offset") == "20", "one byte finds room")
  }

  @Test("a server that stops stores the received bytes before it answers")
  func stops() throws {
    let connection = Connection(loop)
    let plain = try handler(at: 0)
    plain.begin(connection)
    connection.arrived = { send("late", to: plain) }
    plain.serverStops()
    #expect(connection.response?.status == 503)
    #expect(connection.response?.fields.single("stream-offset") == "4")
    #expect(try directory.text("t-a.part") == "late")
  }

  @Test("a hole does not exist if the disk accepts none of the bytes after it")
  func refusedBytes() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let store = try FileStore(in: directory)
      let name = StreamName(path: "/t", streamID: "a", mediaType: nil)
      let stream = try store.open(name, for: .request(credential: nil, offset: 200, creating: true, isUpload: false))
      signal(SIGXFSZ, SIG_IGN)
      var limit = rlimit()
      getrlimit(__rlimit_resource_t(RLIMIT_FSIZE.rawValue), &limit)
      limit.rlim_cur = 200
      setrlimit(__rlimit_resource_t(RLIMIT_FSIZE.rawValue), &limit)
      let bytes = Array("abc".utf8)
      let stored = stream?.write(bytes.span, [0..<3], skipping: 0, at: 200, maySplit: false)
      try require(stored?.count == 0 && stored?.error?.code == EFBIG, "\(String(describing: stored))")
      try require(stream?.length == 0 && stream?.missing == 0, "it counts no hole")
      try require(try directory.text("t-a.part").isEmpty, "the file is empty")
      try require(access(directory.path + "/t-a.gaps", F_OK) != 0, "nothing is noted")
    }
  }

  @Test("the digest of an upload omits bytes whose own digest was wrong")
  func forgottenBytes() throws {
    let test = try TestServer()
    // SHA-256 of "abc".
    let location = try test.create(
      "/t.txt", ["Repr-Digest: sha-256=:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=:"])
    let wrong = try test.connect()
    try wrong.patch(
      location, at: 0, ["Content-Digest: sha-256=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:"], body: "x")
    #expect(try wrong.final().answer.status == 400)
    let right = try test.connect()
    try right.patch(location, at: 0, completes: true, body: "abc")
    #expect(try right.final().answer.status == 201)
  }

  // MARK: Refusals

  @Test("a hole for which other streams have left no room is refused, and takes no room", arguments: ["", "x"])
  func roomTaken(_ text: String) throws {
    let beginning = try handler(at: 0)
    beginning.begin(Connection(loop))
    send("abc", to: beginning)
    let (connection, late, other) = (Connection(loop), try handler(at: 12), try handler(at: 0, id: "b"))
    late.begin(connection)
    #expect(connection.isAccepted)
    other.begin(Connection(loop))
    send("0123456789", to: other)
    #expect(room == 7)
    // The hole precedes a byte, or the end of the stream.
    if text.isEmpty { late.end() } else { send(text, to: late) }
    #expect(connection.response?.status == 507)
    #expect(connection.response?.fields.single("stream-offset") == "3")
    #expect(room == 7)
    #expect(try directory.text("t-a.part") == "abc")
  }

  @Test("a hole before the end that cannot be recorded is refused, and takes no room")
  func refusedHole() throws {
    let beginning = try handler(at: 0)
    beginning.begin(Connection(loop))
    send("abc", to: beginning)
    let (connection, late) = (Connection(loop), try handler(at: 12))
    late.begin(connection)
    // Another program has taken the name of the record.
    try directory.write("t-a.gaps", Array("a list of gaps\n".utf8))
    late.end()
    #expect((500...599).contains(connection.response?.status ?? 0), "\(connection.response?.status ?? 0)")
    #expect(connection.response?.fields.single("stream-offset") == "3")
    #expect(room == 17)
    #expect(try directory.text("t-a.part") == "abc")
    #expect(try directory.text("t-a.gaps") == "a list of gaps\n")
  }

  @Test("a recording with as many gaps as it may have gets no other one, even if it cannot be closed")
  func unclosableWithGaps() throws {
    let (first, second) = (try handler(at: 1), try handler(at: 5))
    first.begin(Connection(loop))
    send("b", to: first)
    // Another program has taken the recording's name.
    try directory.write("t-a.bin", [1])
    let connection = Connection(loop)
    second.begin(connection)
    #expect(connection.response?.status == 503 && connection.response?.fields.single("retry-after") != nil)
    #expect(!connection.isAccepted && second.state.phase == .done)
    let refusals = events.all.filter { $0.status == 503 && $0.reason == StreamAnswer.tooManyGaps }
    #expect(refusals.count == 1 && refusals.first?.file == "t-a.part", "\(events.all)")
    #expect(try directory.contents("t-a.part") == [0, 0x62])
    #expect(try directory.contents("t-a.bin") == [1])
  }

  @Test("a request that waits for the end of its stream is answered when the server stops, and stores nothing later")
  func stopsWhileWaiting() throws {
    let (connection, waiting) = (Connection(loop), try handler(at: 0))
    let name = StreamName(path: "/t", streamID: "a", mediaType: nil)
    registry.finishing.begin(name)
    waiting.begin(connection)
    #expect(!connection.isAccepted && connection.response == nil)
    waiting.serverStops()
    #expect(connection.response?.status == 503)
    #expect(connection.response?.fields.single("retry-after") != nil && waiting.state.phase == .done)
    registry.finishing.end(name) {}
    #expect(!connection.isAccepted && !directory.exists("t-a.part"))
  }

  // MARK: Uploads of an earlier server

  @Test("a request of an earlier server whose recording is gone is told to retry, and begins no other recording")
  func goneRecording() throws {
    let (connection, keeper) = (Connection(loop), try handler(at: 0))
    keeper.restoreKeeping(connection, for: Upload(), at: 3)
    #expect(connection.response?.status == 503 && connection.response?.fields.single("retry-after") != nil)
    #expect(!connection.isAccepted && keeper.state.phase == .done)
    #expect(keeper.diskError?.code == ENOENT)
    #expect(!directory.exists("t-a.part"))
    #expect(!keeper.droppedRefused(), "it has no stream")
  }

  @Test("a request of an earlier server whose bytes are before a hole is told to retry, and leaves its stream")
  func overtakenRecording() throws {
    let later = try handler(at: 4)
    later.begin(Connection(loop))
    send("x", to: later)
    later.yieldStream()
    let (connection, keeper) = (Connection(loop), try handler(at: 0))
    keeper.restoreKeeping(connection, for: Upload(), at: 3)
    #expect(connection.response?.status == 503 && connection.response?.fields.single("retry-after") != nil)
    #expect(!connection.isAccepted && keeper.state.phase == .done)
    #expect(room == 15)
    // The space of a removed file is free again, unless a request is active on it.
    unlink("\(directory.path)/t-a.part")
    registry.limits.accounts?.recount(on: registry.limits.worker)
    try waitUntil("the room is free") { room == 20 }
  }

  @Test(
    "an upload that is found later inherits a recording that another upload of its owner has discarded",
    arguments: [true, false])
  func inherited(isRecorded: Bool) throws {
    try directory.write("t-a.part", Array("abc".utf8))
    // A link to nowhere in place of the logs.
    if !isRecorded { symlink("/nonexistent/parts", directory.path + "/.parts") }
    let name = StreamName(path: "/t", streamID: "a", mediaType: nil)
    let (first, second) = (Upload(), Upload())
    first.ownsFile = true
    registry.restore(first, of: name)
    _ = registry.end(.discard, name, by: first) { _ in }
    let warnings = events.all.filter { $0.reason?.hasPrefix("cannot record bytes of others in t-a.part: ") == true }
    #expect(warnings.count == (isRecorded ? 0 : 1), "\(events.all)")
    registry.restore(second, of: name)
    #expect(second.ownsFile)
    #expect(try directory.text("t-a.part") == "abc")
  }

  @Test("a recording whose upload was discarded is closed, and not removed, if others have written to it")
  func discardedButShared() throws {
    let (upload, keeper) = try begun()
    #expect(upload.ownsFile)
    try registry.store.note(.shared, on: StreamName(path: "/t", streamID: "a", mediaType: nil))
    keeper.park()
    _ = keeper.end(.discard, for: upload) { _ in }
    // All uploads of the earlier server are known now.
    registry.restored()
    let closed = try runUntilClosed()
    #expect(closed.file == "t-a.bin" && closed.bytes == 3, "\(closed)")
    #expect(try directory.text("t-a.bin") == "abc")
  }
}
