// docs/resumable-uploads.md names a test for each sentence of the draft that contains a key word. This checks that each
// of these tests exists.

import Glibc
import Testing

@Suite("The table of the draft's sentences") struct ConformanceTableTests {
  private static let keyWords: Set<Substring> = ["MUST", "MUST NOT", "SHOULD", "SHOULD NOT", "REQUIRED", "RECOMMENDED"]

  @Test("every sentence has an existing test, or a reason")
  func table() throws {
    let document = try #require(Self.contents("\(Self.root)/docs/resumable-uploads.md"))
    let rows = document.split(separator: "\n").compactMap { Self.row($0) }
    // The number of such sentences in the draft, for client and server.
    #expect(rows.count == 99)

    var named = 0
    for row in rows {
      let tests = row.shown.matches(of: /"([^"]+)" \((\w+)\)/)
      #expect(!tests.isEmpty || row.shown.hasPrefix("Not "), "neither a test nor a reason: \(row.gist)")
      for test in tests {
        named += 1
        let (title, suite) = (test.output.1, test.output.2)
        let source = Self.sources(of: suite)
        #expect(!source.isEmpty, "there is no suite \(suite)")
        #expect(source.contains { $0.contains("\"\(title)\"") }, "\(suite) has no test \"\(title)\"")
      }
    }
    #expect(named >= rows.count)
  }

  private struct Row {
    var gist: Substring
    var shown: Substring
  }

  /// nil for a line that is not a row of that table: section, key word, role, gist, proof.
  private static func row(_ line: Substring) -> Row? {
    let cells: [Substring] = line.split(separator: "|").map { cell in cell.drop { $0 == " " } }
    guard cells.count == 5, keyWords.contains(cells[1].dropLast()) else { return nil }
    return Row(gist: cells[3], shown: cells[4])
  }

  /// The package's folder.
  private static let root: Substring = {
    var path = #filePath[...]
    for _ in 0..<3 { path = path.prefix(upTo: path.lastIndex(of: "/") ?? path.startIndex) }
    return path
  }()

  /// The source text of each `Tests/*/<suite>.swift`.
  private static func sources(of suite: Substring) -> [String] {
    guard let directory = opendir("\(root)/Tests") else { return [] }
    defer { closedir(directory) }
    var sources: [String] = []
    while let entry = readdir(directory) {
      let name = withUnsafePointer(to: &entry.pointee.d_name) {
        $0.withMemoryRebound(to: CChar.self, capacity: 256) { String(cString: $0) }
      }
      if let source = contents("\(root)/Tests/\(name)/\(suite).swift") { sources.append(source) }
    }
    return sources
  }

  private static func contents(_ path: String) -> String? {
    guard let file = fopen(path, "r") else { return nil }
    defer { fclose(file) }
    var octets: [UInt8] = []
    var buffer = [UInt8](repeating: 0, count: 65_536)
    while case let count = fread(&buffer, 1, buffer.count, file), count > 0 { octets += buffer[..<count] }
    return String(decoding: octets, as: UTF8.self)
  }
}
