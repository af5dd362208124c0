// Creates uploads for the beginning of a test.

import NetworkTesting
import UploadServer

extension TestServer {
  /// Creates an upload without content.
  func create(_ path: String = "/t.txt", _ lines: [String] = []) throws -> String {
    let client = try connect()
    try client.request("POST", path, ["Upload-Complete: ?0"] + lines, body: "")
    let answer = try client.final().answer
    guard answer.status == 201, let location = answer["location"] else { throw TestFailure("no upload: \(answer)") }
    return location
  }

  /// The file of the only stream.
  var onlyFile: String { directory.names.first { !$0.hasPrefix(".") } ?? "none" }
}
