// The agent's database, when the agent is killed before each of its writes, and when its disk is full.

import CommandTesting
import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Testing
import TransferClient

@Suite("The agent's database")
struct AgentDatabaseTests {
  /// All writes with `make chaos-agent`, and some otherwise.
  private static let stride = getenv("SLUICE_AGENT_KILLS") == nil ? 3 : 1

  /// Submits three transfers to the agent, pauses one, cancels one, and acknowledges its end.
  ///
  /// - Returns: the orders that the agent confirmed before it was killed.
  private func work(_ bench: AgentBench, _ file: String) -> [String] {
    var done: [String] = []
    do {
      let connection = try AgentConnection(bench.location)
      var ids: [Int64] = []
      for number in 1...3 {
        var request = TransferRequest(key: "key \(number)", url: "http://127.0.0.1:9/x", path: file)
        // It never runs, so only orders cause writes.
        request.earliestBegin = .max
        guard case .accepted(_, let id) = try connection.order(.submit(request)) else { return done }
        ids.append(id)
        done.append("accepted \(id)")
      }
      for (order, name) in [
        (AgentOrder.Kind.pause(id: ids[0]), "paused 1"), (.cancel(id: ids[1], keeps: false), "cancelled 2"),
        (.acknowledge(id: ids[1]), "gone 2"),
      ] {
        guard case .done = try connection.order(order) else { return done }
        done.append(name)
      }
    } catch {}
    return done
  }

  @Test(
    "if the clock is set while no agent runs, the next one moves the stored times, but not after a reboot",
    arguments: [false, true])
  func clockSet(isRebooted: Bool) throws {
    let (bench, day) = (try AgentBench(), Int64(86_400_000))
    let file = try bench.directory.write("file", "content")
    var request = TransferRequest(key: "k", url: "http://127.0.0.1:9/x", path: file)
    request.earliestBegin = .max
    let id = try bench.submit(request)
    func created() throws -> Int64 { try bench.transfer(id, "appeared") { _ in true }.created }
    let before = try created()
    try bench.killAgent()
    // As if the clock of that agent had been a day slow.
    let script = """
      import sqlite3, sys
      database = sqlite3.connect(sys.argv[1])
      database.execute("UPDATE clock SET start = start - 86400000")
      if sys.argv[2] == "true": database.execute("UPDATE clock SET boot = 'another'")
      database.commit()
      database.close()
      """
    let path = "\(bench.location.directory)/transfers.db"
    let python = try TestProcess("/usr/bin/python3", ["-c", script, path, "\(isRebooted)"])
    #expect(try python.wait() == 0, "\(python.errors)")
    let step = try created() - before
    // In whole days, because a moment lies between the readings of the two clocks.
    #expect(isRebooted ? step == 0 : (step + day / 2) / day == 1, "\(step)")
  }

  @Test("an agent that is killed before any of its writes forgets no confirmed transfer")
  func kills() throws {
    let seed = Seed.several(1)[0]
    var generator = seed.generator
    let calls = "pwrite64,fdatasync,fsync,ftruncate,unlink"
    for isNew in [true, false] {
      var number = 1 + Int.random(in: 0..<Self.stride, using: &generator)
      while true {
        let bench = try AgentBench()
        let file = try bench.directory.write("file", "content")
        if !isNew {
          // The tables exist, so all writes are caused by orders.
          _ = try bench.transfers()
          try bench.killAgent()
        }
        let agent = try TestProcess(
          "strace",
          [
            "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=\(calls)", "-e",
            "inject=\(calls):signal=SIGKILL:when=\(number)", bench.program, "agent",
          ], environment: bench.environment)
        // The agent either listens or is killed before that.
        let listens = try agent.lines.waitUntilEnd(of: agent) { $0.text.hasPrefix("listening on") }
        let confirmed = listens ? work(bench, file) : []
        let survived = confirmed.count == 6
        if survived { agent.signal(SIGKILL) }
        _ = try agent.wait()
        try check(try bench.transfers(), confirmed, "\(seed), write \(number), new: \(isNew)")
        if survived { break }
        number += Self.stride
      }
    }
  }

  private func check(_ found: [TransferStatus], _ confirmed: [String], _ what: String) throws {
    for word in confirmed {
      let parts = word.split(separator: " ")
      let id = Int64(parts[1])
      let status = found.first { $0.id == id }
      switch parts[0] {
      case "accepted":
        #expect(status != nil || confirmed.contains("cancelled 2") && id == 2, "\(what): \(word) \(found)")
      case "paused": #expect(status?.state == .paused, "\(what): \(word) \(found)")
      case "cancelled":
        // Unless the acknowledgement is on disk, and its answer was not received.
        #expect(status == nil || status?.result?.outcome == .cancelled, "\(what): \(word) \(found)")
      default: #expect(status == nil, "\(what): \(word) \(found)")
      }
    }
    #expect(found.count <= 3 && Set(found.map(\.id)).count == found.count, "\(what): \(found)")
  }

  /// An agent with its database on a small separate disk.
  private func benchOnDisk(size: String = "256k") throws -> (bench: AgentBench, disk: SpoolDisk, agent: TestProcess) {
    let bench = try AgentBench()
    let state = bench.location.directory
    mkdir("\(bench.directory.path)/state", 0o700)
    mkdir(state, 0o700)
    let disk = try SpoolDisk(state, size: size)
    chmod(disk.outside(""), 0o700)
    let agent = try TestProcess(
      disk.prefix[0], Array(disk.prefix.dropFirst()) + [bench.program, "agent"], environment: bench.environment)
    try agent.lines.first("its start") { $0.text.hasPrefix("listening on") }
    return (bench, disk, agent)
  }

