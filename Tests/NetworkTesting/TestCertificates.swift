// Certificates of an authority that only the tests trust, and one of an untrusted authority.

/// PEM files, made with openssl(1).
package enum TestCertificates {
  /// Writes `ca.pem`, `server.pem` and `client.pem` of that authority, `foreign.pem` of another, and the keys of all.
  ///
  /// - Parameter hosts: names of the server in addition to `localhost` and 127.0.0.1.
  package static func make(in directory: TemporaryDirectory, hosts: [String] = []) throws {
    let path = directory.path
    func openssl(_ arguments: [String]) throws {
      let process = try TestProcess("openssl", arguments)
      guard try process.wait() == 0 else { throw TestFailure("openssl \(arguments): \(process.errors)") }
    }
    func request(_ name: String, _ subject: String, _ more: [String]) throws {
      let newKey = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
      try openssl(
        ["req"] + newKey + ["-keyout", "\(path)/\(name).key", "-subj", "/CN=\(subject)", "-days", "2"] + more)
    }
    let names = "subjectAltName=" + (["localhost"] + hosts).map { "DNS:\($0)," }.joined() + "IP:127.0.0.1"
    try request("ca", "Sluice test authority", ["-x509", "-out", "\(path)/ca.pem"])
    try request("foreign", "localhost", ["-x509", "-addext", names, "-out", "\(path)/foreign.pem"])
    try directory.write("server.ext", names + "\n")
    try directory.write("client.ext", "extendedKeyUsage=clientAuth\n")
    for (name, subject) in [("server", "localhost"), ("client", "kitchen-microphone")] {
      try request(name, subject, ["-out", "\(path)/\(name).csr"])
      try openssl([
        "x509", "-req", "-in", "\(path)/\(name).csr", "-CA", "\(path)/ca.pem", "-CAkey", "\(path)/ca.key",
        "-CAcreateserial", "-days", "2", "-extfile", "\(path)/\(name).ext", "-out", "\(path)/\(name).pem",
      ])
    }
  }
}
