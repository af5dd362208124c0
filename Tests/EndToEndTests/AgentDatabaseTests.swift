// The agent's database when the agent is killed before each of its writes, and when its disk is full.

import CommandTesting
import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Testing
import TransferClient

@Suite("The agent's database")
struct AgentDatabaseTests {
  /// All writes in a run of `make chaos-agent`, otherwise some.
  private static let stride = getenv("SLUICE_AGENT_KILLS") == nil ? 3 : 1

  /// Hands three transfers to the agent, pauses one, cancels one and acknowledges its end.
  ///
  /// - Returns: what the agent has confirmed before it was killed.
  private func work(_ bench: AgentBench, _ file: String) -> [String] {
    var done: [String] = []
    do {
      let connection = try AgentConnection(bench.location)
      var ids: [Int64] = []
      for number in 1...3 {
        var request = TransferRequest(key: "key \(number)", url: "http://127.0.0.1:9/x", path: file)
        // It never runs: only orders write.
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

  @Test("an agent that is killed before any of its writes forgets nothing that it has confirmed")
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
          // The tables are there: all writes are those of orders.
          _ = try bench.transfers()
          try bench.killAgent()
        }
        let agent = try TestProcess(
          "strace",
          [
            "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=\(calls)", "-e",
            "inject=\(calls):signal=SIGKILL:when=\(number)", bench.program, "agent",
          ], environment: bench.environment)
        // It listens, or is killed before.
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
        // Unless the acknowledgement is on disk, and its answer was not heard.
        #expect(status == nil || status?.result?.outcome == .cancelled, "\(what): \(word) \(found)")
      default: #expect(status == nil, "\(what): \(word) \(found)")
      }
    }
    #expect(found.count <= 3 && Set(found.map(\.id)).count == found.count, "\(what): \(found)")
  }

  @Test("on a full disk, the agent refuses orders and changes nothing, and goes on when there is room")
  func fullDisk() throws {
    let bench = try AgentBench()
    let state = bench.location.directory
    mkdir("\(bench.directory.path)/state", 0o700)
    mkdir(state, 0o700)
    let disk = try SpoolDisk(state, size: "256k")
    chmod(disk.outside(""), 0o700)
    let file = try bench.directory.write("file", "content")
    let agent = try TestProcess(
      disk.prefix[0], Array(disk.prefix.dropFirst()) + [bench.program, "agent"], environment: bench.environment)
    try agent.lines.first("its start") { $0.text.hasPrefix("listening on") }
    var request = TransferRequest(key: "first", url: "http://127.0.0.1:9/x", path: file)
    request.earliestBegin = .max
    let id = try bench.submit(request)
    try disk.fill()
    // There may be room in the blocks that the database has.
    var number = 0
    var refusal: AgentAnswer?
    while refusal == nil, number < 1000 {
      number += 1
      request.key = "\(number)"
      let answer = try bench.connection().order(.submit(request))
      if case .refused(_, .database, _) = answer { refusal = answer }
    }
    #expect(refusal != nil)
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
  /// Whether a line comes before the end of the process.
  fileprivate func waitUntilEnd(of process: TestProcess, _ isWanted: (TestProcess.Line) -> Bool) throws -> Bool {
    let deadline = MonotonicInstant.now + .seconds(20)
    while MonotonicInstant.now < deadline {
      if all.contains(where: isWanted) { return true }
      if kill(process.pid, 0) != 0 || process.hasEnded { return false }
      poll(nil, 0, 2)
    }
    throw TestFailure("the agent neither listens nor ends")
  }
}

extension TestProcess {
  /// Whether it is a zombie: nobody has waited for it.
  var hasEnded: Bool {
    guard let status = try? fileContents("/proc/\(pid)/stat") else { return true }
    return String(decoding: status, as: UTF8.self).split(separator: ")").last?.hasPrefix(" Z") == true
  }
}
