// Finds the process that listens on a port, which an operator needs to know after "address already in use".

internal import Glibc

enum PortOwner {
  /// The process that listens on a TCP port, as `nginx (pid 4711)`; nil if it is hidden from this process. See proc(5).
  static func find(port: UInt16) -> String? {
    let inodes = ["/proc/net/tcp", "/proc/net/tcp6"].flatMap { listeners(in: $0, port: port) }
    guard !inodes.isEmpty else { return nil }
    let links = Set(inodes.map { "socket:[\($0)]" })
    for process in entries(of: "/proc") where Int(process) != nil {
      for descriptor in entries(of: "/proc/\(process)/fd")
      where link("/proc/\(process)/fd/\(descriptor)").map(links.contains) == true {
        let name = lines(of: "/proc/\(process)/comm").first ?? "a process"
        return "\(name) (pid \(process))"
      }
    }
    return nil
  }

  /// The inodes of the sockets that listen on `port`: column 2 is the address, 4 the state (0A: listen), 10 the inode.
  private static func listeners(in path: String, port: UInt16) -> [String] {
    let suffix =
      ":" + String(repeating: "0", count: 4 - String(port, radix: 16).count)
      + String(port, radix: 16, uppercase: true)
    return lines(of: path).compactMap { line in
      let columns = line.split(separator: " ")
      guard columns.count > 9, columns[1].hasSuffix(suffix), columns[3] == "0A" else { return nil }
      return String(columns[9])
    }
  }

  private static func lines(of path: String) -> [String] {
    guard let file = fopen(path, "re") else { return [] }
    defer { fclose(file) }
    var line: UnsafeMutablePointer<CChar>?
    var capacity = 0
    defer { free(line) }
    var result: [String] = []
    while case let count = getline(&line, &capacity, file), count > 0, let line {
      let bytes = UnsafeRawBufferPointer(start: line, count: count).prefix { $0 != 0x0A }
      result.append(String(decoding: bytes, as: UTF8.self))
    }
    return result
  }

  private static func entries(of path: String) -> [String] {
    guard let directory = opendir(path) else { return [] }
    defer { closedir(directory) }
    var names: [String] = []
    while let entry = readdir(directory) {
      names.append(
        withUnsafeBytes(of: &entry.pointee.d_name) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) })
    }
    return names
  }

  private static func link(_ path: String) -> String? {
    var target = [UInt8](repeating: 0, count: 64)
    let count = target.withUnsafeMutableBufferPointer { buffer in
      buffer.withMemoryRebound(to: CChar.self) { readlink(path, $0.baseAddress!, $0.count) }  // 64 bytes: not empty
    }
    return count > 0 ? String(decoding: target.prefix(count), as: UTF8.self) : nil
  }
}
