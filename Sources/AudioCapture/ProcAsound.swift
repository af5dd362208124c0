// The kernel's information about sound cards that every user can read, even without access to the cards: /proc/asound
// (Linux: Documentation/sound/designs/procfile.rst).

internal import Glibc

enum ProcAsound {
  /// The `hw:` names and descriptions of a card's capture devices, for a card that cannot be opened.
  static func captureDevices(ofCard card: Int32, under root: String = "/proc/asound")
    -> [(name: String, description: String)]
  {
    let folder = "\(root)/card\(card)"
    guard let id = read("\(folder)/id").split(separator: "\n").first else { return [] }
    let folders = entries(of: folder).filter { $0.hasPrefix("pcm") && $0.hasSuffix("c") }.sorted()
    return folders.compactMap { entry in
      guard let device = Int(entry.dropFirst(3).dropLast()) else { return nil }
      let name = read("\(folder)/\(entry)/info").split(separator: "\n").first { $0.hasPrefix("name: ") }
      return ("hw:CARD=\(id),DEV=\(device)", name.map { String($0.dropFirst(6)) } ?? "")
    }
  }

  static func entries(of directory: String) -> [String] {
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
  static func read(_ path: String) -> String {
    let descriptor = open(path, O_RDONLY | O_CLOEXEC)
    guard descriptor >= 0 else { return "" }
    defer { close(descriptor) }
    return withUnsafeTemporaryAllocation(byteCount: 4096, alignment: 1) { buffer in
      let count = Glibc.read(descriptor, buffer.baseAddress, buffer.count)
      return String(decoding: buffer.prefix(max(0, count)), as: UTF8.self)
    }
  }
}
