// The status line of an upload or a download of known length.

internal import EventLoops
internal import LiveStreaming
internal import Synchronization

/// A bar, the rate over the last seconds, and the remaining time.
final class TransferBar: Sendable {
  private struct Sample {
    var elapsed: Duration
    var sent: UInt64
  }

  /// The period over which the rate is measured.
  private static let window = Duration.seconds(5)

  private let total: UInt64
  private let samples = Mutex<[Sample]>([])

  init(total: UInt64) { self.total = total }

  /// ` 42 % ▕████████      ▏ 1.20 GB of 2.86 GB  112 MB/s  00:14 left`, as much as fits into `width` columns.
  func line(_ progress: StreamProgress, width: Int) -> String {
    line(
      max(progress.sent, progress.acknowledged), after: progress.elapsed, isConnected: progress.isConnected,
      outageCount: progress.outageCount, width: width)
  }

  /// - Parameter count: the number of transferred bytes.
  func line(_ count: UInt64, after elapsed: Duration, isConnected: Bool, outageCount: Int, width: Int) -> String {
    let sent = min(count, total)
    let rate = samples.withLock { samples -> Double in
      samples.append(Sample(elapsed: elapsed, sent: sent))
      samples.removeAll { elapsed - $0.elapsed > Self.window }
      guard let first = samples.first, elapsed > first.elapsed, sent >= first.sent else { return 0 }
      return Double(sent - first.sent) / (elapsed - first.elapsed).seconds
    }
    let share = total == 0 ? 1 : Double(sent) / Double(total)
    var parts = ["\(Units.text(bytes: sent)) of \(Units.text(bytes: total))"]
    if !isConnected { parts.append("not connected") }
    if rate >= 1 {
      // The size comes from the file system. The largest number may be divided here by less than a second.
      parts.append("\(Units.text(bytes: UInt64(min(rate, 1e18))))/s")
      parts.append("\(Units.clock(.seconds(Int64(min(Double(total - sent) / rate, 1e15).rounded(.up))))) left")
    }
    if outageCount > 0 { parts.append("outages \(outageCount)") }
    let percent = Units.fixed(share * 100, decimals: 0)
    let head = String(repeating: " ", count: max(0, 3 - percent.count)) + "\(percent) %"
    let tail = parts.joined(separator: "  ")
    let room = min(30, width - head.count - tail.count - 6)
    guard room >= 5 else { return String("\(head)  \(tail)".prefix(max(0, width - 1))) }
    let filled = Int((Double(room) * share).rounded(.down))
    let bar = String(repeating: "█", count: filled) + String(repeating: " ", count: room - filled)
    return "\(head) ▕\(bar)▏ \(tail)"
  }
}
