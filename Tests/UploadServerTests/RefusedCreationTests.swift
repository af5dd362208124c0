// Creations that the disk refuses, whichever step of them it is: none of them stays.

import ExitTesting
import Glibc
import NetworkTesting
import SyncGate
import Testing

@testable import UploadServer

@Suite("Creations that the disk refuses")
struct RefusedCreationTests {
  private static let calls = [
    DISK_OPEN, DISK_WRITE, DISK_SYNC, DISK_RENAME, DISK_TRUNCATE, DISK_MAKE_DIRECTORY, DISK_STATUS, DISK_READ,
  ]

  private nonisolated(unsafe) static let tokens = TemporaryDirectory()

  /// A server that accepts the token `alpha`: it records who owns a stream.
  private static func server(_ directory: TemporaryDirectory, _ durability: Durability) throws -> TestServer {
    // By sha256sum.
    try tokens.write("tokens", Array("8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8\n".utf8))
    return try TestServer(in: directory) {
      ($0.durability, $0.threads) = (durability, 1)
      $0.tokenFile = tokens.path + "/tokens"
    }
  }

  private static func create(_ test: TestServer, _ id: String, _ content: String) throws -> RawClient.Answer {
    try createAnnounced(test, id, content).answer
  }

  /// Returns also the URL of the upload, if any response named it.
  private static func createAnnounced(
    _ test: TestServer, _ id: String, _ content: String
  ) throws -> (answer: RawClient.Answer, location: String?) {
    let client = try test.connect()
    try client.request(
      "POST", "/t.txt", ["Authorization: Bearer alpha", "Upload-Complete: ?0", "Stream-ID: \(id)"], body: content)
    let (answer, interim) = try client.final()
    return (answer, (interim + [answer]).compactMap { $0["location"] }.last)
  }

  /// The files of a stream, and the records of uploads but for cancelled ones, which stay to answer 410.
  private static func remains(
    _ id: String, in directory: TemporaryDirectory, cancelled: Set<String>
  ) throws -> [String] {
    let folders = [".uploads", ".owners", ".parts"].compactMap { try? allNames(in: "\(directory.path)/\($0)") }
    return try (allNames(in: directory.path) + folders.joined()).filter {
      $0.contains(id) || $0.hasSuffix(".upload") && !cancelled.contains($0) || $0.hasSuffix(".body")
    }
  }

  private static func requireNothing(
    of id: String, in directory: TemporaryDirectory, cancelled: Set<String> = [], _ context: String
  ) throws {
    do {
      try waitUntil("nothing is left") { try remains(id, in: directory, cancelled: cancelled).isEmpty }
    } catch {
      throw TestFailure("left of \(context): \(try remains(id, in: directory, cancelled: cancelled))")
    }
  }

