import CCurl
import Glibc
import NetworkTesting
import StreamBuffers
import Testing

@testable import UploadClient

@Suite("Bytes that libcurl buffers")
struct HeldBytesTests {
  /// Both ends of a connection without bytes in flight.
  private func withConnection(_ body: (Int32) throws -> Void) throws {
    let server = try ScriptedServer { connection, _ in _ = connection.waitForEnd() }
    defer { server.close() }
    let client = try ServerConnection(connectingTo: "127.0.0.1:\(server.port)")
    try body(client.descriptor)
  }

  @Test(
    "libcurl may buffer the stated number of bytes, except for a chunked body on plain HTTP/1.1",
    arguments: [true, false], [true, false])
  func held(_ isChunked: Bool, _ hasPlainFraming: Bool) throws {
    try withConnection { socket in
      for countsChunks in [true, false] {
        var bytes = AcknowledgedBytes()
        bytes.begin(
          isChunked: isChunked, hasPlainFraming: hasPlainFraming, countsChunks: countsChunks, heldByLibcurl: 1000,
          bytesBefore: nil)
        bytes.handedOver(5000)
        bytes.handedOver(0)
        // The kernel has no unacknowledged bytes, so everything that is not sent is in libcurl.
        #expect(bytes.update(socket: socket) == (isChunked && hasPlainFraming ? 5000 : 4000))
        #expect(bytes.update(socket: socket) == (isChunked && hasPlainFraming ? 5000 : 4000), "looking changes nothing")
      }
    }
  }

  @Test(
    "libcurl may buffer an upload buffer, and on HTTP/2 a frame or a window more",
    arguments: [UploadRequest.HTTPVersion.http1, .http2, .negotiated], ["http", "HTTPS"])
  func bounds(_ version: UploadRequest.HTTPVersion, _ scheme: String) {
    var request = UploadRequest(url: "\(scheme)://127.0.0.1/")
    request.httpVersion = version
    let mayBeHTTP2 = version == .http2 || version == .negotiated && scheme == "HTTPS"
    for size in [16_384, 65_536, 2 << 20] {
      request.uploadBufferSize = size
      #expect(request.mostHeldByteCount == size + (mayBeHTTP2 ? AcknowledgedBytes.heldForHTTP2 : 0))
    }
    #expect([16 << 10, 80 << 10].contains(AcknowledgedBytes.heldForHTTP2))
    #expect(request.hasPlainFraming == (scheme == "http" && version != .http2))
  }

  @Test("the newest piece counts as buffered until libcurl asks again")
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

  @Test("the last chunk, which libcurl may still buffer, acknowledges no byte before it")
  func lastChunk() throws {
    let (isDeaf, isOver) = (try EventLog<Bool>(), try EventLog<Bool>())
    let server = try ScriptedServer { connection, _ in
      try connection.goDeaf()
      isDeaf.append(true)
      try isOver.first("the end of the test") { $0 }
    }
    defer { isOver.append(true) }
    let client = try ServerConnection(connectingTo: "127.0.0.1:\(server.port)")
    try isDeaf.first("the server's deafness") { $0 }
    var bytes = AcknowledgedBytes()
    bytes.begin(isChunked: true, hasPlainFraming: true, countsChunks: true, heldByLibcurl: 0, bytesBefore: nil)
    for _ in 0..<3 {
      try client.send("5\r\nhello\r\n")
      bytes.handedOver(5)
    }
    bytes.bodyEnded()
    #expect(bytes.update(socket: client.descriptor) == 0)
  }

  @Test("a single byte is a piece, which counts as buffered until libcurl asks again or the body ends")
  func single() throws {
    try withConnection { socket in
      for (count, bodyEnds) in [(1, false), (1, true), (5000, true)] {
        var bytes = AcknowledgedBytes()
        bytes.begin(isChunked: true, hasPlainFraming: true, countsChunks: true, heldByLibcurl: 0, bytesBefore: nil)
        bytes.handedOver(count)
        #expect(bytes.bodyByteCount == UInt64(count) && bytes.update(socket: socket) == 0)
        if bodyEnds { bytes.bodyEnded() } else { bytes.handedOver(0) }
        #expect(bytes.update(socket: socket) == UInt64(count))
      }
    }
  }

  @Test("the bytes written to a connection are those that its peer has acknowledged, and those in flight")
  func written() throws {
    let (isDeaf, isOver) = (try EventLog<Bool>(), try EventLog<Bool>())
    let server = try ScriptedServer { connection, _ in
      _ = try connection.bytes(5)
      try connection.goDeaf()
      isDeaf.append(true)
      try isOver.first("the end of the test") { $0 }
    }
    defer { isOver.append(true) }
    let client = try ServerConnection(connectingTo: "127.0.0.1:\(server.port)")
    try client.send("hello")
    try isDeaf.first("the server's deafness") { $0 }
    try client.send("unheard")
    #expect(AcknowledgedBytes.bytesWritten(on: client.descriptor) == 12)
    try eventually("the acknowledgement") {
      AcknowledgedBytes.kernel(of: client.descriptor) == StallWatch.Kernel(queued: 7, acknowledged: 5)
    }
    #expect(AcknowledgedBytes.bytesWritten(on: client.descriptor) == 12)
  }

  @Test("a socket without a connection, or without TCP, has no count of written bytes")
  func uncounted() throws {
    let idle = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
    var pair: [Int32] = [-1, -1]
    #expect(socketpair(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0, &pair) == 0)
    defer { for descriptor in pair + [idle] { close(descriptor) } }
    for descriptor in [idle, pair[0]] {
      #expect(AcknowledgedBytes.bytesWritten(on: descriptor) == nil)
      #expect(AcknowledgedBytes.kernel(of: descriptor) == StallWatch.Kernel(queued: 0, acknowledged: 0))
    }
    #expect(AcknowledgedBytes.bytesWritten(on: -1) == nil && AcknowledgedBytes.kernel(of: -1) == nil)
  }

  @Test("a request with an option that libcurl refuses ends with its name")
  func refusedOption() throws {
    try withSession { session throws in
      var request = UploadRequest(url: "http://127.0.0.1:9/")
      // Beyond CURL_MAX_INPUT_LENGTH, 8 MB.
      request.localAddress = String(repeating: "x", count: 8_000_001)
      let error = try RunningUpload(session, request).failure()
      #expect(error.kind == .invalidRequest && error.description.contains("INTERFACE"), "\(error)")
      // None of it has begun or remains.
      #expect(try onThread(of: session) { session.lanes[0].transfers.isEmpty })
    }
  }
}
