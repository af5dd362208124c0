// The command with an input that fails: its exit code, its words, and the recording at the server.

import CommandTesting
import Glibc
import NetworkTesting
import PropertyTesting
import Testing

@Suite("An input that fails")
struct InputFailureTests {
  @Test("a reset socket: 74, and the server closes the recording as interrupted")
  func socket() throws {
    let stored = try TemporaryDirectory()
    let server = try ServeProcess(stored.path, more: ["--finish-after", "1s"])
    var ends: [Int32] = [-1, -1]
    let type = Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue)
    guard socketpair(AF_UNIX, type, 0, &ends) == 0 else { throw TestFailure("socketpair") }
    defer { close(ends[0]) }
    // A peer that is closed before it has read everything resets the connection.
    let (unread, bytes) = ([1] as [UInt8], OffsetPattern()[0..<10_000])
    let count = write(ends[0], unread, 1) + write(ends[1], bytes, bytes.count)
    close(ends[1])
    #expect(count == 10_001)
    let (null, errors) = (open("/dev/null", O_RDWR | O_CLOEXEC), try TestPipe())
    defer { close(null) }
    let command = try SpawnedCommand(["pipe", server.url], [ends[0], null, errors.writing])
    #expect(try command.wait() == 74)
    let words = "the recording stays unfinished at the server"
    let output = try errors.read { String(decoding: $0, as: UTF8.self).contains(words) }
    #expect(String(decoding: output, as: UTF8.self).contains("Connection reset by peer"))
    let closed = try server.event("closed")
    #expect(closed.integer("offset") == 10_000 && server.events("ended").isEmpty)
    let name = try #require(closed.text("file"))
    let contents = try stored.contents(name)
    #expect(contents == bytes)
    let notes = try #require(stored.names.first { $0.hasSuffix(".gaps") })
    let gaps = String(decoding: try stored.contents(notes), as: UTF8.self)
    #expect(gaps.contains(#"{"offset":10000,"length":0,"cause":"interrupted"}"#), "\(gaps)")
  }
}
