// Disks and networks that belong to one process and vanish with it. Their namespaces have no names, so nothing is left.

import EventLoops
import Glibc
import NetworkTesting
import TestRigs

enum Surroundings {
  /// Whether this process may make mount and network namespaces (CAP_SYS_ADMIN).
  static let mayMount = succeeds(["unshare", "--mount", "true"], package: "util-linux")
  static let mayMakeNetworks =
    succeeds(["unshare", "--net", "true"], package: "util-linux") && ChildProcess.isInstalled("ip")
    && ChildProcess.isInstalled("nsenter") && ChildProcess.isInstalled("nft")

  /// A command prefix for a tmpfs of `size` at `directory`, with a file `ballast` of that many bytes.
  static func onSmallDisk(_ directory: String, size: String, ballast: Int) -> [String] {
    let script = """
      disk=$1; size=$2; ballast=$3; shift 3
      mount -t tmpfs -o "size=$size" none "$disk" && head -c "$ballast" /dev/zero >"$disk/ballast" && exec "$@"
      """
    return ["unshare", "--mount", "sh", "-c", script, "sh", directory, size, "\(ballast)"]
  }

  /// Runs a program to its end. Throws if it fails.
  static func run(_ arguments: [String], package: String) throws {
    let scratch = ScratchDirectory()
    let code = try ChildProcess(arguments, package: package, output: scratch.file("log")).waitUntilExit()
    guard code == 0 else {
      throw TestFailure(
        "\(arguments.joined(separator: " ")): exit \(code): \(String(decoding: scratch.read("log"), as: UTF8.self))")
    }
  }

  private static func succeeds(_ arguments: [String], package: String) -> Bool {
    (try? run(arguments, package: package)) != nil
  }
}

/// A cable between this machine and the network namespace of one process, which can be disconnected and connected.
final class Cable {
  private let process: Int32
  private let name: String
  /// The names of this machine's end and the process's end.
  let here: String, there: String

  /// - Parameter process: must be alone in its network namespace (`unshare --net`). The cable is removed with it.
  init(to process: Int32) throws {
    self.process = process
    // Interface names have at most 15 characters.
    name = "sl\(process)"
    // A separate network from the range for tests of network equipment, RFC 2544.
    let number = Int(process) & 0x7fff
    let subnet = "198.\(18 + number >> 14).\(number >> 6 & 0xff)"
    let base = (number & 0x3f) * 4
    here = "\(subnet).\(base + 1)"
    there = "\(subnet).\(base + 2)"
    try ip("link", "add", name, "type", "veth", "peer", "name", "far", "netns", "\(process)")
    try ip("addr", "add", "\(here)/30", "dev", name)
    try ip("link", "set", name, "up")
    try far("addr", "add", "\(there)/30", "dev", "far")
    try far("link", "set", "far", "up")
  }

  /// Blocks all packets in both directions, without a notification.
  func pull() throws { try far("link", "set", "far", "down") }
  func putBack() throws { try far("link", "set", "far", "up") }

  enum Direction: String {
    /// From this machine to the process, or back. These are hooks of the process's network.
    case there = "input"
    case back = "output"
  }

  /// Blocks all packets in one direction.
  func drop(_ direction: Direction) throws {
    let hook = direction.rawValue
    try filter("add", "table", "inet", hook)
    try filter(
      "add", "chain", "inet", hook, "packets", "{ type filter hook \(hook) priority 0 ; policy drop ; }")
  }

  func dropNoMore(_ direction: Direction) throws { try filter("delete", "table", "inet", direction.rawValue) }

  /// Replaces the address of this machine's end. Connections from the former address receive nothing any more.
  func changeAddress() throws {
    // From the range for carrier-grade NAT, RFC 6598.
    let number = Int(process) & 0xffff
    let address = "100.\(64 + (Int(process) >> 16 & 0x3f)).\(number >> 8).\(number & 0xff)/32"
    try ip("addr", "add", address, "dev", name)
    try far("route", "add", address, "dev", "far")
    try ip("route", "add", "\(there)/32", "dev", name, "src", String(address.dropLast(3)))
    try ip("addr", "del", "\(here)/30", "dev", name)
  }

  private func filter(_ arguments: String...) throws {
    try Surroundings.run(["nsenter", "--net", "--target", "\(process)", "nft"] + arguments, package: "nftables")
  }

  private func ip(_ arguments: String...) throws {
    try Surroundings.run(["ip"] + arguments, package: "iproute2")
  }

  private func far(_ arguments: String...) throws {
    try Surroundings.run(["nsenter", "--net", "--target", "\(process)", "ip"] + arguments, package: "util-linux")
  }
}
