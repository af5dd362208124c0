// The number of connections, as counted by the kernel.

import NetworkTesting

/// Connections as the kernel counts them.
enum EstablishedConnections {
  /// The number of connections accepted at `ADDRESS:PORT`: proc(5), `/proc/net/tcp`.
  static func count(at address: String) throws -> Int {
    let parts = address.split(separator: ":")
    guard parts.count == 2, let port = UInt16(parts[1]) else { throw TestFailure("\(address) is not an address") }
    let octets = parts[0].split(separator: ".").compactMap { UInt8($0) }
    // The address is in the machine's byte order.
    let name = octets.reversed().map { hexadecimal(UInt16($0), 2) }.joined() + ":" + hexadecimal(port, 4)
    return String(decoding: try fileContents("/proc/net/tcp"), as: UTF8.self).split(separator: "\n").count { line in
      let columns = line.split(separator: " ")
      return columns.count > 3 && columns[1] == name && columns[3] == "01"
    }
  }

  private static func hexadecimal(_ value: UInt16, _ digits: Int) -> String {
    let text = String(value, radix: 16, uppercase: true)
    return String(repeating: "0", count: digits - text.count) + text
  }
}
