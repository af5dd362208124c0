// The real client, something that breaks connections, a front end, and the real server: one upload through all of it.

import ChaosTesting
import CommandTesting
import EventLoops
import Glibc
import NetworkTesting
import Testing

/// A way from a client to a server.
struct Route: Sendable, CustomTestStringConvertible {
  var program: FrontEnd.Program
  var isHTTP1: Bool
  var changes = FrontEnd.Changes()

  /// nginx and Caddy, HTTP/2 and HTTP/1.1, requests passed on as they come and held until they are complete.
  static let all = FrontEnd.Program.allCases.flatMap { program in
    [false, true].flatMap { isHTTP1 in
      [false, true].map { Route(program: program, isHTTP1: isHTTP1, changes: .init(buffersRequests: $0)) }
    }
  }

  var testDescription: String {
    "\(program.rawValue), HTTP/\(isHTTP1 ? "1.1" : "2"), \(changes.buffersRequests ? "buffered" : "unbuffered")"
  }
}

/// One server behind one front end behind one proxy, and what becomes of the connections through it.
final class FrontEndRun {
  /// What happens to connection number 0, 1, …, when this number of the client's bytes has gone through.
  enum Fault: Sendable {
    case reset(after: Int)
    /// SIGKILL and a new start, while the connection stands.
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
  /// The connections on which a fault waits to be done.
  private let reached: EventLog<Int>
  private let done: EventLog<Int>

  /// - Parameter mayInterim: whether the front end is sent interim responses, against what its sample says.
  init(_ route: Route, faults: [Fault] = [], serverOptions: [String] = [], mayInterim: Bool = false) throws {
    self.route = route
    self.faults = faults
    // As the samples say. Caddy 2.6 exits when an interim response meets the end of its request over HTTP/2, which the
    // faults bring about once in a few runs.
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
          // Without it the proxy goes on, and the test fails for another reason.
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
  /// As the client sees it.
  var url: String { "https://\(proxy.address)" }

  /// Past the proxy, which has one connection at a time.
  var directURL: String { frontEnd.url }

  /// The authority to trust.
  var certificate: String { frontEnd.certificate }

  var clientOptions: [String] {
    ["--ca-file", frontEnd.certificate, "--retry-ceiling", "50ms"] + (route.isHTTP1 ? ["--http1"] : [])
  }

  /// Kills what is to be killed, each when its time has come; returns when all of that is done.
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

  /// What the client, the front end and the way between them said last.
  func story(of client: StreamProcess) -> String {
    var lines = client.output.text + client.output.events.filter { $0.event != "progress" }.map(\.description)
    lines = lines.suffix(70) + ["The front end at \(frontEnd.address):"] + frontEnd.output.suffix(30)
    return (lines + ["The way to it:"] + proxy.failures.suffix(10)).joined(separator: "\n")
  }

  /// The file that the server of the end has completed, which is the only one.
  func storedFile() throws -> String {
    let file = try server.event("ended").text("file") ?? ""
    let files = StoredStream.names(in: "\(directory.path)/stored")
    guard files == [file] else { throw TestFailure("not \(file) alone but \(files)") }
    return "\(directory.path)/stored/\(file)"
  }
}

extension StreamProcess {
  /// How many connections its requests were sent on.
  var newConnectionCount: Int { events("connected").count { $0.description.contains("\"new\":true") } }
}
