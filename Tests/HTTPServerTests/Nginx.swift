// nginx for comparison: how other software handles the same bytes.

import Glibc
import HTTPServer
import NetworkTesting

/// A real nginx on a separate loopback port. It buffers each request completely before it forwards it to itself, so
/// that it checks the body too.
final class Nginx {
  private let process: TestProcess
  private let directory: TemporaryDirectory
  let address: ListenAddress

  static let isInstalled = access("/usr/sbin/nginx", X_OK) == 0

  init() throws {
    let directory = try TemporaryDirectory()
    self.directory = directory
    let socketPath = directory.path + "/upstream"
    address = .unix(path: directory.path + "/front")
    let configuration = """
      daemon off; master_process off; pid \(directory.path)/pid; error_log \(directory.path)/error.log;
      events { worker_connections 64; }
      http {
        access_log off; client_header_timeout 5s; client_body_timeout 5s; client_max_body_size 0;
        client_body_temp_path \(directory.path)/body; proxy_temp_path \(directory.path)/proxy;
        fastcgi_temp_path \(directory.path)/fastcgi; uwsgi_temp_path \(directory.path)/uwsgi;
        scgi_temp_path \(directory.path)/scgi;
        server { listen unix:\(directory.path)/front; location / { proxy_ignore_client_abort on; proxy_pass http://unix:\(socketPath):/; } }
        server { listen unix:\(socketPath); location / { return 200 ok; } }
      }
      """
    process = try TestProcess(
      "/usr/sbin/nginx", ["-c", try directory.write("nginx.conf", configuration), "-p", directory.path])
    // It does not report when it listens, so it is polled.
    for _ in 0..<1000 {
      if (try? RawClient(address)) != nil { return }
      poll(nil, 0, 10)
    }
    throw TestFailure("nginx does not start")
  }

  /// `"accepted"`, or the status of the refusal, or `"closed"`.
  func verdict(_ octets: [UInt8]) throws -> String {
    let client = try RawClient(address)
    do {
      try client.send(octets)
      client.shutdownWriting()
      let status = try client.answer().status
      return status >= 400 ? "\(status)" : "accepted"
    } catch let failure as TestFailure {
      // A body without a status line is an answer to HTTP/0.9.
      return failure.description.contains("had ok") ? "accepted" : "closed"
    }
  }
}
