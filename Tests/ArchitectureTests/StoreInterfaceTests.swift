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

  @Test(
    "a store meets at most six requirements, and one of its streams at most 16",
    arguments: [("StreamStore", 6), ("StoredStream", 16)])
  func requirements(of name: String, limit: Int) throws {
    let lines = try Self.code(of: "StreamStore/\(name).swift")
    let body = lines.drop { !$0.hasPrefix("package protocol \(name)") }.dropFirst().prefix { $0 != "}" }
    let requirements = body.filter { $0.hasPrefix("  func ") || $0.hasPrefix("  var ") || $0.hasPrefix("  init(") }
    #expect((1...limit).contains(requirements.count), "\(requirements)")
  }

  @Test("no part of the server depends on the type of its store, stream or handler")
  func casts() throws {
    // The beginnings of names, so that `StreamStore` includes `StreamStoreHandler`.
    let kinds = [
      "StreamStore", "FileStore", "CountingStore", "StoredStream", "StreamFile", "KeepingRequestHandler", "SpooledBody",
      "HandlerKeptBody", "KeptBody", "RequestHandler", "FixedResponseHandler", "AsynchronousHandler", "DownloadHandler",
      "UploadTransfer", "UploadQuery", "LogTransfer", "LogQuery", "Exchange", "ConnectionExchange",
      "UploadResourceExchange",
    ]
    let modules = [
      "HTTPServer", "StreamServing", "StreamStore", "ResumableServing", "LogServing", "LogCollecting", "UploadServer",
    ]
    for module in modules {
      for file in try Repository.files(below: "Sources/\(module)") where file.hasSuffix(".swift") {
        for line in try Self.code(of: String(file.dropFirst("\(Repository.root)/Sources/".count))) {
          for cast in ["as? ", "as! ", " is "] where line.contains(cast) {
            let isCast = kinds.contains { line.contains(cast + $0) || line.contains("\(cast)any \($0)") }
            #expect(!isCast, "\(file): \(line)")
          }
        }
      }
    }
  }
}
