// The real client, a proxy that breaks connections, a front end, and the real server, with one upload through all of
// them.

import ChaosTesting
import CommandTesting
import EventLoops
import Glibc
import NetworkTesting
import Testing

/// A path from a client to a server.
struct Route: Sendable, CustomTestStringConvertible {
  var program: FrontEnd.Program
  var isHTTP1: Bool
  var changes = FrontEnd.Changes()

  /// nginx and Caddy, HTTP/2 and HTTP/1.1, with requests forwarded at once or buffered until they are complete.
  static let all = FrontEnd.Program.allCases.flatMap { program in
    [false, true].flatMap { isHTTP1 in
      [false, true].map { Route(program: program, isHTTP1: isHTTP1, changes: .init(buffersRequests: $0)) }
    }
  }

  var testDescription: String {
    "\(program.rawValue), HTTP/\(isHTTP1 ? "1.1" : "2"), \(changes.buffersRequests ? "buffered" : "unbuffered")"
  }
}

/// One server behind one front end behind one proxy, and the fates of the connections.
final class FrontEndRun {
  /// The fault of connection number 0, 1, …, after this number of the client's bytes was forwarded.
  enum Fault: Sendable {
    case reset(after: Int)
    /// SIGKILL and a restart, during the connection.
    case frontEndKilled(after: Int)
    case serverKilled(after: Int)
  }

  let directory: TemporaryDirectory
  private(set) var servers: [ServeProcess] = []
  private let serverOptions: [String]
  private let frontEnd: FrontEnd
  private let proxy: FaultyProxy
  private let route: Route
  private let faults: [Fault]
  /// The connections whose faults are due.
  private let reached: EventLog<Int>
  private let done: EventLog<Int>

  /// - Parameter mayInterim: whether the front end receives interim responses, contrary to its sample.
  init(_ route: Route, faults: [Fault] = [], serverOptions: [String] = [], mayInterim: Bool = false) throws {
    self.route = route
    self.faults = faults
    // As in the samples. Caddy 2.6 exits when an interim response coincides with the end of its request over HTTP/2,
    // which the faults cause in some runs.
    let interims = mayInterim ? [] : ["--proxied-interims", "0"]
    self.serverOptions = ["--durability", "none"] + interims + serverOptions
    directory = try TemporaryDirectory()
    guard mkdir("\(directory.path)/stored", 0o700) == 0 else { throw SystemError.last("mkdir stored") }
    let server = try ServeProcess("\(directory.path)/stored", more: self.serverOptions)
    servers = [server]
    let (reached, done) = (try EventLog<Int>(), try EventLog<Int>())
    (self.reached, self.done) = (reached, done)
    let address = "\(ServeProcess.freshHost()):8443"
    proxy = try FaultyProxy(to: address) { number in
      guard number < faults.count else { return .relay }
      switch faults[number] {
      case .reset(let count): return .reset(after: count)
      case .frontEndKilled(let count), .serverKilled(let count):
        return .meanwhile(after: count) {
          reached.append(number)
          // Without it, the proxy continues, and the test fails for another reason.
          _ = try? done.wait("fault \(number)") { $0.contains(number) ? () : nil }
        }
      }
    }
    frontEnd = try FrontEnd(
      route.program, at: address, backend: server.address, names: [FrontEnd.host(proxy.address)],
      changes: route.changes)
  }

  deinit {
    for number in faults.indices { done.append(number) }
    proxy.stop()
  }

  var server: ServeProcess { servers[servers.count - 1] }
  /// The URL for the client.
  var url: String { "https://\(proxy.address)" }

  /// A URL that bypasses the proxy, which handles one connection at a time.
  var directURL: String { frontEnd.url }

  /// The trusted authority.
  var certificate: String { frontEnd.certificate }

  var clientOptions: [String] {
    ["--ca-file", frontEnd.certificate, "--retry-ceiling", "50ms"] + (route.isHTTP1 ? ["--http1"] : [])
  }

  /// Causes the kills, each at its time. Returns when all are done.
  func doFaults(to client: StreamProcess) throws {
    for (number, fault) in faults.enumerated() {
      if case .reset = fault { continue }
      do {
        try reached.wait("fault \(number), \(fault)") { $0.contains(number) ? () : nil }
      } catch {
        throw TestFailure("\(error)\n\(story(of: client))")
      }
      if case .frontEndKilled = fault {
        try frontEnd.kill()
        try frontEnd.restart()
      } else {
        server.kill()
        servers.append(try ServeProcess("\(directory.path)/stored", address: server.address, more: serverOptions))
      }
      done.append(number)
    }
  }

  /// The last output of the client, the front end and the proxy.
  func story(of client: StreamProcess) -> String {
    var lines = client.output.text + client.output.events.filter { $0.event != "progress" }.map(\.description)
    lines = lines.suffix(70) + ["The front end at \(frontEnd.address):"] + frontEnd.output.suffix(30)
    return (lines + ["The way to it:"] + proxy.failures.suffix(10)).joined(separator: "\n")
  }

  /// The only file that the server completed in the end.
  func storedFile() throws -> String {
    let file = try server.event("ended").text("file") ?? ""
    let files = StoredStream.names(in: "\(directory.path)/stored")
    guard files == [file] else { throw TestFailure("not \(file) alone but \(files)") }
    return "\(directory.path)/stored/\(file)"
  }
}

extension StreamProcess {
  /// The number of connections on which its requests were sent.
  var newConnectionCount: Int { events("connected").count { $0.description.contains("\"new\":true") } }
}
