// Tests the exit codes of services: of signals that arrive while they open their storage, and of an end with losses.

import EventLoops
import Glibc
import NetworkTesting
import Testing

@testable import sluice

@Suite("Exit codes of services", .serialized)
struct ServiceExitTests {
  enum Service: CaseIterable {
    case serve, collect

    func arguments(broker: String, _ directory: String) -> [String] {
      switch self {
      case .serve: ["serve", "--listen", "127.0.0.1:0", "--store", broker]
      case .collect: ["collect", broker, "--directory", directory]
      }
    }
  }

  @Test(
    "a service that is stopped before it is ready has not failed", arguments: Service.allCases,
    [SIGTERM, SIGINT, SIGHUP, SIGQUIT])
  func stopped(_ service: Service, _ signal: Int32) throws {
    let directory = try TemporaryDirectory()
    // A busy machine may let the service wait longer than it waits for a broker. Then it ends by itself.
    var code: Int32?
    for _ in 0..<5 {
      let connections = try EventLog<Int>()
      let broker = try ScriptedServer { connection, number in
        connections.append(number)
        _ = connection.waitForEnd()
      }
      let process = try sluice(service.arguments(broker: "nats://127.0.0.1:\(broker.port)", directory.path))
      try connections.first("a connection") { $0 == 0 }
      process.signal(signal)
      code = try process.wait()
      if process.errors.isEmpty { break }
    }
    #expect(code == (signal == SIGQUIT ? 130 : 0))
  }

  @Test("a server that ends with acknowledged bytes that the disk has refused has failed")
  func refusedBytes() {
    #expect(Serve.exitCode(unsyncedUploadCount: 0) == .done)
    #expect(Serve.exitCode(unsyncedUploadCount: 1) == .inputOutput)
  }
}
