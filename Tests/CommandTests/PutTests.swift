// Tests sluice put as a process: files, records of interrupted uploads, exit codes, and no secrets in any output.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Synchronization
import Testing
import UploadServer

@Suite("sluice put", .serialized)
struct PutTests {
  private let pattern = OffsetPattern()

  private func bytes(_ count: Int) -> [UInt8] { pattern[0..<count] }

  /// Begins an upload of `file` and stops the command once the server has received some of it.
  private func interrupt(
    _ server: HalfServer, _ file: String, _ more: [String] = [], tracedTo trace: String? = nil
  ) throws -> TestProcess {
    let arguments = ["put", file, "\(server.url)/archive/", "--progress", "none"] + more
    let process =
      if let trace {
        try TestProcess(
          "strace",
          ["-D", "-f", "-qq", "-y", "-o", trace, "-e", "trace=/^(fsync|fdatasync|linkat|rename.*)$", sluicePath()]
            + arguments)
      } else {
        try sluice(arguments)
      }
    try server.heads.first("the upload") { $0.line.hasPrefix("PUT") }
    // The third line of the record is written as soon as an upload exists.
    let never = try EventCounter()
    while try fileContents(memory(file, more)).count(where: { $0 == 0x0A }) < 3 {
      _ = waitUntilReadable(never.descriptor, limit: .milliseconds(5))
    }
    process.signal(SIGINT)
    return process
  }

  private func memory(_ file: String, _ more: [String] = []) -> String {
    more.firstIndex(of: "--resume-file").map { more[$0 + 1] } ?? file + ".sluice"
  }

  // MARK: Misuse

  @Test("an impossible upload is refused with its code and a remedy")
  func misuse() throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", "text")
    let garbage = try directory.write("garbage", "nothing that was remembered\n")
    let empty = try directory.write("empty", "")
    #expect(chmod(empty, 0o644) == 0)
    defer { #expect(directory.names == ["data", "empty", "garbage"]) }
    let cases: [([String], Int32, [String])] = [
      ([file, "http://h/x", "--resume-file", empty], 65, [empty, "it is empty", "--resume-file PATH"]),
      ([], 64, ["FILE is missing"]), ([file], 64, ["URL is missing"]),
      ([file, "http://h/", "more"], 64, ["\"more\" is one argument too many"]),
      (["\(directory.path)/nothing", "http://h/"], 66, ["\(directory.path)/nothing", "No such file"]),
      ([directory.path, "http://h/"], 66, [directory.path, "is a directory", "Name a file"]),
      (["/dev/zero", "http://me:word@h/"], 66, ["/dev/zero", "sluice pipe http://h/ < /dev/zero"]),
      ([file, "localhost/x"], 64, ["localhost/x", "http://"]),
      ([file, "ftp://host/"], 64, ["neither http:// nor https://"]),
      ([file, "http://h/x", "--resume"], 64, ["no unfinished upload of \(file)", "\(file).sluice", "Leave --resume"]),
      ([file, "http://h/x", "--abandon"], 64, ["no unfinished upload"]),
      ([file, "http://h/x", "--resume", "--resume-file", garbage], 65, [garbage, "--resume-file PATH"]),
      ([file, "http://h/x", "--resume", "--resume-file", directory.path], 65, [directory.path]),
      ([file, "http://h/x", "--digest", "md5"], 64, ["\"md5\"", "sha-256, sha-512 or none"]),
      ([file, "http://h/x", "--resumable", "perhaps"], 64, ["\"perhaps\"", "auto, always or never"]),
      ([file, "http://h/x", "--location", "nowhere"], 64, ["\"nowhere\"", "follow or keep"]),
      ([file, "http://h/x", "--roll-over-after", "soon"], 64, ["roll-over-after", "\"soon\""]),
      ([file, "http://h/x", "--roll-over-bytes", "many"], 64, ["roll-over-bytes", "\"many\""]),
      ([file, "http://h/x", "--resume", "--abandon"], 64, ["--resume", "--abandon", "Choose one"]),
      ([file, "http://h/x", "--resme"], 64, ["Did you mean --resume?"]),
    ]
    for (arguments, code, says) in cases {
      let process = try sluice(["put"] + arguments)
      #expect(try process.wait() == code, "\(arguments)")
      let text = process.errors.joined(separator: "\n")
      for part in says { #expect(text.contains(part), "\(arguments): \(text)") }
      #expect(text.hasPrefix("sluice: ") && process.output.isEmpty)
    }
  }

  @Test("a file that only begins like a record stays as it is, and so does an empty record after a usage error")
  func recordsOfOthers() throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", "text")
    let part = "\(directory.path)/film"
    for (rest, code) in [("", 64), ("upload=\"http://h/u\"\n", 65)] as [(String, Int32)] {
      for options in [[], ["--resume"], ["--abandon"]] where code == 65 || options == ["--abandon"] {
        for command in ["put", "get"] {
          let text = "sluice \(command == "put" ? "upload" : "download") record 3\n\(rest)"
          let record = try directory.write("record", text)
          let operands = command == "put" ? [file, "http://127.0.0.1:1/x"] : ["http://127.0.0.1:1/x", "-o", part]
          let process = try sluice([command] + operands + ["--resume-file", record] + options)
          #expect(try process.wait() == code, "\(command) \(options): \(process.errors)")
          #expect(try directory.contents("record") == Array(text.utf8), "\(command) \(options)")
          #expect(directory.names == ["data", "record"])
        }
      }
    }
  }

