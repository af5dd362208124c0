// Tests sluice get as a process: its standard output, its events, its exit codes, and its secrets.

import CommandTesting
import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Testing

@Suite("sluice get as a process", .serialized)
struct GetProcessTests {
  @Test("it ends at the first signal, even while its output is not read", arguments: [SIGINT, SIGTERM])
  func blockedReader(_ signal: Int32) throws {
    let directory = try TemporaryDirectory()
    let resource = try FaultyResource([])
    let server = try resource.serve()
    mkfifo("\(directory.path)/pipe", 0o600)
    let reader = open("\(directory.path)/pipe", O_RDWR | O_CLOEXEC)
    defer { close(reader) }
    let process = try TestProcess(
      "/bin/sh",
      ["-c", "exec \"$0\" get \"$1/file.bin\" -o - > \"$2/pipe\"", try sluicePath(), server.url, directory.path])
    try waitUntil("the pipe is full") {
      var count: Int32 = 0
      return ioctl(reader, UInt(FIONREAD), &count) == 0 && count >= 65_536
    }
    process.signal(signal)
    #expect(try process.wait() == 130)
  }

  @Test("standard output that another program has made non-blocking receives all bytes")
  func nonBlockingOutput() throws {
    let directory = try TemporaryDirectory()
    let resource = try FaultyResource([])
    let server = try resource.serve()
    mkfifo("\(directory.path)/pipe", 0o600)
    let reader = open("\(directory.path)/pipe", O_RDWR | O_NONBLOCK | O_CLOEXEC)
    defer { close(reader) }
    let script =
      "import os, sys; os.set_blocking(1, False); os.execv(sys.argv[1], ['sluice', 'get', sys.argv[2], '-o', '-'])"
    let process = try TestProcess(
      "/bin/sh",
      [
        "-c", "exec python3 -c \"$3\" \"$0\" \"$1/file.bin\" > \"$2/pipe\"", try sluicePath(), server.url,
        directory.path,
        script,
      ])
    var found: [UInt8] = []
    var buffer = [UInt8](repeating: 0, count: 4096)
    while found.count < FaultyResource.size, waitUntilReadable(reader) {
      let count = read(reader, &buffer, buffer.count)
      if count > 0 { found += buffer[..<count] }
    }
    #expect(try process.wait() == 0, "\(process.errors)")
    #expect(found == resource.content)
  }

