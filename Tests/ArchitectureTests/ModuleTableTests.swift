// ARCHITECTURE.md's table of modules, compared with what the modules import.

import Glibc
import NetworkTesting
import Testing

@Suite("The table of modules")
struct ModuleTableTests {
  @Test("each module imports only the modules of its row in the table")
  func imports() throws {
    let table = try Self.table()
    let code = try Self.code()
    #expect(Set(table.keys) == Set(code.keys))
    for (module, imports) in code.sorted(by: { $0.key < $1.key }) {
      #expect(
        table[module]?.sorted() == imports.sorted(),
        "ARCHITECTURE.md is wrong about what \(module) imports. Change the table or the imports.")
    }
  }

  @Test("no module imports itself through others")
  func circles() throws {
    let code = try Self.code()
    for module in code.keys {
      let reached = Self.reached(from: module, code)
      #expect(!reached.contains(module), "\(module) imports itself: \(reached.sorted())")
    }
  }

  @Test("reading the report of a load test requires neither the generator nor a network")
  func reports() throws {
    let code = try Self.code()
    #expect(Self.reached(from: "LoadReports", code) == ["CJansson", "JSONDocuments", "JSONLines"])
    let command = try Self.imports(of: "\(Repository.root)/Sources/sluice/Report.swift")
    #expect(command.contains("LoadReports") && !command.contains("LoadTesting"))
  }

  @Test("the subcommand for the microphone requires no server", arguments: ["Mic", "MetricsOption"])
  func microphone(file: String) throws {
    let command = try Self.imports(of: "\(Repository.root)/Sources/sluice/\(file).swift")
    #expect(command.contains("LiveStreaming") && !command.contains("UploadServer"))
  }

  /// The modules that a module imports, directly or through others.
  private static func reached(from module: String, _ code: [String: Set<String>]) -> Set<String> {
    var reached: Set<String> = []
    var next = Array(code[module] ?? [])
    while let name = next.popLast() {
      if reached.insert(name).inserted { next += Array(code[name] ?? []) }
    }
    return reached
  }

  // MARK: Reading

  /// Part of the toolchain, and not relevant here.
  private static let toolchain: Set<String> = ["Glibc", "Synchronization"]

  /// From the table: the modules and their imports.
  private static func table() throws -> [String: Set<String>] {
    let text = String(decoding: try fileContents("\(Repository.root)/ARCHITECTURE.md"), as: UTF8.self)
    var rows: [String: Set<String>] = [:]
    var isInTable = false
    for line in text.split(separator: "\n", omittingEmptySubsequences: false) {
      if line.hasPrefix("| module | contents | imports |") {
        isInTable = true
      } else if !line.hasPrefix("|") {
        isInTable = false
      } else if isInTable, !line.hasPrefix("| ---") {
        let cells = line.split(separator: "|").map { names(in: String($0)) }
        for module in cells[0] { rows[module] = Set(cells[2]) }
      }
    }
    return rows
  }

  /// The text between backticks.
  private static func names(in cell: String) -> [String] {
    cell.split(separator: "`", omittingEmptySubsequences: false).enumerated().filter { $0.offset % 2 == 1 }
      .map { String($0.element) }
  }

  /// From the folders of `Sources`: the modules and their imports.
  private static func code() throws -> [String: Set<String>] {
    var modules: [String: Set<String>] = [:]
    for folder in try Repository.entries(of: "\(Repository.root)/Sources") {
      modules[folder] = try imports(in: "\(Repository.root)/Sources/\(folder)").subtracting(toolchain)
    }
    return modules
  }

  private static func imports(in folder: String) throws -> Set<String> {
    var imports: Set<String> = []
    for name in try Repository.entries(of: folder) {
      let path = "\(folder)/\(name)"
      guard name.hasSuffix(".swift") else {
        if name.contains(".") { continue }
        imports.formUnion(try self.imports(in: path))
        continue
      }
      imports.formUnion(try self.imports(of: path))
    }
    return imports
  }

  private static func imports(of file: String) throws -> Set<String> {
    var imports: Set<String> = []
    for line in String(decoding: try fileContents(file), as: UTF8.self).split(separator: "\n") {
      let words = line.split(separator: " ")
      if let word = words.firstIndex(of: "import"), word + 1 < words.count,
        words[..<word].allSatisfy({ ["@_exported", "internal", "package", "public"].contains($0) })
      {
        // `import class Module.Name` imports a module, too.
        let isScoped = ["class", "struct", "enum", "protocol", "typealias", "func", "let", "var"].contains(
          words[word + 1])
        guard let name = isScoped ? words.dropFirst(word + 2).first : words[word + 1] else { continue }
        imports.insert(String(name.prefix { $0 != "." }))
      }
    }
    return imports
  }
}
