// A spool whose buffer cannot be watched for a moment, because the user has too many watches (epoll(7)).

import CallCounter
import EventLoops
import ExitTesting
import Glibc
import Spool
import SpooledStreams
import StreamBuffers
import Testing

@Suite("A spool whose buffer cannot be watched", .enabled(if: call_counter_works()))
struct UnwatchedBufferTests {
  @Test("captured bytes are on the disk after each interval, however long the source was silent before")
  func unwatched() async {
    // A process of its own: the spools of other tests have threads of the same name.
    await #expect(processExitsWith: .success) {
      reportingErrors {
        let directory = try SpoolDirectory()
        let spool = try directory.open()
        refuse_watches("spool", ENOSPC)
        let buffer = try spool.begin(description: "", capacity: 64 << 10, overflow: .refuse)
        var ends = try buffer.ends()
        try SpoolDirectory.wait(for: "several attempts without new bytes") { refused_watches() >= 4 }
        func capture(_ total: UInt64) throws {
          _ = ends.producer.write(minimum: 1000, maximum: 1000) { _ in 1000 }
          try SpoolDirectory.wait(for: "byte \(total)") { try directory.newest()?.checkpoint.head == total }
        }
        try capture(1000)
        refuse_watches("", 0)
        try SpoolDirectory.wait(for: "the recovery") { directory.events.last == .recovered }
        let codes: [Int32?] = directory.events.map { if case .failing(let error) = $0 { error.code } else { nil } }
        guard codes == [ENOSPC, nil] else { throw SpooledStretchTests.Failure(reason: "\(directory.events)") }
        try capture(2000)
        ends.consumer.release(upTo: 2000)
        try spool.finish(buffer.stretch, isDelivered: true)
      }
    }
  }
}
