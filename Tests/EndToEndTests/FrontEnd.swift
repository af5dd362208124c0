// nginx and Caddy in front of a server, as in a typical installation: Debian's programs, with the configurations in
// `samples/`.

import CommandTesting
import EventLoops
import Glibc
import NetworkTesting
import TestRigs

/// A front end that ends TLS, on an address of its own, so that it can be killed and return to the same port.
final class FrontEnd {
  enum Program: String, CaseIterable, Sendable {
    case nginx, caddy
  }

  /// Deviations from the sample.
  struct Changes: Sendable {
    /// Whether it buffers an append until that is complete.
    var buffersRequests = false
    /// Whether to serve under `/ingest/`, and remove that prefix.
    var hasPrefix = false
    /// Whether to use HTTP/1.0 with the server behind it, nginx's default.
    var speaksHTTP10 = false
    /// Whether to open a connection to the server for each request, which is also nginx's default.
    var closesConnections = false
    /// nginx: the maximum number of simultaneous requests on a connection over HTTP/2.
    var concurrentStreams: Int?
    /// nginx: whether to support only HTTP/1.1.
    var speaksHTTP1Only = false
    /// Caddy: whether to use HTTP/2 without TLS, with prior knowledge.
    var isPlain = false
  }

  static let isInstalled = ChildProcess.isInstalled("nginx") && ChildProcess.isInstalled("caddy")

  /// `ADDRESS:PORT`.
  let address: String
  private let command: [String]
  private let directory: TemporaryDirectory
  private var process: TestProcess
  /// The output of earlier processes.
  private var earlierOutput: [String] = []
  /// The self-signed certificate, as a PEM file.
  var certificate: String { "\(directory.path)/server.pem" }
  var url: String { "https://\(address)" }

  /// - Parameters:
  ///   - address: `ADDRESS:PORT`. No other process may use the port.
  ///   - backend: the address of the server behind it.
  ///   - names: further addresses that clients use for it.
  init(
    _ program: Program, at address: String = "\(ServeProcess.freshHost()):8443", backend: String, names: [String] = [],
    changes: Changes = Changes()
  ) throws {
    self.address = address
    directory = try TemporaryDirectory()
    try Self.makeCertificate(directory.path, for: names + [Self.host(address)])
    let path = directory.path
    switch program {
    case .nginx:
      let file = try directory.write("nginx.conf", try Self.nginx(path, address, backend, changes))
      command = ["nginx", "-p", path, "-e", "stderr", "-c", file]
    case .caddy:
      let file = try directory.write("Caddyfile", try Self.caddy(path, address, backend, changes))
      command = ["env", "HOME=\(path)", "caddy", "run", "--adapter", "caddyfile", "--config", file]
    }
    process = try Self.start(command)
  }

  static func host(_ address: String) -> String { String(address.prefix { $0 != ":" }) }

  /// Sends SIGKILL. Its buffered data is lost.
  func kill() throws {
    process.signal(SIGKILL)
    try process.wait()
  }

  /// Starts it again with the same configuration.
  func restart() throws {
    earlierOutput += process.lines.all.map(\.text) + ["--- ended, and started again ---"]
    process = try Self.start(command)
  }

  /// Its output since its first start, in lines.
  var output: [String] { earlierOutput + process.lines.all.map(\.text) }

  private static func start(_ command: [String]) throws -> TestProcess {
    // setpriv (util-linux) makes the kernel end it if the test process dies.
    let process = try TestProcess("setpriv", ["--pdeathsig", "KILL"] + command)
    // nginx listens before it prints the first text, and Caddy before it prints the second.
    try process.lines.first("the front end's start") {
      $0.text.contains("event method") || $0.text.contains("serving initial configuration")
    }
    return process
  }

  // MARK: Configurations

