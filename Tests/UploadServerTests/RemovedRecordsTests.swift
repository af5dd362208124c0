// Tests that a server continues when somebody removes the directory of its upload records.

import Glibc
import NetworkTesting
import StreamServing
import Testing
import UploadServer

@Suite("A server whose .uploads is removed")
struct RemovedRecordsTests {
  /// The path of an upload's record in the server's directory.
  private static func record(of location: String) -> String { location.dropFirst() + ".upload" }

  @Test(
    "new uploads are recorded as before, an earlier one continues, and one warning reports it",
    arguments: [Durability.none, .interval, .always], [1, 3])
  func removed(_ durability: Durability, _ threads: Int) throws {
    let directory = TemporaryDirectory()
    func server() throws -> TestServer {
      try TestServer(in: directory) { ($0.durability, $0.threads) = (durability, threads) }
    }
    // The directory exists before each thread looks for it.
    let former = try server()
    _ = try former.create()
    former.stop()
    let first = try server()
    let earlier = try first.create("/earlier.txt", ["Stream-ID: a"])
    try first.append(earlier, at: 0, "abc")
    for _ in 0..<2 {
      let before = first.events.all.count { $0.kind == .warning }
      // The server may write a record meanwhile, after a sync.
      try waitUntil("it is removed") { try Command.run("rm", ["-r", directory.path + "/.uploads"]) == 0 }
      var locations: [String] = []
      // Enough for each thread to have some of them.
      for number in 0..<12 {
        let location = try first.create("/t\(number).txt", ["Stream-ID: \(before)"])
        try first.append(location, at: 0, "abc")
        locations.append(location)
      }
      let warnings = first.events.all.filter { $0.kind == .warning }
      #expect(warnings.count == before + 1 && warnings.last?.reason?.contains(".uploads was removed") == true)
      var status = stat()
      stat(directory.path + "/.uploads", &status)
      #expect(status.st_mode & 0o777 == 0o700)
      for location in locations { #expect(directory.exists(Self.record(of: location))) }
    }
    try first.append(earlier, at: 3, "def")
    #expect(try directory.text("earlier-a.part") == "abcdef")
    let last = try first.create("/last.txt", ["Stream-ID: a"])
    try first.append(last, at: 0, "abc")
    first.stop()

    let second = try server()
    let client = try second.connect()
    #expect(try client.head(last)["upload-offset"] == "3")
    try client.patch(last, at: 3, completes: true, body: "def")
    #expect((200...201).contains(try client.final().answer.status))
    #expect(try directory.text("last-a.txt") == "abcdef")
  }

  @Test("another directory that took its place is used")
  func replaced() throws {
    let test = try TestServer()
    _ = try test.create()
    let path = test.directory.path + "/.uploads"
    #expect(try Command.run("rm", ["-r", path]) == 0)
    mkdir(path, 0o700)
    let location = try test.create()
    #expect(test.directory.exists(Self.record(of: location)))
    #expect(try test.connect().head(location).status == 204)
  }
}
