// nginx as a plain server: it stores the content of PUT when it is complete, and replaces the former content.

import CommandTesting
import Glibc
import NetworkTesting
import TestRigs

/// Debian's nginx with `dav_methods PUT`, as in the README.
final class DavServer {
  static let isInstalled = ChildProcess.isInstalled("nginx")

  let address = "\(ServeProcess.freshHost()):8080"
  private let directory: TemporaryDirectory
  private let process: TestProcess

  init() throws {
    directory = try TemporaryDirectory()
    let path = directory.path
    guard mkdir("\(path)/stored", 0o700) == 0 else { throw TestFailure("mkdir \(path)/stored") }
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map { "\($0)_temp_path \(path)/\($0);" }
    let file = try directory.write(
      "nginx.conf",
      """
      daemon off; master_process off; user root; pid \(path)/nginx.pid; error_log stderr notice;
      events { worker_connections 64; }
      http {
        access_log off; \(temporary.joined(separator: " "))
        server { listen \(address); root \(path)/stored; dav_methods PUT; client_max_body_size 0; }
      }
      """)
    process = try TestProcess(
      "setpriv", ["--pdeathsig", "KILL", "nginx", "-p", path, "-e", "stderr", "-c", file])
    try process.lines.first("nginx's start") { $0.text.contains("event method") }
  }

  /// The content stored under this name; nil if there is none.
  func stored(_ name: String) throws -> [UInt8]? {
    try directory.names.contains("stored") && names.contains(name) ? directory.contents("stored/\(name)") : nil
  }

  var names: [String] { get throws { try fileNames(in: "\(directory.path)/stored").sorted() } }
}
