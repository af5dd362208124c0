// nginx in front of a server, as in a typical installation: TLS, HTTP/2 by ALPN, and certificates of an authority that
// only the tests trust.

internal import Glibc

// nginx (Debian's `nginx-light`), which ends TLS on a loopback port and forwards requests unbuffered. It is one process
// without a master, so that it ends with the test and leaves no worker.
public final class TLSFrontEnd: Sendable {
  /// The port from which requests are forwarded, HTTP/2 or HTTP/1.1.
  public let port: UInt16
  /// The same, but only for clients with a certificate of ours.
  public let clientCertificatePort: UInt16
  /// The authority's certificate; a client's, and its key: PEM files.
  public var authority: String { "\(directory.path)/ca.pem" }
  public var clientCertificate: String { "\(directory.path)/client.pem" }
  public var clientKey: String { "\(directory.path)/client.key" }
  /// The log to which nginx writes protocol, status and subject of each request.
  public var accessLog: String { String(decoding: (try? directory.contents("access.log")) ?? [], as: UTF8.self) }

  /// For each request, in the order of their ends, the number of the client's connection.
  public var connectionLog: [String] {
    String(decoding: (try? directory.contents("connections.log")) ?? [], as: UTF8.self)
      .split(separator: "\n").map(String.init)
  }

  private let directory: TemporaryDirectory
  private let nginx: TestProcess

  /// - Parameter backend: host and port of the server behind it.
  public init(backend: String) throws {
    directory = try TemporaryDirectory()
    (port, clientCertificatePort) = (try freePort(), try freePort())
    try TestCertificates.make(in: directory)
    let configuration = try directory.write(
      "nginx.conf", Self.configuration(directory.path, [port, clientCertificatePort], backend))
    nginx = try TestProcess("nginx", ["-p", directory.path, "-e", "stderr", "-c", configuration])
    try nginx.lines.first("nginx's start") { $0.text.contains("event method") }
  }

  /// Stops it like a hanging process, whose kernel continues to acknowledge.
  public func stop() { nginx.signal(SIGSTOP) }
  public func goOn() { nginx.signal(SIGCONT) }

  private static func configuration(_ path: String, _ ports: [UInt16], _ backend: String) -> String {
    func server(_ port: UInt16, _ more: String) -> String {
      """
        server {
          listen 127.0.0.1:\(port) ssl http2;
          ssl_certificate \(path)/server.pem;
          ssl_certificate_key \(path)/server.key;
          \(more)
          client_max_body_size 0;
          location / {
            proxy_pass http://\(backend);
            proxy_http_version 1.1;
            proxy_request_buffering off;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
          }
        }
      """
    }
    return """
      daemon off;
      master_process off;
      user root;
      pid \(path)/nginx.pid;
      error_log stderr notice;
      events { worker_connections 512; }
      http {
        log_format brief '$server_protocol $status $ssl_client_s_dn';
        access_log \(path)/access.log brief;
        log_format connection '$connection';
        access_log \(path)/connections.log connection;
        client_body_temp_path \(path)/body;
        proxy_temp_path \(path)/proxy;
        fastcgi_temp_path \(path)/fastcgi;
        uwsgi_temp_path \(path)/uwsgi;
        scgi_temp_path \(path)/scgi;
      \(server(ports[0], ""))
      \(server(ports[1], "ssl_client_certificate \(path)/ca.pem; ssl_verify_client on;"))
      }
      """
  }
}
