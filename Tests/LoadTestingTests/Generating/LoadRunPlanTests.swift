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

  @Test("a stream has the settings of the run, and a name with its number and that of its successor")
  func streamSettings() throws {
    var configuration = LoadConfiguration(request: UploadRequest(url: "http://127.0.0.1:9/"))
    configuration.resumable = .never
    configuration.rollOverAfter = .seconds(77)
    configuration.buffer = 12_345
    configuration.giveUpAfter = .seconds(13)
    configuration.retryCeiling = .seconds(17)
    configuration.giveUpOnRefusalAfter = .seconds(19)
    configuration.profile.size = .bytes(300...300)
    configuration.streams = 1000
    let plan = try plan(configuration)
    let stream = plan.streamConfiguration(LoadPlace(index: 7))
    #expect(stream.resumable == .never && stream.rollOver.after == .seconds(77))
    #expect(stream.rollOver.responseHeadSize == 3500 && stream.buffer == .bytes(12_345) && stream.keepsOrigin)
    #expect(stream.retry.giveUpAfter == .seconds(13) && stream.retry.maximumCeiling == .seconds(17))
    #expect(stream.retry.giveUpOnRefusalAfter == .seconds(19))
    #expect(stream.pairSize == 300 && stream.lane == 0 && plan.streamConfiguration(LoadPlace(index: 800)).lane == 4)
    #expect(stream.request.receiveBufferSize == 1024 && stream.request.tellsAccepted)
    let name = stream.streamID
    #expect(name.hasPrefix("load-") && name.hasSuffix("-7"))
    #expect(plan.streamConfiguration(LoadPlace(index: 7, generation: 1)).streamID == name + "-1")
    for (size, pair) in [(1, 256), (256, 256), (257, 257), (65_536, 65_536), (65_537, 65_536)] {
      configuration.profile.size = .bytes(size...size)
      #expect(try self.plan(configuration).streamConfiguration(LoadPlace(index: 0)).pairSize == pair)
    }
  }

  @Test("a loop has one lane for 200 streams, or as many as its shared connections")
  func laneCounts() throws {
    for (streams, threads, urls, isShared, expected) in [
      (1, 1, 1, false, 1), (399, 1, 1, false, 1), (400, 1, 1, false, 2), (799, 2, 1, false, 2), (798, 2, 1, false, 1),
      (100, 1, 1, true, 1), (101, 1, 1, true, 2), (200, 2, 1, true, 1), (201, 2, 1, true, 2), (200, 1, 2, true, 2),
      (201, 1, 2, true, 4),
    ] as [(Int, Int, Int, Bool, Int)] {
      var configuration = LoadConfiguration(request: UploadRequest(url: "https://127.0.0.1:9/0"))
      configuration.otherURLs = (1..<urls).map { "https://127.0.0.1:9/\($0)" }
      (configuration.streams, configuration.threads) = (streams, threads)
      if isShared { configuration.request.httpVersion = .http2 }
      #expect(try plan(configuration).laneCount == expected, "\(streams) \(threads) \(urls) \(isShared)")
    }
  }

  @Test("only the transfer that reaches a limit ends the run, and the others learn that they must stop")
  func caps() throws {
    var configuration = LoadConfiguration(request: UploadRequest(url: "http://127.0.0.1:9/"))
    (configuration.maximumByteCount, configuration.maximumConnectionCount) = (100, 2)
    let ends = Lock<[LoadEndReason]>([])
    let plan = LoadRunPlan(
      configuration, bytes: try BodyBytes(.zeros, seed: 0), localAddresses: [], clock: RunClock(origin: .now)
    ) { reason in ends.withLock { $0.append(reason) } }
    #expect([60, 39, 1, 1, 1].map { plan.spend(bytes: $0) } == [false, false, true, true, true])
    #expect(ends.withLock { $0 } == [.byteLimit(100)])
    #expect((0..<5).map { _ in plan.spendConnection() } == [false, false, true, true, true])
    #expect(ends.withLock { $0 } == [.byteLimit(100), .connectionLimit(2)])
  }

  @Test("whether TCP's acceptance is known, and connections are shared, depends on the version and the requests")
  func versions() {
    for (isHTTP2, perMessage, perConnection, tellsAccepted, shares) in [
      (false, false, 100, true, false), (false, true, 100, false, false), (true, false, 100, false, true),
      (true, true, 100, false, true), (true, false, 1, false, false), (true, false, 2, false, true),
    ] as [(Bool, Bool, Int, Bool, Bool)] {
      var configuration = LoadConfiguration(request: UploadRequest(url: "https://127.0.0.1:9/"))
      if isHTTP2 { configuration.request.httpVersion = .http2 }
      (configuration.sendsRequestPerMessage, configuration.streamsPerConnection) = (perMessage, perConnection)
      #expect(configuration.tellsAccepted == tellsAccepted && configuration.sharesConnections == shares)
    }
  }

  @Test("the plan in a report is that of the configuration")
  func reportedPlan() {
    var configuration = LoadConfiguration(request: UploadRequest(url: "https://127.0.0.1:9/"))
    (configuration.streams, configuration.ramp, configuration.duration) = (7, .seconds(2), .seconds(9))
    configuration.profile.faults.dropEvery = .uniform(4...8)
    (configuration.profile.faults.slowFraction, configuration.seed) = (0.25, 5)
    var expected = LoadPlan()
    (expected.streams, expected.ramp, expected.duration) = (7, 2_000_000_000, 9_000_000_000)
    (expected.profile, expected.rate, expected.chunk) = ("mic", 96_000, 100_000_000)
    (expected.body, expected.resumable, expected.httpVersion) = ("pattern", "auto", "1.1")
    (expected.dropEvery, expected.slowFraction, expected.seed) = (6, 0.25, 5)
    #expect(LoadPlan(configuration) == expected)
    configuration.profile.body = .file("a.wav")
    configuration.request.httpVersion = .http2
    (configuration.resumable, configuration.sendsRequestPerMessage) = (.never, true)
    configuration.arrivals = .init(rate: 2)
    configuration.arrivals?.maximumUnderWay = 3
    (expected.body, expected.resumable, expected.httpVersion) = ("a.wav", "never", "2")
    (expected.requestPerMessage, expected.arrivalRate, expected.maximumUnderWay) = (true, 2, 3)
    expected.streamsPerConnection = 100
    #expect(LoadPlan(configuration) == expected)
    configuration.arrivals?.stages = [.init(duration: 5, streams: 4)]
    (expected.stages, expected.ramp, expected.duration) = ([.init(duration: 5, streams: 4)], 0, 5)
    #expect(LoadPlan(configuration) == expected)
    for (body, text) in [(LoadProfile.Body.zeros, "zeros"), (.random, "random")] {
      configuration.profile.body = body
      #expect(LoadPlan(configuration).body == text)
    }
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
