// Tests file names that are not valid text.

import NetworkTesting
import Testing

@Suite("sluice put and names that are not UTF-8")
struct PutFileNameTests {
  @Test("put names the reason and the remedy", arguments: ["\\351", "\\377\\376", "\\303"])
  func invalid(octets: String) throws {
    let directory = try TemporaryDirectory()
    let process = try TestProcess(
      "sh",
      [
        "-c",
        "cd \"$2\"; name=$(printf 'caf\(octets).txt'); echo hello > \"$name\"; exec \"$1\" put \"$name\" http://127.0.0.1:1/",
        "sh", try sluicePath(), directory.path,
      ])
    #expect(try process.wait() == 66)
    let text = process.errors.joined(separator: "\n")
    #expect(text.contains("its name is not valid UTF-8. Rename it, or stream it with: sluice pipe"), "\(text)")
  }
}
