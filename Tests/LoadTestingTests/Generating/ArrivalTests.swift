// An open model: when requests arrived, by the endpoint's own clock.

import EventLoops
import Glibc
import LiveStreaming
import NetworkTesting
import Synchronization
import Testing

@testable import LoadReports
@testable import LoadTesting

@Suite("A load test with an arrival rate")
struct ArrivalTests {
  /// An endpoint that answers each request after a delay, and records when each arrived and how many were simultaneous.
  private final class SlowEndpoint: Sendable {
    let arrivals: EventLog<MonotonicInstant>
    let lengths: EventLog<Int>
    private let current = Atomic(0)
    private let most = Atomic(0)
    private let server = Lock<ScriptedServer?>(nil)
    let url: String

    init(delay: Int32) throws {
      (arrivals, lengths) = (try EventLog(), try EventLog())
      let serve = Lock<(@Sendable (ServerConnection) throws -> Void)?>(nil)
      let started = try ScriptedServer { connection, _ in try serve.withLock { $0 }?(connection) }
      url = started.url
      server.withLock { $0 = started }
      serve.withLock { serve in
        serve = { [unowned self] connection in
          while true {
            let head = try connection.head()
            arrivals.append(.now)
            most.max(current.add(1, ordering: .relaxed).newValue, ordering: .relaxed)
            let length = head["Content-Length"].flatMap { Int($0) } ?? -1
            var missing = length
            while missing > 0, let part = try connection.receive(missing) { missing -= part.count }
            lengths.append(length)
            poll(nil, 0, delay)  // not a synchronization: the delay is what is measured
            current.subtract(1, ordering: .relaxed)
            try connection.respond("200 OK")
          }
        }
      }
    }

    deinit { server.withLock { $0 }?.close() }

    var mostAtOnce: Int { most.load(ordering: .relaxed) }

    /// How many arrived in each interval of this many milliseconds since the first one.
    func counts(every length: Int64) -> [Int] {
      let times = arrivals.all
      guard let first = times.min() else { return [] }
      var counts: [Int] = []
      for time in times {
        let slot = Int(time.nanoseconds(since: first) / (length * 1_000_000))
        while counts.count <= slot { counts.append(0) }
        counts[slot] += 1
      }
      return counts
    }
  }

  @Test(
    "requests begin when they are due, however slow the server is, and the number of streams affects neither rate nor size",
    arguments: [1, 3])
  func open(_ streams: Int) throws {
    let endpoint = try SlowEndpoint(delay: 500)
    let report = try loadTest(endpoint.url) {
      $0.profile.size = .rate(50_000)
      $0.streams = streams
      $0.duration = .seconds(3)
      $0.sendsRequestPerMessage = true
      $0.resumable = .never
      $0.arrivals = .init(rate: 20)
    }.run()
    let totals = report.totals
    #expect(totals.messages.due == 60 && totals.messages.acknowledged == 60 && totals.messages.dropped == 0)
    #expect(endpoint.lengths.all == Array(repeating: 5000, count: 60))
    let halves = endpoint.counts(every: 1500)
    #expect(halves.count <= 3 && (26...34).contains(halves[0]), "\(halves)")
    #expect(endpoint.mostAtOnce >= 8 && totals.connects >= 8)
    #expect(report.histograms[.acknowledged].quantile(0.5) ?? 0 < 900_000_000, "none waits for another")
    #expect(ReportVerdict(report).sentence.hasPrefix("20.0 arrivals per second for 3.00 s; "))
    #expect(report.plan.arrivalRate == 20 && report.table.contains(", 20.0 arrivals per second, no ramp, "))
    #expect(try LoadReport(json: Array(report.json.utf8), file: "report") == report)
  }