  /// Everything in a sample that a test changes. Each part must exist.
  private static func sample(_ name: String, _ changes: [(String, String)]) throws -> String {
    // The package is three levels above this file.
    let root = #filePath.split(separator: "/").dropLast(3).joined(separator: "/")
    var text = String(decoding: try fileContents("/\(root)/samples/\(name)"), as: UTF8.self)
    for (from, to) in changes {
      let parts = text.split(separator: from, maxSplits: 1, omittingEmptySubsequences: false)
      guard parts.count == 2 else { throw TestFailure("samples/\(name) does not contain \"\(from)\"") }
      text = parts[0] + to + parts[1]
    }
    return text
  }

  private static func nginx(
    _ path: String, _ address: String, _ backend: String, _ changes: Changes
  ) throws -> String {
    var edits = [
      ("server 127.0.0.1:8080", "server \(backend)"), ("listen 443", "listen \(address)"),
      ("/etc/ssl/certs/stream.example.com.pem", "\(path)/server.pem"),
      ("/etc/ssl/private/stream.example.com.key", "\(path)/server.key"),
    ]
    if let count = changes.concurrentStreams {
      edits.append(("ssl http2;", "ssl http2;\n  http2_max_concurrent_streams \(count);"))
    }
    if changes.speaksHTTP1Only { edits.append(("ssl http2;", "ssl;")) }
    if changes.buffersRequests { edits.append(("proxy_request_buffering off", "proxy_request_buffering on")) }
    if changes.speaksHTTP10 { edits.append(("proxy_http_version 1.1", "proxy_http_version 1.0")) }
    if changes.closesConnections {
      edits.append(("proxy_set_header Connection \"\"", "proxy_set_header Connection close"))
    }
    if changes.hasPrefix {
      edits.append(("location / {", "location /ingest/ {"))
      edits.append(("proxy_pass http://sluice;", "proxy_pass http://sluice/;"))
    }
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map { "\($0)_temp_path \(path)/\($0);" }
    // One process without a master, so that a signal reaches all of it.
    return """
      daemon off;
      master_process off;
      user root;
      pid \(path)/nginx.pid;
      error_log stderr notice;
      events { worker_connections 512; }
      http {
      access_log off;
      \(temporary.joined(separator: "\n"))
      \(try sample("nginx.conf", edits))
      }
      """
  }

  private static func caddy(
    _ path: String, _ address: String, _ backend: String, _ changes: Changes
  ) throws -> String {
    let port = address.split(separator: ":").last ?? ""
    let tls = "\n\ttls \(path)/server.pem \(path)/server.key"
    let site =
      "\(changes.isPlain ? "http" : "https")://:\(port) {\n\tbind \(host(address))\(changes.isPlain ? "" : tls)"
    var edits = [
      // Without a name, because clients come through proxies with their own addresses.
      ("stream.example.com {", site),
      (
        "reverse_proxy 127.0.0.1:8080 {",
        "\(changes.hasPrefix ? "handle_path /ingest/* {\n\t" : "")reverse_proxy \(backend) {"
      ),
    ]
    if changes.buffersRequests { edits.append(("# buffer_requests", "buffer_requests")) }
    if changes.hasPrefix { edits.append(("# Under a path", "}\n\t# Under a path")) }
    return """
      {
      	admin off
      	auto_https off
      	\(changes.isPlain ? "servers {\n\t\tprotocols h1 h2c\n\t}" : "")
      }
      \(try sample("Caddyfile", edits))
      """
  }

  private static func makeCertificate(_ path: String, for hosts: [String]) throws {
    let names = hosts.map { "IP:\($0)" }.joined(separator: ",")
    let process = try TestProcess(
      "openssl",
      [
        "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", "/CN=sluice test", "-addext", "subjectAltName=\(names)", "-keyout", "\(path)/server.key",
        "-out", "\(path)/server.pem",
      ])
    guard try process.wait() == 0 else { throw TestFailure("openssl: \(process.errors)") }
  }
}
