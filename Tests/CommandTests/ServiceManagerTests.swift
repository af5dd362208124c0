// Tests the real command under a service manager, for which a socket stands: its notifications, and the units.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import TestRigs
import Testing

@testable import sluice

@Suite("A systemd service")
struct ServiceManagerTests {
  /// A datagram socket in its own directory, like that of systemd.
  private final class Manager {
    let directory: TemporaryDirectory
    let descriptor: Int32
    var path: String { "\(directory.path)/notify" }

    init() throws {
      directory = try TemporaryDirectory()
      descriptor = socket(AF_UNIX, Int32(SOCK_DGRAM.rawValue | SOCK_CLOEXEC.rawValue), 0)
      var name = sockaddr_un()
      name.sun_family = sa_family_t(AF_UNIX)
      withUnsafeMutableBytes(of: &name.sun_path) { $0.copyBytes(from: "\(directory.path)/notify".utf8) }
      let bound = withUnsafePointer(to: &name) { pointer in
        pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) {
          bind(descriptor, $0, socklen_t(MemoryLayout<sockaddr_un>.size))
        }
      }
      guard bound == 0 else { throw TestFailure("no socket: \(String(cString: strerror(errno)))") }
    }

    deinit { close(descriptor) }

    /// The next message with this beginning. Drops the messages before it.
    @discardableResult
    func message(_ start: String) throws -> String {
      var buffer = [UInt8](repeating: 0, count: 4096)
      while true {
        guard waitUntilReadable(descriptor, limit: .seconds(60)) else { throw TestFailure("no \(start)") }
        let count = recv(descriptor, &buffer, buffer.count, 0)
        let text = String(decoding: buffer.prefix(max(0, count)), as: UTF8.self)
        if text.hasPrefix(start) { return text }
      }
    }
  }

  private func start(_ manager: Manager, _ arguments: [String], watchdog: String? = "400000") throws -> SpawnedCommand {
    try SpawnedCommand(
      arguments, [nil, nil, nil],
      environment: ["NOTIFY_SOCKET=\(manager.path)"] + (watchdog.map { ["WATCHDOG_USEC=\($0)"] } ?? []))
  }

  @Test("serve is ready when it listens, sends watchdog signals while each loop turns, and reports its stop")
  func serve() throws {
    let manager = try Manager()
    let directory = try TemporaryDirectory()
    let socket = "\(directory.path)/socket"
    let server = try start(
      manager, ["serve", "--listen", "unix:\(socket)", "--directory", directory.path, "--threads", "2"])
    #expect(try manager.message("READY=1") == "READY=1\nSTATUS=listening on unix:\(socket)")
    #expect(access(socket, F_OK) == 0)
    for _ in 0..<3 { try manager.message("WATCHDOG=1") }
    // A stopped process sends no message.
    server.signal(SIGSTOP)
    while waitUntilReadable(manager.descriptor, limit: .milliseconds(600)) { try manager.message("WATCHDOG=1") }
    server.signal(SIGCONT)
    try manager.message("WATCHDOG=1")
    server.signal(SIGTERM)
    try manager.message("STOPPING=1")
    #expect(try server.wait() == 0)
  }

  @Test("a microphone is ready when it captures, and requests time while it finishes")
  func microphone() throws {
    let manager = try Manager()
    let microphone = TestMicrophone()
    let stream = try start(
      manager, ["mic", "http://127.0.0.1:1/k", "-D", microphone.name(), "--finish-timeout", "1s"])
    #expect(try manager.message("READY=1") == "READY=1\nSTATUS=streaming to http://127.0.0.1:1/k")
    for _ in 0..<3 { try manager.message("WATCHDOG=1") }
    stream.signal(SIGTERM)
    try manager.message("STOPPING=1")
    try manager.message("EXTEND_TIMEOUT_USEC=30000000")
    #expect(try [4, 69].contains(stream.wait()), "nothing could be sent")
  }

  @Test("without a device, it never reports that it is ready")
  func noDevice() throws {
    let manager = try Manager()
    let stream = try start(manager, ["mic", "http://127.0.0.1:1/k", "-D", "hw:CARD=Nobody"])
    #expect(try stream.wait() == 66)
    #expect(!waitUntilReadable(manager.descriptor, limit: .zero))
  }

  @Test(
    "invalid values in the environment disable the manager, and a watchdog for another process does not apply",
    arguments: [
      (["NOTIFY_SOCKET": "relative"], nil), (["NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "0"], nil),
      (["NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "-5"], nil), (["WATCHDOG_USEC": "1000000"], nil),
      (["NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "99999999999999999999"], nil),
      (["NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"], nil),
      (["NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "1000000"], Duration.milliseconds(500)),
      (["NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1"], .milliseconds(1)),
    ] as [([String: String], Duration?)])
  func environment(_ variables: [String: String], interval: Duration?) {
    let manager = ServiceManager { variables[$0] }
    #expect(manager.watchdogInterval == interval)
    // If the socket does not exist or its path is too long, the call returns immediately.
    manager.isAlive()
    ServiceManager { ["NOTIFY_SOCKET": "/" + String(repeating: "x", count: 200)][$0] }.isAlive()
  }

  // MARK: Units

  private static let repository = #filePath.split(separator: "/").dropLast(3).reduce("") { "\($0)/\($1)" }

  @Test(
    "systemd accepts the units and those of the package, and rates their exposure below 3",
    arguments: ["sluice-mic", "sluice-serve"], [false, true])
  func units(_ name: String, isPackaged: Bool) throws {
    let directory = try TemporaryDirectory()
    var text = try String(
      decoding: InputFile.contents(of: "\(Self.repository)/samples/systemd/\(name).service"), as: UTF8.self)
    if isPackaged {
      let packaged = try TestProcess(
        "\(Self.repository)/packaging/unit.sh", [try directory.write("\(name).service", text)])
      #expect(try packaged.wait() == 0)
      text = packaged.output.joined(separator: "\n") + "\n"
    }
    let unit = try directory.write("\(name).service", text)
    let security = try TestProcess(
      "systemd-analyze", ["security", "--offline=true", "--threshold=30", "--no-pager", unit])
    #expect(try security.wait() == 0, "\(security.output.suffix(1))")
    // Replaces the installed command in the unit by the one under test.
    text = text.replacing(isPackaged ? "/usr/bin/sluice" : "/usr/local/bin/sluice", with: try sluicePath())
    let verify = try TestProcess(
      "systemd-analyze", ["verify", "--man=no", try directory.write("\(name).service", text)])
    #expect(try verify.wait() == 0, "\(verify.errors)")
    #expect(verify.errors.allSatisfy { !$0.contains(name) }, "\(verify.errors)")
    // However often and however the command ends, systemd starts it again.
    let lines = text.split(separator: "\n")
    #expect(lines.prefix { $0 != "[Service]" }.contains("StartLimitIntervalSec=0"))
    #expect(lines.filter { $0.hasPrefix("Restart=") } == ["Restart=always"])
    // The command accepts the command line of the unit.
    let line = try #require(text.split(separator: "\n").first { $0.hasPrefix("ExecStart=") })
    let words = line.split(separator: " ").dropFirst().map(String.init).filter { $0 != "$SLUICE_OPTIONS" }
    #expect(line.contains("$SLUICE_OPTIONS") == isPackaged)
    let subcommand = try SluiceCommand.find(words[0])
    _ = try subcommand.syntax.parse(words.dropFirst())
  }
}
