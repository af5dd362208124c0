import FoundationUploads
import NetworkTesting
import Testing

@Suite("Encoded responses")
struct EncodedResponseTests {
  private let text = "hello, hello, hello, hello"
  /// The text, compressed with gzip.
  private let encoded: [UInt8] = [
    31, 139, 8, 0, 0, 0, 0, 0, 2, 255, 203, 72, 205, 201, 201, 215, 81, 200, 192, 164, 0, 85, 163, 130, 119, 26, 0, 0,
    0,
  ]

  /// Gives this answer to each request, whatever it accepts, and records what that is.
  private func server(_ accepted: EventLog<String>, sending count: Int? = nil) throws -> ScriptedServer {
    try ScriptedServer { [encoded] connection, _ in
      while true {
        accepted.append(try connection.head()["Accept-Encoding"] ?? "")
        try connection.send(
          "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nAccept-Ranges: bytes\r\nETag: \"a\"\r\n"
            + "Content-Length: \(encoded.count)\r\n\r\n")
        try connection.send(Array(encoded.prefix(count ?? encoded.count)))
        if count != nil { return }
      }
    }
  }

  @Test("a data task requests an encoded response and delivers it decoded, with an unknown length before")
  func data() throws {
    let accepted = try EventLog<String>()
    let server = try server(accepted)
    let test = TestSession()
    defer { test.end() }
    let task = test.session.dataTask(with: try request(server.url))
    task.resume()
    #expect(try test.recorder.end() == nil)
    #expect(test.recorder.data == Data(text.utf8))
    #expect(task.countOfBytesReceived == Int64(text.utf8.count))
    #expect(task.countOfBytesExpectedToReceive == NSURLSessionTransferSizeUnknown)
    #expect(accepted.all.first?.contains("gzip") == true)
  }

  @Test("a program's own Accept-Encoding replaces the session's")
  func own() async throws {
    let accepted = try EventLog<String>()
    let server = try server(accepted)
    var request = try request(server.url)
    request.setValue("gzip;q=0.5", forHTTPHeaderField: "Accept-Encoding")
    #expect(try await URLSession.shared.data(for: request).0 == Data(text.utf8))
    #expect(accepted.all == ["gzip;q=0.5"])
  }

  @Test("a download requests an encoding that it can resume, and decodes any other")
  func download() throws {
    let accepted = try EventLog<String>()
    let server = try server(accepted)
    let test = TestSession()
    defer { test.end() }
    test.session.downloadTask(with: try request(server.url)).resume()
    #expect(try test.recorder.end() == nil)
    #expect(test.recorder.log.all.contains(.downloaded(Data(text.utf8))))
    let total = Int64(text.utf8.count)
    #expect(test.recorder.log.all.contains(.wrote(total: total, expected: NSURLSessionTransferSizeUnknown)))
    #expect(accepted.all == ["identity"])
  }

  @Test("a truncated encoded response fails the task, without resume data")
  func cut() throws {
    let server = try server(try EventLog(), sending: 20)
    let test = TestSession()
    defer { test.end() }
    test.session.dataTask(with: try request(server.url)).resume()
    #expect(try test.recorder.end() == .networkConnectionLost)
    let other = TestSession()
    defer { other.end() }
    other.session.downloadTask(with: try request(server.url)).resume()
    #expect(try other.recorder.end() == .networkConnectionLost)
    #expect(other.recorder.error?.downloadTaskResumeData == nil)
  }
}
