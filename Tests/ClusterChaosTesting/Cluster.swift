// Three brokers, three servers, and HAProxy in front of them, on one machine.

internal import CommandTesting
internal import EventLoops
internal import Glibc
internal import NetworkTesting
internal import Synchronization
internal import TestRigs

/// The machines of a cluster, all running.
package final class Cluster {
  package struct Options: Sendable {
    /// The number of brokers, which is also the number of replicas.
    package var brokers = 3
    package var servers = 3
    /// Whether HAProxy is in front of the servers.
    package var hasProxy = true
    /// The places to look for HAProxy. Debian's is in a directory that not every user's path contains.
    package var proxyPrograms = ["/usr/sbin/haproxy", "haproxy"]
    /// The places to look for the program of the brokers. `SLUICE_NATS_SERVER` selects another one than the system's.
    package var brokerPrograms =
      getenv("SLUICE_NATS_SERVER").map { [String(cString: $0)] } ?? ["/usr/sbin/nats-server", "nats-server"]
    /// Whether each has its own namespace; see ``ClusterNetwork``.
    package var isIsolated = false
    /// Whether each broker can be cut off from the others while its clients still reach it, and whether each server
    /// connects to one broker, at first.
    package var hasPairs = false

    package init() {}
  }

  package let network: ClusterNetwork
  package private(set) var brokers: [ClusterMachine] = []
  package private(set) var servers: [ClusterMachine] = []
  private var proxy: ClusterMachine?
  /// The routes between two brokers, with ``Options/hasPairs``.
  private var relays: [(ends: [Int], relay: SwitchedRelay)] = []
  /// The `ADDRESS:PORT` of the load balancer, or of each server if there is none.
  package private(set) var addresses: [String] = []
  package let brokerVersion: String
  /// Whether brokers sync before they acknowledge, and have disks that can lose power.
  package let losesPower: Bool
  private let directory: TemporaryDirectory

  /// Starts everything.
  package init(_ options: Options) throws {
    let proxyProgram = try options.hasProxy ? Self.proxyProgram(options) : nil
    let program = try Self.brokerProgram(options)
    directory = try TemporaryDirectory()
    network = try ClusterNetwork(isIsolated: options.isIsolated)
    brokerVersion = try Self.version(of: program)
    losesPower = options.isIsolated && !brokerVersion.hasPrefix("2.9.")
    try startBrokers(options, program)
    try startServers(options)
    if let proxyProgram { try startProxy(proxyProgram) }
  }

  deinit {
    for machine in servers + brokers + [proxy].compactMap(\.self) { _ = try? machine.end(SIGKILL) }
  }

  /// The URLs for a test's NATS clients.
  package var brokerURLs: [String] { brokers.map { "nats://\($0.place.host):4222" } }
  package var serverAddresses: [String] { servers.map { "\($0.place.host):8080" } }
  package static var sluicePath: String { "\(AlsaConfiguration.productDirectory)/sluice" }
  func store(of broker: ClusterMachine) -> String { "\(directory.path)/\(broker.name)" }

  /// Keeps the logs of the machines, and returns their directory.
  package func keep() -> String {
    directory.keep()
    return directory.path
  }

  // MARK: Brokers

  /// Looks for the brokers' program before anything is started.
  private static func brokerProgram(_ options: Options) throws -> String {
    let programs = options.brokerPrograms
    guard let program = programs.first(where: { !$0.isEmpty && ChildProcess.isInstalled($0) }) else {
      throw TestFailure(
        "cannot start the brokers: \"\(programs.last ?? "")\" is not installed. "
          + "Run \"make chaos CHAOS=--cluster\", which installs upstream brokers, or name a program in SLUICE_NATS_SERVER."
      )
    }
    return program
  }

  private static func version(of program: String) throws -> String {
    let process = try TestProcess(program, ["--version"])
    guard try process.wait() == 0, let line = process.output.first, let start = line.lastIndex(of: "v") else {
      throw TestFailure("\(program) --version: \(process.errors)")
    }
    return String(line[line.index(after: start)...])
  }

  private func startBrokers(_ options: Options, _ program: String) throws {
    let places = try (1...options.brokers).map { try network.machine("n\($0)") }
    for (index, place) in places.enumerated() {
      let store = "\(directory.path)/\(place.name)"
      if losesPower { try network.mountDisk(store) }
      // Other brokers must not learn an address that goes around the relay.
      let advertised = options.hasPairs ? ", advertise: \"127.0.0.1:9\"" : ""
      let routes = try routes(of: index, places, options).joined(separator: ", ")
      let group =
        options.brokers > 1
        ? "cluster { name: c, listen: \"\(place.host):6222\", routes: [\(routes)]\(advertised) }\n" : ""
      let file = try directory.write(
        "\(place.name).conf",
        """
        server_name: \(place.name)
        listen: "\(place.host):4222"
        jetstream { store_dir: "\(store)/js"\(losesPower ? ", sync_interval: always" : "") }
        \(group)
        """)
      brokers.append(ClusterMachine(.broker, at: place, program, ["-c", file], readyWord: "Server is ready"))
    }
    for broker in brokers { try broker.launch() }
    for broker in brokers {
      guard try broker.awaitReady() else { throw TestFailure("\(broker.name) has ended: \(broker.lastWords)") }
    }
  }

  private func routes(of index: Int, _ places: [ClusterNetwork.Place], _ options: Options) throws -> [String] {
    let addresses = places.map { "\($0.host):6222" }
    guard options.hasPairs else { return addresses.map { "nats://\($0)" } }
    return try places.indices.filter { $0 != index }.map { other in
      let relay = try SwitchedRelay(to: addresses[other])
      relays.append(([index, other], relay))
      return "nats://\(relay.address)"
    }
  }

  /// Cuts a broker off from the others, or connects it again. Its clients still reach it. Requires
  /// ``Options/hasPairs``.
  package func isolate(_ broker: Int, _ isCutOff: Bool) throws {
    for (ends, relay) in relays where ends.contains(broker) { try relay.set(isCutOff ? .resets : .passes) }
  }

  // MARK: Servers

  private func startServers(_ options: Options) throws {
    let (urls, replicas) = (brokerURLs, options.brokers)
    for number in 0..<options.servers {
      let place = try network.machine("s\(number + 1)")
      servers.append(
        ClusterMachine(
          .server, at: place, Self.sluicePath,
          [
            "serve", "--listen", "\(place.host):8080", "--drain-timeout", "5s", "--replicas", "\(replicas)",
            "--store", options.hasPairs ? urls[number] : urls.joined(separator: ","),
          ], readyWord: "listening on"))
    }
    for server in servers { try server.start() }
    addresses = serverAddresses
  }

  // MARK: HAProxy

  /// Looks for HAProxy before anything is started.
  private static func proxyProgram(_ options: Options) throws -> String {
    guard let program = options.proxyPrograms.first(where: { ChildProcess.isInstalled($0) }) else {
      throw TestFailure(
        "cannot start HAProxy: it is not installed. Run \"apt-get install haproxy\", or use \"make chaos CHAOS=--cluster\", which installs it."
      )
    }
    return program
  }

  private func startProxy(_ program: String) throws {
    let place = network.ownMachine()
    let address = "\(place.host):8000"
    addresses = [address]
    let lines = servers.map { " server \($0.name) \($0.place.host):8080 check inter 500ms" }
    let file = try directory.write(
      "haproxy.cfg",
      """
      global
       maxconn 8000
      defaults
       mode http
       timeout connect 1s
       timeout client 1h
       timeout server 1h
       retries 3
       option redispatch
      listen ingest
       bind \(address)
       balance roundrobin
       option http-server-close
      \(lines.joined(separator: "\n"))

      """)
    let proxy = ClusterMachine(.server, at: place, program, ["-db", "-f", file], readyWord: "")
    try proxy.launch()
    self.proxy = proxy
    // It does not report when it listens.
    let entrance = try IPv4Address(address)
    try waitUntil("HAProxy listens") {
      let descriptor = socket(AF_INET, Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue), 0)
      defer { close(descriptor) }
      return entrance.withPointer { connect(descriptor, $0, $1) } == 0
    }
  }
}
