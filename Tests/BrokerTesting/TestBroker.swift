// A real nats-server with its own store, on a port that the kernel chose.

internal import EventLoops
internal import Glibc
internal import NetworkTesting

/// A broker as a process. It keeps its port and its store when it is killed and started again. It is killed when the
/// object is released.
package final class TestBroker: Sendable {
  private let directory: TemporaryDirectory
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

  /// - Parameters:
  ///   - settings: lines for its configuration.
  ///   - sync: its `sync_interval`; nil for none.
  ///   - program: another nats-server than the usual one.
  package init(
    _ settings: String = "", jetStream: Bool = true, sync: String? = nil, program: String? = nil
  ) throws {
    directory = try TemporaryDirectory()
    (self.settings, hasJetStream, self.program) = (settings, jetStream, program ?? Self.program)
    let (process, port) = try Self.start(
      self.program, in: directory, Self.settings(settings, jetStream, sync, directory), port: nil)
    self.process = Lock(process)
    self.port = port
  }

  private static func settings(
    _ settings: String, _ hasJetStream: Bool, _ sync: String?, _ directory: TemporaryDirectory
  ) -> String {
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

  /// Starts it again after ``kill()``, and returns when it is ready.
  ///
  /// - Parameter settings: replaces the earlier lines of its configuration.
  package func start(_ settings: String? = nil, sync: String? = nil) throws {
    let (process, _) = try Self.start(
      program, in: directory, Self.settings(settings ?? self.settings, hasJetStream, sync, directory), port: port)
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
    _ program: String, in directory: TemporaryDirectory, _ settings: String, port: UInt16?
  ) throws -> (TestProcess, UInt16) {
    let listen = "listen: \"127.0.0.1:\(port.map { String($0) } ?? "-1")\"\n"
    let file = try directory.write("nats.conf", "server_name: test\n" + listen + settings)
    let process = try TestProcess(program, ["-c", file])
    let announced: String = try process.lines.wait("the port of the broker") { lines in
      lines.lazy.map(\.text).first { $0.contains("Listening for client connections on") }
    }
    guard let text = announced.split(separator: ":").last, let bound = UInt16(text) else {
      throw TestFailure("no port in \(announced)")
    }
    try process.lines.first("the broker to be ready") { $0.text.contains("Server is ready") }
    return (process, bound)
  }
}
