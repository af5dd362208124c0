// Tests sluice get as a process: each fault of a server, with and without a kill in between, and a real server whose
// connections break anywhere.

import Digests
import EventLoops
import Glibc
import HTTPMessages
import NetworkTesting
import PropertyTesting
import Synchronization
import Testing
import UploadServer

@Suite("sluice get", .serialized)
struct GetTests {
  typealias Fault = FaultyResource.Fault

  // MARK: A server that misbehaves

  @Test(
    "whatever a server does in the middle of a download, the file equals the resource, even after a kill",
    arguments: Fault.allCases.flatMap { fault in [(fault, nil), (fault, true)] as [(Fault, Bool?)] }
      + [(.none, false), (.changed, false), (.notFound, false), (.portal, false)])
  func faults(_ fault: Fault, kill: Bool?) throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/file.bin"
    let resource = try FaultyResource(kill == nil ? [.cutInBody, fault] : [fault])
    let server = try resource.serve()
    if let kill { try resource.begin(server, path, kill: kill) }
    let more = kill == nil ? [] : ["--resume"]
    let arguments = ["get", "\(server.url)/file.bin", "-o", path] + FaultyResource.patience
    var process = try sluice(arguments + more)
    if let code = fault.code {
      #expect(try process.wait() == code, "\(process.errors)")
      if fault == .wrongDigest {
        #expect(directory.names.isEmpty, "what is not the resource is not kept: \(directory.names)")
        return
      }
      #expect(directory.names == ["file.bin.part", "file.bin.sluice"])
      process = try sluice(arguments + ["--resume"])
    }
    #expect(try process.wait() == 0, "\(process.errors) \(process.output)")
    #expect(try directory.contents("file.bin") == resource.content)
    #expect(directory.names == ["file.bin"])
    let restarts = process.output.filter { $0.contains("\"event\":\"started-over\"") }
    #expect(restarts.count == (fault.restart == nil ? 0 : 1), "\(restarts)")
    if let reason = fault.restart {
      #expect(restarts.allSatisfy { $0.contains("\"reason\":\"\(reason)\"") })
      #expect(process.output.last?.contains("\"resumed_from\":0,") == true, "\(process.output)")
    }
    // If the content has not changed, no byte is requested twice.
    if fault.restart == nil {
      #expect(resource.requests.all.dropFirst().allSatisfy { $0["Range"] != nil }, "\(resource.requests.all)")
    }
  }

  @Test(
    "a part of unknown length is continued to its end, whatever the first response stated",
    arguments: [true, false])
  func unknownLength(kills: Bool) throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/file.bin"
    let resource = try FaultyResource([.chunkedCut, .starPart, .cutInBody, .starPart, .starPart])
    let server = try resource.serve()
    var arguments = ["get", "\(server.url)/file.bin", "-o", path] + FaultyResource.patience
    if kills {
      resource.state.withLock { $0.plan.insert(.stall, at: 1) }
      let process = try sluice(Array(arguments.prefix(4)) + ["--retry-ceiling", "20ms", "--response-timeout", "1h"])
      try waitUntil("half of the rest is there") {
        (try? fileContents(path + ".part"))?.count ?? 0 > FaultyResource.size / 2
      }
      process.signal(SIGKILL)
      _ = try process.wait()
      arguments.append("--resume")
    }
    let process = try sluice(arguments)
    #expect(try process.wait() == 0, "\(process.errors)")
    #expect(try directory.contents("file.bin") == resource.content)
  }

  @Test(
    "the digest of the first response applies to the whole file, even if later responses have none",
    arguments: [true, false], [nil, SIGTERM, SIGKILL])
  func digestOfTheFirst(isRight: Bool, signal: Int32?) throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/file.bin"
    let content = FaultyResource.bytes(FaultyResource.size)
    var digest = RunningDigest(.sha256)
    digest.update(content.span.bytes)
    let field = "Repr-Digest: \(DigestField([("sha-256", digest.value().bytes)]).value)"
    let server = try ScriptedServer { connection, _ in
      while true {
        let head = try connection.head()
        let start = head["Range"].flatMap { Int($0.dropFirst(6).dropLast()) } ?? 0
        if start == 0 {
          try connection.send(
            "HTTP/1.1 200 OK\r\nETag: \"v\"\r\n\(field)\r\nContent-Length: \(content.count)\r\n\r\n")
          try connection.send(Array(content[..<200_000]))
          if signal != nil { _ = connection.waitForEnd() }
          throw TestFailure("cut")
        }
        var rest = Array(content[start...])
        if !isRight { rest[7] ^= 1 }
        try connection.send(
          "HTTP/1.1 206 Partial Content\r\nETag: \"v\"\r\nContent-Length: \(rest.count)\r\n"
            + "Content-Range: bytes \(start)-\(content.count - 1)/\(content.count)\r\n\r\n")
        try connection.send(rest)
      }
    }
    var arguments = ["get", "\(server.url)/file.bin", "-o", path, "--progress", "json", "--retry-ceiling", "20ms"]
    if let signal {
      let process = try sluice(arguments)
      try waitUntil("half of it is there") { (try? fileContents(path + ".part"))?.count == 200_000 }
      process.signal(signal)
      _ = try process.wait()
      arguments.append("--resume")
    }
    let process = try sluice(arguments)
    #expect(try process.wait() == (isRight ? 0 : 76), "\(process.errors)")
    #expect(directory.names == (isRight ? ["file.bin"] : []))
    if isRight { #expect(process.output.last?.contains("\"verified\":\"sha-256\"") == true) }
  }

  @Test(
    "without a strong tag or a date that is old enough, the download starts again",
    arguments: FaultyResource.Validator.allCases.map(\.rawValue), [true, false])
  func validators(_ name: String, kills: Bool) throws {
    let validator = try #require(FaultyResource.Validator(rawValue: name))
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/file.bin"
    let resource = try FaultyResource(kills ? [] : [.cutInBody], validator)
    let server = try resource.serve()
    if kills {
      resource.state.withLock { $0.plan = [.stall] }
      let process = try sluice(["get", "\(server.url)/file.bin", "-o", path, "--response-timeout", "1h"])
      try waitUntil("half of it is there") { (try? fileContents(path + ".part"))?.count == FaultyResource.size / 2 }
      process.signal(SIGKILL)
      _ = try process.wait()
    }
    let process = try sluice(
      ["get", "\(server.url)/file.bin", "-o", path] + FaultyResource.patience + (kills ? ["--resume"] : []))
    #expect(try process.wait() == 0, "\(process.errors)")
    #expect(try directory.contents("file.bin") == resource.content)
    #expect(directory.names == ["file.bin"])
    let isResumed = resource.requests.all.contains { $0["Range"] != nil }
    #expect(isResumed == (validator == .tag || validator == .date))
    if !kills {
      #expect(process.output.contains { $0.contains("\"reason\":\"unknown\"") } == !isResumed)
    }
  }

  @Test("a page of a portal does not replace a download, with a tag or with a date", arguments: ["tag", "date"])
  func portal(_ name: String) throws {
    let directory = try TemporaryDirectory()
    let validator = try #require(FaultyResource.Validator(rawValue: name))
    let resource = try FaultyResource([.cutInBody, .portal, .portal], validator)
    let server = try resource.serve()
    let process = try sluice(
      ["get", "\(server.url)/file.bin", "-o", "\(directory.path)/file.bin"] + FaultyResource.patience)
    #expect(try process.wait() == 0, "\(process.errors)")
    #expect(try directory.contents("file.bin") == resource.content)
    #expect(!process.output.contains { $0.contains("started-over") }, "\(process.output)")
  }

  @Test(
    "killed after another version without a usable validator has replaced the bytes, it continues neither of the two with the other"
  )
  func replacedVersion() throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/file.bin"
    let old = FaultyResource.bytes(FaultyResource.size, version: 1)
    let new = FaultyResource.bytes(FaultyResource.size, version: 2)
    let count = Mutex(0)
    let server = try ScriptedServer { connection, _ in
      while true {
        let head = try connection.head()
        let number = count.withLock { number in
          number += 1
          return number
        }
        // The second answer comes from a server that has a newer version. The others have the old one.
        let (content, tag) = number == 2 ? (new, "W/\"new\"") : (old, "\"old\"")
        let start = head["If-Range"] == tag ? head["Range"].flatMap { Int($0.dropFirst(6).dropLast()) } ?? 0 : 0
        let status = start > 0 ? "206 Partial Content" : "200 OK"
        let range = start > 0 ? "Content-Range: bytes \(start)-\(content.count - 1)/\(content.count)\r\n" : ""
        try connection.send(
          "HTTP/1.1 \(status)\r\nETag: \(tag)\r\n\(range)Content-Length: \(content.count - start)\r\n\r\n")
        guard number < 3 else {
          try connection.send(Array(content[start...]))
          continue
        }
        try connection.send(Array(content[..<(content.count / (number == 1 ? 2 : 4))]))
        if number == 2 { _ = connection.waitForEnd() }
        throw TestFailure("cut")
      }
    }
    let first = try sluice(
      [
        "get", "\(server.url)/file.bin", "-o", path, "--retry-ceiling", "20ms", "--progress", "json",
        "--response-timeout", "1h",
      ])
    try waitUntil("the new version is there") {
      (try? fileContents(path + ".part")).map { $0.count == FaultyResource.size / 4 && new.starts(with: $0) } ?? false
    }
    first.signal(SIGKILL)
    _ = try first.wait()
    let second = try sluice(["get", "\(server.url)/file.bin", "-o", path, "--resume"] + FaultyResource.patience)
    #expect(try second.wait() == 0, "\(second.errors)")
    let found = try directory.contents("file.bin")
    #expect(
      found == old, "\(found.count) bytes, from \(zip(found, old).first { $0 != $1 } == nil ? "one" : "two") versions")
  }

  @Test("a resumed download that never reaches its server and is killed can still be resumed")
  func killedWithoutServer() throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/file.bin"
    let resource = try FaultyResource([])
    let server = try resource.serve()
    try resource.begin(server, path, kill: true)
    resource.state.withLock { $0.plan = [.stall, .none] }
    let second = try sluice(
      ["get", "\(server.url)/file.bin", "-o", path, "--resume", "--progress", "json", "--response-timeout", "1h"])
    let asked = resource.requests.all.count
    try second.lines.first("the part is open") { $0.text.contains("\"connecting\"") }
    second.signal(SIGKILL)
    _ = try second.wait()
    resource.state.withLock { $0.plan = [] }
    let third = try sluice(["get", "\(server.url)/file.bin", "-o", path, "--resume"] + FaultyResource.patience)
    #expect(try third.wait() == 0, "\(third.errors)")
    #expect(try directory.contents("file.bin") == resource.content)
    #expect(resource.requests.all.dropFirst(asked).contains { $0["Range"] != nil })
  }

  // MARK: A real server

  @Test(
    "a recording of sluice serve comes back complete over interrupted connections, and after kills",
    arguments: Seed.several(2))
  func real(_ seed: Seed) throws {
    var random = seed.generator
    let directory = try TemporaryDirectory()
    let content = FaultyResource.bytes(6_000_000, version: seed.value)
    let stored = try StreamServer { $0.allowsDownloads = true }
    let file = try directory.write("data", content)
    #expect(try sluice(["put", file, stored.url + "/film.mkv", "--stream-id", "a"]).wait() == 0)
    // Each connection carries this many bytes and then ends in one of two ways.
    let budgets = Mutex((0..<12).map { _ in Int.random(in: 0...900_000, using: &random) })
    let resets = random.chance(50)
    let relay = try ScriptedServer { connection, _ in
      let far = try ServerConnection(connectingTo: "127.0.0.1:\(stored.port)")
      var budget = budgets.withLock { $0.isEmpty ? .max : $0.removeFirst() }
      while let bytes = try connection.receive() {
        try far.send(Array(bytes))
        guard try connection.relayAnswer(from: far, &budget) else {
          if resets { connection.reset() }
          return
        }
      }
    }
    let path = "\(directory.path)/copy.mkv"
    let arguments =
      ["get", "\(relay.url)/film-a.mkv", "-o", path, "--retry-ceiling", "10ms", "--progress", "json"]
    var isResuming = false
    for _ in 0..<3 {
      let process = try sluice(arguments + (isResuming ? ["--resume"] : []))
      let size = Int.random(in: 1...2_000_000, using: &random)
      try waitUntil("some of it is there, or all", within: 60) {
        let part = (try? fileContents(path + ".part"))?.count ?? 0
        return part >= size || access(path, F_OK) == 0
      }
      process.signal(SIGKILL)
      _ = try process.wait()
      if access(path, F_OK) == 0 { break }
      isResuming = true
    }
    if access(path, F_OK) != 0 {
      let process = try sluice(arguments + (isResuming ? ["--resume"] : []))
      #expect(try process.wait() == 0, "\(seed) \(process.errors)")
      #expect(process.output.last?.contains("\"verified\":\"sha-256\"") == true, "\(seed) \(process.output)")
    }
    #expect(try fileContents(path) == content, "\(seed)")
    #expect(!directory.names.contains("copy.mkv.part"), "\(seed)")
  }
}

extension ServerConnection {
  /// Relays one response as far as the budget allows. Returns false when the budget is used up.
  fileprivate func relayAnswer(from far: ServerConnection, _ budget: inout Int) throws -> Bool {
    let head = try far.head()
    var bytes = Array((head.line + "\r\n" + head.fields.map { "\($0.name): \($0.value)\r\n" }.joined() + "\r\n").utf8)
    var rest = head["Content-Length"].flatMap { Int($0) } ?? 0
    while true {
      let count = min(bytes.count, budget)
      try send(Array(bytes[..<count]))
      budget -= count
      if count < bytes.count { return false }
      guard rest > 0, let more = try far.receive(min(rest, 65_536)) else { return rest == 0 }
      bytes = Array(more)
      rest -= bytes.count
    }
  }
}
