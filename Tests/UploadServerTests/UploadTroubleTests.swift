// Tests uploads under difficult conditions: full disks, power failures at any moment, and several clients at once.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Testing

@testable import StreamStore
@testable import UploadServer

@Suite("Resumable uploads with faults", .serialized)
struct UploadTroubleTests {
  @Test(
    "on a full disk, stored bytes count, and the upload continues there when there is space",
    .enabled(if: SmallDisk.isPossible, "mounting a small tmpfs needs CAP_SYS_ADMIN"))
  func diskFull() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let disk = try SmallDisk(at: directory.path)
      for durability in Durability.allCases {
        let test = try TestServer(in: directory) {
          // On a busy machine a client may read its answer late, and must not find the connection reset.
          $0.lingerTimeout = .seconds(60)
          $0.durability = durability
        }
        try disk.resize("1m")
        let all = bytes(0..<2_000_000)
        let location = try test.create("/t.bin", ["Stream-ID: \(durability)"])
        let client = try test.connect()
        try client.patch(location, at: 0, chunked: true)
        for start in stride(from: 0, to: all.count, by: 50_000) {
          do { try client.sendChunk(Array(all[start..<(start + 50_000)])) } catch { break }
        }
        let refused = try client.final().answer
        try require(
          refused.status == 507 && refused["upload-complete"] == "?0" && refused["retry-after"] == "2", "\(refused)")
        let offset = refused["upload-offset"].flatMap { Int($0) } ?? 0
        try require(offset > 500_000 && offset <= 1_048_576, "\(offset) bytes are kept")
        client.disconnect()
        // After the replaced records have been rewritten, there is no room for a new record. The server then creates no
        // upload, and the stored bytes stay.
        let other = try test.connect()
        try waitUntil("there is no room for a record") {
          try other.request("POST", "/u", ["Upload-Complete: ?0"], body: "")
          return try other.final().answer.status == 507
        }
        let asking = try test.connect()
        try require(try asking.head(location)["upload-offset"] == "\(offset)", "they still are")

        try disk.resize("8m")
        try asking.patch(location, at: offset, completes: true, ["Content-Length: \(all.count - offset)"])
        try asking.send(Array(all[offset...]))
        try require(try asking.final().answer.status == 201, "there is room for the rest")
        try require(try directory.contents("t-\(durability).bin") == all, "it is as it was sent")
        unlink(directory.path + "/t-\(durability).bin")
        asking.disconnect()
        test.stop()
      }
    }
  }

  @Test(
    "a sidecar without disk space follows when there is space",
    .enabled(if: SmallDisk.isPossible, "mounting a small tmpfs needs CAP_SYS_ADMIN"))
  func refusedSidecar() async {
    await #expect(processExitsWith: .success) {
      var lateCount = 0
      for durability in Durability.allCases {
        for pages in 0..<6 {
          let directory = TemporaryDirectory()
          let disk = try SmallDisk(at: directory.path)
          let test = try TestServer(in: directory) {
            ($0.durability, $0.maintenancePause) = (durability, .milliseconds(5))
          }
          let location = try test.create("/t.wav", ["Stream-ID: a", "Content-Type: audio/wav"])
          try test.append(location, at: 0, StreamedHead.all[0].bytes + [UInt8](repeating: 3, count: 400))
          // Leaves room for this number of pages.
          try Command.run(
            "sh", ["-c", "cd \(directory.path); cat /dev/zero > filler; truncate -s -\(pages * 4096) filler"])
          let client = try test.connect()
          try client.patch(location, at: StreamedHead.all[0].bytes.count + 400, completes: true, body: "")
          let status = try client.final().answer.status
          try require([201, 507].contains(status), "\(durability), \(pages) pages: \(status)")
          try disk.resize("2m")
          if status == 507 {
            try client.patch(location, at: StreamedHead.all[0].bytes.count + 400, completes: true, body: "")
            try require(try client.final().answer.status == 201, "there is room")
          } else if !directory.exists("t-a.sidecar") {
            lateCount += 1
          }
          try waitUntil("the sidecar follows: \(durability), \(pages) pages") { directory.exists("t-a.sidecar") }
        }
      }
      try require(lateCount > 0, "some had no room")
    }
  }

  @Test(
    "a recording that was split off on a full disk is finished when there is space, even after a restart",
    .enabled(if: SmallDisk.isPossible, "mounting a small tmpfs needs CAP_SYS_ADMIN"))
  func refusedSplit() async {
    await #expect(processExitsWith: .success) {
      let stream = StreamedHead.all[0].bytes + [UInt8](repeating: 3, count: 4000)
      var lateCount = 0
      for pages in 0..<8 {
        let directory = TemporaryDirectory()
        let disk = try SmallDisk(at: directory.path)
        func server() throws -> TestServer {
          try TestServer(in: directory) {
            $0.maintenancePause = .milliseconds(5)
            $0.split = RecordingSplit(size: 1)
            $0.split?.leastLength = 2000
          }
        }
        var test = try server()
        let location = try test.create("/t.wav", ["Stream-ID: a", "Content-Type: audio/wav"])
        try test.append(location, at: 0, Array(stream[..<1000]))
        try Command.run(
          "sh", ["-c", "cd \(directory.path); cat /dev/zero > filler; truncate -s -\(pages * 4096) filler"])
        let client = try test.connect()
        try client.patch(location, at: 1000, ["Content-Length: \(stream.count - 1000)"])
        try client.send(Array(stream[1000...]))
        _ = try client.final()
        test.stop()
        test = try server()
        // All attempts so far have failed.
        let asking = try test.connect()
        let offset = try asking.head(location)["upload-offset"].flatMap { Int($0) } ?? 0
        if directory.names.contains(where: { $0.hasSuffix(".part") }) { lateCount += 1 }
        try disk.resize("4m")
        try asking.patch(location, at: offset, completes: true, ["Content-Length: \(stream.count - offset)"])
        try asking.send(Array(stream[offset...]))
        try require(try asking.final().answer.status == 201, "there is room: \(pages) pages")
        try waitUntil("all are finished: \(pages) pages, \(directory.names)") {
          let files = directory.names.filter { $0.hasPrefix("t-a") }
          return files.allSatisfy { $0.hasSuffix(".wav") || $0.hasSuffix(".gaps") }
            && files.filter { $0.hasSuffix(".wav") }.allSatisfy { directory.exists($0.dropLast(4) + ".sidecar") }
        }
      }
      try require(lateCount > 0, "some had no room")
    }
  }

  @Test(
    "a copy of the directory at any instant is consistent: it has all acknowledged bytes, and continues",
    arguments: [Durability.none, .interval, .always], Seed.several(1))
  func copied(_ durability: Durability, _ seed: Seed) throws {
    var random = seed.generator
    let test = try TestServer { $0.durability = durability }
    let all = bytes(0..<600_000)
    let location = try test.create("/t.bin", ["Upload-Length: \(all.count)", "Stream-ID: c"])
    let client = try test.connect()
    try client.patch(location, at: 0, completes: true, chunked: true)
    var sent = 0
    var told = 0
    while sent < all.count {
      let count = min(all.count - sent, Int.random(in: 1...40_000, using: &random))
      try client.sendChunk(Array(all[sent..<(sent + count)]))
      sent += count
      while let answer = try client.answerAtHand() {
        if answer.status == 104, let offset = answer["upload-offset"].flatMap({ Int($0) }) { told = offset }
      }
      // Wait until the file exists, because cp lists the directory before it copies the record.
      guard told > 0, random.chance(25) else { continue }
      // The server keeps writing meanwhile. Each file is copied as it is at some moment, as a failing machine would
      // leave it.
      let copy = try test.directory.copyOfKilled()
      // cp copies it after the bytes, so it may count later ones.
      try copy.removeMark("t-c.part")
      let other = try TestServer(in: copy) { $0.durability = durability }
      let second = try other.connect()
      let standing = try second.head(location)
      let offset = try #require(standing["upload-offset"].flatMap { Int($0) }, "\(standing)")
      #expect(offset >= told && offset <= sent && standing["upload-complete"] == "?0")
      try second.patch(location, at: offset, completes: true, ["Content-Length: \(all.count - offset)"])
      try second.send(Array(all[offset...]))
      #expect(try second.final().answer["upload-complete"] == "?1")
      #expect(try copy.contents("t-c.bin") == all)
      second.disconnect()
    }
    try client.send("0\r\n\r\n")
    #expect(try client.final().answer.status == 201)
    #expect(try test.directory.contents("t-c.bin") == all)
  }

  @Test(
    "many clients append to one upload, request its offset and disconnect, and every byte is stored once and in order",
    arguments: [true, false], Seed.several(2))
  func concurrent(_ isKept: Bool, _ seed: Seed) throws {
    let size = 300_000
    let all = bytes(0..<size)
    let received = Lock<[UInt8]>([])
    let test = try TestServer {
      // Either the store keeps the bytes, or they are spooled for a handler.
      if !isKept { $0.handler = { _ in Gatherer { bytes in received.withLock { $0 = bytes } } } }
    }
    let location = try test.create("/t.bin", ["Stream-ID: m"])
    let address = test.address
    let isOver = Lock(false)
    let timeouts = Lock<[String]>([])
    @Sendable func worker(_ seed: UInt64) {
      var random = SplitMix64(state: seed)
      while !isOver.withLock({ $0 }) {
        do {
          let client = try RawClient(address)
          let standing = try client.head(location)
          guard let offset = standing["upload-offset"].flatMap({ Int($0) }) else { continue }
          if standing["upload-complete"] == "?1" { return isOver.withLock { $0 = true } }
          let count = min(size - offset, Int.random(in: 0...30_000, using: &random))
          let completes = offset + count == size
          // Whether the request will be answered.
          var isWhole = true
          if offset > 1, random.chance(10) {
            // A stale request, which is refused and has no other effect.
            try client.patch(location, at: offset / 2, chunked: true)
            try client.sendChunk("x")
          } else if random.chance(50) {
            // A request at the announced offset, which may be stale by now.
            try client.patch(location, at: offset, completes: completes, ["Content-Length: \(count)"])
            try client.send(Array(all[offset..<(offset + count)]))
          } else if count > 0 {
            try client.patch(location, at: offset, chunked: true)
            try client.sendChunk(Array(all[offset..<(offset + count)]))
            isWhole = random.chance(50)
            if isWhole { try client.send("0\r\n\r\n") } else { client.reset() }
          } else {
            isWhole = false
          }
          if isWhole, random.chance(70) { _ = try client.final() }
        } catch let failure as TestFailure where failure.isTimeout {
          timeouts.withLock { $0.append("\(failure)") }
        } catch {
          // The test is about a client that is cut off because another takes over.
        }
      }
    }
    let seeds = (0..<4).map { seed.value &+ UInt64($0) }
    try concurrently({ worker(seeds[0]) }, { worker(seeds[1]) }, { worker(seeds[2]) }, { worker(seeds[3]) })
    #expect(timeouts.withLock { $0 } == [])
    if isKept {
      #expect(try test.directory.contents("t-m.bin") == all)
    } else {
      #expect(received.withLock { $0 } == all)
    }
  }

  @Test(
    "DELETE during appends by others removes everything, and none of their bytes return", arguments: Seed.several(2)
  )
  func deletedMeanwhile(_ seed: Seed) throws {
    let test = try TestServer()
    var random = seed.generator
    for _ in 0..<20 {
      let location = try test.create("/t.bin", ["Stream-ID: d"])
      let appending = try test.connect()
      try appending.patch(location, at: 0, chunked: true)
      try appending.sendChunk(bytes(0..<Int.random(in: 1...50_000, using: &random)))
      let cancelling = try test.connect()
      try cancelling.request("DELETE", location)
      try? appending.sendChunk("more")
      #expect(try cancelling.final().answer.status == 204)
      #expect(try cancelling.head(location).status == 410)
      #expect(test.directory.names == [".uploads"])
    }
  }

  @Test(
    "DELETE concurrent with completion: the recording and its gaps exist, or nothing does",
    arguments: Durability.allCases,
    Seed.several(1))
  func deletedAtTheEnd(_ durability: Durability, _ seed: Seed) throws {
    let test = try TestServer {
      $0.durability = durability
      $0.threads = 2
    }
    var random = seed.generator
    for round in 0..<60 {
      let location = try test.create(
        "/t.txt", ["Stream-ID: r\(round)", "Stream-Offset: 5", "Content-Type: text/plain"])
      let completing = try test.connect()
      let deleting = try test.connect()
      try completing.patch(location, at: 0, completes: true, ["Content-Length: 3"])
      if random.chance(50) { try completing.awaitProgress(0) }
      // The loop runs once more or once less.
      let isFirst = random.chance(50)
      if isFirst { try? completing.send("abc") }
      for _ in 0..<Int.random(in: 0...3, using: &random) { sched_yield() }
      try deleting.request("DELETE", location)
      if !isFirst { try? completing.send("abc") }
      #expect(try deleting.final().answer.status == 204)
      let answer = try completing.finalUnlessCutOff()
      let left = test.directory.names.filter { $0.hasPrefix("t-r\(round).") }
      #expect(left.isEmpty || left == ["t-r\(round).gaps", "t-r\(round).txt"], "\(left)")
      #expect(answer?.status != 201 || !left.isEmpty)
      for name in left { unlink(test.directory.path + "/" + name) }
    }
  }
}

extension RawClient {
  /// The next answer, if it has arrived completely.
  fileprivate func answerAtHand() throws -> Answer? {
    var entry = pollfd(fd: descriptor, events: Int16(POLLIN), revents: 0)
    guard poll(&entry, 1, 0) == 1 else { return nil }
    return try answer()
  }
}

private let pattern = OffsetPattern()

private func bytes(_ range: Range<Int>) -> [UInt8] { pattern[range] }
