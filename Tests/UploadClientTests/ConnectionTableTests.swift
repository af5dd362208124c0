// Which connection carries which request, with sockets that libcurl would open.

import CCurl
import EventLoops
import Glibc
import NetworkTesting
import Testing

@testable import UploadClient

@Suite("The table of connections")
struct ConnectionTableTests {
  private let ends = ConnectionTable.Ends(local: "127.0.0.1", localPort: 1000, remote: "127.0.0.1", remotePort: 9)
  /// The addresses of any unix socket.
  private let unixEnds = ConnectionTable.Ends(local: "", localPort: 0, remote: "", remotePort: 0)

  /// Numbers of sockets that are not open in this process.
  private let first: Int32 = 100_000
  private let second: Int32 = 100_001

  private func withTransfers(_ body: (inout ConnectionTable, [CurlTransfer]) throws -> Void) throws {
    try withSession { session throws in
      let transfers = (0..<3).map { _ in
        CurlTransfer(
          request: UploadRequest(url: "http://127.0.0.1:9"), body: .none, loop: session.loop, session: session
        ) { _ in }
      }
      defer { for transfer in transfers { transfer.task.isOver(nil) } }
      var table = ConnectionTable()
      try body(&table, transfers)
    }
  }

  @Test("a connection is new for its first request only, belongs to its last one, and is unknown once it is closed")
  func life() throws {
    try withTransfers { table, transfers in
      table.opened(first, by: transfers[0])
      #expect(!table.isIdle, "its request is about to be sent")
      let new = table.use(ends, by: transfers[0])
      let connection = try #require(new)
      #expect(connection === table[first] && connection.isNew && connection.user === transfers[0])
      #expect(!table.isIdle)
      connection.isLeft(by: transfers[1])
      #expect(connection.user === transfers[0], "only its user leaves it")
      connection.isLeft(by: transfers[0])
      #expect(table.isIdle && table.count == 1)
      let reused = table.use(ends, by: transfers[1])
      #expect(reused === connection && !connection.isNew && connection.user === transfers[1])
      let closed = table.close(first)
      #expect(closed === connection && table.count == 0)
      let stale = table.use(ends, by: transfers[2])
      #expect(stale == nil && connection.user === transfers[1])
    }
  }

  @Test("a reused unix socket, which has no address of its own, is known by its number alone")
  func unixSockets() throws {
    try withTransfers { table, transfers in
      for (socket, transfer) in [(first, transfers[0]), (second, transfers[1])] {
        table.opened(socket, by: transfer)
        let new = table.use(unixEnds, by: transfer)
        #expect(new === table[socket] && new?.isNew == true)
      }
      let unknown = table.use(unixEnds, by: transfers[2])
      #expect(unknown == nil)
      let adopted = table.adopt(first, by: transfers[2])
      #expect(adopted === table[first] && adopted?.user === transfers[2])
      #expect(table[second]?.user === transfers[1])
      let nothing = table.adopt(second + 1, by: transfers[2])
      #expect(nothing == nil)
    }
  }

  @Test("of several sockets for one request, the one with the local port of the connection stays", arguments: [0, 1])
  func several(_ chosen: Int) throws {
    var sockets: [Int32] = []
    defer { for socket in sockets { close(socket) } }
    var ports: [Int32] = []
    for _ in 0..<2 {
      let descriptor = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
      sockets.append(descriptor)
      let free = try IPv4Address("127.0.0.1:0")
      let code = free.withPointer { bind(descriptor, $0, $1) }
      #expect(code == 0)
      let bound = try IPv4Address(of: descriptor)
      ports.append(Int32(bound.description.split(separator: ":")[1]) ?? 0)
    }
    try withTransfers { table, transfers in
      for socket in sockets { table.opened(socket, by: transfers[0]) }
      let all = sockets.map { table[$0] }
      let chosenEnds = ConnectionTable.Ends(
        local: "127.0.0.1", localPort: ports[chosen], remote: "127.0.0.1", remotePort: 9)
      let used = table.use(chosenEnds, by: transfers[0])
      #expect(used === all[chosen] && used?.isOpen == true && table[sockets[chosen]] === used)
      #expect(all[1 - chosen]?.isOpen == false && table[sockets[1 - chosen]] == nil && table.count == 1)
    }
  }

  @Test("a request that ends before its connection leaves no socket, and none of another request ends with it")
  func forgotten() throws {
    try withTransfers { table, transfers in
      table.opened(first, by: transfers[0])
      table.opened(second, by: transfers[1])
      let (left, other) = (table[first], table[second])
      table.forget(transfers[0])
      #expect(left?.isOpen == false && table[first] == nil)
      #expect(other?.isOpen == true && table[second] === other && !table.isIdle)
      // Its number has come back in the meantime.
      table.opened(second, by: transfers[2])
      table.forget(transfers[1])
      #expect(other?.isOpen == false && table[second]?.isOpen == true && table.count == 1)
    }
  }

  @Test("a connection that libcurl closes is not open for anybody who still refers to it")
  func closedByLibcurl() throws {
    try withSession { session throws in
      let transfer = CurlTransfer(
        request: UploadRequest(url: "http://127.0.0.1:9"), body: .none, loop: session.loop, session: session
      ) { _ in }
      defer { transfer.task.isOver(nil) }
      let isOpen = try onThread(of: session) { () -> [Bool?] in
        let descriptor = open("/dev/null", O_RDONLY | O_CLOEXEC)
        let multi = session.lanes[0]
        multi.connections.opened(descriptor, by: transfer)
        let connection = multi.connections[descriptor]
        let before = connection?.isOpen
        let code = multi.close(socket: descriptor)
        multi.connections.forget(transfer)
        return [before, connection?.isOpen, code == 0, multi.connections.isIdle]
      }
      #expect(isOpen == [true, false, true, true])
    }
  }
}
