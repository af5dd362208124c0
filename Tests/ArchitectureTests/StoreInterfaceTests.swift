// The interface between the server and its stores, which must stay small enough for another store.

import Glibc
import NetworkTesting
import Testing

@Suite("The interface of a store")
struct StoreInterfaceTests {
  private static func code(of file: String) throws -> [Substring] {
    String(decoding: try fileContents("\(Repository.root)/Sources/\(file)"), as: UTF8.self)
      .split(separator: "\n").filter { !$0.drop { $0 == " " }.hasPrefix("//") }
  }

  @Test("a store meets at most six requirements")
  func requirements() throws {
    let lines = try Self.code(of: "StreamStore/StreamStore.swift")
    let body = lines.drop { !$0.hasPrefix("package protocol StreamStore") }.dropFirst().prefix { $0 != "}" }
    let requirements = body.filter { $0.hasPrefix("  func ") || $0.hasPrefix("  var ") || $0.hasPrefix("  init(") }
    #expect((1...6).contains(requirements.count), "\(requirements)")
  }

  @Test("no part of the server depends on the type of its store, stream or handler")
  func casts() throws {
    let kinds = [
      "StreamStore", "FileStore", "CountingStore", "StoredStream", "StreamFile", "KeepingRequestHandler", "SpooledBody",
    ]
    for module in ["StreamServing", "StreamStore", "ResumableServing", "LogCollecting", "UploadServer"] {
      for file in try Repository.files(below: "Sources/\(module)") where file.hasSuffix(".swift") {
        for line in String(decoding: try fileContents(file), as: UTF8.self).split(separator: "\n")
        where line.contains("as?") || line.contains("as!") {
          let isCast = kinds.contains { kind in
            ["? ", "! ", "? any ", "! any "].contains { line.contains("as\($0)\(kind)") }
          }
          #expect(!isCast || line.drop { $0 == " " }.hasPrefix("//"), "\(file): \(line)")
        }
      }
    }
  }
}
