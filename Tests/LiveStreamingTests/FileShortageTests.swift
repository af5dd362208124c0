// Tests that the upload of a file survives a moment in which the system cannot read the file, or lacks a descriptor.

import EventLoops
import ExitTesting
import Glibc
import NetworkTesting
import PropertyTesting
import ResumableUploads
import SyncGate
import Testing
import UploadClient

@testable import LiveStreaming

// Each test runs in a process of its own, because the faults apply to the whole process.
@Suite("A shortage of resources while a file is uploaded")
struct FileShortageTests {
  private static let size = 200_000

  private static func require(_ isSo: Bool, _ words: String) throws {
    if !isSo { throw TestFailure(words) }
  }

  @Test(
    "a file that cannot be read for a moment is read at the next attempt, with the cause in its event",
    arguments: [ETIMEDOUT, ESTALE, ENOMEM], [LiveStreamConfiguration.ResumableUse.auto, .never].map(\.rawValue))
  func unreadable(_ code: Int32, _ use: String) async {
    await #expect(processExitsWith: .success) { [code = code as Int32, use = use as String] in
      reportingErrors {
        let bytes = patternBytes(OffsetPattern(), 0, FileShortageTests.size)
        let directory = try TemporaryDirectory()
        let file = try UploadFile(path: try directory.write("data", bytes))
        let server = try ResumableServer()
        read_gate_fail(code, "/data")
        try withSession { session throws in
          let stream = try RunningStream(file, session, server.url + "/take") {
            $0.resumable = .init(rawValue: use) ?? .auto
          }
          try stream.waitForFailure(2)
          read_gate_fail(0, "")
          let error = try stream.summary().error
          try FileShortageTests.require(error == nil, "\(code), \(use): \(error?.description ?? "")")
          let reason = SystemError(operation: "reading \(file.path) at byte 0", code: code).description
          let causes = stream.failures().map(\.cause)
          try FileShortageTests.require(causes.contains(.other(reason)), "\(code), \(use): \(causes)")
        }
        let stored = server.uploads.filter(\.isComplete).map(\.bytes) + server.plain.map { $0.bytes }
        try FileShortageTests.require(stored.contains(bytes), "\(code), \(use): \(stored.map(\.count))")
        try FileShortageTests.require(server.of("DELETE").isEmpty, "\(code), \(use): the upload was deleted")
      }
    }
  }

  @Test("a file with a damaged sector ends its upload at once, with the reason")
  func damaged() async {
    await #expect(processExitsWith: .success) {
      reportingErrors {
        let directory = try TemporaryDirectory()
        let bytes = patternBytes(OffsetPattern(), 0, FileShortageTests.size)
        let file = try UploadFile(path: try directory.write("data", bytes))
        let server = try ResumableServer()
        read_gate_fail(EIO, "/data")
        try withSession { session throws in
          let error = try RunningStream(file, session, server.url + "/take").summary().error
          let reason = SystemError(operation: "reading \(file.path) at byte 0", code: EIO).description
          let isNamed = error?.kind == .source && error?.description.contains(reason) == true
          try FileShortageTests.require(isNamed, "\(error?.description ?? "no error")")
        }
      }
    }
  }

  @Test("an upload that cannot be continued for lack of a descriptor keeps its resume data")
  func resumption() async {
    await #expect(processExitsWith: .success) {
      reportingErrors {
        let directory = try TemporaryDirectory()
        let path = try directory.write("data", patternBytes(OffsetPattern(), 0, FileShortageTests.size))
        let url = "http://127.0.0.1:9/take"
        let upload = ResumeData(
          upload: url + "/1", target: url, base: 0, length: UInt64(FileShortageTests.size), streamID: nil,
          version: .newest)
        let data = FileResumeData(path: path, version: "\(try UploadFile(path: path).version)", upload: upload)
        try withSession { session throws in
          var usual = rlimit()
          getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &usual)
          var limit = rlimit(rlim_cur: 3, rlim_max: usual.rlim_max)
          setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
          let attempt = Result { () throws(FileUploadError) in try session.uploadTask(resuming: data) }
          setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &usual)
          guard case .failure(.failed(let error, let kept)) = attempt else {
            throw TestFailure("\(attempt)")
          }
          let reason = SystemError(operation: "", code: EMFILE).reason
          try FileShortageTests.require(error.kind == .source && error.description.contains(reason), "\(error)")
          try FileShortageTests.require(kept == data, "the resume data: \(String(describing: kept))")
        }
      }
    }
  }

  @Test("an upload that lacks a descriptor for its next request continues when there is one")
  func descriptors() async {
    await #expect(processExitsWith: .success) {
      reportingErrors {
        let bytes = patternBytes(OffsetPattern(), 0, FileShortageTests.size)
        let directory = try TemporaryDirectory()
        let file = try UploadFile(path: try directory.write("data", bytes))
        var usual = rlimit()
        getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &usual)
        let hard = usual.rlim_max
        let server = try ResumableServer { request, _ in
          if request.method == "HEAD", request.number == 0 {
            // The request for the rest uses the connection of this one, and a new descriptor of the file.
            var limit = rlimit(rlim_cur: 3, rlim_max: hard)
            setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
          }
          return request.method == "PUT" ? .cut(after: 60_000) : .proper
        }
        try withSession { session throws in
          let stream = try RunningStream(file, session, server.url + "/take")
          let reason = SystemError(operation: "duplicating the descriptor of \(file.path)", code: EMFILE)
          let shortage = Result {
            try stream.events.wait("the shortage") { _ in
              stream.failures().contains { $0.cause == .machine(reason) } ? true : nil
            }
          }
          setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &usual)
          _ = try shortage.get()
          let error = try stream.summary().error
          try FileShortageTests.require(error == nil, "\(error?.description ?? "")")
        }
        try FileShortageTests.require(server.upload(0).isComplete && server.upload(0).bytes == bytes, "the bytes")
        try FileShortageTests.require(server.of("DELETE").isEmpty, "the upload was deleted")
      }
    }
  }

  @Test("an upload that lacks a descriptor for its first request sends the same request when there is one")
  func descriptorsAtStart() async {
    await #expect(processExitsWith: .success) {
      reportingErrors {
        let bytes = patternBytes(OffsetPattern(), 0, FileShortageTests.size)
        let directory = try TemporaryDirectory()
        let file = try UploadFile(path: try directory.write("data", bytes))
        let server = try ResumableServer()
        try withSession { session throws in
          var configuration = LiveStreamConfiguration(request: UploadRequest(url: server.url + "/take"))
          configuration.request.method = "PUT"
          configuration.resumable = .auto
          configuration.retry.initialCeiling = .milliseconds(20)
          configuration.retry.maximumCeiling = .milliseconds(50)
          let events = try EventLog<LiveStreamEvent>()
          let streamer = LiveStreamer(file, configuration: configuration, session: session)
          var usual = rlimit()
          getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &usual)
          var limit = rlimit(rlim_cur: 3, rlim_max: usual.rlim_max)
          setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
          let former = usual
          streamer.start { event in
            // Before the next attempt, so that the server can accept its connection.
            if case .outage = event {
              var limit = former
              setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
            }
            events.append(event)
          }
          let reason = SystemError(operation: "duplicating the descriptor of \(file.path)", code: EMFILE)
          let shortage = Result {
            try events.first("the shortage") { event in
              switch event {
              case .outage(let attempt), .attemptFailed(let attempt): attempt.cause == .machine(reason)
              default: false
              }
            }
          }
          setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &usual)
          _ = try shortage.get()
          let summary = try events.wait("the stream's end", within: .seconds(30)) { events in
            if case .ended(let summary)? = events.last { summary } else { nil }
          }
          try FileShortageTests.require(summary.error == nil, "\(summary.error?.description ?? "")")
          withExtendedLifetime(streamer) {}
        }
        // The file was sent with its creation, and the server was not asked first.
        try FileShortageTests.require(server.of("OPTIONS").isEmpty, "the first request was another one")
        try FileShortageTests.require(server.upload(0).isComplete && server.upload(0).bytes == bytes, "the bytes")
      }
    }
  }
}
