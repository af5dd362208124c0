// Configurations that are refused before the first connection.

import NetworkTesting
import Testing
import UploadClient

@testable import LoadTesting

@Suite("The permission for a load test")
struct LoadChecksTests {
  private func refusal(_ url: String, permitted: [String] = []) -> LoadError? {
    do throws(LoadError) {
      try LoadPermission.check(UploadRequest(url: url), permitted: permitted)
      return nil
    } catch {
      return error
    }
  }

  @Test(
    "this machine is permitted, in any form of its loopback address",
    arguments: [
      "http://127.0.0.1/", "http://127.0.0.1:8080/x?y=z", "http://127.1/", "http://127.255.255.254/",
      "http://0x7f000001/", "http://2130706433/", "http://0177.0.0.1/", "http://localhost/", "http://LocalHost:80/",
      "http://[::1]/", "http://[0:0:0:0:0:0:0:1]:8080/", "https://localhost/", "http://user:word@127.0.0.1/",
      // libcurl, which makes the connection, treats the text before the @ as a user's name.
      "http://example.com\\@127.0.0.1/", "http://%6cocalhost/",
    ])
  func loopback(url: String) { #expect(refusal(url) == nil) }

  @Test(
    "any other machine must be permitted by name",
    arguments: [
      ("http://example.com/", "example.com"), ("http://127.0.0.1.example.com/", "127.0.0.1.example.com"),
      ("http://localhost.evil/", "localhost.evil"), ("http://127.0.0.1@example.com/", "example.com"),
      ("http://127.0.0.1:80@example.com/", "example.com"), ("http://example.com#@127.0.0.1/", "example.com"),
      ("http://192.168.0.1/", "192.168.0.1"), ("http://[fe80::1]/", "[fe80::1]"),
      // An unspecified address, whose listener may forward to anywhere.
      ("http://0.0.0.0/", "0.0.0.0"), ("http://0/", "0.0.0.0"), ("http://[::]/", "[::]"),
      // Most systems, but not all, treat these as this machine. Users can write 127.0.0.1, or permit them.
      ("http://[::ffff:127.0.0.1]/", "[::ffff:127.0.0.1]"), ("http://localhost./", "localhost."),
      ("http://name.localhost/", "name.localhost"),
    ])
  func elsewhere(url: String, host: String) {
    #expect(refusal(url) == .notPermitted(host: host))
    #expect(refusal(url, permitted: ["other.example.com", host.uppercased()]) == nil)
    #expect(refusal(url, permitted: ["other.example.com"]) == .notPermitted(host: host))
    #expect(LoadError.notPermitted(host: host).remedy == .permission(host: host))
  }

  @Test("a proxy must be permitted as well, unless it is on this machine")
  func proxy() throws {
    var request = UploadRequest(url: "http://127.0.0.1/")
    for (proxy, host) in [
      ("http://me:word@proxy.example.com:3128", "proxy.example.com"), ("proxy.example.com:3128", "proxy.example.com"),
      ("socks5h://192.0.2.1", "192.0.2.1"),
    ] {
      request.proxy = proxy
      #expect(throws: LoadError.notPermitted(host: host)) { try LoadPermission.check(request, permitted: []) }
      try LoadPermission.check(request, permitted: [host])
    }
    for proxy in ["http://localhost:3128", "127.0.0.1:3128", ""] {
      request.proxy = proxy
      try LoadPermission.check(request, permitted: [])
    }
  }

  @Test("a unix socket is on this machine, for any host in the URL")
  func unixSocket() throws {
    var request = UploadRequest(url: "http://example.com/")
    request.unixSocket = "/run/x.sock"
    try LoadPermission.check(request, permitted: [])
  }

  private func configuration(streams: Int, host: String = "127.0.0.1") -> LoadConfiguration {
    var configuration = LoadConfiguration(request: UploadRequest(url: "http://\(host):9/"))
    configuration.streams = streams
    configuration.permittedHosts = [host]
    return configuration
  }

  @Test("if an address has too few ports, loopback gets more addresses, and others must be given")
  func ports() throws {
    let ports = ProcessLimits.portCount * 9 / 10
    func addresses(_ streams: Int, _ change: (inout LoadConfiguration) -> Void = { _ in }) throws -> [String] {
      var configuration = configuration(streams: streams)
      change(&configuration)
      return try LoadTest.addresses(for: streams, configuration)
    }
    // Half of the ports are found at once, and the other half only after these were tried.
    let quickPorts = ProcessLimits.portCount * 45 / 100
    #expect(try addresses(quickPorts).isEmpty, "the kernel's choice")
    #expect(try addresses(quickPorts + 1) == ["127.0.0.2", "127.0.0.3"])
    let many = try addresses(quickPorts * 300)
    #expect(Set(many).count == 300)
    #expect(many.allSatisfy { LoadPermission.isLoopback($0) })
    // As many as are specified.
    #expect(try addresses(2 * ports) { $0.localAddresses = ["127.0.0.7", "127.0.0.8"] } == ["127.0.0.7", "127.0.0.8"])
    let one = LoadError.tooFewPorts(streams: ports + 1, addresses: 1, portsOfEach: ports)
    #expect(throws: one) { try addresses(ports + 1) { $0.localAddresses = ["127.0.0.7"] } }
    #expect(throws: one) { try addresses(ports + 1) { $0.request.url = "http://192.168.0.1/" } }
    #expect(one.remedy == .moreAddresses(2) && "\(one)".contains("Name 2 local addresses of this machine"), "\(one)")
    let twice = LoadError.tooFewPorts(streams: 2 * ports, addresses: 1, portsOfEach: ports)
    #expect(twice.remedy == .moreAddresses(2), "no more than necessary")
    #expect(try addresses(ports + 1) { $0.request.unixSocket = "/run/x.sock" }.isEmpty)
    // It may be ::1, of which this is not known.
    #expect(try addresses(ports) { $0.request.url = "http://localhost:9/" }.isEmpty)
    let named = try addresses(ports + 1) { $0.request.url = "http://localhost:9/" }
    #expect(named == ["127.0.0.2", "127.0.0.3"])
  }

  @Test("streams that share connections require ports and descriptors only for the connections")
  func shared() throws {
    var configuration = configuration(streams: 1_000_000)
    configuration.request.url = "https://127.0.0.1:9/"
    configuration.request.httpVersion = .http2
    configuration.streamsPerConnection = 1000
    #expect(configuration.sharesConnections)
    _ = try LoadTest(configuration)
    configuration.request.httpVersion = .negotiated
    #expect(throws: LoadError.self) { try LoadTest(configuration) }
  }

  @Test("a contradictory plan is refused with the reason")
  func contradictions() {
    func refusal(_ change: (inout LoadConfiguration) -> Void) -> String? {
      var configuration = configuration(streams: 4)
      change(&configuration)
      do throws(LoadError) {
        _ = try LoadTest(configuration)
        return nil
      } catch {
        return error.description
      }
    }
    #expect(refusal { _ in } == nil)
    #expect(refusal { $0.streams = 0 } != nil)
    #expect(refusal { $0.duration = .zero } != nil)
    #expect(refusal { $0.ramp = .seconds(11) }?.contains("ramp") == true)
    #expect(refusal { $0.part = (5, 4) }?.contains("part 5 of 4") == true)
    #expect(refusal { $0.part = (1, 5) }?.contains("5 parts") == true)
    #expect(refusal { $0.threads = 0 } != nil)
    #expect(refusal { $0.threads = 257 }?.contains("number of threads") == true)
    #expect(refusal { $0.threads = 256 }?.contains("number of threads") != true)
    #expect(refusal { $0.ramp = .seconds(10) } == nil && refusal { $0.part = (4, 4) } == nil)
    #expect(refusal { $0.ramp = .seconds(-1) } != nil && refusal { $0.part = (0, 4) } != nil)
    #expect(refusal { $0.request.url = "nonsense" } != nil)
    for fault in 0..<4 {
      let reason = refusal {
        $0.sendsRequestPerMessage = true
        if fault == 0 { $0.profile.faults.dropEvery = .fixed(1) }
        if fault == 1 { $0.profile.faults.stalls = .init(every: .fixed(1), length: .fixed(1)) }
        if fault == 2 { $0.profile.faults.slowFraction = 0.1 }
      }
      #expect((reason?.contains("supports no faults") == true) == (fault < 3))
    }
    #expect(refusal { $0.profile.body = .file("/nonexistent/body") }?.contains("/nonexistent/body") == true)
    #expect(refusal { $0.profile.body = .file("/dev/null") }?.contains("not a regular file") == true)
  }
}
