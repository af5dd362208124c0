// Which program has the microphone that we were refused.

internal import Glibc

enum DeviceHolder {
  /// The programs that are capturing from hardware right now, as `arecord (pid 4711)`; nil if none is known.
  ///
  /// From /proc/asound/card*/pcm*c/sub*/status (Linux: sound/core/pcm.c). All of them are named, because a name like
  /// `default` does not tell its card; there is seldom more than one.
  ///
  /// - Parameter processes: where the kernel shows all this.
  static func find(in processes: String = "/proc") -> String? {
    var found: [String] = []
    for card in entries(of: "\(processes)/asound") where card.hasPrefix("card") {
      for device in entries(of: "\(processes)/asound/\(card)") where device.hasPrefix("pcm") && device.hasSuffix("c") {
        for substream in entries(of: "\(processes)/asound/\(card)/\(device)") where substream.hasPrefix("sub") {
          let status = read("\(processes)/asound/\(card)/\(device)/\(substream)/status")
          guard let line = status.split(separator: "\n").first(where: { $0.hasPrefix("owner_pid") }),
            let process = line.split(whereSeparator: { $0 == " " || $0 == ":" }).last
          else { continue }
          let name = read("\(processes)/\(process)/comm").split(separator: "\n").first.map(String.init) ?? "a program"
          found.append("\(name) (pid \(process))")
        }
      }
    }
    return found.isEmpty ? nil : found.joined(separator: ", ")
  }

  private static func entries(of directory: String) -> [String] {
    guard let stream = opendir(directory) else { return [] }
    defer { closedir(stream) }
    var names: [String] = []
    while let entry = readdir(stream) {
      withUnsafeBytes(of: &entry.pointee.d_name) { bytes in
        names.append(String(decoding: bytes.prefix { $0 != 0 }, as: UTF8.self))
      }
    }
    return names
  }

  /// The first 4 KiB of a file, empty if it cannot be read.
  private static func read(_ path: String) -> String {
    let descriptor = open(path, O_RDONLY | O_CLOEXEC)
    guard descriptor >= 0 else { return "" }
    defer { close(descriptor) }
    return withUnsafeTemporaryAllocation(byteCount: 4096, alignment: 1) { buffer in
      let count = Glibc.read(descriptor, buffer.baseAddress, buffer.count)
      return String(decoding: buffer.prefix(max(0, count)), as: UTF8.self)
    }
  }
}
