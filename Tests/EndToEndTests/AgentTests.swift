// sluice agent, put --background and transfers, as processes.

import CommandTesting
import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Testing
import TransferClient

@Suite("sluice agent")
struct AgentTests {
  private let pattern = OffsetPattern()
  private func bytes(_ count: Int) -> [UInt8] { pattern[0..<count] }

  private func request(_ path: String, _ url: String) -> TransferRequest {
    var request = TransferRequest(key: Seed.several(1)[0].description + path, url: url, path: path)
    request.mayUsePOST = true
    request.longestPause = 100
    return request
  }

  /// A server that aborts each request after 100 kB, and a transfer of 6 MB that is partly sent.
  private func partlySent(_ bench: AgentBench) throws -> (server: ResumableServer, id: Int64, content: [UInt8]) {
    let content = bytes(6_000_000)
    let server = try ResumableServer { request, _ in
      request.method == "PATCH" && request.offset ?? 0 < 5_900_000 ? .cut(after: 100_000) : .proper
    }
    let file = try bench.directory.write("file", content)
    let id = try bench.submit(request(file, server.url + "/take"))
    try server.requests.first("a part of it") { $0.method == "PATCH" && $0.offset ?? 0 >= 300_000 }
    return (server, id, content)
  }

  @Test("a file reaches the server, and the list and the exit code of wait show it")
  func upload() throws {
    let (bench, server) = (try AgentBench(), try StreamServer())
    let file = try bench.directory.write("data", bytes(300_000))
    let text = try bench.run(["put", "--background", file, "\(server.url)/archive/", "--digest", "sha-256"])
    #expect(text.contains("transfer 1"))
    let waited = try bench.run(["transfers", "wait", "1", "--json"])
    #expect(waited.contains(#""outcome":"completed""#) && waited.contains(#""verified":true"#), "\(waited)")
    #expect(server.directory.names.count == 1)
    #expect(try server.directory.contents(server.directory.names.first ?? "") == bytes(300_000))
    #expect(try bench.run(["transfers", "list"]) == "", "what was waited for is not listed any more")
  }

  @Test("wait reports each of twenty transfers that end at the same time, and removes them from the list")
  func waitForMany() throws {
    let (bench, server) = (try AgentBench(), try StreamServer())
    let file = try bench.directory.write("data", bytes(1000))
    let begin = WallClock.now.sinceEpoch + 1000
    for number in 1...20 {
      var request = request(file, "\(server.url)/archive/file\(number)")
      request.key = "key \(number)"
      request.earliestBegin = begin
      _ = try bench.submit(request)
    }
    let lines = try bench.run(["transfers", "wait", "--all", "--json"]).split(separator: "\n")
    #expect(lines.count == 20 && lines.allSatisfy { $0.contains(#""outcome":"completed""#) }, "\(lines)")
    #expect(try bench.transfers().isEmpty)
  }

  @Test("wait does not remove a transfer whose end it could not print")
  func waitWithFullOutput() throws {
    let (bench, server) = (try AgentBench(), try StreamServer())
    let file = try bench.directory.write("data", bytes(1000))
    let id = try bench.submit(request(file, "\(server.url)/archive/file"))
    let shell = try TestProcess(
      "/bin/sh", ["-c", "exec \(bench.program) transfers wait \(id) >/dev/full"], environment: bench.environment)
    #expect(try shell.wait() == 74, "\(shell.errors)")
    #expect(try bench.transfers().map(\.id) == [id])
  }

  @Test("a paused transfer stays paused after a kill of the agent, and then continues at its position")
  func pause() throws {
    let bench = try AgentBench()
    let (server, id, content) = try partlySent(bench)
    try bench.run(["transfers", "pause", "\(id)"])
    #expect(try bench.transfers().map(\.state) == [.paused])
    #expect(try bench.killAgent())
    #expect(try bench.transfers().map(\.state) == [.paused])
    try bench.run(["transfers", "resume", "\(id)"])
    let result = try bench.ended(id)
    #expect(result.outcome == .completed && result.byteCount == UInt64(content.count))
    let uploads = server.state.withLock { $0.uploads }
    #expect(uploads.count == 1 && uploads[0].isComplete && uploads[0].bytes == content)
  }

