// The names of the events in docs/events.md, compared with the code that reports them.

import NetworkTesting
import Testing

@Suite("The tables of events")
struct EventTableTests {
  private let page: [Substring]

  init() throws {
    page = String(decoding: try fileContents("\(Repository.root)/docs/events.md"), as: UTF8.self)
      .split(separator: "\n", omittingEmptySubsequences: false)
  }

  /// The names in one column of the tables below a heading.
  private func names(below heading: String, column: Int = 0) throws -> Set<String> {
    let start = try #require(page.firstIndex { $0 == heading })
    let rows = page[(start + 1)...].prefix { !$0.hasPrefix("## ") }.filter { $0.hasPrefix("| `") }
    return Set(rows.map { String($0.split(separator: "|")[column].filter { !" `".contains($0) }) })
  }

  /// What follows `start` in the lines of a source, up to the end of a name.
  private func found(_ start: String, in file: String, from first: String? = nil) throws -> Set<String> {
    let text = String(decoding: try fileContents("\(Repository.root)/Sources/\(file)"), as: UTF8.self)
    var lines = text.split(separator: "\n")[...]
    if let first {
      let start = try #require(lines.firstIndex { $0.hasPrefix(first) })
      lines = lines[(start + 1)...].prefix { $0 != "}" }
    }
    return Set(
      lines.flatMap { line in
        line.split(separator: start, omittingEmptySubsequences: false).dropFirst().map { rest in
          String(rest.prefix { $0.isLetter || $0 == "-" })
        }
      })
  }

  @Test("the page has each event of a stream, and no other")
  func streams() throws {
    let file = "LiveStreaming/LiveStreamEvent.swift"
    let cases =
      try found("  case ", in: file, from: "public enum LiveStreamEvent")
      .union(found("  case ", in: file, from: "public enum UploadNotice"))
    #expect(try names(below: "## Events in Swift") == cases)
  }

  @Test("the page has each JSON line of a stream, and each kind of source event")
  func lines() throws {
    var lines = try found("JSONLine(event: \"", in: "sluice/StreamReport.swift")
    // Both are in one expression.
    lines.formUnion(["outage", "attempt-failed"])
    let sources =
      try found("kind: \"", in: "MicrophoneStreaming/MicrophoneSource.swift")
      .union(found("lost(\"", in: "MicrophoneStreaming/MicrophoneSource.swift"))
      .union(found("kind: \"", in: "LiveStreaming/HeartbeatSource.swift"))
      .union(found("kind: \"", in: "LiveStreaming/LiveStream.swift"))
    #expect(try names(below: "## JSON lines of the command") == lines.union(sources))
  }

  @Test("the page has each JSON line of a backlog")
  func backlog() throws {
    let lines = try found("JSONLine(event: \"", in: "sluice/SpoolReport.swift")
    #expect(try names(below: "## JSON lines of a backlog") == lines)
  }

  @Test("the page has each event of a download, in Swift and in JSON")
  func downloads() throws {
    let cases = try found("  case ", in: "Downloads/DownloadEvent.swift", from: "public enum DownloadEvent")
    #expect(try names(below: "## Downloads") == cases)
    // Both are in one expression.
    let lines = try found("return line(\"", in: "sluice/GetRun.swift").union(["outage", "attempt-failed"])
    #expect(try names(below: "## Downloads", column: 1) == lines)
  }

  @Test("the page has each event in the log of a server")
  func server() throws {
    let file = "StreamServing/ServerEvent.swift"
    let kinds = try found("    case ", in: file, from: "public struct ServerEvent").map { name in
      // The only one whose name differs from its text.
      name == "downloadInterrupted" ? "download-interrupted" : name
    }
    #expect(try names(below: "## The log of sluice serve") == Set(kinds))
  }
}
