// Random lengths: of talk, of silence, of whole streams.

internal import Glibc
internal import LoadReports

/// The distribution of a duration in nanoseconds.
public enum LengthDistribution: Equatable, Sendable {
  /// A constant.
  case fixed(Int64)
  /// A uniform distribution between two durations, both included.
  case uniform(ClosedRange<Int64>)
  /// An exponential distribution, for events that are equally likely at any time, such as calls and failures.
  case exponential(mean: Int64)
  /// A lognormal distribution: most durations are short, and few are very long, as with talk and files. `sigma` is the
  /// standard deviation of the logarithm.
  case lognormal(median: Int64, sigma: Double)
  /// One of these durations, each equally likely. Never empty.
  case list([Int64])

  /// The longest possible duration: 30 days.
  public static let longest = Quantity.longestTime

  /// A length, at most ``longest``.
  func draw(using random: inout SeededGenerator) -> Int64 {
    switch self {
    case .fixed(let length): length
    case .uniform(let range): Int64.random(in: range, using: &random)
    case .exponential(let mean): Self.length(-log(1 - random.fraction()) * Double(mean))
    case .lognormal(let median, let sigma): Self.length(Double(median) * exp(sigma * random.normal()))
    case .list(let lengths): lengths.randomElement(using: &random) ?? 0
    }
  }

  /// The average of many draws, without regard to the limit.
  public var mean: Int64 {
    switch self {
    case .fixed(let length): length
    case .uniform(let range): range.lowerBound + (range.upperBound - range.lowerBound) / 2
    case .exponential(let mean): mean
    case .lognormal(let median, let sigma): Self.length(Double(median) * exp(sigma * sigma / 2))
    case .list(let lengths):
      lengths.isEmpty ? 0 : Self.length(lengths.reduce(0.0) { $0 + Double($1) } / Double(lengths.count))
    }
  }

  private static func length(_ nanoseconds: Double) -> Int64 { Int64(min(Double(longest), max(0, nanoseconds))) }
}
