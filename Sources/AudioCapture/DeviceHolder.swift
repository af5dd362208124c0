// Finds the program that uses a busy microphone.

internal import Glibc

enum DeviceHolder {
  /// The programs that are currently capturing from hardware, as `arecord (pid 4711)`; nil if none is known.
  ///
  /// From /proc/asound/card*/pcm*c/sub*/status (Linux: sound/core/pcm.c). All of them are named, because a name like
  /// `default` does not identify its card. There is seldom more than one.
  ///
  /// - Parameter processes: the root of the proc file system.
  static func find(in processes: String = "/proc") -> String? {
    var found: [String] = []
    for card in ProcAsound.entries(of: "\(processes)/asound") where card.hasPrefix("card") {
      for device in ProcAsound.entries(of: "\(processes)/asound/\(card)")
      where device.hasPrefix("pcm") && device.hasSuffix("c") {
        for substream in ProcAsound.entries(of: "\(processes)/asound/\(card)/\(device)")
        where substream.hasPrefix("sub") {
          let status = ProcAsound.read("\(processes)/asound/\(card)/\(device)/\(substream)/status")
          guard let line = status.split(separator: "\n").first(where: { $0.hasPrefix("owner_pid") }),
            let process = line.split(whereSeparator: { $0 == " " || $0 == ":" }).last
          else { continue }
          let name =
            ProcAsound.read("\(processes)/\(process)/comm").split(separator: "\n").first.map(String.init) ?? "a program"
          found.append("\(name) (pid \(process))")
        }
      }
    }
    return found.isEmpty ? nil : found.joined(separator: ", ")
  }
}
