// How streams are distributed over loops, lanes, URLs and addresses, and how many end at once.

import EventLoops
import LiveStreaming
import LoadReports
import NetworkTesting
import PropertyTesting
import Testing
import UploadClient

@testable import LoadTesting

@Suite("The plan of a run")
struct LoadRunPlanTests {
  private func plan(_ configuration: LoadConfiguration, _ addresses: [String] = []) throws -> LoadRunPlan {
    LoadRunPlan(
      configuration, bytes: try BodyBytes(.pattern, seed: 0), localAddresses: addresses, clock: RunClock(origin: .now)
    ) { _ in }
  }

  @Test(
    "streams that share a connection share a lane, a URL and an address, and a few hundred others share each lane",
    arguments: Seed.several(3))
  func lanes(seed: Seed) throws {
    var random = seed.generator
    for _ in 0..<30 {
      var configuration = LoadConfiguration(request: UploadRequest(url: "https://127.0.0.1:9/0"))
      configuration.otherURLs = (0..<Int.random(in: 0...2, using: &random)).map { "https://127.0.0.1:9/\($0 + 1)" }
      configuration.streams = random.size(upTo: 3_000)
      configuration.threads = Int.random(in: 1...4, using: &random)
      let parts = Int.random(in: 1...3, using: &random)
      configuration.part = (index: Int.random(in: 1...parts, using: &random), count: parts)
      configuration.streamsPerConnection = [1, 2, 3, 50, 100, 1_000].randomElement(using: &random) ?? 1
      if random.chance(60) { configuration.request.httpVersion = .http2 }
      let addresses = ["127.0.0.2", "127.0.0.3"]
      let plan = try plan(configuration, addresses)
      let indices = Array(LoadPart(configuration).streamIndices(of: configuration.streams))
      #expect(indices.count == configuration.share && plan.laneCount >= 1)
      for number in 0..<configuration.threads {
        let share = stride(from: number, to: indices.count, by: configuration.threads).map { indices[$0] }
        let streams = share.map { plan.streamConfiguration(LoadPlace(index: $0)) }
        let lanes = Dictionary(grouping: streams) { $0.lane % plan.laneCount }
        let most = lanes.values.map(\.count).max() ?? 0
        guard configuration.sharesConnections else {
          #expect(most < 400 && (lanes.count < 2 || lanes.values.allSatisfy { $0.count >= 200 }), "\(seed)")
          continue
        }
        let perConnection = configuration.streamsPerConnection
        #expect(most <= perConnection && streams.allSatisfy { $0.lane < plan.laneCount }, "\(seed)")
        // Each stream has the same URL as without shared connections, and each URL has as few connections as possible.
        let urls = configuration.requests.map(\.url)
        #expect(streams.map(\.request.url) == share.map { urls[$0 % urls.count] }, "\(seed)")
        let perURL = Dictionary(grouping: share) { $0 % urls.count }.values.map(\.count)
        #expect(lanes.count == perURL.reduce(0) { $0 + ($1 + perConnection - 1) / perConnection }, "\(seed)")
        for lane in lanes.values {
          #expect(Set(lane.map(\.request.url)).count == 1 && Set(lane.map(\.request.localAddress)).count == 1)
        }
      }
      guard !configuration.sharesConnections else { continue }
      // Each URL as often as any other, and each address with each URL.
      let all = (0..<12).map { plan.streamConfiguration(LoadPlace(index: $0)).request }
      let uses = Dictionary(grouping: all) { "\($0.url) from \($0.localAddress ?? "")" }
      #expect(uses.count == configuration.requests.count * 2 && Set(uses.values.map(\.count)).count == 1, "\(seed)")
    }
  }

  @Test("over HTTP/2, the requests of one stream with an arrival rate use several URLs in turn, each in its own lane")
  func lanesOfMessages() throws {
    var configuration = LoadConfiguration(request: UploadRequest(url: "https://127.0.0.1:9/0"))
    configuration.otherURLs = ["https://127.0.0.1:9/1", "https://127.0.0.1:9/2"]
    configuration.request.httpVersion = .http2
    configuration.sendsRequestPerMessage = true
    configuration.arrivals = .init(rate: 20)
    let plan = try plan(configuration)
    let place = LoadPlace(index: 0)
    for number in 0..<6 {
      #expect(plan.request(of: place, number: number).url == "https://127.0.0.1:9/\(number % 3)")
      #expect(plan.lane(of: place, number: number) == number % 3 && plan.laneCount == 3)
    }
  }

  @Test(
    "the maximum number of requests under way is divided by the loops that have streams",
    arguments: [
      (1, 8, 1, 1000), (2, 8, 1, 500), (8, 8, 1, 125), (100, 4, 1, 250),
      // The parts have two streams and one stream.
      (3, 4, 2, 250), (100, 4, 5, 50), (5000, 200, 10, 1),
    ] as [(Int, Int, Int, Int)])
  func underWay(streams: Int, threads: Int, parts: Int, perLoop: Int) throws {
    var configuration = LoadConfiguration(request: UploadRequest(url: "http://127.0.0.1:9/"))
    (configuration.streams, configuration.threads) = (streams, threads)
    configuration.part = (index: 1, count: parts)
    configuration.sendsRequestPerMessage = true
    configuration.arrivals = .init(rate: 20)
    configuration.arrivals?.maximumUnderWay = 1000
    #expect(try plan(configuration).underWayPerLoop == perLoop)
  }

  /// Records when it is asked to finish.
  private final class Ending: PacedStream {
    let number: Int
    let log: (Int) -> Void

    init(_ number: Int, _ log: @escaping (Int) -> Void) { (self.number, self.log) = (number, log) }

    var isAcknowledged: Bool { true }
    func begin() {}
    func quiet() {}
    func stop(isDue: Bool) {}
    func finish() { log(number) }
    func finishUnacknowledged() {}
  }

  @Test(
    "ended streams end in their order, each once, and at most 25 within 10 ms, in any order of arrival",
    arguments: Seed.several(2))
  func endings(seed: Seed) throws {
    var random = seed.generator
    let loop = try LoadLoop(
      try plan(LoadConfiguration(request: UploadRequest(url: "http://127.0.0.1:9/"))), report: { _ in }, idle: {})
    let isOver = try EventCounter()
    nonisolated(unsafe) var ended: [(number: Int, time: MonotonicInstant)] = []
    // Many at once, single ones, and pauses in which all of them end.
    let arrivals = (0..<20).map { _ in
      (
        count: random.chance(50) ? 1 : Int.random(in: 0...80, using: &random),
        pause: Int.random(in: 0...40, using: &random)
      )
    }
    let total = arrivals.reduce(0) { $0 + $1.count }
    loop.eventLoop.execute {
      var (number, time) = (0, MonotonicInstant.now)
      for arrival in arrivals {
        time = time + .milliseconds(arrival.pause)
        let numbers = number..<number + arrival.count
        number = numbers.upperBound
        loop.eventLoop.schedule(at: time) {
          for number in numbers {
            loop.finish(
              Ending(number) {
                ended.append(($0, .now))
                if ended.count == total { isOver.signal() }
              })
          }
        }
      }
    }
    #expect(waitUntilReadable(isOver.descriptor))
    // Nothing follows.
    loop.session.close()
    #expect(ended.map(\.number) == Array(0..<total), "\(seed)")
    for index in ended.indices.dropFirst(25) {
      // Timers are never early, and the work of a batch takes a moment.
      #expect(ended[index].time - ended[index - 25].time > .milliseconds(5), "\(seed)")
    }
    withExtendedLifetime(isOver) {}
  }
}
