// Reproducible random numbers. Two runs with the same seed send the same messages at the same times.

internal import Glibc

/// SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014). It has a state of eight
/// bytes, which matters with thousands of streams. The tests have their own copy, because shipped code does not import
/// test modules.
struct SeededGenerator: RandomNumberGenerator, Equatable, Sendable {
  private var state: UInt64

  init(seed: UInt64) { state = seed }

  /// The generator of one stream, independent of all others with the same seed.
  ///
  /// - Parameters:
  ///   - purpose: separates uses, so that one more draw for faults does not shift the messages.
  ///   - generation: 0 for the first stream in its place, and 1 for its successor.
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

  /// From 0 to below 1.
  mutating func fraction() -> Double { Double(next() >> 11) * 0x1p-53 }

  /// Normally distributed with mean 0 and standard deviation 1 (Box and Muller).
  mutating func normal() -> Double {
    let radius = (-2 * log(1 - fraction())).squareRoot()
    return radius * cos(2 * .pi * fraction())
  }
}
