import FoundationUploads
import NetworkTesting
import PropertyTesting
import Testing

@Suite("Versions of the protocol that a server speaks")
struct VersionTests {
  private static let body = Data(OffsetPattern()[0..<2_000_000])

  @Test(
    "a file or bytes are uploaded, and resumed after an interruption, in the server's version",
    arguments: [3, 4, 5, 6, 7, 8], [false, true])
  func steps(_ version: Int, _ namesIt: Bool) throws {
    // tusd does not name the version, but shows that it supports tus.
    let named = namesIt ? "Upload-Draft-Interop-Version: \(version)" : "Tus-Version: 1.0.0"
    let server = try ResumableServer(.init(versions: [version], strange: ("400 Bad Request", [named]))) { request, _ in
      request.version == version && request.method == "PUT" ? .cut(after: 500_000) : .proper
    }
    let directory = try TemporaryDirectory()
    let path = try directory.write("source", Array(Self.body))
    let test = TestSession()
    defer { test.end() }
    let put = try request("\(server.url)/file", "PUT")
    let task =
      namesIt
      ? test.session.uploadTask(with: put, from: Self.body)
      : test.session.uploadTask(with: put, fromFile: URL(fileURLWithPath: path))
    task.resume()
    #expect(try test.recorder.end() == nil)
    let upload = server.upload(0)
    #expect(upload.isComplete && upload.bytes == Array(Self.body))
    #expect(server.uploads.count == 1)
    let offered = server.of("PUT").map { $0.version ?? 0 }
    #expect(offered == (namesIt ? Array(Set([8, version])).sorted(by: >) : Array((version...8).reversed())))
    #expect(!test.recorder.log.all.contains(.response(400)))
  }

  @Test("a server that refuses every version receives the upload without an offer")
  func none() throws {
    let server = try ResumableServer(.init(versions: [], strange: ("412 Precondition Failed", [])))
    let test = TestSession()
    defer { test.end() }
    test.session.uploadTask(with: try request("\(server.url)/file", "PUT"), from: Self.body).resume()
    #expect(try test.recorder.end() == nil)
    #expect(server.plain.count == 1 && server.plain.first?.bytes == Array(Self.body))
  }

  @Test(
    "a 412 without a version is the response to a request with a condition, whose body is sent once",
    arguments: ["If-Match", "if-none-match", "If-Modified-Since", "If-Unmodified-Since", "If"], [false, true])
  func condition(_ name: String, _ isOfSession: Bool) throws {
    let server = try ResumableServer(.init(versions: [], strange: ("412 Precondition Failed", [])))
    let test = TestSession { if isOfSession { $0.httpAdditionalHeaders = [name: "\"a\""] } }
    defer { test.end() }
    var put = try request("\(server.url)/file", "PUT")
    if !isOfSession { put.setValue("\"a\"", forHTTPHeaderField: name) }
    test.session.uploadTask(with: put, from: Data("hello".utf8)).resume()
    #expect(try test.recorder.end() == nil)
    #expect(test.recorder.log.all.contains(.response(412)))
    #expect(server.of("PUT").count == 1 && server.plain.isEmpty)
  }

  @Test("a 412 that names a version refuses the version, even if the request has a condition")
  func conditionAndVersion() throws {
    let server = try ResumableServer(
      .init(versions: [6], strange: ("412 Precondition Failed", ["Upload-Draft-Interop-Version: 6"])))
    let test = TestSession()
    defer { test.end() }
    var put = try request("\(server.url)/file", "PUT")
    put.setValue("\"a\"", forHTTPHeaderField: "If-Match")
    test.session.uploadTask(with: put, from: Self.body).resume()
    #expect(try test.recorder.end() == nil)
    #expect(server.of("PUT").map { $0.version ?? 0 } == [8, 6])
    #expect(server.upload(0).isComplete && server.upload(0).bytes == Array(Self.body))
  }

  @Test("a refusal without a version is the response")
  func otherRefusal() throws {
    let server = try ResumableServer(.init(versions: [], strange: ("400 Bad Request", [])))
    let test = TestSession()
    defer { test.end() }
    test.session.uploadTask(with: try request("\(server.url)/file", "PUT"), from: Self.body).resume()
    #expect(try test.recorder.end() == nil)
    #expect(test.recorder.log.all.contains(.response(400)))
    #expect(server.of("PUT").count == 1)
  }
}
