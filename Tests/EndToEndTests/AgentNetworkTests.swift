// Transfers that depend on the kind of network: a real bus, and a NetworkManager controlled by the test.

import CommandTesting
import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Testing
import TransferClient

@Suite("The agent and metered networks")
struct AgentNetworkTests {
  /// Answers `Metered` with the last number from its standard input, and signals each change. While the number is
  /// negative, it does not answer.
  private static let manager = """
    import ctypes, select, sys
    lib = ctypes.CDLL("libsystemd.so.0")
    bus = ctypes.c_void_p()
    assert lib.sd_bus_open_system(ctypes.byref(bus)) >= 0
    value = int(sys.stdin.readline())
    Handler = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    def answer(message, data, error):
      message = ctypes.c_void_p(message)
      if lib.sd_bus_message_is_method_call(message, b"org.freedesktop.DBus.Properties", b"Get") <= 0: return 0
      if value >= 0: lib.sd_bus_reply_method_return(message, b"v", b"u", ctypes.c_uint32(value))
      return 1
    handler = Handler(answer)
    path, name = b"/org/freedesktop/NetworkManager", b"org.freedesktop.NetworkManager"
    assert lib.sd_bus_add_object(bus, None, path, handler, None) >= 0
    assert lib.sd_bus_request_name(bus, name, ctypes.c_uint64(0)) >= 0
    print("ready", flush=True)
    while True:
      while lib.sd_bus_process(bus, None) > 0: pass
      lib.sd_bus_flush(bus)
      if sys.stdin in select.select([sys.stdin, lib.sd_bus_get_fd(bus)], [], [])[0]:
        line = sys.stdin.readline()
        if not line: break
        value = int(line)
        lib.sd_bus_emit_signal(
          bus, path, b"org.freedesktop.DBus.Properties", b"PropertiesChanged", b"sa{sv}as", name,
          ctypes.c_uint(0), ctypes.c_uint(0))
    """

  /// NetworkManager's values for a connection, and whether a transfer of each kind may run there.
  private static let kinds: [(metered: String, expensive: Bool, constrained: Bool)] = [
    ("0", false, false), ("1", true, true), ("2", false, false), ("3", true, false), ("4", false, false),
  ]

  /// A bus, with the network manager that the agent queries. They end with this object.
  private final class Bus {
    let daemon: TestProcess
    let manager: TestProcess

    /// - Parameters:
    ///   - metered: the initial value of the connection.
    ///   - isSilent: whether the manager answers only after it is continued (SIGCONT).
    init(_ bench: AgentBench, metered: String, isSilent: Bool = false) throws {
      unlink(Self.path(bench))
      let address = "unix:path=\(Self.path(bench))"
      daemon = try TestProcess("dbus-daemon", ["--session", "--nofork", "--address=\(address)", "--print-address"])
      try daemon.lines.first("the bus") { $0.text.hasPrefix("unix:") }
      manager = try TestProcess(
        "/usr/bin/python3", ["-c", AgentNetworkTests.manager], input: .pipe,
        environment: Self.environment(bench, isSilent: isSilent))
      manager.send(Array("\(metered)\n".utf8))
      try manager.lines.first("the manager") { $0.text == "ready" }
      if isSilent { manager.signal(SIGSTOP) }
    }

    static func path(_ bench: AgentBench) -> String { "\(bench.directory.path)/bus" }

    static func environment(_ bench: AgentBench, isSilent: Bool = false) -> [String: String?] {
      bench.environment.merging([
        "DBUS_SYSTEM_BUS_ADDRESS": "unix:path=\(path(bench))", "SYSTEMD_BUS_TIMEOUT": isSilent ? "1" : nil,
      ]) { $1 }
    }

    /// Ends both.
    func end() throws {
      for process in [daemon, manager] {
        process.signal(SIGKILL)
        try process.wait()
      }
    }
  }

  /// An agent, and the bus that it uses. They end with this object.
  private struct Network {
    var bus: Bus
    let agent: TestProcess
    var manager: TestProcess { bus.manager }