  @Test(
    "a creation of which the disk refuses any call leaves nothing, or an upload whose URL the client has",
    .enabled(if: disk_faults_are_possible() != 0),
    arguments: Durability.allCases)
  func eachCall(_ durability: Durability) async {
    await #expect(processExitsWith: .success) { [durability = durability.rawValue as String] in
      let directory = TemporaryDirectory()
      disk_faults_begin(directory.path)
      let test = try Self.server(directory, Durability(rawValue: durability) ?? .none)
      var refused = 0
      var cancelled: Set<String> = []
      for call in Self.calls {
        for number in 1...12 {
          for content in ["", "abc"] {
            let id = "c\(call.rawValue)n\(number)\(content)"
            disk_faults_fail(call, UInt(number), ENOSPC)
            let (answer, location) = try Self.createAnnounced(test, id, content)
            let place = String(cString: disk_faults_place()).dropFirst(directory.path.count)
            disk_faults_fail(DISK_OPEN, 0, 0)
            if answer.status != 201 { refused += 1 }
            if let location {
              let client = try test.connect()
              try client.request("DELETE", location, ["Authorization: Bearer alpha"])
              let end = try client.final().answer
              // The URL of a creation that was undone leads nowhere. A later sync may have met the fault, and the
              // server then closes the recording.
              try require([204, 404, 410].contains(end.status), "\(end)")
              try require(end.status != 404 || answer.status != 201, "\(answer), and then \(end)")
              if end.status != 404 { cancelled.insert("\(location.split(separator: "/").last ?? "").upload") }
              if end.status == 410 { continue }
            }
            let context = "call \(number) of kind \(call.rawValue) at \(place), answer \(answer.status) \(content)"
            try Self.requireNothing(of: id, in: directory, cancelled: cancelled, context)
          }
        }
      }
      try require(refused > 10, "only \(refused) creations were refused")
      disk_faults_begin("")
      test.stop()
    }
  }

  @Test(
    "a DELETE that arrives while a refused creation is undone is answered, even if the disk does not remove the file",
    .enabled(if: disk_faults_are_possible() != 0), arguments: [true, false])
  func deletedMeanwhile(isRemoved: Bool) async {
    await #expect(processExitsWith: .success) { [isRemoved = isRemoved as Bool] in
      reportingErrors {
        let directory = TemporaryDirectory()
        let test = try Self.server(directory, .interval)
        let authorization = "Authorization: Bearer alpha"
        let unrelated = try test.create("/other.txt", [authorization, "Stream-ID: b"])
        // The disk refuses the first bytes of the recording, and then hangs when it removes the recording.
        disk_faults_begin("\(directory.path)/t-gone.part")
        disk_faults_fail(DISK_WRITE, 1, ENOSPC)
        unlink_gate_close("/t-gone.part")
        if !isRemoved { unlink_gate_fail(EIO, "/t-gone.part") }
        let creator = try test.connect()
        try creator.request(
          "POST", "/t.txt", [authorization, "Upload-Complete: ?0", "Stream-ID: gone"], body: "abc")
        let announced = try creator.answer()
        guard announced.status == 104, let location = announced["location"] else {
          throw TestFailure("the upload is not announced: \(announced)")
        }
        try waitUntil("the disk is removing the recording") { unlink_gate_waiters() == 1 }
        let client = try test.connect()
        try client.request("DELETE", location, [authorization])
        // A HEAD is answered when each loop has served what had arrived before: the DELETE.
        let other = try test.connect()
        try other.request("HEAD", unrelated, [authorization])
        let found = try other.final(withBody: false).answer
        try require(found.status == 204, "\(found)")
        try require(!client.hasAnswer && !creator.hasAnswer, "answered during the removal")
        unlink_gate_open()
        let end = try client.final().answer
        try require(end.status == (isRemoved ? 204 : 500), "the DELETE: \(end)")
        let created = try creator.final().answer
        try require(created.status == 507, "the creation: \(created)")
        unlink_gate_fail(0, "")
        try other.request("HEAD", location, [authorization])
        let last = try other.final(withBody: false).answer
        try require(last.status == 404, "\(last)")
        let record = "\(unrelated.split(separator: "/").last ?? "").upload"
        try Self.requireNothing(of: "gone", in: directory, cancelled: [record], "the refused creation")
        disk_faults_begin("")
        test.stop()
      }
    }
  }

  @Test(
    "a creation that lacks an inode leaves nothing, and succeeds when the disk has enough",
    .enabled(if: SmallDisk.isPossible, "mounting a small tmpfs needs CAP_SYS_ADMIN"), arguments: Durability.allCases)
  func inodes(_ durability: Durability) async {
    await #expect(processExitsWith: .success) { [durability = durability.rawValue as String] in
      let directory = TemporaryDirectory()
      let disk = try SmallDisk(at: directory.path, "nr_inodes=40")
      let test = try Self.server(directory, Durability(rawValue: durability) ?? .none)
      var files = 0
      while let file = fopen("\(directory.path)/filler\(files)", "w") {
        fclose(file)
        files += 1
      }
      var statuses: [Int] = []
      while statuses.last != 201, files > 0 {
        let id = "left\(files)"
        let answer = try Self.create(test, id, "abc")
        statuses.append(answer.status)
        guard answer.status != 201 else { break }
        try Self.requireNothing(of: id, in: directory, "an answer of \(answer.status)")
        files -= 1
        unlink("\(directory.path)/filler\(files)")
      }
      let areRefused = statuses.dropLast().allSatisfy { $0 == 507 }
      try require(statuses.count > 2 && statuses.last == 201 && areRefused, "\(statuses)")
      test.stop()
      _ = disk
    }
  }
}
