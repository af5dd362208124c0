// Repeatable random tests: every random decision of a test follows from one printed number.

internal import Glibc

/// A random test's start value, as an argument of `@Test(arguments:)`: Swift Testing prints it when a case begins.
///
/// `SLUICE_SEED=<number>` in the environment, decimal or `0x…`, replaces all seeds of a run. `SLUICE_SEEDS_OF=<text>`
/// derives them from that text instead, so that the same files have the same cases wherever they are tested.
public struct Seed: Hashable, Sendable, CustomStringConvertible {
  public let value: UInt64

  public init(_ value: UInt64) { self.value = value }

  public var description: String { "SLUICE_SEED=\(value)" }

  /// `count` new seeds, or only the one from the environment.
  public static func several(_ count: Int) -> [Seed] {
    if let replay = fromEnvironment { return [replay] }
    guard let text = getenv("SLUICE_SEEDS_OF").map({ String(cString: $0) }), !text.isEmpty else {
      return (0..<count).map { _ in Seed(UInt64.random(in: .min ... .max)) }
    }
    // FNV-1a.
    var generator = SplitMix64(state: text.utf8.reduce(0xCBF2_9CE4_8422_2325) { ($0 ^ UInt64($1)) &* 0x100_0000_01B3 })
    return (0..<count).map { _ in Seed(generator.next()) }
  }

  /// The generator that begins at this seed.
  public var generator: SplitMix64 { SplitMix64(state: value) }

  private static var fromEnvironment: Seed? {
    guard let text = getenv("SLUICE_SEED").map({ String(cString: $0) }), !text.isEmpty else { return nil }
    let value = text.hasPrefix("0x") ? UInt64(text.dropFirst(2), radix: 16) : UInt64(text)
    guard let value else {
      fatalError("SLUICE_SEED=\(text) is not a number: running other seeds would look like a replay")
    }
    return Seed(value)
  }
}

/// The generator of Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
public struct SplitMix64: RandomNumberGenerator, Sendable {
  private var state: UInt64

  public init(state: UInt64) { self.state = state }

  public mutating func next() -> UInt64 {
    state &+= 0x9E37_79B9_7F4A_7C15
    var mixed = state
    mixed = (mixed ^ (mixed >> 30)) &* 0xBF58_476D_1CE4_E5B9
    mixed = (mixed ^ (mixed >> 27)) &* 0x94D0_49BB_1331_11EB
    return mixed ^ (mixed >> 31)
  }

  /// True in `percent` of 100 calls.
  public mutating func chance(_ percent: Int) -> Bool { Int.random(in: 0..<100, using: &self) < percent }

  /// A size as programs use them: mostly small, and sometimes the maximum.
  public mutating func size(upTo limit: Int) -> Int {
    let bound = max(1, limit >> Int.random(in: 0...8, using: &self))
    return Int.random(in: 1...bound, using: &self)
  }
}
