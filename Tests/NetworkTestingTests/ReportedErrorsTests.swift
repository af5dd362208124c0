// Whether the reason for which the process of an exit test fails arrives at its test.

import EventLoops
import ExitTesting
import Glibc
import NetworkTesting
import Testing

@Suite("The errors of exit tests")
struct ReportedErrorsTests {
  @Test("an error in the process of an exit test fails the test, and the test has its reason")
  func reason() async {
    let comments = Lock<[String]>([])
    let unexpectedExits = Lock<Int>(0)
    await withKnownIssue {
      await #expect(processExitsWith: .success) { reportingErrors { throw TestFailure("this is the reason") } }
    } matching: { issue in
      comments.withLock { $0 += issue.comments.map(\.rawValue) }
      if case .expectationFailed = issue.kind { unexpectedExits.withLock { $0 += 1 } }
      return true
    }
    #expect(comments.withLock { $0 } == ["this is the reason"])
    #expect(unexpectedExits.withLock { $0 } == 1)
  }

  @Test("a body without an error continues")
  func success() async {
    await #expect(processExitsWith: .exitCode(7)) {
      reportingErrors {}
      exit(7)
    }
  }
}
