// The times and sizes of a stream's messages. They are determined before anything is sent, so that later delays cannot
// change them. This prevents a slow server from hiding its delays (coordinated omission).

internal import LoadReports

/// The messages of one stream, each with its due time. The same profile, seed and number result in the same messages on
/// every machine.
///
/// Message *k* is due at *k* × chunk after the stream's start, however late earlier ones were. A value of a few hundred
/// bytes. `next()` is O(1), except when it skips silence.
struct StreamSchedule: Sendable {
  struct Message: Equatable, Sendable {
    /// Nanoseconds since the stream's start. Always 0 if the profile is not paced.
    var due: Int64
    var byteCount: Int
  }

  /// Whether it is slow on purpose.
  let isSlow: Bool
  /// When the stream ends, in nanoseconds since its start; nil if it ends with the run.
  let length: Int64?
  /// The pause between its end and the next stream in its place.
  let thinkTime: Int64

  /// The number of the next chunk.
  private var chunk: Int64 = 0
  private let profile: LoadProfile
  private var sizes: SeededGenerator
  private var jitters: SeededGenerator
  private var turns: Alternation?
  private var bursts: Alternation?
  /// Replaces the profile's times: every `stride`-th of the run's requests, from `next` on.
  private var arrivals: (plan: ArrivalPlan, next: UInt64, stride: UInt64)?

  /// - Parameters:
  ///   - seed: the seed of the run.
  ///   - stream: its number among all streams of the run.
  ///   - generation: 0 for the first stream in its place, 1 for the one after its ``thinkTime``, and so on.
  ///   - arrivals: the due times, which `streams` streams use in rotation. The profile then determines only the sizes.
  init(
    _ profile: LoadProfile, seed: UInt64, stream: Int, generation: Int = 0,
    arrivals: (plan: ArrivalPlan, streams: Int)? = nil
  ) {
    func generator(_ purpose: SeededGenerator.Purpose) -> SeededGenerator {
      SeededGenerator(seed: seed, stream: stream, generation: generation, purpose: purpose)
    }
    self.profile = profile
    self.arrivals = arrivals.map { ($0.plan, UInt64(max(0, stream)), UInt64(max(1, $0.streams))) }
    sizes = generator(.messages)
    jitters = generator(.jitter)
    var life = generator(.life)
    length = profile.streamLength?.draw(using: &life)
    thinkTime = profile.thinkTime.draw(using: &life)
    turns = profile.turns.map {
      Alternation(first: $0.talk, second: $0.silence, chunk: profile.chunk, generator(.turns))
    }
    bursts = profile.bursts.map {
      Alternation(first: $0.every, second: $0.length, chunk: profile.chunk, generator(.bursts))
    }
    // All generations in one place are equally slow or not.
    var slowness = SeededGenerator(seed: seed, stream: stream, generation: 0, purpose: .slowness)
    isSlow = slowness.fraction() < profile.faults.slowFraction
  }

  /// The next message; nil at the stream's end. An unpaced profile always has a next message, and its stream ends after
  /// its ``length``.
  mutating func next() -> Message? {
    if arrivals != nil { return nextArrival() }
    switch profile.size {
    case .unpaced(let count): return Message(due: 0, byteCount: count)
    // There would never be a message.
    case .rate(0): return nil
    case .rate, .bytes: break
    }
    while true {
      let (time, overflow) = chunk.multipliedReportingOverflow(by: profile.chunk)
      // A stream lasts at most 292 years.
      if overflow || time > .max - profile.chunk || time >= length ?? .max { return nil }
      let isTalking = turns?.isFirst(in: chunk) ?? true
      if !isTalking, let turns, profile.turns?.silenceRate == 0 {
        // The first chunk after the silence.
        chunk = turns.end
        continue
      }
      let count = byteCount(from: time, isTalking: isTalking)
      chunk += 1
      if count > 0 { return Message(due: time + jitter(), byteCount: count) }
    }
  }

  private mutating func nextArrival() -> Message? {
    guard let (plan, number, stride) = arrivals, let due = plan.time(of: number) else { return nil }
    arrivals?.next = number + stride
    let count =
      switch profile.size {
      case .bytes(let range): Int.random(in: range, using: &sizes)
      case .rate, .unpaced: profile.messageSize
      }
    return Message(due: due, byteCount: max(1, count))
  }

  /// Whether messages have due times.
  var isPaced: Bool { arrivals != nil || profile.isPaced }

  private mutating func byteCount(from time: Int64, isTalking: Bool) -> Int {
    // The bytes of a rate up to the chunk's end, minus those up to its start, so that rounding loses none.
    func made(_ rate: UInt64) -> Int {
      Int(Self.bytes(at: rate, by: time + profile.chunk) - Self.bytes(at: rate, by: time))
    }
    guard isTalking else { return made(profile.turns?.silenceRate ?? 0) }
    let isBurst = !(bursts?.isFirst(in: chunk) ?? true)
    let factor = isBurst ? profile.bursts?.factor ?? 1 : 1
    return switch profile.size {
    case .rate(let rate): made(rate) * factor
    case .bytes(let range): Int.random(in: range, using: &sizes) * factor
    case .unpaced(let count): count
    }
  }

  /// The exact number of bytes of a rate in a time, rounded down. It fits, because the rate is at most 10 GB/s.
  private static func bytes(at rate: UInt64, by time: Int64) -> Int64 {
    let seconds = UInt64(time) / 1_000_000_000
    let rest = UInt64(time) % 1_000_000_000
    return Int64(clamping: seconds * rate + rest * rate / 1_000_000_000)
  }

  private mutating func jitter() -> Int64 {
    // Never beyond the next message's time, because a program may have set a shorter chunk.
    let jitter = min(profile.jitter, profile.chunk)
    return jitter > 0 ? Int64.random(in: 0...jitter, using: &jitters) : 0
  }
}

/// Two alternating states, each for a random number of whole chunks. There is at least one, so that each period of talk
/// has a message, and a search for the next one ends.
private struct Alternation: Sendable {
  private let first: LengthDistribution
  private let second: LengthDistribution
  private let chunk: Int64
  private var random: SeededGenerator
  private var isFirst = true
  /// The number of the chunk at which the present state ends.
  private(set) var end: Int64 = 0

  init(first: LengthDistribution, second: LengthDistribution, chunk: Int64, _ random: SeededGenerator) {
    self.first = first
    self.second = second
    self.chunk = chunk
    self.random = random
    end = draw()
  }

  /// Whether a chunk is in the first state. Chunks must be queried in order.
  mutating func isFirst(in number: Int64) -> Bool {
    while end <= number {
      isFirst.toggle()
      end = end.addingSaturated(draw())
    }
    return isFirst
  }

  private mutating func draw() -> Int64 {
    let length = (isFirst ? first : second).draw(using: &random)
    return max(1, length.addingSaturated(chunk / 2) / chunk)
  }
}
