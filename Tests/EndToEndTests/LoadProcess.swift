// `sluice load` as a process: what it tells while it runs, what its report says, what the server has of its streams, and how many
// connections there are by the kernel's own count.

import CommandTesting
import EventLoops
import Glibc
import LoadTesting
import NetworkTesting
import TestRigs

/// A load test over HTTP/2 and the server that it loads, with whatever is in between.
final class LoadProcess {
  private let process: SluiceProcess
  var output: ProgramOutput { process.output }
  private let scratch = ScratchDirectory()
  private let reportPath: String

  /// Runs until it is told to end, unless `duration` says otherwise.
  init(_ url: String, streams: Int, duration: String = "10min", more: [String]) throws {
    reportPath = scratch.file("report.json")
    process = try SluiceProcess(
      [
        "load", url, "--streams", "\(streams)", "--duration", duration, "--progress", "json", "--json", reportPath,
        "--seed", "1",
      ] + more)
  }

  /// Waits for one of the lines that come each second.
  @discardableResult
  func progress(_ what: String, where isWanted: (FlatObject) -> Bool) throws -> FlatObject {
    let seen = output.events.count
    return try output.wait(for: what) { events, _ in
      events.dropFirst(seen).first { $0.event == "progress" && isWanted($0) }
    }
  }

  func exitCode() throws -> Int32 { try process.exitCode() }

  /// Its report, when it has exited with `code`.
  func report(code: Int32) throws -> LoadReport {
    let actual = try exitCode()
    guard actual == code else { throw TestFailure("exit code \(actual) instead of \(code): \(output.text)") }
    return try LoadReport(json: fileContents(reportPath), file: reportPath)
  }

  /// Ctrl-C, and the report of what was measured by then.
  func stop() throws -> LoadReport {
    process.signal(SIGINT)
    return try report(code: 130)
  }
}

/// What a server has of a load test's streams.
enum StoredLoad {
  /// The streams' numbers, and what is stored of each; complete (`.bin`) or not (`.part`).
  static func streams(in directory: String) throws -> [Int: [UInt8]] {
    var found: [Int: [UInt8]] = [:]
    for name in StoredStream.names(in: directory) where name.hasSuffix(".bin") || name.hasSuffix(".part") {
      // stream-load-TOKEN-INDEX
      guard let index = name.prefix(while: { $0 != "." }).split(separator: "-").last.flatMap({ Int($0) }) else {
        throw TestFailure("\(name) is no stream of a load test")
      }
      guard found[index] == nil else { throw TestFailure("stream \(index) is there twice") }
      // The server may give it its name just now.
      let named = "\(directory)/\(name.prefix { $0 != "." }).bin"
      found[index] = try (try? StoredStream.contents("\(directory)/\(name)")) ?? StoredStream.contents(named)
    }
    return found
  }

  /// The first byte that is not what the verifying pattern has there, by its definition: powers of 3 modulo the prime 65,537.
  static func firstDifference(_ bytes: [UInt8], stream index: Int) -> Int? {
    bytes.indices.first { bytes[$0] != pattern[($0 + 7919 * index) % pattern.count] }
  }

  private static let pattern: [UInt8] = {
    var power: UInt32 = 1
    return (0..<65_537).map { _ in
      defer { power = power * 3 % 65_537 }
      return UInt8(truncatingIfNeeded: power ^ power >> 8)
    }
  }()
}

/// Connections as the kernel counts them.
enum EstablishedConnections {
  /// How many stand that were accepted at `ADDRESS:PORT`: proc(5), `/proc/net/tcp`.
  static func count(at address: String) throws -> Int {
    let parts = address.split(separator: ":")
    guard parts.count == 2, let port = UInt16(parts[1]) else { throw TestFailure("\(address) is no address") }
    let octets = parts[0].split(separator: ".").compactMap { UInt8($0) }
    // The address is written as the machine's own number.
    let name = octets.reversed().map { hexadecimal(UInt16($0), 2) }.joined() + ":" + hexadecimal(port, 4)
    return String(decoding: try fileContents("/proc/net/tcp"), as: UTF8.self).split(separator: "\n").count { line in
      let columns = line.split(separator: " ")
      return columns.count > 3 && columns[1] == name && columns[3] == "01"
    }
  }

  private static func hexadecimal(_ value: UInt16, _ digits: Int) -> String {
    let text = String(value, radix: 16, uppercase: true)
    return String(repeating: "0", count: digits - text.count) + text
  }
}
