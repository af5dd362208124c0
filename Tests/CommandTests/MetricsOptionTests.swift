// Tests --metrics of the real command: the metrics that it publishes while it runs.

import Glibc
import NetworkTesting
import Testing
import UploadServer

@Suite("--metrics and --discard")
struct MetricsOptionTests {
  /// The address at which the process publishes its metrics, as its output names it.
  private func address(of process: TestProcess) throws -> String {
    let line = try process.lines.first("where the figures are") { $0.text.hasPrefix("serving metrics at http://") }
    return String(line.text.dropFirst("serving metrics at ".utf8.count))
  }

  /// The value of a sample without labels; nil if there is none.
  private func figure(_ name: String, _ url: String) throws -> Double? {
    let curl = try TestProcess("/usr/bin/curl", ["--silent", "--fail", "--max-time", "20", url], input: .nothing)
    guard try curl.wait() == 0 else { throw TestFailure("no figures at \(url)") }
    return curl.output.first { $0.hasPrefix(name + " ") }.flatMap { Double($0.dropFirst(name.utf8.count + 1)) }
  }

  /// Polls until the metric has at least this value. Each answer is as old as the last progress.
  private func wait(_ name: String, atLeast value: Double, _ url: String) throws -> Double {
    for _ in 0..<400 {
      if let found = try figure(name, url), found >= value { return found }
      poll(nil, 0, 50)
    }
    throw TestFailure("\(name) never came to \(value)")
  }

  @Test("a stream exports the captured, sent and acknowledged bytes, even without a progress display")
  func stream() throws {
    let server = try StreamServer()
    let process = try sluice(
      ["pipe", "\(server.url)/p", "--progress", "none", "--metrics", "127.0.0.1:0"], input: .pipe)
    let url = try address(of: process)
    process.send(Array(repeating: 0x61, count: 5_000))
    #expect(try wait("sluice_stream_acknowledged_bytes_total", atLeast: 5_000, url) == 5_000)
    #expect(try figure("sluice_stream_captured_bytes_total", url) == 5_000)
    #expect(try figure("sluice_stream_sent_bytes_total", url) == 5_000)
    #expect(try figure("sluice_stream_connected", url) == 1)
    #expect(try figure("sluice_stream_outages_total", url) == 0)
    #expect((try figure("process_resident_memory_bytes", url) ?? 0) > 1_000_000)
    process.endInput()
    #expect(try process.wait() == 0)
    // The output contains no human-readable progress.
    #expect(!process.errors.contains { $0.contains("buffer ") })
  }

  @Test("serve --discard --threads 2 --metrics: bytes are received, acknowledged, counted, and not stored")
  func server() throws {
    let directory = try TemporaryDirectory()
    let socket = directory.path + "/socket"
    let process = try sluice(
      ["serve", "--listen", "unix:\(socket)", "--discard", "--threads", "2", "--metrics", "127.0.0.1:0"])
    let url = try address(of: process)
    try process.lines.first("the server") { $0.text.hasPrefix("listening on ") }
    for number in 0..<4 {
      let curl = try TestProcess(
        "/usr/bin/curl",
        [
          "--silent", "--fail", "--max-time", "20", "--unix-socket", socket, "-H", "Stream-ID: s\(number)", "--data",
          "hello", "http://h/t",
        ], input: .nothing)
      #expect(try curl.wait() == 0)
    }
    #expect(try figure("sluice_server_received_bytes_total", url) == 20)
    #expect(try figure("sluice_server_acknowledged_bytes_total", url) == 20)
    #expect(try figure("sluice_server_stored_bytes_total", url) == 0)
    #expect(try figure("sluice_server_connections_accepted_total", url) == 4)
    process.signal(SIGTERM)
    #expect(try process.wait() == 0)
    #expect(process.output.count { $0.contains("\"ended\"") } == 4)
  }

  @Test("serve --directory --metrics exports the free space and the size of the disk with the recordings")
  func diskSpace() throws {
    let directory = try TemporaryDirectory()
    let process = try sluice(
      [
        "serve", "--listen", "unix:\(directory.path)/socket", "--directory", directory.path, "--metrics", "127.0.0.1:0",
      ])
    let url = try address(of: process)
    let free = try #require(try figure("sluice_server_disk_free_bytes", url))
    let size = try #require(try figure("sluice_server_disk_size_bytes", url))
    var status = statvfs()
    #expect(statvfs(directory.path, &status) == 0)
    let block = Double(status.f_frsize)
    #expect(abs(size - Double(status.f_blocks) * block) < size / 100)
    // Other programs use the disk at the same time.
    #expect(free > 0 && free < size && abs(free - Double(status.f_bavail) * block) < size / 10)
  }
}