  @Test("with stages, the rate rises and falls accordingly")
  func stages() throws {
    let endpoint = try SlowEndpoint(delay: 100)
    let report = try loadTest(endpoint.url) {
      $0.sendsRequestPerMessage = true
      $0.resumable = .never
      $0.arrivals = .init(rate: 10)
      $0.arrivals?.stages = [
        .init(duration: 1_000_000_000, streams: 50), .init(duration: 1_000_000_000, streams: 50),
        .init(duration: 1_000_000_000, streams: 0),
      ]
    }.run()
    #expect(report.measured == 3_000_000_000 && report.totals.messages.due == 105)
    #expect(report.totals.messages.acknowledged == 105 && report.totals.streams.finished == 1)
    let seconds = endpoint.counts(every: 1000)
    for (count, expected) in zip(seconds, [30, 50, 25]) { #expect(abs(count - expected) <= 8, "\(seconds)") }
    #expect(ReportVerdict(report).sentence.hasPrefix("up to 50.0 arrivals per second in 3 stages for 3.00 s; "))
  }

  @Test(
    "a request that could not begin because too many were in progress is counted, reported, and ages until the end of the run"
  )
  func dropped() throws {
    let endpoint = try SlowEndpoint(delay: 500)
    let report = try loadTest(endpoint.url) {
      $0.streams = 2
      $0.duration = .seconds(2)
      $0.sendsRequestPerMessage = true
      $0.resumable = .never
      $0.arrivals = .init(rate: 20)
      $0.arrivals?.maximumUnderWay = 2
    }.run()
    let messages = report.totals.messages
    #expect(endpoint.mostAtOnce <= 2 && messages.due == 40 && messages.sent == endpoint.arrivals.all.count)
    #expect((4...10).contains(messages.sent) && messages.dropped == 40 - messages.sent)
    #expect(messages.acknowledged == messages.sent && report.histograms[.acknowledged].count == 40)
    #expect(report.totals.bytes.lost == 500 * messages.dropped)
    #expect(report.histograms[.acknowledged].quantile(0.5) ?? 0 > 600_000_000)
    let verdict = ReportVerdict(report)
    #expect(verdict.sentence.contains("; \(messages.dropped) requests dropped: 2 may be under way; "))
    #expect(verdict.level == .bad && report.table.contains(", \(messages.dropped) dropped"))
    #expect(try Threshold("dropped > 0").failure(in: report) != nil)
  }

  @Test("several URLs receive requests in turn, including those of one stream")
  func severalURLs() throws {
    let endpoints = [try SlowEndpoint(delay: 1), try SlowEndpoint(delay: 1)]
    let report = try loadTest(endpoints[0].url) {
      $0.otherURLs = [endpoints[1].url]
      $0.sendsRequestPerMessage = true
      $0.resumable = .never
      $0.arrivals = .init(rate: 40)
    }.run()
    #expect(report.totals.messages.acknowledged == 40)
    #expect(endpoints.map(\.arrivals.all.count) == [20, 20])
  }

  @Test("options that contradict an arrival rate are refused before the first connection")
  func refused() throws {
    let changes: [(inout LoadConfiguration) -> Void] = [
      { $0.sendsRequestPerMessage = false }, { $0.arrivals?.rate = 0 }, { $0.arrivals?.rate = .nan },
      { $0.arrivals?.rate = 1e8 }, { $0.arrivals?.maximumUnderWay = 0 }, { $0.profile.jitter = 1 },
      { $0.profile.streamLength = .fixed(1) }, { $0.stages = [.init(duration: 1, streams: 1)] },
    ]
    for (index, change) in changes.enumerated() {
      #expect(throws: LoadError.self, "\(index)") {
        try loadTest("http://127.0.0.1:9/") {
          $0.sendsRequestPerMessage = true
          $0.arrivals = .init(rate: 20)
          change(&$0)
        }
      }
    }
  }

  @Test("the limits of an arrival rate, and a rate that rises from zero, are accepted")
  func accepted() throws {
    let changes: [(inout LoadConfiguration) -> Void] = [
      { $0.arrivals?.rate = ArrivalPlan.highestRate }, { $0.arrivals?.maximumUnderWay = 1 },
      {
        $0.arrivals?.rate = 0
        $0.arrivals?.stages = [.init(duration: 1_000_000_000, streams: 10)]
      },
    ]
    for change in changes {
      _ = try loadTest("http://127.0.0.1:9/") {
        $0.sendsRequestPerMessage = true
        $0.arrivals = .init(rate: 20)
        change(&$0)
      }
    }
    let talk = LoadProfile.Turns(talk: .fixed(1), silence: .fixed(1))
    let bursts = LoadProfile.Bursts(every: .fixed(1), length: .fixed(1), factor: 2)
    let refused: [(inout LoadConfiguration) -> Void] = [
      { $0.arrivals?.maximumUnderWay = 1_000_001 }, { $0.profile.turns = talk }, { $0.profile.bursts = bursts },
    ]
    for change in refused {
      #expect(throws: LoadError.self) {
        try loadTest("http://127.0.0.1:9/") {
          $0.sendsRequestPerMessage = true
          $0.arrivals = .init(rate: 20)
          change(&$0)
        }
      }
    }
  }

  @Test("a load test with an arrival rate may be limited to one request at a time")
  func oneAtATime() throws {
    _ = try loadTest("http://127.0.0.1:9/") {
      $0.sendsRequestPerMessage = true
      $0.resumable = .never
      $0.arrivals = .init(rate: 20)
      $0.arrivals?.maximumUnderWay = 1
    }
  }
}
