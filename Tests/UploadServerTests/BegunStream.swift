// Streams of which a server has bytes before the tested upload begins.

import NetworkTesting
import Testing
import UploadServer

/// How the server got these bytes.
enum BegunStream: CaseIterable, Sendable {
  case plain, upload, complete
  /// As with `plain`, and the recording was closed.
  case closed

  /// A server that releases the files of idle uploads soon.
  static func server(
    _ directory: TemporaryDirectory, _ durability: Durability, finishAfter: Duration = .seconds(3600)
  ) throws -> TestServer {
    try TestServer(in: directory) {
      ($0.durability, $0.finishAfter) = (durability, finishAfter)
      $0.uploads.parkDelay = .milliseconds(1)
    }
  }

  /// Sends the bytes of the stream `a`. For `closed`, the server must close silent recordings soon.
  func begin(_ test: TestServer, _ bytes: [UInt8]) throws {
    switch self {
    case .plain: try test.plain(id: "a", bytes)
    case .upload: try test.append(try test.create("/t.txt", ["Stream-ID: a"]), at: 0, bytes)
    case .complete:
      let client = try test.connect()
      try client.send(TestServer.head())
      try client.sendChunk(bytes)
      try client.send("0\r\n\r\n")
      #expect(try client.answer().status == 201)
    case .closed:
      try test.plain(id: "a", bytes)
      try test.events.wait(.closed)
    }
  }
}

extension TestServer {
  /// Completes an upload without more bytes.
  func complete(_ location: String, at offset: Int) throws -> RawClient.Answer {
    let client = try connect()
    try client.patch(location, at: offset, completes: true, body: "")
    return try client.final().answer
  }
}