  @Test("standard output receives the bytes in order, across outages, and an error if they cannot be withdrawn")
  func standardOutput() throws {
    let directory = try TemporaryDirectory()
    let cases: [([FaultyResource.Fault], Int32)] = [
      ([], 0), ([.cutInBody, .cutAtLastByte], 0), ([.cutInBody, .changed], 76),
    ]
    for (plan, code) in cases {
      let resource = try FaultyResource(plan)
      let server = try resource.serve()
      let process = try TestProcess(
        "/bin/sh",
        [
          "-c", "exec \"$0\" get \"$1/file.bin\" -o - --retry-ceiling 10ms > \"$2/out\"", try sluicePath(), server.url,
          directory.path,
        ])
      #expect(try process.wait() == code, "\(plan) \(process.errors)")
      if code == 0 { #expect(try directory.contents("out") == resource.content) }
      #expect(directory.names == ["out"])
    }
  }

  @Test("attempts that fail without progress belong to one outage, and a download that fails at once had none")
  func outages() throws {
    let directory = try TemporaryDirectory()
    let cases: [([FaultyResource.Fault], code: Int32, outages: Int, attempts: Int)] = [
      ([], 0, 0, 0), ([.cutInBody], 0, 1, 0), ([.cutInBody, .busy, .serverError], 0, 1, 2),
      ([.cutInBody, .busy, .cutInBody, .busy, .busy], 0, 2, 3), ([.notFound], 76, 0, 0),
    ]
    for (number, (plan, code, outages, attempts)) in cases.enumerated() {
      let server = try FaultyResource(plan).serve()
      let process = try sluice(
        ["get", "\(server.url)/file.bin", "-o", "\(directory.path)/\(number)"] + FaultyResource.patience)
      #expect(try process.wait() == code, "\(plan) \(process.errors)")
      let events = process.output.compactMap { FlatObject($0) }
      #expect(events.filter { $0.event == "outage" }.count == outages, "\(plan)")
      #expect(events.filter { $0.event == "attempt-failed" }.count == attempts, "\(plan)")
      #expect(events.last?.integer("outages") == outages, "\(plan)")
    }
  }

  @Test("an impossible download is refused with its code and a remedy")
  func misuse() throws {
    let directory = try TemporaryDirectory()
    let file = "\(directory.path)/file.bin"
    let cases: [([String], Int32, [String])] = [
      ([], 64, ["URL is missing"]), (["http://h/x", "more"], 64, ["one argument too many"]),
      (["http://h/"], 64, ["--output FILE"]), (["http://h"], 64, ["--output FILE"]),
      (["http://h/%2e%2e"], 64, ["--output FILE"]), (["http://h/a%2fb"], 64, ["--output FILE"]),
      (["http://h/-rf"], 64, ["--output FILE"]), (["http://h/.profile"], 64, ["--output FILE"]),
      (["http://h/a%0ab"], 64, ["--output FILE"]),
      (["ftp://h/x", "-o", file], 64, ["neither http:// nor https://"]),
      (["http://h/x", "-o", file, "--resume"], 64, ["no unfinished download", "Leave --resume"]),
      (["http://h/x", "-o", file, "--abandon"], 64, ["no unfinished download", "Leave --abandon"]),
      (["http://h/x", "-o", "-", "--resume"], 64, ["--resume", "--output -"]),
      (["http://h/x", "-o", "-", "--progress", "json"], 64, ["--progress json", "standard output"]),
      (["http://h/x", "-o", file, "-H", "Range: bytes=0-5"], 64, ["\"Range\"", "Leave it out"]),
      (["http://h/x", "-o", file, "-H", "Accept-Encoding: gzip"], 64, ["Accept-Encoding"]),
      (["http://h/x", "-o", file, "--resume", "--abandon"], 64, ["Choose one"]),
      (["http://h/x", "-o", "\(directory.path)/no/file"], 74, ["\(directory.path)/no/file.part", "No such file"]),
      (
        ["http://127.0.0.1:\(try freePort())/x", "-o", file, "--give-up", "100ms", "--retry-ceiling", "10ms"], 69,
        ["gave up: nothing was received for 100 ms"]
      ),
    ]
    for (arguments, code, says) in cases {
      let process = try sluice(["get"] + arguments)
      #expect(try process.wait() == code, "\(arguments) \(process.errors)")
      let text = process.errors.joined(separator: "\n")
      for part in says { #expect(text.contains(part), "\(arguments): \(text)") }
      #expect(directory.names.isEmpty, "\(arguments) \(directory.names)")
    }
  }

  @Test("a secret is sent only to its server, and not to the target of a redirect")
  func secrets() throws {
    let directory = try TemporaryDirectory()
    let heads = try EventLog<ServerConnection.Head>()
    let other = try ScriptedServer { connection, _ in
      heads.append(try connection.head())
      try connection.respond("200 OK", body: "text")
    }
    let first = try ScriptedServer { connection, _ in
      heads.append(try connection.head())
      try connection.respond("302 Found", ["Location: \(other.url)/x"])
    }
    let token = try directory.write("token", "secret")
    let process = try sluice(
      ["get", first.url + "/x", "-o", "\(directory.path)/x", "--bearer-token-file", token, "-H", "X-Api-Key: secret"])
    #expect(try process.wait() == 0, "\(process.errors)")
    #expect(heads.all.count == 2 && heads.all[0]["Authorization"] == "Bearer secret")
    #expect(!heads.all[1].description.contains("secret"), "\(heads.all[1])")
    #expect(try directory.contents("x") == Array("text".utf8))
  }
}
