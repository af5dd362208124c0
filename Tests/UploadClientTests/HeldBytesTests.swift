import NetworkTesting
import StreamBuffers
import Testing

@testable import UploadClient

@Suite("Bytes that libcurl holds")
struct HeldBytesTests {
  /// Both ends of a connection on which nothing is under way.
  private func withConnection(_ body: (Int32) throws -> Void) throws {
    let server = try ScriptedServer { connection, _ in _ = connection.waitForEnd() }
    defer { server.close() }
    let client = try ServerConnection(connectingTo: "127.0.0.1:\(server.port)")
    try body(client.descriptor)
  }

  @Test(
    "of what was handed over so much may be in libcurl's buffers, but for a chunked body on plain HTTP/1.1",
    arguments: [true, false], [true, false])
  func held(_ isChunked: Bool, _ hasPlainFraming: Bool) throws {
    try withConnection { socket in
      var bytes = AcknowledgedBytes()
      bytes.begin(
        isChunked: isChunked, hasPlainFraming: hasPlainFraming, countsChunks: true, heldByLibcurl: 1000,
        bytesBefore: nil)
      bytes.handedOver(5000)
      bytes.handedOver(0)
      // The kernel has nothing that is not acknowledged: what is not on its way is in libcurl.
      #expect(bytes.update(socket: socket) == (isChunked && hasPlainFraming ? 5000 : 4000))
      #expect(bytes.update(socket: socket) == (isChunked && hasPlainFraming ? 5000 : 4000), "looking changes nothing")
    }
  }

  @Test("the newest piece counts as held until libcurl asks again")
  func newest() throws {
    try withConnection { socket in
      var bytes = AcknowledgedBytes()
      bytes.begin(isChunked: true, hasPlainFraming: true, countsChunks: true, heldByLibcurl: 1000, bytesBefore: nil)
      bytes.handedOver(3000)
      bytes.handedOver(2000)
      #expect(bytes.update(socket: socket) == 3000)
      bytes.handedOver(0)
      #expect(bytes.update(socket: socket) == 5000)
    }
  }

  @Test("a request with an option that libcurl refuses ends, and says which")
  func refusedOption() throws {
    try withSession { session throws in
      var request = UploadRequest(url: "http://127.0.0.1:9/")
      // Beyond CURL_MAX_INPUT_LENGTH, 8 MB.
      request.localAddress = String(repeating: "x", count: 8_000_001)
      let error = try RunningUpload(session, request).failure()
      #expect(error.kind == .invalidRequest && error.description.contains("INTERFACE"), "\(error)")
    }
  }
}
