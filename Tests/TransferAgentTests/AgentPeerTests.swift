// The connections of programs to the agent.

import EventLoops
import Glibc
import Testing

@testable import TransferAgent

@Suite("A connection to the agent")
struct AgentPeerTests {
  @Test("a connection that cannot be watched still belongs to the caller, which closes it once")
  func unwatched() throws {
    let loop = try EventLoop()
    var ends: [Int32] = [-1, -1]
    try #require(socketpair(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0, &ends) == 0)
    defer { for end in ends { close(end) } }
    // The kernel refuses to watch it a second time.
    try loop.register(ends[0], .readable) { _ in }
    defer { loop.deregister(ends[0]) }
    #expect(throws: SystemError(operation: "epoll_ctl", code: EEXIST)) {
      _ = try AgentPeer(ends[0], loop: loop)
    }
    var byte: UInt8 = 0
    let (count, code) = (recv(ends[1], &byte, 1, Int32(MSG_DONTWAIT)), errno)
    #expect(count == -1 && code == EAGAIN, "the descriptor was closed")
  }
}