  /// Uses up all space, including that in the database's blocks.
  private func fill(_ disk: SpoolDisk, of bench: AgentBench, _ file: String) throws {
    try disk.fill()
    var request = TransferRequest(key: "", url: "http://127.0.0.1:9/x", path: file)
    request.earliestBegin = .max
    for number in 0..<1000 {
      request.key = "filling \(number)"
      if case .refused(_, .database, _) = try bench.connection().order(.submit(request)) { return }
    }
    throw TestFailure("the disk does not become full")
  }

  @Test(
    "with a full disk, downloads wait with a reason, other transfers continue, and all end automatically when there is space"
  )
  func waiting() throws {
    let (bench, disk, agent) = try benchOnDisk(size: "2m")
    let content = [UInt8](repeating: 7, count: 300_000)
    let file = try bench.directory.write("file", content)
    let server = try StreamServer()
    let gate = try EventLog<Bool>()
    let asked = try EventLog<Bool>()
    let slow = try ScriptedServer { connection, _ in
      let head = try connection.head()
      var rest = head["Content-Length"].flatMap { Int($0) } ?? 0
      while rest > 0, let piece = try connection.receive(rest) { rest -= piece.count }
      asked.append(true)
      try gate.wait("its turn", within: .seconds(600)) { $0.first }
      try connection.respond("200 OK", ["Connection: close", "ETag: \"a\""], body: "content")
    }
    let begin = WallClock.now.sinceEpoch + 1500
    func submit(_ kind: TransferRequest.Kind, _ url: String, begin: Int64?) throws -> Int64 {
      let path = kind == .upload ? file : "\(bench.directory.path)/new \(url.hashValue)"
      var request = TransferRequest(key: "\(kind) \(url) \(begin ?? 0)", url: url, path: path)
      (request.kind, request.mayUsePOST, request.earliestBegin) = (kind, true, begin)
      if begin == nil { request.resumable = "never" }
      return try bench.submit(request)
    }
    // Two transfers run when the space is used up, and more are waiting than there are places.
    let running = [
      try submit(.upload, slow.url + "/up", begin: nil), try submit(.download, slow.url + "/down", begin: nil),
    ]
    try waitUntil("both run") { asked.all.count == 2 }
    let downloads = try (0..<5).map { try submit(.download, "\(slow.url)/later\($0)", begin: begin) }
    let uploads = try (0..<6).map { try submit(.upload, "\(server.url)/later\($0)", begin: begin) }
    try fill(disk, of: bench, file)
    for id in downloads {
      try bench.transfer(id, "waits for room") {
        $0.state == .waiting && $0.trouble?.contains("Free space on its disk.") == true
      }
    }
    let list =
      try bench.run(["transfers", "list"]).split(separator: "\n").first { $0.hasPrefix("\(downloads[0])  ") } ?? ""
    #expect(list.contains("waiting") && list.contains("transfers.db") && list.contains("full"), "\(list)")
    #expect(asked.all.count == 2, "the agent requests nothing that it cannot store")
    // They need only a server.
    try waitUntil("all uploads are at the server") {
      server.directory.names.count { !$0.hasSuffix(".part") && !$0.hasPrefix(".") } == uploads.count
    }
    for id in uploads {
      try bench.transfer(id, "awaits its place in the database") { $0.state == .waiting && $0.trouble != nil }
    }
    let late = try bench.run(["put", "--background", file, "\(server.url)/late"], code: 74)
    #expect(late.contains("cannot write the agent's database") && late.contains("Nothing has changed"), "\(late)")
    gate.append(true)
    try bench.transfer(running[0], "awaits its place in the database") { $0.state == .waiting && $0.trouble != nil }
    try disk.makeRoom()
    for id in running + downloads + uploads { #expect(try bench.ended(id).outcome == .completed) }
    #expect(server.directory.names.count == uploads.count, "none of them twice: \(server.directory.names)")
    agent.signal(SIGTERM)
    #expect(try agent.wait() == 0)
  }

  @Test("on a full disk, the agent refuses orders and changes nothing, and continues when there is space")
  func fullDisk() throws {
    let (bench, disk, agent) = try benchOnDisk()
    let file = try bench.directory.write("file", "content")
    var request = TransferRequest(key: "first", url: "http://127.0.0.1:9/x", path: file)
    request.earliestBegin = .max
    let id = try bench.submit(request)
    try fill(disk, of: bench, file)
    let before = try bench.transfers()
    guard case .refused(_, .database, let words) = try bench.connection().order(.pause(id: id)) else {
      throw TestFailure("the pause was not refused")
    }
    #expect(words.contains("full"))
    #expect(try bench.transfers() == before)
    try disk.makeRoom()
    try bench.order(.pause(id: id))
    #expect(try bench.transfers().first?.state == .paused)
    agent.signal(SIGTERM)
    #expect(try agent.wait() == 0)
  }
}

extension EventLog<TestProcess.Line> {
  /// Returns whether a line arrives before the end of the process.
  fileprivate func waitUntilEnd(of process: TestProcess, _ isWanted: (TestProcess.Line) -> Bool) throws -> Bool {
    let deadline = MonotonicInstant.now + .seconds(60)
    while MonotonicInstant.now < deadline {
      if all.contains(where: isWanted) { return true }
      if kill(process.pid, 0) != 0 || process.hasEnded { return false }
      poll(nil, 0, 2)
    }
    throw TestFailure("the agent neither listens nor ends")
  }
}

extension TestProcess {
  /// Whether it is a zombie, because nobody has waited for it.
  var hasEnded: Bool {
    guard let status = try? fileContents("/proc/\(pid)/stat") else { return true }
    return String(decoding: status, as: UTF8.self).split(separator: ")").last?.hasPrefix(" Z") == true
  }
}
