// The line that changes in place while a stream runs. A narrow terminal shows the most important parts.

internal import AudioCapture
internal import EventLoops
internal import LiveStreaming

enum StatusLine {
  /// One part of the line.
  private struct Part {
    let text: String
    /// A shorter form of the text.
    var brief: String?
    let rank: Rank

    func text(isBrief: Bool) -> String { isBrief ? brief ?? text : text }
  }

  /// The order in which parts are removed when there is no room.
  private enum Rank: Int, CaseIterable {
    case sent, captured, meter, clock
    // From here on, words become shorter before anything is removed.
    case connection, buffer, outages, lost, acknowledged
  }

  /// `02:03  ▕▃▏ -20 dB  acknowledged 1.20 MB  buffer lasts 29 min more  outages 0`: as much as fits before the last
  /// of `width` columns.
  static func text(_ progress: StreamProgress, levels: [ChannelLevel], width: Int) -> String {
    var parts = all(progress, levels: levels)
    var isBrief = false
    func line() -> String { parts.map { $0.text(isBrief: isBrief) }.joined(separator: "  ") }
    for rank in Rank.allCases {
      if line().count < width { break }
      if rank == .connection {
        isBrief = true
        if line().count < width { break }
      }
      parts.removeAll { $0.rank == rank }
    }
    return line()
  }

  private static func all(_ progress: StreamProgress, levels: [ChannelLevel]) -> [Part] {
    var parts = [Part(text: Units.clock(progress.elapsed), rank: .clock)]
    if !progress.isConnected { parts.append(Part(text: "not connected", brief: "offline", rank: .connection)) }
    if !levels.isEmpty { parts.append(Part(text: meter(levels), rank: .meter)) }
    let acknowledged = Units.text(bytes: progress.acknowledged)
    parts.append(Part(text: "acknowledged \(acknowledged)", brief: "ack \(acknowledged)", rank: .acknowledged))
    if let left = progress.bufferTimeLeft {
      let time = Units.words(left)
      parts.append(Part(text: "buffer lasts \(time) more", brief: "buffer \(time)", rank: .buffer))
    } else {
      let fill = progress.capacity > 0 ? 100 * progress.buffered / progress.capacity : 0
      parts.append(Part(text: "buffer \(fill) %", rank: .buffer))
    }
    parts.append(Part(text: "outages \(progress.outageCount)", rank: .outages))
    if progress.lost > 0 { parts.append(Part(text: "lost \(Units.text(bytes: progress.lost))", rank: .lost)) }
    parts.append(Part(text: "captured \(Units.text(bytes: progress.captured))", rank: .captured))
    parts.append(Part(text: "sent \(Units.text(bytes: progress.sent))", rank: .sent))
    return parts
  }

  /// A bar for each channel, from -60 dB to full scale, and the highest peak.
  static func meter(_ levels: [ChannelLevel]) -> String {
    let steps = Array(" ▁▂▃▄▅▆▇█")
    let bars = levels.map { level -> Character in
      let position = (max(-60, min(0, level.rms)) + 60) / 60 * Double(steps.count - 1)
      return steps[Int(position.rounded())]
    }
    let peak = levels.map(\.peak).max() ?? -.infinity
    let number = peak.isFinite ? "\(Units.fixed(peak, decimals: 0)) dB" : "silent"
    return "▕\(String(bars))▏\(String(repeating: " ", count: max(0, 6 - number.count)))\(number)"
  }
}