  @Test("a file that changes while its transfer is paused ends it with an error, and is not mixed with the sent bytes")
  func change() throws {
    let bench = try AgentBench()
    let (server, id, content) = try partlySent(bench)
    try bench.order(.pause(id: id))
    try bench.directory.write("file", content.reversed())
    try bench.order(.resume(id: id))
    let result = try bench.ended(id)
    #expect(result.outcome == .failed && result.cause == "fileChanged", "\(result)")
    let uploads = server.state.withLock { $0.uploads }
    #expect(uploads.allSatisfy { !$0.isComplete && content.starts(with: $0.bytes) })
    #expect(try bench.run(["transfers", "wait", "\(id)"], code: 74).contains("has changed"))
  }

  @Test(
    "a change of a file while its transfer is paused ends it only if the content may differ",
    arguments: FileChange.allCases.filter { $0 != .writtenWithOldTime })
  func changes(_ change: FileChange) throws {
    let bench = try AgentBench()
    let (server, id, content) = try partlySent(bench)
    try bench.order(.pause(id: id))
    try change.perform(on: "\(bench.directory.path)/file")
    try bench.order(.resume(id: id))
    let result = try bench.ended(id)
    let uploads = server.state.withLock { $0.uploads }
    if FileChange.harmless.contains(change) {
      #expect(result.outcome == .completed, "\(result)")
      #expect(uploads.count == 1 && uploads[0].isComplete && uploads[0].bytes == content)
    } else {
      #expect(result.outcome == .failed, "\(result)")
      #expect(result.cause == (change == .moved ? "fileUnreadable" : "fileChanged"), "\(result)")
      #expect(uploads.allSatisfy { !$0.isComplete && content.starts(with: $0.bytes) })
    }
  }

  @Test(
    "after the end of a transfer, no file of the agent has its secrets, and no list ever shows those of its URL",
    arguments: [TransferResult.Outcome.completed, .failed, .cancelled], [TransferRequest.Kind.upload, .download])
  func secrets(_ outcome: TransferResult.Outcome, _ kind: TransferRequest.Kind) throws {
    let bench = try AgentBench()
    let mayAnswer = Lock(false)
    let server = try ScriptedServer { connection, _ in
      let head = try connection.head()
      var rest = head["Content-Length"].flatMap { Int($0) } ?? 0
      while rest > 0, let piece = try connection.receive(rest) { rest -= piece.count }
      while !mayAnswer.withLock({ $0 }) { poll(nil, 0, 5) }
      try connection.respond(outcome == .failed ? "403 Forbidden" : "200 OK", ["Connection: close"], body: "content")
    }
    let file = try bench.directory.write("file", bytes(1000))
    var request = request(kind == .upload ? file : file + ".new", "")
    request.url =
      "http://user:SECRET-1@127.0.0.1:\(server.port)/take?X-Amz-Signature=SECRET-2&SECRET-3&a=b=SECRET-4#SECRET-5"
    (request.kind, request.resumable) = (kind, "never")
    (request.token, request.fields) = ("SECRET-6", ["X-Key: SECRET-7"])
    request.giveUpOnRefusalAfter = 0
    let id = try bench.submit(request)
    func kept() -> String {
      ["transfers.db", "transfers.db-wal"].map {
        String(decoding: (try? fileContents("\(bench.location.directory)/\($0)")) ?? [], as: UTF8.self)
      }.joined()
    }
    #expect((1...7).allSatisfy { kept().contains("SECRET-\($0)") }, "while they are needed")
    func check() throws {
      for option in [[], ["--json"]] {
        let list = try bench.run(["transfers", "list"] + option)
        #expect(list.contains("take?X-Amz-Signature=...&...&a=...") && !list.contains("SECRET"), "\(list)")
      }
    }
    try check()
    if outcome == .cancelled { try bench.order(.cancel(id: id)) }
    mayAnswer.withLock { $0 = true }
    #expect(try bench.ended(id).outcome == outcome)
    try waitUntil("its secrets are overwritten") { !kept().contains("SECRET") }
    try check()
    try bench.killAgent()
    try check()
  }

