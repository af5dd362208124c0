// The network of a cluster's machines: separate addresses, and for root, network namespaces and disks that can be
// removed.

internal import CommandTesting
internal import EventLoops
internal import Glibc
internal import NetworkTesting
internal import TestRigs

/// A network of this process and its children. With namespaces, each machine can be disconnected, and may have a disk
/// whose power can be cut. Without namespaces, machines are addresses of the loopback network.
package final class ClusterNetwork {
  /// One machine.
  package struct Place {
    package let name: String
    /// Its address.
    package let host: String
    /// The prefix for the commands of this machine.
    let prefix: [String]
  }

  /// Whether machines can be disconnected, and disks lose power.
  package let isIsolated: Bool
  private var count = 0

  /// - Parameter isIsolated: whether this process is alone in its network and mount namespaces, as created by
  ///   ``enterNamespaces(_:)``.
  package init(isIsolated: Bool) throws {
    self.isIsolated = isIsolated
    guard isIsolated else { return }
    // Names of namespaces are files, which must not be visible outside.
    try Self.run("mkdir", "-p", "/run/netns")
    try Self.run("mount", "-t", "tmpfs", "none", "/run/netns")
    try Self.run("ip", "link", "set", "lo", "up")
    try Self.run("ip", "link", "add", "hub", "type", "bridge")
    try Self.run("ip", "addr", "add", "\(Self.ownHost)/24", "dev", "hub")
    try Self.run("ip", "link", "set", "hub", "up")
  }

  private static let ownHost = "10.77.0.1"

  /// Starts this program again in its own network and mount namespaces, with these arguments. Returns only if that
  /// fails.
  package static func enterNamespaces(_ arguments: [String]) {
    var path = [CChar](repeating: 0, count: 4096)
    guard readlink("/proc/self/exe", &path, 4095) > 0 else { return }
    let program = String(decoding: path.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
    let command = ["unshare", "--mount", "--net", "--propagation", "private", program] + arguments
    var vector: [UnsafeMutablePointer<CChar>?] = command.map { strdup($0) } + [nil]
    execvp("unshare", &vector)
  }

  /// A machine with an address of its own.
  package func machine(_ name: String) throws -> Place {
    guard isIsolated else { return Place(name: name, host: ServeProcess.freshHost(), prefix: []) }
    count += 1
    let host = "10.77.0.\(10 + count)"
    try Self.run("ip", "netns", "add", name)
    try Self.run("ip", "link", "add", "to-\(name)", "type", "veth", "peer", "name", "eth0", "netns", name)
    try Self.run("ip", "link", "set", "to-\(name)", "master", "hub", "up")
    try Self.run("ip", "-n", name, "addr", "add", "\(host)/24", "dev", "eth0")
    try Self.run("ip", "-n", name, "link", "set", "eth0", "up")
    try Self.run("ip", "-n", name, "link", "set", "lo", "up")
    return Place(name: name, host: host, prefix: ["nsenter", "--net=/run/netns/\(name)"])
  }

  /// The machine of the clients and the load balancer.
  package func ownMachine() -> Place {
    Place(name: "front", host: isIsolated ? Self.ownHost : ServeProcess.freshHost(), prefix: [])
  }

  /// Disconnects a machine, or connects it again.
  package func connect(_ place: Place, _ isConnected: Bool) throws {
    try Self.run("ip", "link", "set", "to-\(place.name)", isConnected ? "up" : "down")
  }

  // MARK: Disks

  /// Creates a disk in this directory, which keeps only synced data when its power is cut.
  package func mountDisk(_ directory: String) throws {
    try Self.run("mkdir", "-p", directory)
    try Self.run("truncate", "-s", "8G", directory + ".image")
    try Self.run("mkfs.ext4", "-q", "-E", "lazy_itable_init=1,lazy_journal_init=1", directory + ".image")
    try Self.run("mount", "-o", "loop", directory + ".image", directory)
  }

  /// Cuts the power of that disk, whose user has ended, and mounts it again in the resulting state.
  ///
  /// From here on, the file system writes nothing to its device, not even its journal (`EXT4_IOC_SHUTDOWN` without a
  /// flush, ioctl_ext4(2)). The page cache is lost with the mount.
  package func cutPower(_ directory: String) throws {
    let descriptor = open(directory, O_RDONLY | O_CLOEXEC)
    // _IOR('X', 125, __u32), and EXT4_GOING_FLAGS_NOLOGFLUSH.
    var flags: UInt32 = 2
    let status = ioctl(descriptor, 0x8004_587D, &flags)
    let error = SystemError.last("EXT4_IOC_SHUTDOWN \(directory)")
    close(descriptor)
    guard status == 0 else { throw error }
    try Self.run("umount", directory)
    try Self.run("mount", "-o", "loop", directory + ".image", directory)
  }

  private static func run(_ program: String, _ arguments: String...) throws {
    guard ChildProcess.isInstalled(program) else {
      throw TestFailure(
        "cannot run \(program): it is not installed. Run \"make cluster-programs\", which installs it.")
    }
    let process = try TestProcess(program, arguments)
    guard try process.wait() == 0 else {
      throw TestFailure("\(program) \(arguments.joined(separator: " ")): \(process.errors.joined(separator: "; "))")
    }
  }
}
