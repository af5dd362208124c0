// Tests files with the name of a stream's next part that a killed server or a power failure has left, and that the log
// of the stream does not know.

import Glibc
import NetworkTesting
import Testing

@testable import UploadServer

@Suite("Left files with the name of the next part")
struct LeftoverPartTests {
  /// What is left with that name.
  enum Left: CaseIterable, Sendable {
    case nothing, empty, halfHeader, header, content, complete, link, gaps, foreignGaps, foreignSidecar
  }

  @Test(
    "a closed stream continues in a next part, and no byte of a leftover file is lost", arguments: Left.allCases,
    [false, true])
  func closed(_ left: Left, isUpload: Bool) throws {
    let head = StreamedHead.all[0]
    let stream = head.bytes + (0..<(head.frameLength * 100)).map { UInt8(truncatingIfNeeded: $0 &* 37 &+ 1) }
    let split = head.bytes.count + head.frameLength * 40
    let directory = TemporaryDirectory()
    func server() throws -> TestServer { try TestServer(in: directory) { $0.finishAfter = .milliseconds(200) } }
    let test = try server()
    let client = try test.connect()
    try client.send(TestServer.head("/k.wav", type: "audio/wav"))
    try client.sendChunk(Array(stream[..<split]))
    try waitUntil("the bytes are stored") { (try? directory.contents("k-a.part"))?.count == split }
    client.disconnect()
    try test.events.wait(.closed)
    test.stop()

    let content = head.bytes + [UInt8](repeating: 9, count: 20)
    switch left {
    case .nothing: break
    case .empty: try directory.write("k-a~2.part", [])
    case .halfHeader: try directory.write("k-a~2.part", Array(head.bytes.prefix(head.bytes.count / 2)))
    case .header: try directory.write("k-a~2.part", head.bytes)
    case .content: try directory.write("k-a~2.part", content)
    case .complete: try directory.write("k-a~2.wav", content)
    case .link: try #require(symlink("/etc/hostname", directory.path + "/k-a~2.part") == 0)
    case .gaps:
      try directory.write("k-a~2.gaps", Array("{\"offset\":0,\"length\":9,\"cause\":\"not-received\"}\n".utf8))
    case .foreignGaps: try directory.write("k-a~2.gaps", content)
    case .foreignSidecar: try directory.write("k-a~2.sidecar", content)
    }
    let next = try server()
    let other = try next.connect()
    let lines = ["Stream-ID: a", "Stream-Offset: \(split)", "Content-Type: audio/wav"]
    try other.request(
      "POST", "/k.wav", version: isUpload ? 8 : nil, lines + (isUpload ? ["Upload-Complete: ?1"] : []),
      chunked: true)
    try other.sendChunk(Array(stream[split...]))
    try other.send("0\r\n\r\n")
    let answer = try other.final().answer
    #expect(answer.status == 201 && answer["stream-missing"] ?? "0" == "0", "\(answer)")
    let isKept = [Left.content, .complete, .link, .foreignGaps, .foreignSidecar].contains(left)
    let rest = try directory.contents(isKept ? "k-a~3.wav" : "k-a~2.wav").dropFirst(head.bytes.count)
    #expect(rest.elementsEqual(stream[split...]))
    switch left {
    case .content: #expect(try directory.contents("k-a~2.part") == content)
    case .complete: #expect(try directory.contents("k-a~2.wav") == content)
    case .foreignGaps: #expect(try directory.contents("k-a~2.gaps") == content)
    case .foreignSidecar: #expect(try directory.contents("k-a~2.sidecar") == content)
    case .link: #expect(try Command.run("test", ["-L", directory.path + "/k-a~2.part"]) == 0)
    default: break
    }
  }
}
