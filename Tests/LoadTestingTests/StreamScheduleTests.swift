import PropertyTesting
import Testing

@testable import LoadTesting

@Suite("The schedule of a stream")
struct StreamScheduleTests {
  private static let second: Int64 = 1_000_000_000

  private static func length(_ random: inout SplitMix64) -> LengthDistribution {
    let some = Int64.random(in: 0...(2 * second), using: &random)
    return switch Int.random(in: 0..<5, using: &random) {
    case 0: .fixed(some)
    case 1: .uniform(some...some + second)
    case 2: .exponential(mean: some)
    case 3: .lognormal(median: some, sigma: 1)
    default: .list([some, 0, second])
    }
  }

  private static func profile(_ random: inout SplitMix64) -> LoadProfile {
    var profile = LoadProfile()
    profile.chunk = Int64.random(in: 1_000_000...700_000_000, using: &random)
    profile.size =
      random.chance(50)
      ? .rate(UInt64(random.size(upTo: 1_000_000))) : .bytes(1...random.size(upTo: 1000))
    if random.chance(50) { profile.jitter = Int64.random(in: 0...profile.chunk, using: &random) }
    if random.chance(60) {
      profile.turns = .init(
        talk: length(&random), silence: length(&random), silenceRate: random.chance(50) ? 0 : 500)
    }
    if random.chance(40) { profile.bursts = .init(every: length(&random), length: length(&random), factor: 3) }
    if random.chance(50) { profile.streamLength = length(&random) }
    return profile
  }

  /// Whether a chunk is in the first of two states, determined by iterating from the start.
  private static func state(
    of number: Int, _ first: LengthDistribution, _ second: LengthDistribution, _ chunk: Int64,
    _ generator: SeededGenerator
  ) -> Bool {
    var random = generator
    var isFirst = true
    var end = 0
    while true {
      let length = (isFirst ? first : second).draw(using: &random)
      end += max(1, Int((Double(length) / Double(chunk)).rounded(.toNearestOrAwayFromZero)))
      if end > number { return isFirst }
      isFirst.toggle()
    }
  }

  @Test("its messages equal those of a model that examines each chunk from the start", arguments: Seed.several(60))
  func model(_ seed: Seed) {
    var random = seed.generator
    let profile = Self.profile(&random)
    let stream = Int.random(in: 0..<10000, using: &random)
    func generator(_ purpose: SeededGenerator.Purpose) -> SeededGenerator {
      SeededGenerator(seed: seed.value, stream: stream, generation: 1, purpose: purpose)
    }
    var schedule = StreamSchedule(profile, seed: seed.value, stream: stream, generation: 1)
    var life = generator(.life)
    let length = profile.streamLength?.draw(using: &life)
    #expect(schedule.length == length)
    var jitter = generator(.jitter)
    var sizes = generator(.messages)
    for chunk in 0..<300 {
      let time = Int64(chunk) * profile.chunk
      if let length, time >= length {
        let message = schedule.next()
        #expect(message == nil)
        return
      }
      let talks =
        profile.turns.map { Self.state(of: chunk, $0.talk, $0.silence, profile.chunk, generator(.turns)) } ?? true
      let isBurst =
        !(profile.bursts.map { Self.state(of: chunk, $0.every, $0.length, profile.chunk, generator(.bursts)) } ?? true)
      func made(_ rate: UInt64, by time: Int64) -> Int { Int(UInt128(rate) * UInt128(time) / 1_000_000_000) }
      func size(_ rate: UInt64) -> Int { made(rate, by: time + profile.chunk) - made(rate, by: time) }
      var count = 0
      if talks {
        switch profile.size {
        case .rate(let rate): count = size(rate)
        case .bytes(let range): count = Int.random(in: range, using: &sizes)
        case .unpaced: break
        }
      } else {
        count = size(profile.turns?.silenceRate ?? 0)
      }
      if isBurst, talks { count *= 3 }
      guard count > 0 else { continue }
      let late = profile.jitter > 0 ? Int64.random(in: 0...profile.jitter, using: &jitter) : 0
      let message = schedule.next()
      #expect(message == .init(due: time + late, byteCount: count), "chunk \(chunk)")
    }
  }

  @Test("talk and silence last at least one whole chunk, and each spell of talk has a message")
  func turns() {
    func chunks(_ talk: Int64, _ silence: Int64) -> [Int64] {
      var profile = LoadProfile.mic
      profile.turns = .init(talk: .fixed(talk), silence: .fixed(silence))
      var schedule = StreamSchedule(profile, seed: 1, stream: 0)
      return (0..<6).compactMap { _ in schedule.next().map { $0.due / profile.chunk } }
    }
    #expect(chunks(200_000_000, 400_000_000) == [0, 1, 6, 7, 12, 13])
    #expect(chunks(149_999_999, 150_000_000) == [0, 3, 6, 9, 12, 15])
    #expect(chunks(0, 0) == [0, 2, 4, 6, 8, 10])
  }

