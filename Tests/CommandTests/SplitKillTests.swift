// Tests serve --split whose process is killed while it divides a stream, and a next server that writes no sidecars. The
// two options exclude each other, so only a restart combines them.

import Glibc
import HTTPServer
import NetworkTesting
import PropertyTesting
import Testing

@Suite("Split recordings of a server that is killed, and a next server without sidecars")
struct SplitKillTests {
  /// The system call within which the server is killed.
  struct Kill: Sendable, CustomTestStringConvertible {
    let call: String
    let number: Int
    let file: String
    /// Whether the call names the file by a descriptor. Otherwise it names it by its path in the directory.
    let isOpen: Bool
    var testDescription: String { "\(call) \(number) of \(file)" }

    init(_ call: String, _ file: String, number: Int = 1, isOpen: Bool = true) {
      (self.call, self.number, self.file, self.isOpen) = (call, number, file, isOpen)
    }
  }

  static let kills = [
    Kill("fsync", "k-a.part", number: 3), Kill("fsync", "k-a.part", number: 5), Kill("fsync", "k-a.part", number: 6),
    Kill("openat", "k-a~2.part", isOpen: false), Kill("write", ".parts/k-a"), Kill("fdatasync", ".parts/k-a"),
    Kill("pwrite64", "k-a.part"), Kill("renameat2", "k-a.part", isOpen: false), Kill("fsync", "k-a~2.part"),
    Kill("renameat2", "k-a~2.part", isOpen: false), Kill("renameat2", "k-a~3.part", isOpen: false),
  ]

  private static let stream = CollectRig.wavHead + OffsetPattern(seed: 5)[0..<2_600_000]
  private static let headLength = CollectRig.wavHead.count
  /// The bytes of samples in a full recording.
  private static let limit = (1_000_000 - headLength) / 2 * 2

  private static func serve(
    _ directory: TemporaryDirectory, _ options: [String], _ kill: Kill? = nil
  ) throws -> (process: TestProcess, address: ListenAddress) {
    let arguments =
      ["serve", "--listen", "127.0.0.1:0", "--directory", directory.path, "--durability", "always"] + options
    let process =
      if let kill {
        try sluice(
          arguments, killedIn: kill.call, number: kill.number,
          on: kill.isOpen ? "\(directory.path)/\(kill.file)" : kill.file)
      } else {
        try sluice(arguments)
      }
    let line = try process.lines.first("its address") { $0.text.hasPrefix("listening on ") }.text
    return (process, try ListenAddress(String(line.dropFirst("listening on ".count))))
  }

  /// Sends the stream from that offset on, for as long as the server answers. Returns the acknowledged offset.
  private static func send(_ address: ListenAddress, _ location: String, from start: Int) throws -> Int {
    var offset = start
    repeat {
      let end = min(offset + 200_000, stream.count)
      var received: RawClient.Answer?
      do {
        let client = try RawClient(address)
        try client.patch(
          location, at: offset, completes: end == stream.count, ["Content-Length: \(end - offset)"])
        try client.send(Array(stream[offset..<end]))
        received = try client.final().answer
      } catch let failure as TestFailure where failure.isTimeout {
        throw failure
      } catch {
        // The server was killed.
      }
      guard let answer = received else { break }
      guard (200...204).contains(answer.status) else { throw TestFailure("at \(offset): \(answer)") }
      offset = end
    } while offset < stream.count
    return offset
  }

  /// The samples of the files with final names, in the order of the stream.
  private static func recordings(_ directory: TemporaryDirectory) throws -> [(part: Int, samples: ArraySlice<UInt8>)] {
    let files = directory.names.filter { $0.hasSuffix(".wav") }
    let parts = try files.map { file in
      let number = file.dropLast(".wav".count).split(separator: "~").dropFirst().first.flatMap { Int($0) }
      return (part: number ?? 1, samples: try directory.contents(file).dropFirst(headLength))
    }
    return parts.sorted { $0.part < $1.part }
  }

  /// Sends the stream to a server that is killed in that call. Returns its upload and the acknowledged offset.
  private static func streamUntilKilled(
    _ directory: TemporaryDirectory, _ kill: Kill
  ) throws -> (location: String, acknowledged: Int) {
    let server = try serve(directory, ["--split", "1MB"], kill)
    let creating = try RawClient(server.address)
    try creating.request(
      "POST", "/k.wav", ["Upload-Complete: ?0", "Stream-ID: a", "Content-Type: audio/wav"], body: "")
    let location = try #require(try creating.final().answer["location"])
    let acknowledged = try send(server.address, location, from: 0)
    // If it has never come to that call.
    server.process.signal(SIGKILL)
    #expect(try server.process.wait() == 128 + SIGKILL, "\(server.process.errors)")
    return (location, acknowledged)
  }

  /// Whether it is the file of a recording without its final name, or the sidecar of one.
  private static func isUnfinished(_ file: String) -> Bool {
    file.hasSuffix(".part") || (file.hasPrefix(".k-a") && file.hasSuffix(".sidecar"))
  }

  @Test("each file with its final name is whole, and no acknowledged byte is lost", arguments: kills)
  func killed(_ kill: Kill) throws {
    let directory = try TemporaryDirectory()
    let (location, acknowledged) = try Self.streamUntilKilled(directory, kill)
    for (part, samples) in try Self.recordings(directory) {
      let begin = Self.headLength + (part - 1) * Self.limit
      let isWhole = samples.elementsEqual(Self.stream[begin..<min(begin + Self.limit, Self.stream.count)])
      #expect(isWhole, "part \(part) has \(samples.count) bytes of samples")
    }
    let next = try Self.serve(directory, ["--no-sidecars"])
    let found = try RawClient(next.address).head(location)
    let offset = found["upload-offset"].flatMap { Int($0) } ?? -1
    #expect(found.status == 204 && offset >= acknowledged, "\(acknowledged) are acknowledged: \(found)")
    if found["upload-complete"] != "?1" {
      #expect(try Self.send(next.address, location, from: offset) == Self.stream.count)
    }
    try waitUntil("all recordings have their final names") { !directory.names.contains(where: Self.isUnfinished) }
    next.process.signal(SIGTERM)
    #expect(try next.process.wait() == 0, "\(next.process.errors)")
    var position = Self.headLength
    for (part, samples) in try Self.recordings(directory) {
      let end = min(position + samples.count, Self.stream.count)
      let isRight = samples.elementsEqual(Self.stream[position..<end])
      #expect(isRight && (samples.count >= Self.limit || end == Self.stream.count), "part \(part): \(samples.count)")
      position = end
    }
    #expect(position == Self.stream.count)
  }

  @Test("a discarded stream leaves no file", arguments: kills.filter { $0.file != "k-a.part" })
  func discarded(_ kill: Kill) throws {
    let directory = try TemporaryDirectory()
    let (location, _) = try Self.streamUntilKilled(directory, kill)
    let next = try Self.serve(directory, [])
    let client = try RawClient(next.address)
    try client.request("DELETE", location, [])
    #expect(try client.final().answer.status == 204)
    try waitUntil("all files of the stream are removed") { !directory.names.contains { $0.contains("k-a") } }
    next.process.signal(SIGTERM)
    #expect(try next.process.wait() == 0, "\(next.process.errors)")
  }
}
