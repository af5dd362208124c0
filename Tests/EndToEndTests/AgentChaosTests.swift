// The agent, its clients and the server are killed at random moments: `make chaos-agent` runs it long.

import CommandTesting
import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Testing
import TransferClient

@Suite("Kills of the agent")
struct AgentChaosTests {
  /// How many processes a run kills.
  private static let kills = getenv("SLUICE_AGENT_KILLS").flatMap { Int(String(cString: $0)) } ?? 8

  @Test(
    "whoever is killed, each transfer that the agent has accepted ends with one complete file and is reported until acknowledged",
    arguments: Seed.several(1))
  func kills(seed: Seed) throws {
    let run = try AgentChaosRun(seed)
    try run.perform(kills: Self.kills)
    try run.settle()
    print("\(seed): \(Self.kills) kills, \(run.summary)")
  }
}

/// One run, and what has to be true at its end.
private final class AgentChaosRun {
  private var random: SplitMix64
  private let bench = try! AgentBench()
  private let store = try! TemporaryDirectory()
  private let files = try! TemporaryDirectory()
  private let address = "\(ServeProcess.freshHost()):0"
  private var server: ServeProcess
  /// Where the server came up first, and comes back to.
  private let fixed: String
  private let content: [UInt8]
  /// The clients that have printed that their file was accepted, by the number of the transfer.
  private var accepted: [Int64: String] = [:]
  private var clients: [(name: String, process: TestProcess)] = []
  private var fileCount = 0
  private var killCount = (agent: 0, client: 0, server: 0)

  var summary: String { "\(fileCount) files, \(accepted.count) accepted, kills: \(killCount)" }

  init(_ seed: Seed) throws {
    var generator = seed.generator
    content = (0..<(1 << 20)).flatMap { _ in withUnsafeBytes(of: generator.next()) { Array($0) } }
    random = generator
    server = try ServeProcess(store.path, address: address)
    fixed = server.address
  }

  func perform(kills: Int) throws {
    for _ in 0..<kills {
      while random.chance(60) { try begin() }
      if random.chance(30) { try disturb() }
      // A fault at a random moment: the duration is the point.
      elapse(.milliseconds(Int64.random(in: 0...120, using: &random)))
      switch Int.random(in: 0..<10, using: &random) {
      case 0..<6:
        if try bench.killAgent() { killCount.agent += 1 }
      case 6..<8:
        server.kill()
        killCount.server += 1
        server = try ServeProcess(store.path, address: fixed)
      default:
        try begin()
        elapse(.milliseconds(Int64.random(in: 0...60, using: &random)))
        clients.last?.process.signal(SIGKILL)
        killCount.client += 1
      }
    }
  }

  /// A client hands a file to the agent.
  private func begin() throws {
    fileCount += 1
    let name = "f\(fileCount)"
    let size = Int.random(in: 0...content.count, using: &random)
    let file = try files.write(name, Array("\(name)\n".utf8) + content[..<size])
    let process = try bench.command([
      "put", "--background", file, "http://\(fixed)/archive/", "--progress", "json", "--retry-ceiling", "100ms",
    ])
    clients.append((name, process))
  }

  /// Somebody pauses and resumes what there is.
  private func disturb() throws {
    for status in (try? bench.transfers()) ?? [] where random.chance(50) {
      // The agent may be gone by now: what it has promised is looked at in the end.
      _ = try? bench.order(random.chance(50) ? .pause(id: status.id) : .resume(id: status.id))
    }
  }

  func settle() throws {
    for client in clients {
      _ = try client.process.wait()
      for line in client.process.output {
        if let event = FlatObject(line), event.event == "accepted", let id = event.integer("id") {
          accepted[Int64(id)] = client.name
        }
      }
    }
    let found = try bench.transfers()
    for (id, name) in accepted.sorted(by: { $0.key < $1.key }) {
      #expect(found.contains { $0.id == id && $0.path.hasSuffix("/\(name)") }, "transfer \(id) of \(name) is forgotten")
    }
    #expect(Set(found.map(\.path)).count == found.count, "one client has made two transfers")
    for status in found { try bench.order(.resume(id: status.id)) }
    for status in found {
      let result = try bench.ended(status.id)
      #expect(result.outcome == .completed, "\(status.id): \(result)")
      let name = String(status.path.split(separator: "/").last ?? "")
      let stored = store.names.filter { $0.hasPrefix("\(name)-") }
      #expect(stored.count == 1, "\(name) is stored as \(stored)")
      if let file = stored.first { #expect(try store.contents(file) == files.contents(name), "\(name)") }
    }
    for status in found {
      #expect(try bench.ended(status.id).outcome == .completed, "a result is reported until it is acknowledged")
      try bench.order(.acknowledge(id: status.id))
    }
    try bench.killAgent()
    #expect(try bench.transfers().isEmpty, "what was acknowledged is reported again")
  }
}
