import EventLoops
import NetworkTesting
import Testing

@testable import UploadClient

@Suite("Bytes of response heads", .serialized)
struct ResponseHeaderTests {
  /// A 104 with its line ends, as in draft-ietf-httpbis-resumable-upload, with a varying length.
  private static func interim(_ number: Int) -> String {
    "HTTP/1.1 104 Upload Resumption Supported\r\nUpload-Draft-Interop-Version: 8\r\nUpload-Offset: \(number * number)\r\n\r\n"
  }

  @Test("they are counted per request from zero, including interim ones")
  func counted() throws {
    let server = try ScriptedServer { connection, _ in
      while true {
        let head = try connection.head()
        for number in 0..<1000 { try connection.send(Self.interim(number)) }
        _ = try connection.anyBody(head)
        try connection.respond("201 Created", ["Location: /up/1"])
      }
    }
    let interim = (0..<1000).reduce(0) { $0 + Self.interim($1).utf8.count }
    let expected =
      interim + "HTTP/1.1 201 Created\r\nLocation: /up/1\r\nContent-Length: 0\r\n\r\n".utf8.count
    try withSession { session throws in
      for _ in 0..<2 {
        let upload = try RunningUpload(session, UploadRequest("PATCH", server.url))
        try upload.events.wait("the interim responses") { _ in upload.interim.count == 1000 ? true : nil }
        #expect(upload.task.responseHeaderByteCount == interim)
        upload.body.end()
        #expect(try upload.response().status == 201)
        #expect(upload.task.responseHeaderByteCount == expected)
        let last = upload.events.all.last { if case .interimResponse = $0 { true } else { false } }
        if case .interimResponse(let head)? = last { #expect(head["Upload-Offset"] == "998001") }
      }
    }
  }

  @Test("an error names a line of a head that is longer than libcurl accepts, also after an interim response")
  func longLine() throws {
    let server = try ScriptedServer { connection, number in
      _ = try connection.head()
      if number == 1 { try connection.send(Self.interim(1)) }
      try connection.send("HTTP/1.1 200 OK\r\nX-Long: \(String(repeating: "a", count: 200_000))\r\n\r\n")
    }
    try withSession { session throws in
      for _ in 0..<2 {
        let upload = try RunningUpload(session, UploadRequest("PATCH", server.url))
        try upload.body.write("some")
        let error = try upload.failure()
        #expect(error.kind == .other && error.machineError == nil)
        #expect(
          error.description.contains("a line of the response's head is longer than libcurl accepts"), "\(error)")
      }
    }
  }

  @Test("libcurl fails a request when its response heads reach responseHeaderLimit, within one line")
  func limit() throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      var number = 0
      // Until they are no longer accepted.
      while true {
        try connection.send(Self.interim(number))
        number += 1
      }
    }
    try withSession { session throws in
      let upload = try RunningUpload(session, UploadRequest("PATCH", server.url))
      try upload.body.write("some")
      let error = try upload.failure()
      #expect(error.kind == .connectionLost && error.description.contains("response headers"), "\(error)")
      // Within one line of it.
      let distance = UploadTask.responseHeaderLimit - upload.task.responseHeaderByteCount
      #expect(abs(distance) < 100, "\(distance)")
    }
  }
}