  @Test("after a year, a microphone's message is due to the nanosecond, and its rate lacks no byte")
  func noDrift() {
    var profile = LoadProfile.mic
    // Neither divides a second.
    profile.chunk = 333_333_333_333
    profile.size = .rate(95_999)
    var schedule = StreamSchedule(profile, seed: 1, stream: 0)
    var bytes = 0
    for chunk in 0..<94_608 {
      let message = schedule.next()
      #expect(message?.due == Int64(chunk) * profile.chunk)
      bytes += message?.byteCount ?? 0
    }
    #expect(bytes == Int(UInt128(95_999) * UInt128(94_608 * profile.chunk) / 1_000_000_000))
  }

  @Test("equal seeds give equal streams, and another seed, number or generation gives another one")
  func seeds() {
    var profile = LoadProfile.heartbeat
    profile.jitter = 500_000_000
    func first(_ seed: UInt64, _ stream: Int, _ generation: Int) -> [StreamSchedule.Message] {
      var schedule = StreamSchedule(profile, seed: seed, stream: stream, generation: generation)
      return (0..<10).compactMap { _ in schedule.next() }
    }
    #expect(first(1, 2, 3) == first(1, 2, 3))
    #expect(first(1, 2, 3) != first(2, 2, 3))
    #expect(first(1, 2, 3) != first(1, 3, 3))
    #expect(first(1, 2, 3) != first(1, 2, 4))
  }

  @Test("streams are spread evenly over a period, for any number, and so are those of one part of several")
  func startOffsets() {
    let chunk: Int64 = 1_000_000
    for (count, step) in [(10, 1), (1000, 1), (15_000, 1), (1000, 3), (1000, 8), (15_000, 10)] {
      let offsets = stride(from: 0, to: count * step, by: step).map { RampPlan.startOffset(of: $0, chunk: chunk) }
      #expect(offsets.allSatisfy { (0..<chunk).contains($0) })
      // No tenth of the period has fewer than half of its share, or more than twice.
      for tenth in 0..<10 {
        let inside = offsets.count { $0 / (chunk / 10) == tenth }
        #expect((count / 20...count / 5).contains(inside), "\(count) by \(step): \(inside) in \(tenth)")
      }
    }
  }

  @Test(
    "a ramp starts streams evenly, in order of their numbers, each at its position in the period",
    arguments: Seed.several(20))
  func ramp(_ seed: Seed) {
    var random = seed.generator
    let plan = RampPlan(
      streams: random.size(upTo: 5000), ramp: Int64(random.size(upTo: 60_000_000_000)),
      chunk: Int64(random.size(upTo: 2_000_000_000)))
    for stream in 0..<plan.streams {
      let start = plan.start(of: stream)
      let place = Int64(Double(plan.ramp) * Double(stream) / Double(plan.streams))
      #expect((place..<place + plan.chunk).contains(start))
      #expect(start % plan.chunk == RampPlan.startOffset(of: stream, chunk: plan.chunk))
    }
  }

  @Test("a seed gives the numbers of SplitMix64, and so the same messages in every version")
  func published() {
    // The published sequence for this seed.
    var random = SeededGenerator(seed: 1_234_567)
    let numbers: [UInt64] = [
      6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423, 4_593_380_528_125_082_431,
      16_408_922_859_458_223_821,
    ]
    let drawn = numbers.map { _ in random.next() }
    #expect(drawn == numbers)
  }

  @Test("a seed gives the same lengths in every version")
  func lengths() {
    // Computed from the published sequence.
    let cases: [(LengthDistribution, [Int64])] = [
      (.exponential(mean: Self.second), [430_905_295, 190_729_722, 759_730_038]),
      (.lognormal(median: Self.second, sigma: 0.5), [1_238_924_854, 1_003_850_242, 394_813_313]),
    ]
    for (distribution, expected) in cases {
      var random = SeededGenerator(seed: 1_234_567)
      for length in expected {
        let drawn = distribution.draw(using: &random)
        // The last digits depend on the functions of the C library.
        #expect(abs(drawn - length) <= 10, "\(distribution)")
      }
    }
    #expect(LengthDistribution.uniform(100...301).mean == 200 && LengthDistribution.list([1, 2, 6]).mean == 3)
    #expect(LengthDistribution.fixed(7).mean == 7 && LengthDistribution.exponential(mean: 8).mean == 8)
  }

