// The deliberate faults and their times, which also depend on the seed.

internal import LoadReports

/// The faults of one stream, each with its time since the stream's start, in order.
struct FaultSchedule: Sendable {
  enum Fault: Equatable, Sendable {
    /// Cut the connection.
    case drop
    /// Send nothing for this number of nanoseconds.
    case stall(Int64)
  }

  private let faults: LoadProfile.Faults
  private var random: SeededGenerator
  private var nextDrop: Int64?
  private var nextStall: Int64?

  /// - Parameters: see ``StreamSchedule``.
  init(_ profile: LoadProfile, seed: UInt64, stream: Int, generation: Int = 0) {
    faults = profile.faults
    random = SeededGenerator(seed: seed, stream: stream, generation: generation, purpose: .faults)
    // The first ones occur at any time up to the first length. Otherwise a fixed length would cut all connections at
    // once.
    nextDrop = faults.dropEvery.map { Self.part(of: $0.draw(using: &random), &random) }
    nextStall = (faults.stalls?.every).map { Self.part(of: $0.draw(using: &random), &random) }
  }

  private static func part(of length: Int64, _ random: inout SeededGenerator) -> Int64 {
    Int64.random(in: 0...max(0, length), using: &random)
  }

  /// The next fault and its time; nil if there are none.
  mutating func next() -> (at: Int64, fault: Fault)? {
    if let drop = nextDrop, drop <= nextStall ?? .max, let every = faults.dropEvery {
      nextDrop = drop.addingSaturated(max(Self.leastDistance, every.draw(using: &random)))
      return (drop, .drop)
    }
    guard let stall = nextStall, let stalls = faults.stalls else { return nil }
    let length = stalls.length.draw(using: &random)
    nextStall = stall.addingSaturated(length).addingSaturated(
      max(Self.leastDistance, stalls.every.draw(using: &random)))
    return (stall, .stall(length))
  }

  /// The minimum distance between faults, whatever the distribution draws: a millisecond.
  private static let leastDistance: Int64 = 1_000_000
}
