// The faults of a cluster's machines, drawn from a seed.

internal import CommandTesting
internal import EventLoops
internal import Glibc
internal import PropertyTesting

/// One fault of one machine.
package struct ClusterFault: Sendable, CustomStringConvertible {
  package enum Kind: String, CaseIterable, Sendable {
    /// SIGKILL, and a new process.
    case kill
    /// SIGSTOP, and later SIGCONT.
    case stop
    /// The machine is disconnected from the network, and connected again. Requires namespaces.
    case cut
    /// SIGTERM, and a new process after the old one has ended.
    case drain
    /// SIGKILL, and all unsynced data is lost. Brokers only; requires namespaces.
    case power
  }

  package var kind: Kind
  package var role: ClusterMachine.Role
  /// The number of the machine within its role.
  package var index: Int
  /// How long the machine is down, in milliseconds.
  package var length: Int

  package var description: String { "\(kind.rawValue) \(role.rawValue) \(index + 1) for \(length) ms" }
  /// The name by which the report groups faults.
  var label: String { "\(kind.rawValue) \(role.rawValue)" }

  static func drawn(
    from kinds: [Kind], _ cluster: Cluster, using random: inout SplitMix64
  ) -> ClusterFault? {
    guard let kind = kinds.randomElement(using: &random) else { return nil }
    let role: ClusterMachine.Role = kind == .power || random.chance(50) ? .broker : .server
    let count = role == .broker ? cluster.brokers.count : cluster.servers.count
    let length =
      switch kind {
      case .stop, .cut: Int.random(in: 1000...5000, using: &random)
      case .kill, .power: Int.random(in: 0...2000, using: &random)
      case .drain: Int.random(in: 0...500, using: &random)
      }
    return ClusterFault(kind: kind, role: role, index: Int.random(in: 0..<count, using: &random), length: length)
  }

  /// Causes the fault, and returns when the machine is back.
  func strike(_ cluster: Cluster) throws {
    let machine = role == .broker ? cluster.brokers[index] : cluster.servers[index]
    switch kind {
    case .kill:
      try machine.end(SIGKILL)
      elapse(.milliseconds(length))
      try machine.start()
    case .stop:
      machine.signal(SIGSTOP)
      elapse(.milliseconds(length))
      machine.signal(SIGCONT)
    case .cut:
      try cluster.network.connect(machine.place, false)
      elapse(.milliseconds(length))
      try cluster.network.connect(machine.place, true)
    case .drain:
      try machine.end(SIGTERM)
      elapse(.milliseconds(length))
      try machine.start()
    case .power:
      try machine.end(SIGKILL)
      try cluster.network.cutPower(cluster.store(of: machine))
      elapse(.milliseconds(length))
      try machine.start()
    }
  }
}