  @Test("messages at full speed have no due times and no end, and a stream ends before its time overflows")
  func extremes() {
    var profile = LoadProfile.bulk
    profile.streamLength = .fixed(5)
    var schedule = StreamSchedule(profile, seed: 1, stream: 0)
    #expect(!schedule.isPaced && schedule.length == 5)
    for _ in 0..<3 {
      let message = schedule.next()
      #expect(message == .init(due: 0, byteCount: 65536))
    }
    var slow = LoadProfile.mic
    (slow.chunk, slow.size) = (Int64.max / 2, .bytes(1...1))
    var longest = StreamSchedule(slow, seed: 1, stream: 0)
    let messages = [longest.next(), longest.next(), longest.next()]
    #expect(messages == [.init(due: 0, byteCount: 1), .init(due: slow.chunk, byteCount: 1), nil])
    slow.size = .rate(0)
    var silent = StreamSchedule(slow, seed: 1, stream: 0)
    let nothing = silent.next()
    #expect(nothing == nil && silent.isPaced)
  }

  @Test("the distance between faults is at least a millisecond, and a cut comes before a stall of the same time")
  func faultDistance() {
    var profile = LoadProfile.mic
    profile.faults.dropEvery = .fixed(0)
    profile.faults.stalls = .init(every: .fixed(0), length: .fixed(3_000_000))
    for stream in 0..<30 {
      var schedule = FaultSchedule(profile, seed: 9, stream: stream)
      var faults: [(at: Int64, fault: FaultSchedule.Fault)] = []
      for _ in 0..<10 { if let next = schedule.next() { faults.append(next) } }
      #expect(faults.map(\.at) == [0, 0, 1, 2, 3, 4, 4, 5, 6, 7].map { $0 * 1_000_000 })
      #expect(faults.indices.filter { faults[$0].fault != .drop } == [1, 6])
      #expect(faults[1].fault == .stall(3_000_000))
    }
  }

  @Test("a distribution's draws have its mean", arguments: Seed.several(3))
  func means(_ seed: Seed) {
    let second = Self.second
    let distributions: [LengthDistribution] = [
      .fixed(second), .uniform(second...(3 * second)), .exponential(mean: second),
      .lognormal(median: second, sigma: 0.5), .list([second, 2 * second, 6 * second]),
    ]
    for distribution in distributions {
      var random = SeededGenerator(seed: seed.value)
      let count = 40_000
      let sum = (0..<count).reduce(0.0) { sum, _ in sum + Double(distribution.draw(using: &random)) }
      // 40,000 draws with a deviation of the mean's size: their mean is within 3 % at six standard errors.
      #expect(abs(sum / Double(count) / Double(distribution.mean) - 1) < 0.03, "\(distribution)")
    }
  }

  @Test(
    "faults come in order, at the requested rate, and the first ones not all at once",
    arguments: Seed.several(5))
  func faults(_ seed: Seed) throws {
    var profile = LoadProfile.mic
    profile.faults.dropEvery = .fixed(10 * Self.second)
    profile.faults.stalls = .init(every: .exponential(mean: 5 * Self.second), length: .fixed(Self.second))
    var firsts: [Int64] = []
    for stream in 0..<200 {
      var schedule = FaultSchedule(profile, seed: seed.value, stream: stream)
      var last: Int64 = 0
      var drops: [Int64] = []
      for _ in 0..<50 {
        let next = schedule.next()
        let (at, fault) = try #require(next)
        #expect(at >= last)
        last = at
        if fault == .drop { drops.append(at) } else { #expect(fault == .stall(Self.second)) }
      }
      firsts.append(drops.first ?? 0)
      #expect(zip(drops, drops.dropFirst()).allSatisfy { $1 - $0 == 10 * Self.second })
    }
    #expect(Set(firsts.map { $0 / Self.second }).count == 10)
    var none = FaultSchedule(.mic, seed: seed.value, stream: 0)
    let nothing = none.next()
    #expect(nothing == nil)
  }

  @Test(
    "the profile determines the number of slow streams, and they are the same each time", arguments: Seed.several(5))
  func slowness(_ seed: Seed) {
    var profile = LoadProfile.mic
    profile.faults.slowFraction = 0.1
    let slow = (0..<10_000).filter { StreamSchedule(profile, seed: seed.value, stream: $0).isSlow }
    // Ten standard deviations.
    #expect((700...1300).contains(slow.count))
    #expect(slow == (0..<10_000).filter { StreamSchedule(profile, seed: seed.value, stream: $0, generation: 7).isSlow })
  }
}
