// The real command against imitations of widely used servers.

import ChaosTesting
import CommandTesting
import NetworkTesting
import TestRigs
import Testing

@Suite("Third-party servers")
struct OtherServerTests {
  private static let options = ["--resumable", "always", "--retry-ceiling", "20ms"]

  private func url(_ server: OtherServer, _ program: OtherServer.Program) -> String {
    switch program {
    // A URL that ends with a slash gets the file's name, unless it has an empty query. tusd requires it without the
    // name.
    case .tusd: "\(server.tusdURL)?"
    case .swiftNIO: server.swiftNIOURL
    }
  }

  /// Expects one complete upload, and no guessed offset: none that a server would answer with 409 and destroy the
  /// upload for.
  private func expect(_ server: OtherServer, _ bytes: [UInt8], _ summary: FlatObject, cuts: Int) {
    let uploads = server.uploads
    #expect(uploads.count == 1)
    #expect(uploads.last?.bytes == bytes)
    #expect(uploads.last.map { $0.isComplete || $0.length == bytes.count } == true)
    #expect(!server.answers.contains { $0.status == 409 || $0.status == 404 })
    #expect(server.hasCutAll)
    #expect(summary.integer("acknowledged") == bytes.count)
    // Cuts without progress between them are one outage.
    #expect((1...max(1, cuts)).contains(summary.integer("outages") ?? 0))
  }

  @Test("a stream that is interrupted four times within an append", arguments: OtherServer.Program.allCases)
  func stream(program: OtherServer.Program) throws {
    let server = try OtherServer(program, cuts: [100_000, 150_000, 50_000, 300_000])
    let scratch = ScratchDirectory()
    let bytes = StampedPattern(seed: 1).bytes(1_200_001)
    let input = scratch.write(bytes, to: "input")
    let client = try StreamProcess(
      "pipe", url(server, program), more: Self.options + ["--roll-over-bytes", "128KiB"], input: input)
    let summary = try client.ended(code: 0)
    expect(server, bytes, summary, cuts: 4)
    #expect(client.events("stepped-down").last?.integer("version") == 6)
    #expect(server.answers.count { $0.method == "PATCH" } >= 5)
    #expect(summary.integer("resent") ?? .max <= 4 * (128 << 10))
  }

  @Test(
    "a file within its creation, and one after its creation, each interrupted three times",
    arguments: OtherServer.Program.allCases, [1_500_001, 6_000_001])
  func file(program: OtherServer.Program, size: Int) throws {
    let server = try OtherServer(program, cuts: [200_000, 1, 700_000])
    let scratch = ScratchDirectory()
    let bytes = StampedPattern(seed: 2).bytes(size)
    let path = scratch.write(bytes, to: "file.bin")
    let client = try StreamProcess("put", path, more: [url(server, program), "--method", "POST"] + Self.options)
    let summary = try client.ended(code: 0)
    expect(server, bytes, summary, cuts: 3)
  }

  @Test("without a question to the server before: --resumable auto detects its support, and continues as above")
  func discovered() throws {
    for program in OtherServer.Program.allCases {
      let server = try OtherServer(program, cuts: [70_000])
      let scratch = ScratchDirectory()
      let bytes = StampedPattern(seed: 3).bytes(300_000)
      let input = scratch.write(bytes, to: "input")
      let client = try StreamProcess(
        "pipe", url(server, program), more: ["--retry-ceiling", "20ms", "--roll-over-bytes", "100KiB"], input: input)
      expect(server, bytes, try client.ended(code: 0), cuts: 1)
      #expect(server.answers.contains { $0.method == "OPTIONS" && $0.status == 200 })
      #expect(client.events("not-resumable").isEmpty)
    }
  }
}
