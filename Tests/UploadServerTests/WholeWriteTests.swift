// A disk that takes no byte of a write, and reports no error: whoever repeats the write must come to an end.

import EventLoops
import Glibc
import NetworkTesting
import SyncGate
import Testing
import UploadServer

@Suite("Writes that take nothing", .enabled(if: disk_faults_are_possible() != 0))
struct WholeWriteTests {
  @Test("a write that takes nothing without an error ends as on a full disk")
  func zero() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let file = open(directory.path + "/zero", O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
      let bytes = (0..<100).map { UInt8($0) }
      for offset in [nil, 7] as [off_t?] {
        write_gate_take_nothing(1, "/zero")
        do throws(SystemError) {
          try writeAll(bytes, to: file, at: offset, "write zero")
          throw SystemError(operation: "it was written", code: 0)
        } catch {
          try require(error == SystemError(operation: "write zero", code: ENOSPC), "\(error)")
        }
        try require(write_gate_failures() == 1, "\(write_gate_failures()) calls")
        write_gate_take_nothing(0, "")
        try writeAll(bytes, to: file, at: offset, "write zero")
      }
      close(file)
      let written = try directory.contents("zero")
      try require(written == bytes[..<7] + bytes, "\(written)")
    }
  }

  @Test("a server whose disk takes nothing without an error refuses creations, and serves others")
  func server() async {
    await #expect(processExitsWith: .success) {
      let test = try TestServer { $0.threads = 1 }
      write_gate_take_nothing(1, ".new")
      let client = try test.connect()
      try client.request("POST", "/t.txt", ["Upload-Complete: ?0", "Stream-ID: a"], body: "")
      let answer = try client.final().answer
      try require(answer.status == 507, "\(answer)")
      write_gate_take_nothing(0, "")
      _ = try test.create("/t.txt", ["Stream-ID: a"])
      test.stop()
    }
  }
}
