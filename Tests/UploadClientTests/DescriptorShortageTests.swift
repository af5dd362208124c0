// Tests that a request for which this process lacks a descriptor names this reason, and leaves no lasting damage.

import CCurl
import EventLoops
import ExitTesting
import Glibc
import NetworkTesting
import Testing

@testable import UploadClient

// Each test runs in a process of its own, because the limit applies to the whole process.
@Suite("A request without enough descriptors")
struct DescriptorShortageTests {
  private struct Route {
    let request: UploadRequest
    /// The number of descriptors that it needs.
    let needed: Int
    /// The kind of its failure if it has these. Nil if that depends on the network.
    let kind: UploadError.Kind?
  }

  private static func require(_ isSo: Bool, _ words: String) throws {
    if !isSo { throw TestFailure(words) }
  }

  /// A port at which the kernel accepts connections, and nobody answers. It stays open until the process ends.
  private static func silentPort() throws -> UInt16 {
    let listener = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
    guard listen(listener, 64) == 0 else { throw SystemError.last("listen") }
    var name = sockaddr_in()
    var length = socklen_t(MemoryLayout<sockaddr_in>.size)
    withUnsafeMutablePointer(to: &name) {
      $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { _ = getsockname(listener, $0, &length) }
    }
    return UInt16(bigEndian: name.sin_port)
  }

  private static func routes(authorities: String) throws -> [Route] {
    var secure = UploadRequest("GET", "https://127.0.0.1:\(try silentPort())/")
    secure.certificateAuthorities = authorities
    return [
      // The socket.
      Route(request: UploadRequest("GET", "http://127.0.0.1:\(try freePort())/"), needed: 1, kind: .unreachable),
      // The socket, and the file.
      Route(request: secure, needed: 2, kind: .badCredentialsFile),
      // libcurl's pair of sockets, and a file or socket of the C library.
      Route(request: UploadRequest("GET", "http://shortage.invalid/"), needed: 3, kind: nil),
    ]
  }

  /// The failure of a request that begins with exactly `free` descriptors.
  private static func failure(_ session: UploadSession, _ request: UploadRequest, free: Int) throws -> UploadError {
    let ends = try EventLog<Result<UploadTask.Outcome, UploadError>>()
    return try withFreeDescriptors(free) {
      let task = try session.upload(request, body: .none) { event in
        if case .finished(let result) = event { ends.append(result) }
      }
      let result = try ends.wait("the end") { $0.first }
      withExtendedLifetime(task) {}
      guard case .failure(let error) = result else { throw TestFailure("no failure with \(free) descriptors") }
      return error
    }
  }

  private static func checkRoutes() throws {
    let directory = try TemporaryDirectory()
    let routes = try routes(authorities: try directory.write("authorities.pem", "this is not a certificate\n"))
    for free in 0...6 {
      for route in routes where free < route.needed || route.kind != nil {
        let error = try withSession { session in try failure(session, route.request, free: free) }
        let isExpected =
          free < route.needed
          ? error.machineError?.code == EMFILE : error.machineError == nil && error.kind == route.kind
        try require(isExpected, "\(route.request.url) with \(free) descriptors: \(error.kind), \(error)")
      }
    }
  }

  @Test("it names the limit on each route, and another request fails for its own reason")
  func routes() async {
    await #expect(processExitsWith: .success) {
      reportingErrors { try DescriptorShortageTests.checkRoutes() }
    }
  }

  private static func checkIPv6() throws {
    try withSession { session in
      // For this family, libcurl checks the support of the machine even if it needs no name server.
      var request = UploadRequest("GET", "http://localhost:\(try freePort())/")
      request.addressFamily = .ipv6
      let first = try failure(session, request, free: 0)
      try require(first.machineError?.code == EMFILE, "without a descriptor: \(first)")
      let second = try RunningRequest(session, request).failure()
      try require(second.kind == .unreachable, "with descriptors: \(second.kind), \(second)")
    }
  }

  @Test("its session uses IPv6 as soon as there is a descriptor")
  func ipv6() async {
    await #expect(processExitsWith: .success) {
      reportingErrors { try DescriptorShortageTests.checkIPv6() }
    }
  }

  @Test("a shortage is recognized with one descriptor too few, and not with enough", arguments: [0, 1, 3])
  func shortage(_ free: Int) async {
    await #expect(processExitsWith: .success) { [free = free as Int] in
      reportingErrors {
        let (enough, tooFew) = try withFreeDescriptors(free) {
          (SystemError.shortage(ofDescriptors: free), SystemError.shortage(ofDescriptors: free + 1))
        }
        try DescriptorShortageTests.require(enough == nil, "\(free) are enough: \(String(describing: enough))")
        let expected = "cannot open a file or socket: \(SystemError(operation: "", code: EMFILE).reason)"
        try DescriptorShortageTests.require(tooFew?.description == expected, "\(String(describing: tooFew))")
      }
    }
  }
}