  @Test("cancelling a transfer in the middle deletes the upload on the server")
  func cancel() throws {
    let bench = try AgentBench()
    let (server, id, _) = try partlySent(bench)
    try bench.run(["transfers", "cancel", "\(id)"])
    #expect(try bench.run(["transfers", "wait", "\(id)"], code: 130).contains("cancelled"))
    try server.requests.first("the deletion") { $0.method == "DELETE" }
  }

  @Test("the upload of a cancelled transfer is deleted, even if the server is unreachable and the agent is killed")
  func cancelWithoutServer() throws {
    let bench = try AgentBench()
    let isAway = Lock(true)
    let server = try ResumableServer { request, _ in
      if request.method == "DELETE", isAway.withLock({ $0 }) { return .close }
      return request.method == "PATCH" && request.offset ?? 0 < 5_900_000 ? .cut(after: 100_000) : .proper
    }
    var secret = request(try bench.directory.write("file", bytes(6_000_000)), server.url + "/take")
    secret.token = "SECRET-cancelled"
    let id = try bench.submit(secret)
    let state = bench.location.directory
    func isKept() -> Bool {
      ["transfers.db", "transfers.db-wal"].contains {
        String(decoding: (try? fileContents("\(state)/\($0)")) ?? [], as: UTF8.self).contains("SECRET-cancelled")
      }
    }
    #expect(isKept(), "while it is needed")
    try server.requests.first("a part of it") { $0.method == "PATCH" && $0.offset ?? 0 >= 300_000 }
    try bench.run(["transfers", "cancel", "\(id)"])
    try server.wait(for: "DELETE")
    try bench.run(["transfers", "wait", "\(id)"], code: 130)
    try bench.killAgent()
    let asked = server.of("DELETE").count
    isAway.withLock { $0 = false }
    #expect(try bench.transfers().isEmpty, "it is not listed any more")
    try server.wait(for: "DELETE", asked + 1)
    try waitUntil("it is gone") { server.upload(0).isGone }
    // The server has answered, so none of it is needed any more, and no server is asked again.
    try waitUntil("its secrets are overwritten") { !isKept() }
    #expect(server.of("DELETE").count == asked + 1)
  }

  @Test("sluice transfers asks the next agent if one ends before it answers")
  func endedAgent() throws {
    let bench = try AgentBench()
    let file = try bench.directory.write("file", bytes(1000))
    var later = request(file, "http://127.0.0.1:9/x")
    later.earliestBegin = .max
    let id = try bench.submit(later)
    for arguments in [["list"], ["pause", "\(id)"], ["cancel", "--all"], ["forget", "\(id)"]] {
      try bench.killAgent()
      // Accepts one program, and ends like an agent whose last program has disconnected.
      let (listener, socket) = try AgentSocket.listen(bench.location.socket, in: bench.location.socketDirectory)
      let command = try bench.command(["transfers"] + arguments)
      #expect(waitUntilReadable(listener, limit: .seconds(60)))
      socket.remove()
      if let program = try AgentSocket.accept(listener) { close(program) }
      close(listener)
      #expect(try command.wait() == 0, "\(arguments): \(command.errors)")
    }
    #expect(try bench.transfers().isEmpty)
  }

  @Test("a server that forgets the upload receives the file from its start")
  func forgetful() throws {
    let bench = try AgentBench()
    let content = bytes(6_000_000)
    let server = try ResumableServer { request, _ in
      request.method == "PATCH" && request.number == 0
        ? .destroy("404 Not Found", []) : .proper
    }
    let file = try bench.directory.write("file", content)
    let id = try bench.submit(request(file, server.url + "/take"))
    #expect(try bench.ended(id).outcome == .completed)
    let complete = server.state.withLock { $0.uploads.filter { $0.isComplete && !$0.isGone } }
    #expect(complete.count == 1)
    #expect(complete.first?.bytes == content)
  }

  @Test("a request that is submitted twice is one transfer")
  func twice() throws {
    let (bench, server) = (try AgentBench(), try StreamServer())
    let file = try bench.directory.write("file", bytes(1000))
    let request = request(file, "\(server.url)/archive/file")
    let first = try bench.submit(request)
    try bench.killAgent()
    #expect(try bench.submit(request) == first)
    #expect(try bench.transfers().count == 1)
  }

