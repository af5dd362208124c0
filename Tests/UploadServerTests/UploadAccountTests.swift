// Tests the accounts of the limits: unfinished stored bytes count exactly once, for the client that stored them, and
// nothing else counts.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import SyncGate
import Synchronization
import Testing

@testable import DiskFiles
@testable import ResumableServing
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

@Suite("Accounting of the limits", .serialized)
struct UploadAccountTests {
  // MARK: The parts

  @Test("concurrent reservations never exceed a limit, and released amounts are free again")
  func reservations() throws {
    var limits = UploadLimitsConfiguration()
    limits.quota = 10_000
    limits.quotaPerClient = 4_000
    let usage = UploadUsage(limits)
    let counters = Counters()
    var threads: [NamedThread] = []
    for number in 0..<4 {
      threads.append(
        try NamedThread("reserving") {
          let share = usage.share(of: UploadOwner(credential: nil, address: "\(number % 3)"))
          var generator = SplitMix64(state: UInt64(number))
          for _ in 0..<20_000 {
            let count = usage.reserve(UInt64.random(in: 0...900, using: &generator), for: share)
            let sum = counters.sum.wrappingAdd(Int(count), ordering: .relaxed).newValue
            if sum > 10_000 { counters.isDone.store(true, ordering: .relaxed) }
            counters.sum.wrappingSubtract(Int(count), ordering: .relaxed)
            usage.refund(count, of: share)
          }
          usage.release(share)
        })
    }
    for thread in threads { thread.join() }
    // The limit is never exceeded.
    let isExceeded = counters.isDone.load(ordering: .relaxed)
    #expect(!isExceeded)
    let share = usage.share(of: UploadOwner(credential: nil, address: "0"))
    #expect(usage.room(of: nil) == 4_000 && usage.reserve(.max, for: share) == 4_000)
    #expect(usage.room(of: nil) == 4_000 && usage.room(of: share) == 0)
  }