  @Test("each failure during an upload has its code")
  func exitCodes() throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", bytes(100_000))
    for (status, code) in [
      ("401 Unauthorized", 77), ("403 Forbidden", 77), ("404 Not Found", 76), ("422 Unprocessable", 76),
    ] as [(String, Int32)] {
      let server = try ScriptedServer { connection, _ in
        _ = try connection.head()
        try connection.respond(status, ["Connection: close"])
        _ = connection.readToEnd()
      }
      let process = try sluice(["put", file, server.url + "/x"])
      #expect(try process.wait() == code, "\(status)")
    }
    let nobody = try sluice(
      ["put", file, "http://127.0.0.1:\(try freePort())/x", "--give-up", "100ms", "--retry-ceiling", "10ms"])
    #expect(try nobody.wait() == 69)
    #expect(nobody.errors.contains { $0.contains("gave up") })
    #expect(directory.names == ["data"], "where there is no upload, nothing is remembered")
  }

  // MARK: Uploading

  @Test("a file arrives completely, verified by its digest, with its own name if the URL ends in a slash")
  func arrives() throws {
    let directory = try TemporaryDirectory()
    let server = try StreamServer()
    let file = try directory.write("a größe #1.bin", bytes(300_000))
    let process = try sluice(["put", file, "\(server.url)/", "--digest", "sha-256", "--stream-id", "s"])
    #expect(try process.wait() == 0)
    let ended = try server.events.first("its end") { $0.kind == .ended }
    #expect(try server.directory.contents(ended.file ?? "") == bytes(300_000))
    #expect(directory.names == ["a größe #1.bin"])
  }

  @Test("the name after a slash is percent-encoded, and a URL without a slash stays unchanged (RFC 3986, section 2.1)")
  func names() throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("a größe #1.bin", "x")
    let heads = try EventLog<String>()
    let server = try ScriptedServer { connection, _ in
      heads.append(try connection.head().line)
      _ = try connection.receive()
      try connection.respond("201 Created", ["Connection: close"])
    }
    let name = "a%20gr%C3%B6%C3%9Fe%20%231.bin"
    for (url, target) in [
      ("/in/", "/in/\(name)"), ("/in/other", "/in/other"), ("", "/\(name)"), ("/in/?q=/a", "/in/\(name)?q=/a"),
      ("?q=ü", "/\(name)?q=%C3%BC"), ("/größe", "/gr%C3%B6%C3%9Fe"),
    ] {
      #expect(try sluice(["put", file, server.url + url]).wait() == 0)
      #expect(heads.all.last == "PUT \(target) HTTP/1.1")
    }
  }

  @Test(
    "a file of unknown size is uploaded with all its contents",
    arguments: ["/proc/cpuinfo", "/proc/self/maps"])
  func withoutSize(_ path: String) throws {
    let server = try StreamServer()
    let process = try sluice(["put", path, server.url, "--stream-id", "s"])
    #expect(try process.wait() == 0)
    let ended = try server.events.first("its end") { $0.kind == .ended }
    let stored = try server.directory.contents(ended.file ?? "")
    if path == "/proc/cpuinfo" { #expect(stored.count == (try fileContents(path)).count) }
    #expect(stored.count > 100 && process.errors.contains("stored as \(ended.file ?? "")"))
    let resumed = try sluice(["put", "--resume", path, server.url])
    #expect(try resumed.wait() == 66)
    #expect(resumed.errors.joined().contains("its size is unknown"))
  }

  @Test("put prints the name under which the server stored the file")
  func storedName() throws {
    let directory = try TemporaryDirectory()
    let server = try StreamServer()
    let file = try directory.write("it's mine.txt", "text")
    let process = try sluice(["put", file, server.url, "--stream-id", "s"])
    #expect(try process.wait() == 0)
    let ended = try server.events.first("its end") { $0.kind == .ended }
    #expect(process.errors.last == "stored as \(ended.file ?? "")")
  }

  @Test("an empty file is an upload, too")
  func empty() throws {
    let directory = try TemporaryDirectory()
    let server = try StreamServer()
    let file = try directory.write("nothing", "")
    #expect(try sluice(["put", file, "\(server.url)/nothing"]).wait() == 0)
    try server.events.first("its end") { $0.kind == .ended }
  }

  @Test("--resumable always against a plain server: 76, with the reason; auto continues, and reports it")
  func plainServer() throws {
    let server = try ScriptedServer { connection, _ in
      while true {
        try connection.receiveContent(of: try connection.headAfterDiscovery(answering: "405 Method Not Allowed"))
        try connection.respond("200 OK")
      }
    }
    let always = try sluice(["pipe", server.url, "--resumable", "always"])
    #expect(try always.wait() == 76)
    #expect(always.errors.contains { $0.hasPrefix("sluice: ") && $0.contains("Location") })
    let auto = try sluice(["pipe", server.url])
    #expect(try auto.wait() == 0)
    #expect(auto.errors.contains { $0.contains("does not support resumable uploads") && $0.contains("plain") })
  }

  @Test(
    "a 206 of a plain server does not confirm the upload of a small or a large file: 76, with its reason; a 202 does",
    arguments: [1000, (4 << 20) + 1])
  func partialAnswer(_ count: Int) throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", bytes(count))
    for (status, code) in [("206 Partial Content", 76), ("202 Accepted", 0)] as [(String, Int32)] {
      let server = try ScriptedServer { connection, _ in
        while true {
          try connection.receiveContent(of: try connection.headAfterDiscovery())
          try connection.respond(status, body: "1 of 2 items accepted\n")
        }
      }
      let process = try sluice(["put", file, "\(server.url)/x"])
      #expect(try process.wait() == code, "\(status): \(process.errors)")
      let line = process.errors.first { $0.contains("206 (Partial Content)") } ?? ""
      #expect(line.contains("1 of 2 items accepted") == (code == 76), "\(status): \(process.errors)")
    }
    #expect(directory.names == ["data"])
  }

  // MARK: Interrupted

  @Test(
    "an interrupted put writes a record for its owner alone, and prints how to resume; --resume sends the rest, and removes it"
  )
  func resumes() throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", bytes(3_000_000))
    let server = try HalfServer(keeps: 1000)
    let first = try interrupt(server, file)
    #expect(try first.wait() == 130)
    #expect(first.errors.last == "resume with: sluice put --resume \(file) \(server.url)/archive/")
    var status = stat()
    #expect(stat("\(file).sluice", &status) == 0 && status.st_mode & 0o777 == 0o600)
    let second = try sluice(["put", "--resume", file, "\(server.url)/archive/"])
    #expect(try second.wait() == 0)
    #expect(server.heads.all.map { String($0.line.prefix { $0 != " " }) } == ["PUT", "HEAD", "PATCH"])
    #expect(server.appended.withLock { $0 } == Array(bytes(3_000_000)[1000...]))
    #expect(directory.names == ["data"])
  }

  @Test("the record is on the disk before it gets its name, and each state when it is written")
  func recordOutlastsACrash() throws {
    let (directory, notes) = (try TemporaryDirectory(), try TemporaryDirectory())
    let file = try directory.write("data", bytes(3_000_000))
    let server = try HalfServer(keeps: 1000)
    let trace = "\(notes.path)/trace"
    #expect(try interrupt(server, file, tracedTo: trace).wait() == 130)
    let lines = try notes.contents("trace").split(separator: 0x0A).map { String(decoding: $0, as: UTF8.self) }
    let synchronized = lines.filter { $0.contains("sync(") && $0.contains("<\(directory.path)") }
    // The format line, the name, and the upload. The open file keeps the name that it had before it got its own.
    let expected = ["\(directory.path)/", "\(directory.path)>", "\(directory.path)/"]
    #expect(synchronized.count >= 3 && zip(synchronized, expected).allSatisfy { $0.contains("<\($1)") }, "\(lines)")
    let first = try #require(lines.firstIndex { $0 == synchronized.first })
    #expect(lines.firstIndex { $0.contains("linkat(") } == first + 1, "\(lines)")
    #expect(!lines.contains { $0.contains("rename") }, "\(lines)")
  }

  @Test(
    "an upload that is killed while it creates its record leaves no file, and the next one succeeds",
    arguments: ["fsync", "linkat"])
  func killedWithoutRecord(_ call: String) throws {
    let directory = try TemporaryDirectory()
    let server = try StreamServer()
    let file = try directory.write("data", bytes(300_000))
    let arguments = ["put", file, "\(server.url)/", "--digest", "sha-256"]
    let killed = try sluice(arguments, killedIn: call)
    #expect(try killed.wait() == 128 + SIGKILL)
    #expect(directory.names == ["data"])
    let next = try sluice(arguments)
    #expect(try next.wait() == 0, "\(next.errors)")
    let ended = try server.events.first("its end") { $0.kind == .ended }
    #expect(try server.directory.contents(ended.file ?? "") == bytes(300_000))
    #expect(directory.names == ["data"])
  }

  @Test("--resume begins with the first byte if the upload was killed before it recorded anything, and reports it")
  func resumesFromNothing() throws {
    let directory = try TemporaryDirectory()
    let server = try StreamServer()
    let file = try directory.write("data", bytes(300_000))
    try directory.write("data.sluice", "sluice upload record 3\n")
    let process = try sluice(["put", "--resume", file, "\(server.url)/"])
    #expect(try process.wait() == 0, "\(process.errors)")
    #expect(process.errors.contains { $0.contains("data.sluice records nothing yet") }, "\(process.errors)")
    let ended = try server.events.first("its end") { $0.kind == .ended }
    #expect(try server.directory.contents(ended.file ?? "") == bytes(300_000))
    #expect(directory.names == ["data"])
  }

  @Test(
    "a put that a signal stops before the server has answered can be repeated, with --resume and without it",
    arguments: [SIGINT, SIGTERM], ["auto", "never"])
  func stoppedBeforeItsBeginning(_ signal: Int32, _ resumable: String) throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", bytes(300_000))
    let requests = try EventLog<Int>()
    let silent = try ScriptedServer { connection, number in
      _ = try connection.head()
      requests.append(number)
      _ = connection.waitForEnd()
    }
    let server = try StreamServer()
    for (number, options) in [[], ["--resume"]].enumerated() {
      let former = requests.all.count
      let first = try sluice(["put", file, "\(silent.url)/", "--resumable", resumable, "--progress", "none"])
      try requests.wait("the upload") { $0.count > former ? true : nil }
      first.signal(signal)
      #expect(try first.wait() == 130)
      #expect(
        first.errors.last
          == "nothing to resume: the same command begins with the first byte, with or without --resume")
      #expect(directory.names == ["data", "data.sluice"])
      let second = try sluice(["put", file, "\(server.url)/", "--stream-id", "\(number)"] + options)
      #expect(try second.wait() == 0, "\(options) \(second.errors)")
      let started = second.errors.contains { $0.contains("data.sluice records nothing yet") }
      #expect(started == (options == ["--resume"]), "\(second.errors)")
      let ended = try server.events.first("its end") { $0.kind == .ended && $0.file?.contains("-\(number)") == true }
      #expect(try server.directory.contents(ended.file ?? "") == bytes(300_000))
      #expect(directory.names == ["data"])
    }
  }

  @Test("a put that is stopped while it resumes keeps its record")
  func stoppedWhileResuming() throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", bytes(3_000_000))
    let server = try HalfServer(keeps: 1000, head: "503 Service Unavailable")
    #expect(try interrupt(server, file).wait() == 130)
    let questions = server.heads.all.count { $0.line.hasPrefix("HEAD") }
    let second = try sluice(["put", "--resume", file, "\(server.url)/archive/", "--progress", "none"])
    try waitUntil("it asks") { server.heads.all.count { $0.line.hasPrefix("HEAD") } > questions }
    second.signal(SIGTERM)
    #expect(try second.wait() == 130)
    #expect(second.errors.last == "resume with: sluice put --resume \(file) \(server.url)/archive/")
    #expect(directory.names == ["data", "data.sluice"])
  }

  @Test("a file is never its own record, under any of its names")
  func ownRecord() throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", "")
    let others = ["soft", "hard"].map { "\(directory.path)/\($0)" }
    #expect(symlink(file, others[0]) == 0 && link(file, others[1]) == 0)
    let (url, new) = ("http://127.0.0.1:1/x", "\(directory.path)/new")
    var cases: [[String]] = [
      ["put", file, url, "--resume-file", others[0]],
      ["put", file, url, "--resume-file", others[1], "--abandon"],
      ["put", file, url, "--resume-file", "\(directory.path)/./data", "--resume"],
      ["get", url, "-o", new, "--resume-file", new],
      ["get", url, "-o", new, "--resume-file", "\(directory.path)/./new"],
      ["get", url, "-o", new, "--resume-file", "\(new).part"],
    ]
    for name in [file] + others {
      cases.append(["put", name, url, "--resume-file", file])
      cases.append(["get", url, "-o", name, "--force", "--resume-file", file])
    }
    for arguments in cases {
      let process = try sluice(arguments)
      #expect(try process.wait() == 64, "\(arguments): \(process.errors)")
      #expect(process.errors.contains { $0.contains("--resume-file PATH") }, "\(arguments): \(process.errors)")
      #expect(directory.names == ["data", "hard", "soft"], "\(arguments)")
      #expect(try directory.contents("data").isEmpty, "\(arguments)")
    }
  }

  @Test("the suggested command can be pasted into a shell", arguments: ["data", "it's $HOME; a \"data\""])
  func continued(_ name: String) throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write(name, bytes(3_000_000))
    let server = try HalfServer(keeps: 1000)
    let first = try interrupt(server, file)
    #expect(try first.wait() == 130)
    let prefix = "resume with: "
    let line = try #require(first.errors.last { $0.hasPrefix(prefix) })
    let place = try sluicePath().dropLast("/sluice".count)
    let path = String(cString: getenv("PATH"))
    let shell = try TestProcess(
      "sh", ["-c", String(line.dropFirst(prefix.count))], environment: ["PATH": "\(place):\(path)"])
    #expect(try shell.wait() == 0, "\(shell.errors)")
    #expect(server.appended.withLock { $0 } == Array(bytes(3_000_000)[1000...]))
    #expect(directory.names == [name])
  }

  @Test("a server that only supports POST receives one, unless the user chose the method", arguments: [nil, "PUT"])
  func takesOnlyPOST(_ method: String?) throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", bytes(1000))
    let methods = try EventLog<String>()
    let server = try ScriptedServer { connection, _ in
      let head = try connection.head()
      let method = String(head.line.prefix { $0 != " " })
      methods.append(method)
      switch method {
      case "POST":
        var count = 0
        while count < 1000, let piece = try connection.receive(1000 - count) { count += piece.count }
        try connection.respond("201 Created", ["Connection: close"])
      default: try connection.respond("405 Method Not Allowed", ["Allow: POST, OPTIONS", "Connection: close"])
      }
      _ = connection.readToEnd()
    }
    let process = try sluice(["put", file, "\(server.url)/x"] + (method.map { ["--method", $0] } ?? []))
    #expect(try process.wait() == (method == nil ? 0 : 76), "\(process.errors)")
    #expect(methods.all.contains("POST") == (method == nil))
  }

  @Test("an upload is not resumed if its file has changed, or to another URL")
  func notTheSame() throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", bytes(3_000_000))
    let server = try HalfServer(keeps: 1000)
    #expect(try interrupt(server, file).wait() == 130)
    let elsewhere = try sluice(["put", "--resume", file, "\(server.url)/other"])
    #expect(try elsewhere.wait() == 64)
    #expect(elsewhere.errors.contains { $0.contains("\(server.url)/archive/data") })
    try directory.write("data", bytes(3_000_001))
    let changed = try sluice(["put", "--resume", file, "\(server.url)/archive/"])
    #expect(try changed.wait() == 74)
    #expect(changed.errors.contains { $0.contains("has changed") && $0.contains("without --resume") })
    #expect(server.heads.all.count == 1 && directory.names == ["data", "data.sluice"])
  }

  @Test("a later put reports an unfinished upload with a remedy, and does not change it")
  func remembers() throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", bytes(3_000_000))
    let server = try HalfServer(keeps: 1000)
    #expect(try interrupt(server, file).wait() == 130)
    let record = try directory.contents("data.sluice")
    // The user's own URL of the same upload, as after the signal, or the URL of the other upload.
    for (url, shown) in [("\(server.url)/archive/", "archive/,"), ("http://127.0.0.1:9/x", "archive/data,")] {
      let again = try sluice(["put", file, url])
      #expect(try again.wait() == 64)
      let text = again.errors.joined(separator: "\n")
      for part in ["--resume \(file) \(server.url)/\(shown)", "--abandon \(file)", "--resume-file PATH"] {
        #expect(text.contains(part), "\(text)")
      }
    }
    #expect(try directory.contents("data.sluice") == record && server.heads.all.count == 1)
    // Another upload works independently of it.
    let other = try StreamServer()
    #expect(try sluice(["put", file, other.url, "--resume-file", "\(directory.path)/second"]).wait() == 0)
    #expect(try directory.contents("data.sluice") == record && directory.names == ["data", "data.sluice"])
  }

  @Test("an upload can be abandoned if its file has changed, and if it no longer exists", arguments: [true, false])
  func abandonsChanged(_ isThere: Bool) throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", bytes(3_000_000))
    let server = try HalfServer(keeps: 1000)
    #expect(try interrupt(server, file).wait() == 130)
    if isThere { try directory.write("data", "other") } else { unlink(file) }
    #expect(try sluice(["put", "--abandon", file, "\(server.url)/archive/"]).wait() == 0)
    #expect(server.heads.all.last?.line == "DELETE /uploads/SECRET-place HTTP/1.1")
    #expect(directory.names == (isThere ? ["data"] : []))
  }

  @Test("if an upload whose file has changed cannot be abandoned, its record stays as it is")
  func keepsChanged() throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", bytes(3_000_000))
    let server = try HalfServer(keeps: 1000, delete: "503 Service Unavailable")
    #expect(try interrupt(server, file).wait() == 130)
    let record = try directory.contents("data.sluice")
    try directory.write("data", "other")
    #expect(try sluice(["put", "--abandon", file, "\(server.url)/archive/"]).wait() == 69)
    #expect(try directory.contents("data.sluice") == record)
  }

  @Test("--abandon deletes the upload from the server: 0 on success, 69 with the reason otherwise")
  func abandons() throws {
    for (status, code) in [("204 No Content", 0), ("503 Service Unavailable", 69)] as [(String, Int32)] {
      let directory = try TemporaryDirectory()
      let file = try directory.write("data", bytes(3_000_000))
      let place = "\(directory.path)/elsewhere"
      let server = try HalfServer(keeps: 1000, delete: status)
      #expect(try interrupt(server, file, ["--resume-file", place]).wait() == 130)
      let process = try sluice(["put", "--abandon", file, "\(server.url)/archive/", "--resume-file", place])
      #expect(try process.wait() == code)
      #expect(server.heads.all.last?.line == "DELETE /uploads/SECRET-place HTTP/1.1")
      #expect(directory.names == (code == 0 ? ["data"] : ["data", "elsewhere"]))
      if code != 0 { #expect(process.errors.contains { $0.contains("503") && $0.contains("Try again") }) }
    }
  }

  @Test("if the record cannot be written, this is reported, and the upload continues")
  func cannotRemember() throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", bytes(1000))
    let server = try StreamServer()
    let process = try sluice(["put", file, "\(server.url)/x", "--resume-file", "/proc/nothing/here"])
    #expect(try process.wait() == 0)
    #expect(
      process.errors.contains {
        $0.contains("/proc/nothing/here") && $0.contains("cannot be resumed after an interruption")
      })
  }

  @Test("a record that could not be written during the upload is written at its end, if that is possible by then")
  func recordedAtTheEnd() throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", bytes(3_000_000))
    let server = try HalfServer(keeps: 1000)
    // The record can be created, but the state of the upload does not fit.
    let first = try TestProcess(
      "prlimit",
      ["--fsize=100:", try sluicePath(), "put", file, "\(server.url)/archive/", "--progress", "none"])
    try first.lines.first("the report") { $0.text.contains("cannot be resumed after an interruption") }
    #expect(try directory.contents("data.sluice") == Array("sluice upload record 3\n".utf8))
    let limit = try TestProcess("prlimit", ["--pid", "\(first.pid)", "--fsize=1000000:"])
    #expect(try limit.wait() == 0, "\(limit.errors)")
    first.signal(SIGINT)
    #expect(try first.wait() == 130)
    #expect(first.errors.last == "resume with: sluice put --resume \(file) \(server.url)/archive/", "\(first.errors)")
    let second = try sluice(["put", "--resume", file, "\(server.url)/archive/"])
    #expect(try second.wait() == 0, "\(second.errors)")
    #expect(server.appended.withLock { $0 } == Array(bytes(3_000_000)[1000...]))
    #expect(directory.names == ["data"])
  }

  // MARK: Words

  @Test("the bar shows the progress, and ends at 100 %")
  func bar() throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", bytes(500_000))
    let server = try StreamServer()
    let process = try sluice(["put", file, "\(server.url)/x", "--progress", "bar"])
    #expect(try process.wait() == 0)
    #expect(process.output.isEmpty && process.errors.contains { $0.contains("500 kB of 500 kB acknowledged") })
  }

  @Test(
    "tokens and URLs of uploads are never printed, in any output and any failure",
    arguments: ["none", "json", "bar"])
  func secrets(_ progress: String) throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", bytes(3_000_000))
    let token = try directory.write("token", "SECRET-token\n")
    for head in ["", "301 Moved Permanently", "308 Permanent Redirect", "404 Not Found", "500 Internal Server Error"] {
      let server = try HalfServer(keeps: 1000, head: head)
      let url = server.url.replacing("http://", with: "http://me:SECRET-password@")
      let options = [
        "--progress", progress, "--bearer-token-file", token, "--response-timeout", "100ms", "--retry-ceiling", "10ms",
      ]
      unlink(memory(file))
      let process = try sluice(["put", file, "\(url)/x"] + options + ["--give-up", "4s"])
      try server.heads.first("the upload") { $0.line.hasPrefix("PUT") }
      if head.isEmpty {
        process.signal(SIGINT)
      } else {
        try server.heads.first("the question") { $0.line.hasPrefix("HEAD") }
        if head.hasPrefix("404") { process.signal(SIGTERM) }
      }
      _ = try process.wait()
      #expect(!process.lines.all.contains { $0.text.contains("SECRET") }, "\(head): \(process.lines.all)")
      #expect(!process.lines.all.isEmpty)
    }
  }
}
