// The transfers of the agent, as human-readable text and for programs.

internal import EventLoops
internal import TransferClient
internal import UploadClient

struct TransferReport {
  let isJSON: Bool

  func show(_ status: TransferStatus) {
    var shown = status
    shown.url = UploadRequest.withoutSecrets(status.url)
    Console.shared.put(isJSON ? AgentAnswer.transfer(number: nil, shown).line : Self.line(shown))
  }

  /// `12  running  42 %  1.20 GB of 2.86 GB  film.mkv  http://host/film.mkv  the connection was lost`
  static func line(_ status: TransferStatus) -> String {
    var parts = ["\(status.id)", state(status)]
    if let size = status.size {
      let share = size == 0 ? 1 : Double(min(status.acknowledged, size)) / Double(size)
      if status.result?.outcome != .completed {
        parts.append("\(Units.fixed((share * 100).rounded(.down), decimals: 0)) %")
      }
      parts.append("\(Units.text(bytes: status.acknowledged)) of \(Units.text(bytes: size))")
    } else {
      parts.append(Units.text(bytes: status.acknowledged))
    }
    // Source and target.
    let ends = [status.path.shellQuoted, status.url.escaped]
    parts += status.kind == .upload ? ends : ends.reversed()
    if !status.session.isEmpty { parts.append("of \(status.session.shown)") }
    if let words = status.result?.message ?? status.trouble { parts.append(words) }
    return parts.joined(separator: "  ")
  }

  private static func state(_ status: TransferStatus) -> String {
    status.result?.outcome.rawValue ?? status.state.rawValue
  }
}
