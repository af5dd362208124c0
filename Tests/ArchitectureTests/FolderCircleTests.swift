// The folders of a module, and the types that their files use. Within a module, no import shows such a use.

import NetworkTesting
import Testing

@Suite("The folders of a module")
struct FolderCircleTests {
  /// Folders that use each other today. Remove an entry when its circle is gone. "." is the module's own folder.
  private static let known: [String: Set<String>] = [
    "FoundationUploadsCore": ["Background", "Messages", "Sessions", "Tasks", "Transfers"],
    "LiveStreaming": [".", "Asynchronous"],
    "LoadReports": ["Figures", "Judging", "Wording"],
  ]

  @Test("no folder of a module uses types of another folder that uses its own types")
  func circles() throws {
    for module in try Repository.entries(of: "\(Repository.root)/Sources") {
      let uses = try Self.uses(in: module)
      let inCircle = Set(uses.keys.filter { Self.reached(from: $0, uses).contains($0) })
      let new = inCircle.subtracting(Self.known[module] ?? [])
      #expect(new.isEmpty, "folders of \(module) use each other: \(Self.description(of: inCircle, uses))")
    }
  }

  @Test("the search finds the circle of two folders that use each other, and nothing else")
  func search() {
    let uses: [String: [String: Set<String>]] = [
      "A": ["B": ["InB"]], "B": ["A": ["InA"], "C": ["InC"]], "C": [:], "D": ["A": ["InA"]],
    ]
    #expect(Set(uses.keys.filter { Self.reached(from: $0, uses).contains($0) }) == ["A", "B"])
    let code = Array(
      """
      // Comment
      let text = "Text \\" More" + Name.of(value as Other) // note
        /// Documentation
      """.utf8)
    #expect(Self.names(in: code) == ["Name", "Other"])
    #expect(Self.declared(in: "package final class Name: Sendable {") == "Name")
    #expect(Self.declared(in: "  struct Inner {") == nil && Self.declared(in: "extension Name {") == nil)
  }

  // MARK: The graph

  private static func reached(from folder: String, _ uses: [String: [String: Set<String>]]) -> Set<String> {
    var reached: Set<String> = []
    var next = Array((uses[folder] ?? [:]).keys)
    while let name = next.popLast() {
      if reached.insert(name).inserted { next += (uses[name] ?? [:]).keys }
    }
    return reached
  }

  private static func description(of folders: Set<String>, _ uses: [String: [String: Set<String>]]) -> String {
    var sentences: [String] = []
    for folder in folders.sorted() {
      for (other, names) in uses[folder] ?? [:] where folders.contains(other) {
        let list = names.sorted().joined(separator: ", ")
        sentences.append("\(folder) uses \(list) of \(other)")
      }
    }
    return sentences.joined(separator: "; ")
  }

  /// For each folder of a module, the other folders whose types its files name, with these names.
  private static func uses(in module: String) throws -> [String: [String: Set<String>]] {
    var files: [(folder: String, text: [UInt8])] = []
    let root = "\(Repository.root)/Sources/\(module)/"
    for path in try Repository.files(below: "Sources/\(module)") where path.hasSuffix(".swift") {
      let parts = path.dropFirst(root.count).split(separator: "/")
      files.append((folder: parts.count > 1 ? String(parts[0]) : ".", text: try fileContents(path)))
    }
    // The names of most modules need not be searched.
    guard Set(files.map(\.folder)).count > 1 else { return [:] }
    var folders: [String: Set<String>] = [:]
    for (folder, text) in files {
      for line in text.split(separator: UInt8(ascii: "\n")) {
        if let name = declared(in: String(decoding: line, as: UTF8.self)) { folders[name, default: []].insert(folder) }
      }
    }
    var uses: [String: [String: Set<String>]] = [:]
    for (folder, text) in files {
      for name in names(in: text) {
        // A name that several folders declare, each within its own extension or file, is not clear.
        guard let declaring = folders[name], declaring.count == 1, let other = declaring.first, other != folder else {
          continue
        }
        uses[folder, default: [:]][other, default: []].insert(name)
      }
    }
    return uses
  }

  // MARK: Reading

  private static let modifiers: Set<Substring> = [
    "public", "package", "internal", "open", "final", "indirect", "nonisolated",
  ]
  private static let kinds: Set<Substring> = ["struct", "class", "enum", "protocol", "actor", "typealias"]

  /// The type that a line declares for other files, at the top level of its file.
  private static func declared(in line: String) -> String? {
    guard line.first?.isLetter == true || line.first == "@" else { return nil }
    let words = line.split(separator: " ").drop { $0.hasPrefix("@") || modifiers.contains($0) }
    guard let kind = words.first, kinds.contains(kind), let name = words.dropFirst().first else { return nil }
    return String(name.prefix { $0.isLetter || $0.isNumber || $0 == "_" })
  }

  /// The words in the code of a file that may name types, without comments and string literals.
  private static func names(in text: [UInt8]) -> Set<String> {
    var names: Set<String> = []
    let (space, quote, backslash) = (UInt8(ascii: " "), UInt8(ascii: "\""), UInt8(ascii: "\\"))
    for line in text.split(separator: UInt8(ascii: "\n")) {
      let start = line.drop { $0 == space }
      if start.starts(with: "//".utf8) { continue }
      var (isLiteral, isEscaped) = (false, false)
      let code = start.map { byte -> UInt8 in
        if isEscaped {
          isEscaped = false
          return space
        }
        if byte == quote {
          isLiteral.toggle()
          return space
        }
        if isLiteral, byte == backslash { isEscaped = true }
        return isLiteral ? space : byte
      }
      for word in code.split(whereSeparator: { !isPartOfName($0) }) {
        guard let first = word.first, (UInt8(ascii: "A")...UInt8(ascii: "Z")).contains(first) else { continue }
        names.insert(String(decoding: word, as: UTF8.self))
      }
    }
    return names
  }

  private static func isPartOfName(_ byte: UInt8) -> Bool {
    switch byte {
    case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"), UInt8(ascii: "_"),
      UInt8(ascii: "0")...UInt8(ascii: "9"):
      true
    default: false
    }
  }
}
