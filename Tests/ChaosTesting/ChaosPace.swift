// How fast a chaos run streams, how often its client rolls over, and what follows from both for the faults.

package import NetworkTesting
package import PropertyTesting

/// What the client of a run is told, drawn from its seed.
package struct ChaosPace: Sendable, CustomStringConvertible {
  /// Of the source.
  package var bytesPerSecond: Int
  /// The most bytes of one append.
  package var appendSize: Int
  /// How long one append lasts at most, in milliseconds.
  package var appendMilliseconds: Int

  /// How long the client waits for an answer, or for anything to move, in milliseconds.
  private static let patience = 500
  /// What libcurl takes at once of a pipe's stream, and the bound pair in front of it, in bytes.
  package static let clientBuffers = 256 << 10 + 64 << 10

  private static let paces = [
    ChaosPace(bytesPerSecond: 4_000_000, appendSize: 64 << 10, appendMilliseconds: 100),
    ChaosPace(bytesPerSecond: 4_000_000, appendSize: 256 << 10, appendMilliseconds: 250),
    // Slow and long enough that a server tells its progress by 104 meanwhile.
    ChaosPace(bytesPerSecond: 500_000, appendSize: 256 << 10, appendMilliseconds: 1000),
  ]

  package static func drawn(_ bytesPerSecond: Int?, using random: inout SplitMix64) -> ChaosPace {
    var pace = paces[Int.random(in: 0..<paces.count, using: &random)]
    if let bytesPerSecond { pace.bytesPerSecond = bytesPerSecond }
    // A blackhole takes a whole append: if that were more than the client's own buffers, the bound on what is sent
    // again, which is made of buffers, would not hold.
    precondition(pace.appendSize <= clientBuffers)
    return pace
  }

  package var clientOptions: [String] {
    [
      "--resumable", "always", "--roll-over-after", "\(appendMilliseconds)ms", "--roll-over-bytes", "\(appendSize)",
      "--response-timeout", "\(Self.patience)ms", "--stall-timeout", "\(Self.patience)ms", "--connect-timeout", "1s",
      "--retry-ceiling", "20ms",
    ]
  }

  package var scale: ChaosFault.Scale {
    ChaosFault.Scale(span: appendSize / 2, patience: .milliseconds(Self.patience))
  }

  package var description: String {
    "\(bytesPerSecond) bytes a second, appends of \(appendSize) bytes or \(appendMilliseconds) ms"
  }
}
