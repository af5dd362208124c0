// Tests that a task for which this process lacks a descriptor behaves like one whose server cannot be reached.

import EventLoops
import ExitTesting
import FoundationUploads
import Glibc
import LiveStreaming
import NetworkTesting
import Testing
import UploadClient

@testable import FoundationUploadsCore

@Suite("Tasks without a descriptor for their connection")
struct DescriptorShortageTests {
  private static func checkWaiting() throws {
    let port = try freePort()
    let test = TestSession { $0.waitsForConnectivity = true }
    defer { test.end() }
    // Its descriptors are not the missing ones.
    _ = try test.session.engine()
    let task = test.session.dataTask(with: try request("http://127.0.0.1:\(port)/"))
    let told = try withFreeDescriptors(0) {
      task.resume()
      return try test.recorder.log.first("the news") { told in
        if case .completed = told { true } else { told == .waiting }
      }
    }
    guard told == .waiting else { throw TestFailure("it did not wait: \(told)") }
    let server = try ScriptedServer(.port(port)) { connection, _ in
      _ = try connection.head()
      try connection.respond("200 OK")
    }
    defer { server.close() }
    if let code = try test.recorder.end() { throw TestFailure("it failed: \(code)") }
  }

  // In a process of its own, because the limit applies to the whole process.
  @Test("a task that waits for connectivity also waits for a descriptor")
  func waits() async {
    await #expect(processExitsWith: .success) {
      reportingErrors { try DescriptorShortageTests.checkWaiting() }
    }
  }

  @Test("the error of a missing descriptor is that of an unreachable server, for requests and for streams")
  func codes() {
    let reason = SystemError(operation: "cannot open a socket", code: EMFILE)
    let error = UploadError(machine: reason)
    #expect(error.isUnreachability)
    #expect(URLError(error, nil).code == .cannotConnectToHost)
    let cause = FailedAttempt.Cause.machine(reason)
    #expect(cause.isUnreachability)
    #expect(URLError.code(of: cause) == .cannotConnectToHost)
  }
}
