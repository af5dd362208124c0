// The working group's own test vectors. Vectors/structured-fields.txt names their source.

import Glibc
import PropertyTesting
import Testing

@testable import HTTPMessages

@Suite("Structured fields: the working group's vectors") struct StructuredFieldVectorTests {
  struct Vector: Sendable {
    var line: Int
    var isItem: Bool
    var text: String
    /// nil if it must be refused.
    var meaning: String?
    var canonical: String
  }

  @Test("each vector is read or refused as required, and written back in its canonical form")
  func vectors() throws {
    let vectors = try Self.table()
    // The exact number, because a table that is read only in part, or not at all, would pass every check.
    #expect(vectors.count == 189)
    #expect(vectors.filter { $0.meaning == nil }.count == 89)
    for vector in vectors {
      var found: (meaning: String, canonical: String?)?
      if vector.isItem {
        found = Item(parsing: vector.text).map { (FieldNotation.of($0), $0.serialized) }
      } else {
        found = StructuredDictionary(parsing: vector.text).map { (FieldNotation.of($0), $0.serialized) }
      }
      #expect(found?.meaning == vector.meaning, "line \(vector.line)")
      if found != nil { #expect(found?.canonical == vector.canonical, "line \(vector.line)") }
    }
  }

  private static func table(_ filePath: String = #filePath) throws -> [Vector] {
    let folder = filePath.prefix(upTo: filePath.lastIndex(of: "/") ?? filePath.startIndex)
    let path = "\(folder)/Vectors/structured-fields.txt"
    let file = try #require(fopen(path, "r"), "\(path): \(String(cString: strerror(errno)))")
    defer { fclose(file) }
    var octets: [UInt8] = []
    var buffer = [UInt8](repeating: 0, count: 65_536)
    while case let count = fread(&buffer, 1, buffer.count, file), count > 0 { octets += buffer[..<count] }
    var vectors: [Vector] = []
    let lines = String(decoding: octets, as: UTF8.self).split(separator: "\n", omittingEmptySubsequences: false)
    for (index, line) in lines.enumerated() where !line.isEmpty && !line.hasPrefix("#") {
      let columns = line.split(separator: "\t", omittingEmptySubsequences: false)
      try #require((3...4).contains(columns.count) && ["item", "dict"].contains(columns[0]), "line \(index + 1)")
      vectors.append(
        Vector(
          line: index + 1, isItem: columns[0] == "item",
          text: try #require(FieldNotation.unescaped(columns[1]), "line \(index + 1)"),
          meaning: columns[2] == "!" ? nil : String(columns[2]),
          canonical: try #require(FieldNotation.unescaped(columns.count > 3 ? columns[3] : columns[1]))))
    }
    return vectors
  }
}
