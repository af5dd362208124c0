// The part of the limits that a plain request uses when it finds its stream more than once.

import BrokerTesting
import EventLoops
import JetStream
import ResumableUploads
import StreamServing
import Testing

@testable import LogServing

@Suite("The limits that one request uses")
struct LogAllowanceTests {
  /// The unfinished uploads and their bytes, as a server counts them.
  private struct Count: Equatable {
    var uploads: Int
    var bytes: UInt64
  }

  @Test("a request that is refused when its stream has begun again releases the former upload only once")
  func begunAgain() throws {
    let broker = try TestBroker()
    let brokers = try BrokerLoop(BrokerOptions(servers: [broker.url]))
    let counts: [Count] = try brokers.wait("the requests") { client, done in
      var options = UploadLimitsConfiguration()
      options.quota = 100
      UploadLog.open(with: client, options, emit: { _ in }) { log in
        guard let log else { return done([]) }
        let usage = log.usage
        let last = LogEntry(
          offset: 0, count: 0, streamID: "s", streamStart: 0, owner: nil, mark: .init(publisher: "p", number: 1))
        var counts: [Count] = []
        func count() { counts.append(Count(uploads: usage.count, bytes: usage.bytes)) }
        // It has received bytes that are in no message yet.
        let other = LogAllowance(log, "")
        try? other.enter(plain: "former", behind: nil, at: 0, of: nil, bringing: nil)
        _ = usage.claim(60, for: "former")
        count()
        let request = LogAllowance(log, "")
        try? request.enter(plain: "former", behind: last, at: 1, of: nil, bringing: nil)
        do throws(UploadRefusal) {
          try request.enter(plain: "present", behind: nil, at: 0, of: nil, bringing: 41)
        } catch {
          if error == .quotaExhausted { count() }
        }
        let append = LogAppend(after: 0, at: 0, announcing: false)
        request.leave(append)
        count()
        other.leave(append)
        count()
        done(counts)
      }
    }
    let one = Count(uploads: 1, bytes: 60)
    #expect(counts == [one, one, one, Count(uploads: 0, bytes: 0)])
  }
}
