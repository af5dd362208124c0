// Creations that the disk refuses leave nothing.

import Glibc
import NetworkTesting
import Testing

@testable import UploadServer

@Suite("Creations that the disk refuses")
struct RefusedCreationTests {
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
    let client = try test.connect()
    try client.request(
      "POST", "/t.txt", ["Authorization: Bearer alpha", "Upload-Complete: ?0", "Stream-ID: \(id)"], body: content)
    return try client.final().answer
  }

  /// The files of a stream and the records of uploads.
  private static func remains(_ id: String, in directory: TemporaryDirectory) throws -> [String] {
    let folders = [".uploads", ".owners", ".parts"].compactMap { try? allNames(in: "\(directory.path)/\($0)") }
    return try (allNames(in: directory.path) + folders.joined()).filter {
      $0.contains(id) || $0.hasSuffix(".upload") || $0.hasSuffix(".body")
    }
  }

  private static func requireNothing(of id: String, in directory: TemporaryDirectory, _ context: String) throws {
    do {
      try waitUntil("nothing is left") { try remains(id, in: directory).isEmpty }
    } catch {
      throw TestFailure("left of \(context): \(try remains(id, in: directory))")
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
