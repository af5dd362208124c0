// Tests a server that cannot list its predecessor's uploads at its start. It must decide nothing until it can.

import Glibc
import NetworkTesting
import SyncGate
import Testing

@testable import ResumableServing
@testable import UploadServer

@Suite("Uploads that cannot be listed")
struct UnlistedUploadTests {
  private enum Trouble {
    case cannotOpen, breaksOff, cannotReadRecord

    func begin(_ code: Int32) {
      switch self {
      case .cannotOpen: open_gate_fail(code, "/.uploads/.")
      case .breaksOff: list_gate_fail(code, "/.uploads", 4)
      case .cannotReadRecord: open_gate_fail(code, ".upload")
      }
    }

    static func end() {
      open_gate_fail(0, "")
      list_gate_fail(0, "", 0)
    }
  }

  @Test(
    "uploads are found by their names and their recordings stay open until the list is complete", arguments: [1, 2])
  func unlisted(_ threads: Int) async {
    await #expect(processExitsWith: .success) { [threads = threads as Int] in
      let cells: [(Trouble, Int32)] = [
        (.cannotOpen, ENFILE), (.cannotOpen, EIO), (.breaksOff, EIO), (.cannotReadRecord, EMFILE),
        (.cannotReadRecord, EIO),
      ]
      for (trouble, code) in cells { try UnlistedUploadTests.run(trouble, code, threads) }
    }
  }

  private static func run(_ trouble: Trouble, _ code: Int32, _ threads: Int) throws {
    let directory = TemporaryDirectory()
    func server() throws -> TestServer {
      try TestServer(in: directory) {
        $0.threads = threads
        $0.finishAfter = .milliseconds(300)
      }
    }
    let first = try server()
    let uploads = try (0..<6).map { number in
      let upload = try first.create("/f\(number).bin", ["Stream-ID: a", "Upload-Length: 6"])
      try first.append(upload, at: 0, "abc")
      return upload
    }
    first.stop()
    try directory.write("x-y.part", Array("of nobody".utf8))
    trouble.begin(code)
    let test = try server()
    let warning = try test.events.wait(.warning)
    try require(warning.reason?.contains(".uploads") == true, "\(warning)")
    if trouble != .cannotReadRecord {
      for upload in uploads.dropLast() {
        let answer = try test.connect().head(upload)
        try require(answer["upload-offset"] == "3", "\(trouble), \(code): \(answer)")
      }
      try test.append(uploads[0], at: 3, "d")
    }
    // In this time the server would close the recordings if it assumed that no upload owns them.
    poll(nil, 0, 500)
    let early = test.events.all.filter { $0.kind == .closed }.compactMap(\.file)
    // A recording without resumable uploads can be closed whatever the records contain.
    let mayBeClosed = trouble == .cannotReadRecord ? ["x-y.bin"] : []
    try require(early.allSatisfy(mayBeClosed.contains), "\(trouble), \(code): \(early)")
    Trouble.end()
    let closed = try test.events.wait(.closed)
    try require(closed.file == "x-y.bin", "\(trouble), \(code): \(closed)")
    for (number, upload) in uploads.enumerated() {
      let answer = try test.connect().head(upload)
      let offset = number == 0 && trouble != .cannotReadRecord ? "4" : "3"
      try require(answer["upload-offset"] == offset, "\(trouble), \(code): \(answer)")
    }
    test.stop()
  }
}