  @Test("a request that is submitted again after its end was acknowledged, and without its file, is not uploaded again")
  func twiceLate() throws {
    let (bench, server) = (try AgentBench(), try StreamServer())
    let file = try bench.directory.write("file", bytes(1000))
    let request = request(file, "\(server.url)/archive/file")
    let id = try bench.submit(request)
    _ = try bench.ended(id)
    try bench.order(.acknowledge(id: id))
    unlink(file)
    #expect(try bench.submit(request) == id)
    try bench.killAgent()
    #expect(try bench.submit(request) == id)
    #expect(try bench.transfers().isEmpty)
  }

  @Test("a file that replaced the file of the program is refused")
  func otherFile() throws {
    let bench = try AgentBench()
    let file = try bench.directory.write("file", bytes(1000))
    var request = request(file, "http://127.0.0.1:9/x")
    request.file = FileStamp.of(file)
    request.earliestBegin = .max
    _ = try bench.submit(request)
    rename(try bench.directory.write("other", bytes(1000)), file)
    request.key = "another"
    guard case .refused(_, .file, let words) = try bench.connection().order(.submit(request)) else {
      throw TestFailure("another file was accepted")
    }
    #expect(words.contains("not the file that the program named"))
  }

  @Test("a transfer is accepted while the digest of a large file is computed")
  func slowDigest() throws {
    let bench = try AgentBench()
    let large = try bench.directory.write("large", "")
    // It occupies no disk space, and all of it is read.
    #expect(truncate(large, 100 << 30) == 0)
    var first = request(large, "http://127.0.0.1:\(try freePort())/x")
    first.digest = "sha-512"
    let id = try bench.submit(first)
    try bench.transfer(id, "ran") { $0.state == .running }
    var second = request(try bench.directory.write("small", "x"), "http://127.0.0.1:9/x")
    second.earliestBegin = .max
    let answer = try bench.connection().order(.submit(second), within: .seconds(10))
    guard case .accepted = answer else { throw TestFailure("\(answer)") }
  }

  @Test("an unreachable server does not block transfers to others")
  func unreachable() throws {
    let (bench, server) = (try AgentBench(), try StreamServer())
    let file = try bench.directory.write("file", bytes(1000))
    let nowhere = "http://127.0.0.1:\(try freePort())/x"
    for number in 1...4 {
      var request = request(file, nowhere)
      request.key = "nowhere \(number)"
      request.longestPause = nil
      _ = try bench.submit(request)
    }
    let id = try bench.submit(request(file, "\(server.url)/archive/file"))
    #expect(try bench.ended(id).outcome == .completed)
  }

  @Test("an agent that ends does not remove a file that replaced its socket")
  func foreignSocket() throws {
    let bench = try AgentBench()
    let agent = try bench.command(["agent"])
    try agent.lines.first("its start") { $0.text.hasPrefix("listening on") }
    unlink(bench.location.socket)
    close(open(bench.location.socket, O_WRONLY | O_CREAT, 0o600))
    agent.signal(SIGTERM)
    #expect(try agent.wait() == 0)
    #expect(access(bench.location.socket, F_OK) == 0)
  }

  @Test("an agent without a descriptor for a program waits for one, and then serves the program")
  func noDescriptor() throws {
    let bench = try AgentBench()
    let trace = "\(bench.directory.path)/trace"
    let agent = try TestProcess(
      "strace",
      [
        "-D", "-f", "-qq", "-o", trace, "-e", "trace=accept4", "-e", "inject=accept4:error=EMFILE:when=1..3",
        bench.program, "agent",
      ], environment: bench.environment)
    try agent.lines.first("its start") { $0.text.hasPrefix("listening on") }
    let begin = MonotonicInstant.now
    #expect(try bench.transfers().isEmpty)
    #expect(MonotonicInstant.now - begin >= .seconds(1), "three pauses")
    agent.signal(SIGTERM)
    #expect(try agent.wait() == 0)
  }

