// sluice get --background as processes: interrupted downloads, and their remains.

import CommandTesting
import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Testing
import TransferClient

@Suite("Downloads of the agent")
struct AgentDownloadTests {
  private static func bytes(_ count: Int, _ seed: UInt64) -> [UInt8] { OffsetPattern(seed: seed)[0..<count] }

  private func request(_ server: ResourceServer, _ path: String, key: String = "key") -> TransferRequest {
    var request = TransferRequest(key: key, url: server.url("resource"), path: path)
    (request.kind, request.method, request.longestPause) = (.download, "GET", 50)
    return request
  }

  private func names(_ directory: String) -> [String] { (try? allNames(in: directory)) ?? [] }

  @Test("a file gets its name and the permissions of the program's own files, and no other file remains")
  func download() throws {
    let (bench, server) = (try AgentBench(), try ResourceServer())
    let content = Self.bytes(300_000, 1)
    server.set("film.mkv", content)
    let directory = "\(bench.directory.path)/out"
    mkdir(directory, 0o700)
    // The agent runs with a different umask.
    _ = try bench.transfers()
    let shell = try TestProcess(
      "/bin/sh",
      ["-c", "umask 027; cd \(directory) && exec \(bench.program) get --background \(server.url("film.mkv"))"],
      environment: bench.environment)
    #expect(try shell.wait() == 0, "\(shell.errors)")
    #expect(
      shell.errors.contains { $0.contains("transfer 1: the agent downloads the file to film.mkv") }, "\(shell.errors)")
    let waited = try bench.run(["transfers", "wait", "1", "--json"])
    #expect(waited.contains(#""kind":"download""#) && waited.contains(#""outcome":"completed""#), "\(waited)")
    #expect(waited.contains(#""size":300000"#) && waited.contains(#""acknowledged":300000"#), "\(waited)")
    #expect(names(directory) == ["film.mkv"])
    #expect(try fileContents("\(directory)/film.mkv") == content)
    var status = stat()
    #expect(stat("\(directory)/film.mkv", &status) == 0 && status.st_mode & 0o777 == 0o640)
    #expect(try bench.run(["transfers", "list"]) == "")
  }

  /// The interruption of a half complete download.
  private enum Interruption: CaseIterable { case kill, pause, pauseAndKill, server, term }

  private static let cells: [(Interruption, changes: Bool, isKept: Bool)] = Interruption.allCases.flatMap { one in
    [(one, false, false), (one, false, true), (one, true, false), (one, true, true)]
  }

  @Test(
    "after any interruption, a download continues at its position, or from the start if the resource has changed",
    arguments: cells)
  private func interruption(_ interruption: Interruption, changes: Bool, isKept: Bool) throws {
    let (bench, server) = (try AgentBench(), try ResourceServer())
    server.set("resource", Self.bytes(2_000_000, 1))
    server.breaksAfter = 150_000
    let path = "\(bench.directory.path)/file"
    let id = try bench.submit(request(server, isKept ? "" : path))
    let parts = isKept ? "\(bench.location.directory)/downloads" : bench.directory.path
    try waitUntil("half of it is on disk") {
      var status = stat()
      let part = names(parts).first { $0.hasSuffix(".part") }
      return part.map { stat("\(parts)/\($0)", &status) == 0 && status.st_size >= 900_000 } ?? false
    }
    switch interruption {
    case .kill: try bench.killAgent()
    case .pause: try bench.order(.pause(id: id))
    case .pauseAndKill:
      try bench.order(.pause(id: id))
      try bench.killAgent()
      #expect(try bench.transfers().map(\.state) == [.paused])
    case .server: server.close()
    case .term:
      let process = try #require(try bench.connection().agentProcess)
      kill(process, SIGTERM)
      try waitUntil("the agent has ended") { kill(process, 0) != 0 }
    }
    #expect(access(path, F_OK) != 0, "half a file has the name")
    let before = server.requests.all.count
    if changes { server.set("resource", Self.bytes(1_600_000, 2)) }
    server.breaksAfter = nil
    if interruption == .server { try server.open() }
    if interruption == .pause || interruption == .pauseAndKill { try bench.order(.resume(id: id)) }
    let result = try bench.ended(id)
    #expect(result.outcome == .completed, "\(result)")
    let status = try #require(try bench.transfers().first)
    #expect(try fileContents(isKept ? status.path : path) == server.body("resource"))
    #expect(status.size == UInt64(server.body("resource").count) && status.acknowledged == status.size)
    let after = server.requests.all.dropFirst(before)
    #expect(after.first.map { $0.start ?? 0 >= 900_000 } ?? false, "\(after)")
    #expect(changes || after.allSatisfy { $0.start ?? 0 >= 900_000 }, "\(after)")
    try bench.order(.acknowledge(id: id))
    if isKept { try waitUntil("the agent has removed it") { access(status.path, F_OK) != 0 } }
    #expect(names("\(bench.location.directory)/downloads") == [])
    #expect(names(bench.directory.path).filter { $0.hasSuffix(".part") } == [])
  }

  @Test("an existing file is replaced only on request, even if it appeared during the download")
  func exists() throws {
    let (bench, server) = (try AgentBench(), try ResourceServer())
    let content = Self.bytes(400_000, 3)
    server.set("resource", content)
    let file = try bench.directory.write("file", "mine")
    let arguments = ["get", "--background", server.url("resource"), "--output", file]
    #expect(try bench.run(arguments, code: 74).contains("exists"))
    guard case .refused(_, .file, let words) = try bench.connection().order(.submit(request(server, file))) else {
      throw TestFailure("the agent does not look")
    }
    #expect(words.contains("exists"))
    unlink(file)
    server.breaksAfter = 100_000
    let id = try bench.submit(request(server, file))
    try server.requests.first("a part of it") { $0.start ?? 0 >= 100_000 }
    try bench.directory.write("file", "mine")
    let result = try bench.ended(id)
    #expect(result.outcome == .failed && result.cause == "exists", "\(result)")
    #expect(try fileContents(file) == Array("mine".utf8))
    #expect(try bench.run(["transfers", "wait", "\(id)"], code: 74).contains("a file of that name exists"))
    try bench.run(arguments + ["--force"])
    try bench.run(["transfers", "wait", "--all"])
    #expect(try fileContents(file) == content)
    try waitUntil("no part is left") { names(bench.directory.path).allSatisfy { !$0.hasSuffix(".part") } }
  }

  @Test("a download that is cancelled, or that the server refuses, leaves no file, even after a kill")
  func cancel() throws {
    for kills in [false, true] {
      let (bench, server) = (try AgentBench(), try ResourceServer())
      server.set("resource", Self.bytes(10_000_000, 4))
      server.breaksAfter = 100_000
      let path = "\(bench.directory.path)/file"
      let id = try bench.submit(request(server, path))
      try server.requests.first("a part of it") { $0.start ?? 0 >= 200_000 }
      #expect(names(bench.directory.path).contains { $0.hasSuffix(".part") })
      try bench.run(["transfers", "cancel", "\(id)"])
      if kills { try bench.killAgent() }
      #expect(try bench.run(["transfers", "wait", "\(id)"], code: 130).contains("cancelled"))
      try waitUntil("no part is left") { names(bench.directory.path).allSatisfy { !$0.hasSuffix(".part") } }
      #expect(access(path, F_OK) != 0)
      var missing = request(server, path, key: "missing")
      missing.url = server.url("missing")
      let refused = try bench.ended(try bench.submit(missing))
      #expect(refused.cause == "refused" && refused.status == 404)
      #expect(access(path, F_OK) != 0)
    }
  }

  @Test("options without a meaning for a download of the agent are refused")
  func options() throws {
    let bench = try AgentBench()
    for option in ["--resume", "--abandon", "--give-up=1s", "--resume-file=x"] {
      #expect(try bench.run(["get", "--background", "http://h/x", option], code: 64).contains("--background"))
    }
    #expect(try bench.run(["get", "--background", "http://h/x", "--output", "-"], code: 64).contains("--output -"))
  }

  @Test("a full disk makes a download wait, and it continues when there is space")
  func fullDisk() throws {
    let (bench, server) = (try AgentBench(), try ResourceServer())
    let content = Self.bytes(600_000, 5)
    server.set("resource", content)
    let directory = "\(bench.directory.path)/out"
    mkdir(directory, 0o700)
    let disk = try SpoolDisk(directory, size: "1m")
    let agent = try TestProcess(
      disk.prefix[0], Array(disk.prefix.dropFirst()) + [bench.program, "agent"], environment: bench.environment)
    try agent.lines.first("its start") { $0.text.hasPrefix("listening on") }
    try disk.fill()
    let id = try bench.submit(request(server, "\(directory)/file"))
    let waiting = try bench.transfer(id, "waits for room") { $0.trouble?.contains("No space") == true }
    #expect(waiting.state == .waiting)
    try disk.makeRoom()
    try bench.order(.resume(id: id))
    #expect(try bench.ended(id).outcome == .completed)
    #expect(try fileContents(disk.outside("file")) == content)
    agent.signal(SIGTERM)
    #expect(try agent.wait() == 0)
  }

  /// All calls with `make chaos-agent`, and some otherwise.
  private static let stride = getenv("SLUICE_AGENT_KILLS") == nil ? 5 : 1

  @Test("an agent that is killed before any call that changes a file completes the download once")
  func killsAtEachWrite() throws {
    let seed = Seed.several(1)[0]
    var generator = seed.generator
    let calls = "pwrite64,fdatasync,fsync,ftruncate,unlink,renameat2,rename,fallocate"
    let server = try ResourceServer()
    for isKept in [false, true] {
      var number = 1 + Int.random(in: 0..<Self.stride, using: &generator)
      var survived = false
      while !survived {
        let bench = try AgentBench()
        let content = Self.bytes(100_000, UInt64(number))
        server.set("resource", content)
        let directory = "\(bench.directory.path)/out"
        mkdir(directory, 0o700)
        let path = "\(directory)/file"
        let agent = try TestProcess(
          "strace",
          [
            "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=\(calls)", "-e",
            "inject=\(calls):signal=SIGKILL:when=\(number)", bench.program, "agent",
          ], environment: bench.environment)
        let asked = request(server, isKept ? "" : path)
        // Until it is killed, or the download has ended.
        survived = end(of: asked, agent, bench)
        if survived { agent.signal(SIGKILL) }
        _ = try agent.wait()
        if access(path, F_OK) == 0 { #expect(try fileContents(path) == content, "\(seed), call \(number)") }
        // A program that did not receive the answer asks again.
        let id = try bench.submit(asked)
        let result = try bench.ended(id)
        #expect(result.outcome == .completed, "\(seed), call \(number): \(result)")
        let status = try #require(try bench.transfers().first)
        #expect(try fileContents(isKept ? status.path : path) == content, "\(seed), call \(number)")
        #expect(names(directory) == (isKept ? [] : ["file"]), "\(seed), call \(number)")
        try bench.order(.acknowledge(id: id))
        if isKept { try waitUntil("the agent has removed it") { access(status.path, F_OK) != 0 } }
        number += Self.stride
      }
      print("\(seed): \(number - Self.stride) calls, kept: \(isKept)")
    }
  }

  /// Whether the agent performed it before it was killed.
  private func end(of asked: TransferRequest, _ agent: TestProcess, _ bench: AgentBench) -> Bool {
    do {
      let deadline = MonotonicInstant.now + .seconds(60)
      var connection: AgentConnection?
      while connection == nil, MonotonicInstant.now < deadline, kill(agent.pid, 0) == 0, !agent.hasEnded {
        connection = try? AgentConnection(bench.location)
        if connection == nil { poll(nil, 0, 2) }
      }
      guard let connection, case .accepted(_, let id) = try connection.order(.submit(asked)) else { return false }
      _ = try connection.order(.watch(session: ""))
      while true {
        var states: [TransferStatus] = []
        _ = try connection.order(.list(session: "")) { if case .transfer(_, let status) = $0 { states.append(status) } }
        if states.contains(where: { $0.id == id && $0.result != nil }) { return true }
        _ = try connection.receive(within: .seconds(60))
      }
    } catch {
      return false
    }
  }
}
