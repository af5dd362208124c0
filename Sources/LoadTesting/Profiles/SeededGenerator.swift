// Reproducible random numbers. Two runs with the same seed send the same messages at the same times.

internal import Glibc

/// SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014). Eight bytes of state,
/// which is what counts with thousands of streams; the tests have the same one, but what ships does not import them.
struct SeededGenerator: RandomNumberGenerator, Equatable, Sendable {
  private var state: UInt64

  init(seed: UInt64) { state = seed }

  /// The generator of one stream: independent of all others of the same seed.
  ///
  /// - Parameters:
  ///   - purpose: what it is for, so that one more draw for faults does not move the messages.
  ///   - generation: 0 for the first stream in its place, 1 for the one that follows it.
  init(seed: UInt64, stream: Int, generation: Int, purpose: Purpose) {
    var mixed = SeededGenerator(seed: seed)
    var state = mixed.next()
    for part in [UInt64(bitPattern: Int64(stream)), UInt64(bitPattern: Int64(generation)), purpose.rawValue] {
      mixed = SeededGenerator(seed: state ^ part)
      state = mixed.next()
    }
    self.state = state
  }

  enum Purpose: UInt64 {
    case messages, turns, bursts, jitter, life, faults, slowness
  }

  mutating func next() -> UInt64 {
    state &+= 0x9E37_79B9_7F4A_7C15
    var mixed = state
    mixed = (mixed ^ (mixed >> 30)) &* 0xBF58_476D_1CE4_E5B9
    mixed = (mixed ^ (mixed >> 27)) &* 0x94D0_49BB_1331_11EB
    return mixed ^ (mixed >> 31)
  }

  /// From 0 to 1, without 1.
  mutating func fraction() -> Double { Double(next() >> 11) * 0x1p-53 }

  /// Of mean 0 and standard deviation 1 (Box and Muller).
  mutating func normal() -> Double {
    let radius = (-2 * log(1 - fraction())).squareRoot()
    return radius * cos(2 * .pi * fraction())
  }
}
