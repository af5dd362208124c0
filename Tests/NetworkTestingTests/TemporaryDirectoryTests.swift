// A process that exits while it uses its directory.

import ExitTesting
import Glibc
import NetworkTesting
import Testing

@Suite("The directory of a test")
struct TemporaryDirectoryTests {
  /// Never released.
  private static let directory: Result<TemporaryDirectory, any Error> = Result { try TemporaryDirectory() }

  @Test("a process that exits leaves no directory behind")
  func exiting() async throws {
    let result = await #expect(processExitsWith: .exitCode(7), observing: [\.standardErrorContent]) {
      reportingErrors {
        let directory = try TemporaryDirectoryTests.directory.get()
        try directory.write("file", "text")
        _ = "\(directory.path)\n".withCString { Glibc.write(STDERR_FILENO, $0, strlen($0)) }
      }
      exit(7)
    }
    let lines = (result?.standardErrorContent ?? []).split(separator: 0x0A).map { String(decoding: $0, as: UTF8.self) }
    let path = try #require(lines.first { $0.hasPrefix("/tmp/sluice-test.") }, "\(lines)")
    #expect(access(path, F_OK) == -1, "\(path) is left")
  }
}