    init(_ bench: AgentBench, metered: String, isSilent: Bool = false) throws {
      bus = try Bus(bench, metered: metered, isSilent: isSilent)
      agent = try AgentNetworkTests.agent(bench, isSilent: isSilent)
    }
  }

  private static func agent(_ bench: AgentBench, isSilent: Bool = false) throws -> TestProcess {
    let agent = try TestProcess(
      bench.program, ["agent"], environment: Bus.environment(bench, isSilent: isSilent))
    try agent.lines.first("the agent") { $0.text.hasPrefix("listening on") }
    return agent
  }

  /// Submits a transfer that must not use an expensive connection.
  private func submit(_ bench: AgentBench, _ key: String, to url: String, _ file: String) throws -> Int64 {
    var request = TransferRequest(key: key, url: url, path: file)
    request.allowsExpensive = false
    return try bench.submit(request)
  }

  /// Waits until a transfer has ended or waits for another network.
  private func settled(_ bench: AgentBench, _ id: Int64) throws -> TransferStatus {
    try bench.transfer(id, "ended or waited") {
      $0.state == .ended || $0.state == .waiting && $0.trouble?.contains("network") == true
    }
  }

  /// Submits such transfers until one waits, because the agent has noticed that the connection is metered.
  private func probe(_ bench: AgentBench, _ name: String, _ url: String, _ file: String) throws {
    let deadline = MonotonicInstant.now + .seconds(60)
    var count = 0
    while true {
      count += 1
      let id = try submit(bench, "\(name) \(count)", to: "\(url)/x/probe\(name).\(count)", file)
      let status = try settled(bench, id)
      if status.state == .waiting { return }
      guard MonotonicInstant.now < deadline else {
        throw TestFailure("the agent has not noticed the metered connection after \(count) transfers: \(status)")
      }
    }
  }

