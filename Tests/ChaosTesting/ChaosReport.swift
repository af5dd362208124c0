// The figures of a chaos run.

internal import EventLoops
package import NetworkTesting

/// One successful run.
package struct ChaosReport: Sendable, CustomStringConvertible {
  package struct Recovery: Sendable {
    package var kind: ChaosFault.Kind
    package var duration: Duration
  }

  package var seed: UInt64
  package var pace: ChaosPace
  /// From the client's start to its end.
  package var duration: Duration
  /// Bytes sent, and stored.
  package var length: UInt64
  package var digest: String
  package var counts: [ChaosFault.Kind: Int]
  /// The recovery from each fault that was not interrupted by another one.
  package var recoveries: [Recovery]
  package var connections: Int
  package var droppedInterims: Int
  /// Bytes that the client sent more than once, according to itself.
  package var resent: UInt64
  /// Bytes of content that arrived in the proxy beyond the stream's length. At most ``resent``, because some are lost
  /// on their way.
  package var seenAgain: UInt64
  /// The maximum number of bytes between the client's cursor and the server's file.
  package var bytesInFlight: Int
  /// The client's largest resident memory, in bytes (VmHWM).
  package var clientMemory: Int

  package var faults: Int { counts.values.reduce(0, +) }
  /// The limit for `resent`.
  package var resentBound: UInt64 { UInt64(faults * bytesInFlight) }

  package var description: String {
    var lines = [
      "seed \(seed): \(faults) faults, \(connections) connections, \(Self.fixed(duration.seconds)) s; "
        + "\(length) bytes stored, SHA-256 equal: \(digest)",
      "  \(pace); milliseconds from a fault to the first new byte acknowledged:",
      Self.row("", "faults", "median", "p99", "longest"),
    ]
    for kind in ChaosFault.Kind.allCases {
      guard let count = counts[kind] else { continue }
      lines.append(Self.row(kind.rawValue, count, recoveries.filter { $0.kind == kind }))
    }
    lines.append(Self.row("all", faults, recoveries))
    lines.append(
      "  sent again: \(resent) bytes (\(seenAgain) came into the proxy), \(resent / UInt64(max(1, faults))) a fault; "
        + "in flight at most \(bytesInFlight), so the bound is \(resentBound)")
    lines.append("  104 responses dropped: \(droppedInterims)")
    lines.append("  the client's memory at its largest: \(Self.fixed(Double(clientMemory) / 1_048_576)) MiB")
    return lines.joined(separator: "\n")
  }

  private static func row(_ name: String, _ count: Int, _ recoveries: [Recovery]) -> String {
    let times = recoveries.map(\.duration).sorted()
    guard let longest = times.last else { return row(name, "\(count)", "-", "-", "-") }
    // The smallest value that at least this share of all values do not exceed.
    func quantile(_ share: Double) -> String {
      milliseconds(times[max(0, Int((share * Double(times.count)).rounded(.up)) - 1)])
    }
    return row(name, "\(count)", quantile(0.5), quantile(0.99), milliseconds(longest))
  }

  private static func row(_ name: String, _ columns: String...) -> String {
    func padding(_ text: String, to width: Int) -> String { String(repeating: " ", count: max(0, width - text.count)) }
    return "  \(name)\(padding(name, to: 16))" + columns.map { padding($0, to: 9) + $0 }.joined()
  }

  private static func milliseconds(_ duration: Duration) -> String { fixed(duration.seconds * 1000) }

  /// With one decimal.
  private static func fixed(_ value: Double) -> String {
    let tenths = Int((value * 10).rounded())
    return "\(tenths / 10).\(tenths % 10)"
  }
}
