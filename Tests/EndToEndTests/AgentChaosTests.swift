// The agent, its clients and the server are killed at random moments. `make chaos-agent` runs it for long.

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
    "after any kill, each accepted upload and download of the agent ends with one complete file and is reported until acknowledged",
    arguments: Seed.several(1))
  func kills(seed: Seed) throws {
    let run = try AgentChaosRun(seed)
    try run.perform(kills: Self.kills)
    try run.settle()
    print("\(seed): \(Self.kills) kills, \(run.summary)")
  }
}

/// One run, and the conditions at its end.
private final class AgentChaosRun {
  private var random: SplitMix64
  private let bench = try! AgentBench()
  private let store = try! TemporaryDirectory()
  private let files = try! TemporaryDirectory()
  /// The directory for downloads.
  private let output = try! TemporaryDirectory()
  /// Resources that change, with a server that stops at times.
  private let resources = try! ResourceServer()
  /// A recording of the server, which never changes.
  private let recording: String
  /// The source of each download.
  private var sources: [String: Source] = [:]
  /// Complete files that existed after a kill. Nothing may write to them any more.
  private var checked: Set<String> = []
  private let address = "\(ServeProcess.freshHost()):0"
  private var server: ServeProcess
  /// The server's first address, to which it returns.
  private let fixed: String
  private let content: [UInt8]
  /// The clients that have reported an accepted file, by the number of the transfer.
  private var accepted: [Int64: String] = [:]
  private var clients: [(name: String, process: TestProcess)] = []
  private var fileCount = 0
  private var killCount = (agent: 0, client: 0, server: 0, resources: 0)
  private var changeCount = 0

  private enum Source {
    case recording
    case resource(String)
  }

  var summary: String {
    "\(fileCount) files, \(sources.count) of them downloads, \(accepted.count) accepted, kills: \(killCount), "
      + "changes: \(changeCount)"
  }

  init(_ seed: Seed) throws {
    var generator = seed.generator
    content = (0..<(1 << 20)).flatMap { _ in withUnsafeBytes(of: generator.next()) { Array($0) } }
    random = generator
    server = try ServeProcess(store.path, address: address, more: Self.options)
    fixed = server.address
    // The server computes its digest and completes its description before it is killed for the first time.
    let text = try bench.run([
      "put", files.write("recording", content), "http://\(fixed)/recording", "--progress", "json", "--digest",
      "sha-256",
    ])
    let line = text.split(separator: "\n").compactMap { FlatObject(String($0)) }.last { $0.event == "ended" }
    recording = try #require(line?.text("stored_as"))
    for number in 0..<3 { resources.set("r\(number)", content) }
  }

  private static let options = ["--allow-download"]

  func perform(kills: Int) throws {
    for _ in 0..<kills {
      while random.chance(60) { try begin() }
      if random.chance(30) { try disturb() }
      if random.chance(60) { try change() }
      // A fault at a random moment: the duration is the purpose.
      elapse(.milliseconds(Int64.random(in: 0...120, using: &random)))
      switch Int.random(in: 0..<10, using: &random) {
      case 0..<6:
        if try bench.killAgent() { killCount.agent += 1 }
      case 6..<8:
        server.kill()
        killCount.server += 1
        server = try ServeProcess(store.path, address: fixed, more: Self.options)
      case 8:
        resources.close()
        killCount.resources += 1
        try change()
        try resources.open()
      default:
        try begin()
        elapse(.milliseconds(Int64.random(in: 0...60, using: &random)))
        clients.last?.process.signal(SIGKILL)
        killCount.client += 1
      }
      try checkNames()
    }
  }

  /// Changes a resource, and the position at which responses break off.
  private func change() throws {
    resources.breaksAfter = random.chance(70) ? Int.random(in: 20_000...400_000, using: &random) : nil
    guard random.chance(60) else { return }
    changeCount += 1
    let size = Int.random(in: 0...content.count, using: &random)
    resources.set("r\(Int.random(in: 0..<3, using: &random))", Array("\(changeCount)\n".utf8) + content[..<size])
  }

  /// An incomplete file never has the name of a complete one.
  private func checkNames() throws {
    for name in output.names where !checked.contains(name) {
      try check(output.contents(name), of: name)
      checked.insert(name)
    }
  }

  private func check(_ bytes: [UInt8], of name: String) throws {
    switch sources[name] {
    case .recording: #expect(bytes == content, "\(name) is not the recording")
    case .resource(let resource):
      #expect(resources.bodies(resource).contains(bytes), "\(name) is nothing that \(resource) ever was")
    case nil: Issue.record("\(name) is a file that nobody has asked for")
    }
  }

  /// A client requests a download, either under its own name or kept by the agent.
  private func beginDownload(_ name: String) throws {
    let resource = "r\(Int.random(in: 0..<3, using: &random))"
    let isRecording = random.chance(40)
    sources[name] = isRecording ? .recording : .resource(resource)
    let url = isRecording ? "http://\(fixed)/\(recording)" : resources.url(resource)
    guard random.chance(30) else {
      let process = try bench.command([
        "get", "--background", url, "--output", "\(output.path)/\(name)", "--progress", "json", "--retry-ceiling",
        "100ms",
      ])
      return clients.append((name, process))
    }
    var request = TransferRequest(key: name, url: url, path: "")
    (request.kind, request.method, request.note, request.longestPause) = (.download, "GET", name, 100)
    // The agent may be killed before it answers.
    if let id = try? bench.submit(request) { accepted[id] = name }
  }

  /// A client submits a file to the agent.
  private func begin() throws {
    fileCount += 1
    let name = "f\(fileCount)"
    if random.chance(50) { return try beginDownload(name) }
    let size = Int.random(in: 0...content.count, using: &random)
    let file = try files.write(name, Array("\(name)\n".utf8) + content[..<size])
    let process = try bench.command([
      "put", "--background", file, "http://\(fixed)/archive/", "--progress", "json", "--retry-ceiling", "100ms",
    ])
    clients.append((name, process))
  }

  /// A client pauses and resumes existing transfers.
  private func disturb() throws {
    for status in (try? bench.transfers()) ?? [] where random.chance(50) {
      // The agent may be gone by now. Its promises are verified at the end.
      _ = try? bench.order(random.chance(50) ? .pause(id: status.id) : .resume(id: status.id))
    }
  }

  /// The client's name for a transfer.
  private func name(_ status: TransferStatus) -> String {
    status.note ?? String(status.path.split(separator: "/").last ?? "")
  }

  func settle() throws {
    resources.breaksAfter = nil
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
      #expect(found.contains { $0.id == id && self.name($0) == name }, "transfer \(id) of \(name) is forgotten")
    }
    #expect(Set(found.map(\.path)).count == found.count, "one client has made two transfers")
    for status in found { try bench.order(.resume(id: status.id)) }
    for status in found {
      let result = try bench.ended(status.id)
      #expect(result.outcome == .completed, "\(status.id): \(result)")
      let name = name(status)
      if status.kind == .download {
        try check(fileContents(status.path), of: name)
        continue
      }
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
    checked = []
    try checkNames()
    let parts = "\(bench.location.directory)/downloads"
    try waitUntil("no part is left") {
      try allNames(in: output.path).allSatisfy { !$0.hasPrefix(".") } && (try? allNames(in: parts)) ?? [] == []
    }
  }
}