  @Test("a transfer uses a metered connection if it may, and otherwise waits until that changes")
  func metered() throws {
    let (bench, server) = (try AgentBench(), try StreamServer())
    let network = try Network(bench, metered: "1")
    defer { withExtendedLifetime(network) {} }
    let (manager, agent) = (network.manager, network.agent)
    let file = try bench.directory.write("data", "content")
    for kind in Self.kinds {
      // First a connection on which all wait, so that each change is visible.
      manager.send(Array("1\n".utf8))
      try probe(bench, kind.metered, server.url, file)
      var ids: [(id: Int64, waits: Bool, what: String)] = []
      for (name, waits) in [
        ("expensive", kind.expensive), ("constrained", kind.constrained), ("discretionary", kind.expensive),
      ] {
        var request = TransferRequest(
          key: "\(kind.metered) \(name)", url: "\(server.url)/x/\(name)\(kind.metered)", path: file)
        request.allowsExpensive = name != "expensive"
        request.allowsConstrained = name != "constrained"
        request.isDiscretionary = name == "discretionary"
        let id = try bench.submit(request)
        try bench.transfer(id, "waited (\(name))") { $0.state == .waiting && $0.trouble?.contains("network") == true }
        ids.append((id, waits, name))
      }
      manager.send(Array("\(kind.metered)\n".utf8))
      for (id, waits, name) in ids where !waits {
        #expect(try bench.ended(id).outcome == .completed, "\(kind.metered) \(name)")
      }
      for (id, waits, name) in ids where waits {
        #expect(try bench.transfers().first { $0.id == id }?.state == .waiting, "\(kind.metered) \(name)")
      }
      manager.send(Array("2\n".utf8))
      for (id, _, _) in ids { #expect(try bench.ended(id).outcome == .completed) }
    }
    agent.signal(SIGTERM)
    #expect(try agent.wait() == 0)
  }

  @Test("a running transfer stops when the connection becomes metered, and continues afterwards")
  func becomesMetered() throws {
    let bench = try AgentBench()
    let network = try Network(bench, metered: "2")
    defer { withExtendedLifetime(network) {} }
    let (manager, agent) = (network.manager, network.agent)
    let pattern = OffsetPattern()
    let content = pattern[0..<6_000_000]
    let file = try bench.directory.write("data", content)
    let server = try ResumableServer { request, _ in
      request.method == "PATCH" && request.offset ?? 0 < 5_900_000 ? .cut(after: 100_000) : .proper
    }
    var request = TransferRequest(key: "k", url: server.url + "/take", path: file)
    (request.allowsExpensive, request.resumable, request.longestPause) = (false, "always", 100)
    request.mayUsePOST = true
    let id = try bench.submit(request)
    try server.requests.first("a part of it") { $0.method == "PATCH" && $0.offset ?? 0 >= 200_000 }
    manager.send(Array("3\n".utf8))
    try bench.transfer(id, "waited") { $0.state == .waiting && $0.trouble?.contains("metered") == true }
    #expect(server.state.withLock { !$0.uploads[0].isComplete })
    manager.send(Array("4\n".utf8))
    #expect(try bench.ended(id).outcome == .completed)
    #expect(server.state.withLock { $0.uploads.map(\.bytes) } == [content])
    agent.signal(SIGTERM)
    #expect(try agent.wait() == 0)
  }

  @Test("while NetworkManager does not answer, the metered state is unknown, and transfers wait with the reason")
  func silent() throws {
    let (bench, server) = (try AgentBench(), try StreamServer())
    let network = try Network(bench, metered: "1", isSilent: true)
    defer { withExtendedLifetime(network) {} }
    var request = TransferRequest(
      key: "k", url: "\(server.url)/x/data", path: try bench.directory.write("data", "content"))
    request.allowsExpensive = false
    let id = try bench.submit(request)
    try bench.transfer(id, "waited with the reason") { $0.trouble?.contains("cannot be asked (sd_bus_") == true }
    // Another unanswered query: the duration is the purpose.
    elapse(.milliseconds(1500))
    let status = try bench.transfer(id, "waited or ran") { _ in true }
    #expect(status.state == .waiting && status.trouble?.contains("cannot be asked (sd_bus_") == true, "\(status)")
    try network.agent.lines.first("the reason") { $0.text.hasSuffix("transfers that avoid metered networks wait.") }
    network.manager.signal(SIGCONT)
    try bench.transfer(id, "heard the answer") { $0.trouble?.contains("not metered") == true }
    network.manager.send(Array("2\n".utf8))
    #expect(try bench.ended(id).outcome == .completed)
    network.agent.signal(SIGTERM)
    #expect(try network.agent.wait() == 0)
  }

  @Test("if NetworkManager does not answer any more, its last answer holds, and the agent's log states it once")
  func silentAfterAnswer() throws {
    let (bench, server) = (try AgentBench(), try StreamServer())
    let network = try Network(bench, metered: "1", isSilent: true)
    defer { withExtendedLifetime(network) {} }
    network.manager.signal(SIGCONT)
    let id = try submit(bench, "k", to: "\(server.url)/x/data", try bench.directory.write("data", "content"))
    try bench.transfer(id, "heard the answer") { $0.trouble?.contains("not metered") == true }
    network.manager.send(Array("-1\n".utf8))
    let words = "its last answer holds: the network is metered."
    try network.agent.lines.first("the silence") { $0.text.hasSuffix(words) }
    // More unanswered queries: the duration is the purpose.
    elapse(.milliseconds(2500))
    #expect(network.agent.lines.all.count { $0.text.hasSuffix(words) } == 1)
    let status = try bench.transfer(id, "waited or ran") { _ in true }
    #expect(status.state == .waiting && status.trouble?.contains("not metered") == true, "\(status)")
    network.manager.send(Array("2\n".utf8))
    #expect(try bench.ended(id).outcome == .completed)
    network.agent.signal(SIGTERM)
    #expect(try network.agent.wait() == 0)
  }

  @Test("a metered connection stays metered while the bus and NetworkManager restart")
  func restart() throws {
    let (bench, server) = (try AgentBench(), try StreamServer())
    var network = try Network(bench, metered: "1")
    defer { withExtendedLifetime(network) {} }
    let file = try bench.directory.write("data", "content")
    let first = try submit(bench, "first", to: "\(server.url)/x/first", file)
    try bench.transfer(first, "waited for another connection") { $0.trouble?.contains("not metered") == true }
    try network.bus.end()
    network.bus = try Bus(bench, metered: "1")
    let second = try submit(bench, "second", to: "\(server.url)/x/second", file)
    let status = try settled(bench, second)
    #expect(status.state == .waiting && status.trouble?.contains("not metered") == true, "\(status)")
    #expect(try bench.transfers().first { $0.id == first }?.state == .waiting)
    // The agent watches the new one.
    network.manager.send(Array("2\n".utf8))
    for id in [first, second] { #expect(try bench.ended(id).outcome == .completed) }
    network.agent.signal(SIGTERM)
    #expect(try network.agent.wait() == 0)
  }

  @Test("the agent notices a bus that starts later, whether or not a transfer depends on it", arguments: [false, true])
  func laterBus(isAwaited: Bool) throws {
    let (bench, server) = (try AgentBench(), try StreamServer())
    let agent = try Self.agent(bench)
    let file = try bench.directory.write("data", "content")
    if isAwaited {
      var request = TransferRequest(key: "awaits", url: "\(server.url)/x/awaits", path: file)
      (request.allowsExpensive, request.earliestBegin) = (false, .max)
      _ = try bench.submit(request)
    }
    let first = try submit(bench, "first", to: "\(server.url)/x/first", file)
    #expect(try bench.ended(first).outcome == .completed)
    let bus = try Bus(bench, metered: "1")
    if isAwaited { try probe(bench, "later", server.url, file) }
    let second = try submit(bench, "second", to: "\(server.url)/x/second", file)
    try bench.transfer(second, "waited for another connection") { $0.trouble?.contains("not metered") == true }
    bus.manager.send(Array("2\n".utf8))
    #expect(try bench.ended(second).outcome == .completed)
    agent.signal(SIGTERM)
    #expect(try agent.wait() == 0)
  }

  @Test("while NetworkManager cannot be asked, the status of a waiting transfer and the agent's log state the reason")
  func unreachable() throws {
    let (bench, server) = (try AgentBench(), try StreamServer())
    // Each connection to this bus ends at once.
    let broken = try ScriptedServer(.unix(Bus.path(bench))) { _, _ in }
    let agent = try Self.agent(bench)
    let file = try bench.directory.write("data", "content")
    let id = try submit(bench, "k", to: "\(server.url)/x/data", file)
    try bench.transfer(id, "waited with the reason") {
      $0.state == .waiting && $0.trouble?.contains("NetworkManager cannot be asked (sd_bus_") == true
    }
    try agent.lines.first("the reason") {
      $0.text.contains("cannot ask NetworkManager") && $0.text.hasSuffix("transfers that avoid metered networks wait.")
    }
    broken.close()
    let bus = try Bus(bench, metered: "2")
    defer { withExtendedLifetime(bus) {} }
    #expect(try bench.ended(id).outcome == .completed)
    agent.signal(SIGTERM)
    #expect(try agent.wait() == 0)
  }

  @Test("without a bus, nothing counts as metered, and the agent's log states it")
  func noBus() throws {
    let (bench, server) = (try AgentBench(), try StreamServer())
    let environment = bench.environment.merging(["DBUS_SYSTEM_BUS_ADDRESS": "unix:path=/nowhere"]) { $1 }
    let agent = try TestProcess(bench.program, ["agent"], environment: environment)
    try agent.lines.first("the agent") { $0.text.hasPrefix("listening on") }
    var request = TransferRequest(
      key: "k", url: "\(server.url)/x/data", path: try bench.directory.write("data", "content"))
    (request.allowsExpensive, request.allowsConstrained, request.isDiscretionary) = (false, false, true)
    #expect(try bench.ended(try bench.submit(request)).outcome == .completed)
    try agent.lines.first("the reason") {
      $0.text.contains("cannot ask NetworkManager") && $0.text.hasSuffix("no network counts as metered.")
    }
  }
}