  @Test("orders about unknown transfers, and unreadable files, have their codes")
  func refusals() throws {
    let bench = try AgentBench()
    for action in ["pause", "resume", "cancel", "forget", "wait"] {
      #expect(try bench.run(["transfers", action, "77"], code: 64).contains("transfer 77"))
      try bench.run(["transfers", action], code: 64)
    }
    try bench.run(["transfers", "list", "--all"], code: 64)
    try bench.run(["transfers", "nonsense"], code: 64)
    try bench.run(["transfers", "pause", "x"], code: 64)
    #expect(try bench.run(["put", "--background", "/nowhere/x", "http://h/"], code: 66).contains("/nowhere/x"))
    let file = try bench.directory.write("file", "x")
    for option in ["--resume", "--abandon", "--metrics=127.0.0.1:0", "--give-up=1s", "--send-buffer=4096"] {
      #expect(try bench.run(["put", "--background", file, "http://h/", option], code: 64).contains("--background"))
    }
  }

  // MARK: One agent per user

  @Test("only the user can access the socket, its directory, the database and its directory")
  func permissions() throws {
    let bench = try AgentBench()
    _ = try bench.transfers()
    func mode(_ path: String) -> mode_t {
      var status = stat()
      return lstat(path, &status) == 0 ? status.st_mode & 0o777 : 0o777
    }
    #expect(mode(bench.location.socket) == 0o600 && mode(bench.location.socketDirectory) == 0o700)
    #expect(mode(bench.location.directory) == 0o700)
    for name in ["transfers.db", "transfers.db-wal", "agent.lock"] {
      #expect(mode("\(bench.location.directory)/\(name)") == 0o600, "\(name)")
    }
  }

