// The rates of a chaos run and of its client's roll-overs, and their effect on the faults.

package import NetworkTesting
package import PropertyTesting

/// The settings of a run's client, drawn from its seed.
package struct ChaosPace: Sendable, CustomStringConvertible {
  /// The rate of the source.
  package var bytesPerSecond: Int
  /// The maximum size of one append in bytes.
  package var appendSize: Int
  /// The maximum duration of one append, in milliseconds.
  package var appendMilliseconds: Int

  /// How long the client waits for an answer or for progress, in milliseconds.
  private static let patience = 500
  /// How much libcurl accepts at once from a pipe's stream, plus the bound pair in front of it, in bytes.
  package static let clientBuffers = 256 << 10 + 64 << 10

  private static let paces = [
    ChaosPace(bytesPerSecond: 4_000_000, appendSize: 64 << 10, appendMilliseconds: 100),
    ChaosPace(bytesPerSecond: 4_000_000, appendSize: 256 << 10, appendMilliseconds: 250),
    // Slow and long enough that the server reports progress by 104 meanwhile.
    ChaosPace(bytesPerSecond: 500_000, appendSize: 256 << 10, appendMilliseconds: 1000),
  ]

  package static func drawn(_ bytesPerSecond: Int?, using random: inout SplitMix64) -> ChaosPace {
    var pace = paces[Int.random(in: 0..<paces.count, using: &random)]
    if let bytesPerSecond { pace.bytesPerSecond = bytesPerSecond }
    // A blackhole accepts a whole append. If that exceeded the client's own buffers, the limit for repeated bytes,
    // which is derived from them, would not hold.
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
    "\(bytesPerSecond) bytes per second, appends of \(appendSize) bytes or \(appendMilliseconds) ms"
  }
}
