// Tests signals that arrive while a command computes the digest of a file, before or after the transfer.

import Downloads
import EventLoops
import Glibc
import NetworkTesting
import Recordings
import Testing

@testable import sluice

@Suite("Signals while a digest is computed", .serialized)
struct DigestSignalTests {
  private static let signals = [SIGTERM, SIGINT, SIGHUP, SIGQUIT]
  /// A sparse file that is so large that its digest takes at least half an hour.
  private static let size = UInt64(1) << 40

  private func largeFile(_ name: String, in directory: TemporaryDirectory, size: UInt64 = size) throws -> String {
    let path = try directory.write(name, "")
    guard truncate(path, off_t(size)) == 0 else { throw TestFailure("truncate: \(String(cString: strerror(errno)))") }
    return path
  }

  /// Waits until the process has read much more than its program and libraries (see proc_pid_io(5)).
  private func waitUntilReading(_ process: TestProcess) throws {
    try eventually("the digest") {
      let lines = String(decoding: try fileContents("/proc/\(process.pid)/io"), as: UTF8.self).split(separator: "\n")
      let count = lines.first { $0.hasPrefix("rchar: ") }.flatMap { Int($0.dropFirst(7)) }
      return count ?? 0 > 64 << 20
    }
  }

  @Test("put exits with 130 at once, and leaves no file", arguments: signals, [[], ["--progress", "json"]])
  func put(_ signal: Int32, _ options: [String]) throws {
    let directory = try TemporaryDirectory()
    let file = try largeFile("large", in: directory)
    let requests = try EventLog<Int>()
    let server = try ScriptedServer { _, number in requests.append(number) }
    let process = try sluice(["put", file, server.url, "--digest", "sha-256"] + options)
    try waitUntilReading(process)
    process.signal(signal)
    #expect(try process.wait() == 130)
    #expect(process.output.isEmpty && process.errors.isEmpty)
    #expect(directory.names == ["large"] && requests.all.isEmpty)
  }

  @Test("verify exits with 130 at once", arguments: signals)
  func verify(_ signal: Int32) throws {
    let directory = try TemporaryDirectory()
    _ = try largeFile("large.wav", in: directory)
    var sidecar = RecordingSidecar(file: "large.wav")
    sidecar.stored = .init(bytes: Self.size, sha256: String(repeating: "0", count: 64))
    _ = try directory.write("large.sidecar", sidecar.text)
    let process = try sluice(["verify", directory.path])
    try waitUntilReading(process)
    process.signal(signal)
    #expect(try process.wait() == 130)
  }

  @Test("get exits with 130 at once, and the next one finds all bytes", arguments: signals)
  func get(_ signal: Int32) throws {
    let directory = try TemporaryDirectory()
    let last = Array("the end".utf8)
    let start = Self.size - UInt64(last.count)
    let file = "\(directory.path)/large"
    let part = try largeFile("large.part", in: directory, size: start)
    let server = try ScriptedServer { connection, _ in
      while true {
        let head = try connection.head()
        let range = head["Range"].flatMap { UInt64($0.dropFirst(6).prefix { $0.isNumber }) } ?? 0
        let fields = ["ETag: \"v\"", "Repr-Digest: sha-256=:\(String(repeating: "A", count: 43))=:"]
        if range < Self.size {
          try connection.respond(
            "206 Partial Content", fields + ["Content-Range: bytes \(range)-\(Self.size - 1)/\(Self.size)"],
            body: String(decoding: last.suffix(Int(Self.size - range)), as: UTF8.self))
        } else {
          try connection.respond("416 Range Not Satisfiable", fields + ["Content-Range: bytes */\(Self.size)"])
        }
      }
    }
    let url = "\(server.url)/large"
    var status = stat()
    #expect(stat(part, &status) == 0)
    do {
      let record = DownloadRecord(path: "\(file).sluice", url: url)
      #expect(try record.claim(part: part) == nil)
      let data = DownloadResumeData(
        path: part, inode: UInt64(status.st_ino), birth: nil, byteCount: start, validator: "\"v\"", length: Self.size)
      #expect(record.write(data, isSynchronized: true) == nil)
      record.release()
    }
    // The second run has nothing more to receive.
    for _ in 0..<2 {
      let process = try sluice(["get", url, "--output", file, "--resume", "--progress", "none"])
      try waitUntilReading(process)
      process.signal(signal)
      #expect(try process.wait() == 130, "\(process.errors)")
      #expect(process.errors.last?.hasPrefix("resume with: sluice get --resume") == true, "\(process.errors)")
      #expect(directory.names.sorted() == ["large.part", "large.sluice"])
      #expect(stat(part, &status) == 0 && UInt64(status.st_size) == Self.size)
    }
  }
}