  @Test("a disk that does not answer during a recount delays no request, and its late result is ignored")
  func slowDisk() async {
    await #expect(processExitsWith: .success) {
      var limits = UploadLimitsConfiguration()
      limits.quota = 100
      let usage = UploadUsage(limits)
      let directory = TemporaryDirectory()
      let descriptor = open(directory.path, O_RDONLY | O_DIRECTORY)
      let accounts = StreamAccounts(usage, in: descriptor)
      let owner = UploadOwner(credential: nil, address: "a")
      let names = ["a", "b"].map { StreamName(path: "/t.txt", streamID: $0, mediaType: "text/plain") }
      // Two interrupted streams whose files are gone.
      for name in names {
        _ = accounts.open(name, length: 30, owner: owner)
        accounts.close(name)
      }
      try require(usage.room(of: nil) == 40, "both count")
      status_gate_close()
      accounts.recount(on: BackgroundWorker())
      try waitUntil("the disk is asked") { status_gate_waiters() > 0 }
      let isDone = Lock(false)
      try NamedThread("loop") {
        // For each of the two: a request begins to write, and has written bytes, before the disk answers.
        for name in names {
          _ = accounts.open(name, length: 30, owner: owner)
          accounts.close(name)
        }
        isDone.withLock { $0 = true }
      }.detach()
      try waitUntil("no loop waits for the disk") { isDone.withLock { $0 } }
      status_gate_open()
      try waitUntil("the second one is counted again") { usage.room(of: nil) == 70 }
      try require(usage.room(of: nil) == 70, "and the first one was in use")
    }
  }

  @Test(
    "an upload at an exhausted quota makes the server detect each time that another program has removed a file",
    arguments: [false, true])
  func removedFiles(isInterrupted: Bool) throws {
    let test = try TestServer {
      $0.uploads.quota = 3
      $0.uploads.parkDelay = .milliseconds(1)
    }
    var location = try test.create()
    for round in 0..<2 {
      let client = try test.connect()
      if isInterrupted {
        try client.patch(location, at: 0, body: nil, chunked: true)
        try client.sendChunk("abc")
        try client.awaitProgress(3)
        client.disconnect()
        _ = try test.events.wait(.interrupted, count: round + 1)
      } else {
        try client.patch(location, at: 0, body: "abc")
        #expect(try client.final().answer.status == 204)
      }
      let other = try test.connect()
      try other.request("POST", "/r\(round)", ["Upload-Complete: ?0"], body: "")
      #expect(try other.final().answer.status == 507)
      unlink(test.directory.path + "/" + test.onlyFile)
      try waitUntil("there is room") {
        try other.request("POST", "/r\(round)", ["Upload-Complete: ?0"], body: "")
        let answer = try other.final().answer
        location = answer["location"] ?? location
        return answer.status == 201
      }
    }
  }

  // MARK: The whole

  private static let tokens = """
    8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8
    f44e64e75f3948e9f73f8dfa94721c4ce8cbb4f265c4790c702b2d41cfbf2753

    """

  /// The state that the server should have: each unfinished stream with its owner and size.
  private struct Model {
    struct Stream {
      var id: String
      var owner: Int
      var length = 0
      /// The URL of its upload, if it is resumable.
      var location: String?
    }
    var streams: [Stream] = []
    var quota: Int?
    var quotaPerClient: Int?

    func room(_ owner: Int) -> Int {
      let total = streams.reduce(0) { $0 + $1.length }
      let own = streams.filter { $0.owner == owner }.reduce(0) { $0 + $1.length }
      return max(0, min((quota ?? .max) - total, (quotaPerClient ?? .max) - own))
    }
  }

  private struct Bed {
    let directory: TemporaryDirectory
    let hasTokens: Bool
    let configure: (inout UploadServer.Configuration) -> Void

    func start() throws -> TestServer {
      let path = directory.path + "/tokens"
      if hasTokens {
        guard let file = fopen(path, "w") else { throw TestFailure("cannot write \(path)") }
        fputs(UploadAccountTests.tokens, file)
        fclose(file)
      }
      return try TestServer(in: directory) {
        if hasTokens { $0.tokenFile = path }
        configure(&$0)
      }
    }
  }

  @Test(
    "plain and resumable, chunked and sized, complete, interrupted and restarted: the usage is the stored size, and limits apply",
    arguments: Seed.several(2), [true, false])
  func product(_ seed: Seed, _ hasTokens: Bool) throws {
    var random = seed.generator
    for round in 0..<3 {
      var model = Model()
      if random.chance(70) { model.quota = Int.random(in: 20...60, using: &random) }
      if random.chance(70) || model.quota == nil { model.quotaPerClient = Int.random(in: 10...40, using: &random) }
      let limits = model
      let bed = Bed(directory: TemporaryDirectory(), hasTokens: hasTokens) {
        $0.uploads.quota = limits.quota.map { UInt64($0) }
        $0.uploads.quotaPerClient = limits.quotaPerClient.map { UInt64($0) }
      }
      var test = try bed.start()
      var history: [String] = []
      for step in 0..<40 {
        let owner = hasTokens ? Int.random(in: 0...1, using: &random) : 0
        let count = Int.random(in: 0...20, using: &random)
        let own = model.streams.indices.filter { model.streams[$0].owner == owner }
        let action = Int.random(in: 0..<100, using: &random)
        if action < 8 {
          history.append("restart")
          test.stop()
          test = try bed.start()
        } else if action < 50 || own.isEmpty {
          let isResumable = random.chance(50)
          var stream = Model.Stream(id: "r\(round)s\(step)", owner: owner)
          history.append("begin \(stream.id) resumable \(isResumable) \(owner) \(count)")
          if isResumable {
            try Self.create(&stream, count, random.chance(50), &model, test, hasTokens)
          } else {
            try Self.plain(&stream, count, &random, &model, test, hasTokens)
          }
        } else {
          // The list is not empty.
          let index = own.randomElement(using: &random) ?? 0
          var stream = model.streams.remove(at: index)
          history.append("go on \(stream.id) resumable \(stream.location != nil) \(owner) \(count)")
          model.streams.append(stream)
          let isDeleted = stream.location != nil && random.chance(20)
          model.streams.removeLast()
          if isDeleted {
            history.append("delete")
            try Self.delete(stream, test, hasTokens)
          } else if stream.location != nil {
            try Self.append(&stream, count, &random, &model, test, hasTokens)
          } else {
            try Self.plain(&stream, count, &random, &model, test, hasTokens)
          }
        }
        // The files on the disk match the model.
        let parts = test.directory.names.filter { $0.hasSuffix(".part") }
        // A stream without bytes may disappear at any moment.
        let sizes = parts.compactMap { try? test.directory.contents($0).count }.sorted()
        let expected = model.streams.map(\.length).sorted()
        #expect(sizes.filter { $0 > 0 } == expected.filter { $0 > 0 }, "\(seed) \(round) \(history)")
        if sizes.filter({ $0 > 0 }) != expected.filter({ $0 > 0 }) { return }
      }
      // After the removal of all files, the whole quota is free again, to the byte.
      try Command.run("sh", ["-c", "rm -f \(test.directory.path)/*.part"])
      test.stop()
      test = try bed.start()
      model.streams = []
      for owner in hasTokens ? [0, 1] : [0] {
        var stream = Model.Stream(id: "last\(owner)", owner: owner)
        let room = model.room(owner)
        try Self.plain(&stream, room, cut: true, isChunked: true, &model, test, hasTokens)
      }
    }
  }

  private static func lines(_ owner: Int, _ hasTokens: Bool) -> [String] {
    hasTokens ? ["Authorization: Bearer \(owner == 0 ? "alpha" : "beta")"] : []
  }

  /// Sends a plain request with new bytes of a stream.
  private static func plain(
    _ stream: inout Model.Stream, _ count: Int, _ random: inout SplitMix64, _ model: inout Model, _ test: TestServer,
    _ hasTokens: Bool
  ) throws {
    let isChunked = random.chance(50)
    try plain(
      &stream, count, hole: random.chance(20) ? Int.random(in: 1...15, using: &random) : 0,
      cut: isChunked && random.chance(60), isChunked: isChunked, &model, test, hasTokens)
  }

  private static func plain(
    _ stream: inout Model.Stream, _ count: Int, hole: Int = 0, cut: Bool, isChunked: Bool, _ model: inout Model,
    _ test: TestServer, _ hasTokens: Bool
  ) throws {
    // The stream's own bytes count too.
    model.streams.append(stream)
    let room = model.room(stream.owner)
    model.streams.removeLast()
    let isNew = stream.length == 0
    let client = try test.connect()
    let offset = stream.length + hole
    let fields = lines(stream.owner, hasTokens) + ["Stream-ID: \(stream.id)", "Stream-Offset: \(offset)"]
    let body = String(repeating: "x", count: count)
    // A request that is refused before its body stores nothing.
    let refusedAtOnce = (isNew && room == 0) || hole > room || (!isChunked && hole + count > room)
    let stored = refusedAtOnce ? 0 : min(count, room - hole)
    // The hole is made by the first byte after it, or by an end of the stream at that place.
    let isMoved = stored > 0 || hole == 0 || count == 0 && !cut && !refusedAtOnce
    if isChunked {
      try client.request("POST", "/t.bin", version: nil, fields, chunked: true)
      if count > 0 { _ = try? client.sendChunk(body) }
      if !cut { _ = try? client.send("0\r\n\r\n") }
    } else {
      try client.request("POST", "/t.bin", version: nil, fields, body: body)
    }
    if refusedAtOnce || stored < count {
      let answer = try client.final().answer
      #expect(answer.status == 507, "\(stream) \(count) hole \(hole) room \(room): \(answer)")
      if !refusedAtOnce { #expect(answer["stream-offset"] == "\(isMoved ? offset + stored : stream.length)") }
    } else if cut {
      let name = "t-\(stream.id).part"
      let id = stream.id
      let before = isMoved ? offset + count : stream.length
      try waitUntil("\(name) has \(before) bytes") {
        (try? test.directory.contents(name).count) == before
      }
      client.disconnect()
      _ = try test.events.first("the interruption of \(id)") {
        $0.kind == .interrupted && $0.stream == id && $0.offset == UInt64(before)
      }
    } else {
      let answer = try client.final().answer
      #expect([200, 201].contains(answer.status), "\(stream) \(count) hole \(hole) room \(room): \(answer)")
      return
    }
    if !refusedAtOnce, isMoved { stream.length = offset + stored }
    if stream.length > 0 { model.streams.append(stream) }
  }

  private static func create(
    _ stream: inout Model.Stream, _ count: Int, _ isChunked: Bool, _ model: inout Model, _ test: TestServer,
    _ hasTokens: Bool
  ) throws {
    let room = model.room(stream.owner)
    let client = try test.connect()
    let fields = lines(stream.owner, hasTokens) + ["Stream-ID: \(stream.id)", "Upload-Complete: ?0"]
    let body = String(repeating: "x", count: count)
    try client.request("POST", "/t.bin", fields, body: isChunked ? nil : body, chunked: isChunked)
    if isChunked {
      if count > 0 { _ = try? client.sendChunk(body) }
      _ = try? client.send("0\r\n\r\n")
    }
    let (answer, interim) = try client.final()
    guard room > 0 else {
      #expect(answer.status == 507 && interim.isEmpty)
      return
    }
    stream.length = min(count, room)
    #expect(answer.status == (count > room ? 507 : 201), "\(stream) \(count) room \(room): \(answer)")
    #expect(answer["upload-offset"] == "\(stream.length)")
    stream.location = answer["location"] ?? interim.lazy.compactMap { $0["location"] }.first
    model.streams.append(stream)
  }

  private static func append(
    _ stream: inout Model.Stream, _ count: Int, _ random: inout SplitMix64, _ model: inout Model, _ test: TestServer,
    _ hasTokens: Bool
  ) throws {
    model.streams.append(stream)
    let room = model.room(stream.owner)
    model.streams.removeLast()
    let location = stream.location ?? ""
    let fields = lines(stream.owner, hasTokens)
    let body = String(repeating: "x", count: count)
    let client = try test.connect()
    let isChunked = random.chance(50)
    // An announced length applies to all later requests.
    let completes = random.chance(40) && (isChunked || count <= room)
    let isCut = isChunked && random.chance(30)
    try client.patch(
      location, at: stream.length, completes: completes, fields, body: isChunked ? nil : body, chunked: isChunked)
    if isChunked, count > 0 { _ = try? client.sendChunk(body) }
    if isCut {
      try? client.awaitProgress(stream.length + min(count, room))
      client.disconnect()
      stream.length += min(count, room)
      let other = try test.connect()
      try other.request("HEAD", location, fields)
      let answer = try other.final(withBody: false).answer
      #expect(answer["upload-offset"] == "\(stream.length)", "\(stream) \(count) room \(room): \(answer)")
    } else {
      if isChunked { _ = try? client.send("0\r\n\r\n") }
      let answer = try client.final().answer
      if count > room {
        stream.length += room
        #expect(
          answer.status == 507 && answer["upload-offset"] == "\(stream.length)",
          "\(stream) \(count) room \(room): \(answer)")
      } else {
        stream.length += count
        #expect((200...204).contains(answer.status), "\(stream) \(count) room \(room): \(answer)")
        if completes { return }
      }
    }
    model.streams.append(stream)
  }

  private static func delete(_ stream: Model.Stream, _ test: TestServer, _ hasTokens: Bool) throws {
    let client = try test.connect()
    try client.request("DELETE", stream.location ?? "", lines(stream.owner, hasTokens))
    let answer = try client.final().answer
    #expect(answer.status == 204, "\(stream): \(answer)")
  }

  @Test("all clients share the server's quota")
  func shared() throws {
    let bed = Bed(directory: TemporaryDirectory(), hasTokens: true) { $0.uploads.quota = 10 }
    let test = try bed.start()
    for (owner, stored) in [(0, 6), (1, 4)] {
      let client = try test.connect()
      try client.request(
        "POST", "/t.bin", Self.lines(owner, true) + ["Upload-Complete: ?0"], body: "123456")
      let answer = try client.final().answer
      #expect(answer.status == (stored == 6 ? 201 : 507) && answer["upload-offset"] == "\(stored)", "\(answer)")
    }
  }

  @Test(
    "a recording that was closed before its end counts until it is removed, even after a restart",
    arguments: [true, false])
  func closed(_ hasTokens: Bool) throws {
    let bed = Bed(directory: TemporaryDirectory(), hasTokens: hasTokens) {
      $0.uploads.quotaPerClient = 10
      $0.finishAfter = .seconds(1)
    }
    var test = try bed.start()
    for isResumable in [true, false] {
      let client = try test.connect()
      let more = Self.lines(0, hasTokens) + (isResumable ? ["Upload-Complete: ?0"] : [])
      try client.request(
        "POST", "/t.bin", version: isResumable ? 8 : nil, ["Stream-ID: \(isResumable)"] + more, chunked: true)
      try client.sendChunk("1234")
      try waitUntil("the bytes are stored") { (try? test.directory.contents("t-\(isResumable).part").count) == 4 }
      client.disconnect()
    }
    _ = try test.events.wait(.closed, count: 2)
    for round in 0..<2 {
      let client = try test.connect()
      try client.request("POST", "/u.bin", version: nil, Self.lines(0, hasTokens), body: "123")
      #expect(try client.final().answer.status == 507, "\(round)")
      // The next part of a closed stream is charged only for its own bytes.
      let next = try test.connect()
      try next.request(
        "POST", "/t.bin", version: nil, Self.lines(0, hasTokens) + ["Stream-ID: \(round == 0)", "Stream-Offset: 4"],
        body: "12")
      #expect(try next.final().answer.status == 201, "\(round)")
      test.stop()
      test = try bed.start()
    }
    try Command.run("rm", [test.directory.path + "/t-true.bin"])
    try waitUntil("the room is free") {
      guard let other = try? test.connect() else { return false }
      try? other.request("POST", "/u", version: nil, Self.lines(0, hasTokens), body: "123456")
      return (try? other.final().answer.status) == 201
    }
  }

  @Test("closed recordings that the disk could not list at the start are counted as soon as it can")
  func listedLate() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let count = 300
      try require(mkdir(directory.path + "/.parts", 0o700) == 0, "mkdir")
      for number in 0..<count {
        try directory.write("s-\(number).bin", [1])
        var part = RecordingPart(file: "s-\(number).bin")
        (part.end, part.count, part.owner) = (1, 1, UploadOwner(credential: nil, address: "a"))
        try directory.write(".parts/s-\(number)", Array("\(part.text ?? "")\n".utf8))
      }
      var limits = UploadLimitsConfiguration()
      limits.quota = 1000
      let usage = UploadUsage(limits)
      // The start has time for one slice of names, and the worker fails in the next.
      open_gate_delay(2000, "")
      list_gate_fail(EIO, "/.parts", 150)
      let store = try FileStore(
        path: directory.path, durability: .none, closedLifetime: .zero, files: OpenFiles(), usage)
      let isOver = try EventLog<Bool>()
      store.worker.executeSlice { isOver.append(true) }
      _ = try isOver.first("the slice before is over") { _ in true }
      open_gate_delay(0, "")
      try require(usage.room(of: nil) > 1000 - UInt64(count), "all are counted already")
      list_gate_fail(0, "", 0)
      // The disk does not answer the next attempt either.
      open_gate_fail(EIO, "/.parts")
      try waitUntil("the logs cannot be listed") {
        store.listAgain()
        return open_gate_failures() > 0
      }
      open_gate_fail(0, "")
      try waitUntil("all are counted") {
        store.listAgain()
        return usage.room(of: nil) == 1000 - UInt64(count)
      }
    }
  }

  @Test("files that the operator removes free their space without a restart")
  func removedByHand() throws {
    let bed = Bed(directory: TemporaryDirectory(), hasTokens: false) { $0.uploads.quota = 10 }
    let test = try bed.start()
    let client = try test.connect()
    try client.send(TestServer.head("/t", id: "a") + "8\r\n12345678\r\n")
    _ = try test.events.wait(.begun)
    try waitUntil("the bytes are stored") { (try? test.directory.contents("t-a.part").count) == 8 }
    client.disconnect()
    _ = try test.events.wait(.interrupted)
    try Command.run("rm", [test.directory.path + "/t-a.part"])
    try waitUntil("the room is free") {
      guard let other = try? test.connect() else { return false }
      try? other.request("POST", "/u", version: nil, body: "123456789")
      return (try? other.final().answer.status) == 201
    }
  }
}

private final class Counters: Sendable {
  let sum = Atomic<Int>(0)
  let isDone = Atomic<Bool>(false)
}
