// The reason for which the process of an exit test fails.

internal import Glibc
public import Testing

/// Runs the body of an exit test. If it throws, the process exits with `EXIT_FAILURE`, and the error becomes an issue
/// of the test that started the process.
///
/// Otherwise the error would be lost. `#expect(processExitsWith:)` returns nil when it fails, so a test cannot read the
/// output of such a process. Testing 6.3 does not forward errors that the body throws (`ExitTest.callAsFunction`).
public func reportingErrors(sourceLocation: SourceLocation = #_sourceLocation, _ body: () throws -> Void) {
  do {
    try body()
  } catch {
    Issue.record("\(error)", sourceLocation: sourceLocation)
    exit(EXIT_FAILURE)
  }
}