  @Test("a second agent exits with 75, and ten programs that start one at once find one")
  func twoAgents() throws {
    let bench = try AgentBench()
    let clients = try (0..<10).map { _ in try bench.command(["transfers", "list"]) }
    for client in clients { #expect(try client.wait() == 0, "\(client.errors)") }
    #expect(try bench.run(["agent"], code: 75).contains("another agent already uses"))
    let process = try bench.connection().agentProcess
    #expect(try bench.connection().agentProcess == process)
  }

  @Test("the socket of a killed agent is replaced, and any other file in its place is not")
  func staleSocket() throws {
    let bench = try AgentBench()
    _ = try bench.transfers()
    try bench.killAgent()
    #expect(access(bench.location.socket, F_OK) == 0, "there is something to be replaced")
    #expect(try bench.transfers().isEmpty)
    try bench.killAgent()
    unlink(bench.location.socket)
    close(open(bench.location.socket, O_WRONLY | O_CREAT, 0o600))
    #expect(try bench.run(["agent"], code: 77).contains("not a socket"))
  }

  @Test("the agent and its programs do not use a directory that others can enter or own")
  func foreignDirectories() throws {
    for isSocket in [true, false] {
      let bench = try AgentBench()
      _ = try bench.transfers()
      try bench.killAgent()
      let path = isSocket ? bench.location.socketDirectory : bench.location.directory
      chmod(path, 0o755)
      #expect(try bench.run(["agent"], code: 77).contains("other users have access to it"))
      if isSocket { try bench.run(["transfers", "list"], code: 77) }
      chmod(path, 0o700)
      // Only root can change the owner of a directory.
      guard chown(path, 65534, 65534) == 0 else { continue }
      #expect(try bench.run(["agent"], code: 77).contains("another user owns it"))
      if isSocket { try bench.run(["transfers", "list"], code: 77) }
      chown(path, geteuid(), getegid())
    }
  }

  @Test("programs of another user are ignored, even if they reach the socket")
  func foreignUser() throws {
    // Only root can act as another user for a moment.
    guard geteuid() == 0 else { return }
    let bench = try AgentBench()
    _ = try bench.transfers()
    for path in [
      bench.directory.path, "\(bench.directory.path)/run", bench.location.socketDirectory, bench.location.socket,
    ] { chmod(path, 0o777) }
    let script = """
      import os, socket, sys
      os.setuid(65534)
      s = socket.socket(socket.AF_UNIX)
      s.settimeout(20)
      s.connect(sys.argv[1])
      try:
        s.send(b'{"event":"list","number":1}\\n')
        print("heard:", s.recv(100))
      except (ConnectionError, BrokenPipeError):
        print("heard: b''")
      """
    let process = try TestProcess("/usr/bin/python3", ["-c", script, bench.location.socket])
    #expect(try process.wait() == 0, "\(process.errors)")
    #expect(process.output == ["heard: b''"])
  }

  @Test("an unreadable database stays unchanged, and the agent reports its path")
  func damage() throws {
    let bench = try AgentBench()
    _ = try bench.transfers()
    try bench.killAgent()
    unlink("\(bench.location.directory)/transfers.db-wal")
    let path = "\(bench.location.directory)/transfers.db"
    let damaged = [UInt8](repeating: 0x55, count: 8192)
    let descriptor = open(path, O_WRONLY | O_TRUNC)
    _ = write(descriptor, damaged, damaged.count)
    close(descriptor)
    #expect(try bench.run(["agent"], code: 74).contains("transfers.db"))
    #expect(try fileContents(path) == damaged)
  }

  @Test("an agent keeps no descriptor of the program that started it")
  func inheritedDescriptors() throws {
    let bench = try AgentBench()
    var ends: [Int32] = [-1, -1]
    #expect(pipe(&ends) == 0)
    defer { close(ends[0]) }
    // Every process that this one starts inherits both ends.
    _ = try bench.transfers()
    close(ends[1])
    // Other tests may have started a process at the same time, which ends soon.
    #expect(waitUntilReadable(ends[0], limit: .seconds(60)), "another process has the other end open")
  }

  @Test("systemd starts the agent when a program connects, on a socket of systemd")
  func socketActivation() throws {
    let bench = try AgentBench()
    for directory in ["\(bench.directory.path)/run", bench.location.socketDirectory] { mkdir(directory, 0o700) }
    let systemd = try TestProcess(
      "systemd-socket-activate", ["--listen=\(bench.location.socket)", bench.program, "agent", "--idle-exit", "50ms"],
      environment: bench.environment)
    try systemd.lines.first("the socket") { $0.text.contains("Listening on") }
    #expect(try bench.run(["transfers", "list"]) == "")
    #expect(try systemd.wait() == 0, "\(systemd.errors)")
    #expect(access(bench.location.socket, F_OK) == 0, "the socket stays for the next program")
  }

  @Test("systemd accepts the user units")
  func units() throws {
    let folder = #filePath.split(separator: "/").dropLast(3).reduce("") { "\($0)/\($1)" } + "/samples/systemd/user"
    let directory = try TemporaryDirectory()
    for name in ["sluice-agent.service", "sluice-agent.socket"] {
      let text = String(decoding: try fileContents("\(folder)/\(name)"), as: UTF8.self)
      try directory.write(name, text.replacing("/usr/local/bin/sluice", with: try AgentBench().program))
    }
    let verify = try TestProcess(
      "systemd-analyze",
      ["verify", "--user", "--man=no"]
        + ["sluice-agent.service", "sluice-agent.socket"].map { "\(directory.path)/\($0)" },
      environment: ["XDG_RUNTIME_DIR": directory.path])
    #expect(try verify.wait() == 0, "\(verify.errors)")
    #expect(verify.errors.allSatisfy { !$0.contains("sluice-agent") }, "\(verify.errors)")
  }

  @Test("an agent without transfers ends, and one with a transfer stays")
  func idleness() throws {
    let bench = try AgentBench()
    let agent = try bench.command(["agent", "--idle-exit", "50ms"])
    #expect(try agent.wait() == 0)
    let file = try bench.directory.write("file", "x")
    var later = request(file, "http://127.0.0.1:9/x")
    later.earliestBegin = WallClock.now.sinceEpoch + 3_600_000
    _ = try bench.submit(later)
    try bench.killAgent()
    let busy = try bench.command(["agent", "--idle-exit", "50ms"])
    try busy.lines.first("its start") { $0.text.hasPrefix("listening on") }
    // The duration is the purpose.
    elapse(.milliseconds(300))
    #expect(try bench.transfers().count == 1)
    busy.signal(SIGTERM)
    #expect(try busy.wait() == 0)
    #expect(access(bench.location.socket, F_OK) != 0, "an agent that ends removes its socket")
  }
}
