// Tests the files of sluice get: those that it must not touch, and those that a full disk or a kill leaves.

import Glibc
import NetworkTesting
import Synchronization
import Testing

@Suite("The files of sluice get", .serialized)
struct GetFileTests {
  @Test("a limit of file sizes ends it with an error that names the limit to raise, and the part can be resumed")
  func fileSizeLimit() throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/file.bin"
    let resource = try FaultyResource([])
    let server = try resource.serve()
    // The shell measures RLIMIT_FSIZE in units of 512 or 1,024 bytes. The limit is below the file size in both cases.
    let limited = try TestProcess(
      "/bin/sh",
      ["-c", "ulimit -f 300; exec \"$0\" \"$@\"", try sluicePath(), "get", "\(server.url)/file.bin", "-o", path])
    #expect(try limited.wait() == 74)
    let text = limited.errors.joined(separator: "\n")
    #expect(text.contains("file.bin.part") || text.contains("write"), "\(text)")
    #expect(text.contains("File too large") && text.contains("resume with:"), "\(text)")
    #expect(text.contains("File too large. Raise the limit of file sizes with ulimit -f, or use"), "\(text)")
    #expect(!text.contains("Free space"), "\(text)")
    let process = try sluice(["get", "\(server.url)/file.bin", "-o", path, "--resume"] + FaultyResource.patience)
    #expect(try process.wait() == 0, "\(process.errors)")
    #expect(try directory.contents("file.bin") == resource.content)
    #expect(resource.requests.all.last?["Range"] != nil)
  }

  @Test(
    "a limit of file sizes that leaves nothing to resume names no resumption, and the suggested command begins again",
    arguments: [(300, []), (300, ["--resume"]), (0, [])] as [(Int, [String])])
  func fileSizeLimitWithNothing(_ limit: Int, _ options: [String]) throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/file.bin"
    // Without a validator, the part cannot be continued. Without any space, there is no record either.
    let resource = try FaultyResource([], FaultyResource.Validator.none)
    let server = try resource.serve()
    let url = "\(server.url)/file.bin"
    let limited = try TestProcess(
      "/bin/sh", ["-c", "ulimit -f \(limit); exec \"$0\" \"$@\"", try sluicePath(), "get", url, "-o", path])
    #expect(try limited.wait() == 74)
    let text = limited.errors.joined(separator: "\n")
    #expect(text.contains("File too large. Raise the limit of file sizes with ulimit -f, or use"), "\(text)")
    #expect(!text.contains("resume with:") && !text.contains("Free space"), "\(text)")
    // The record met the same limit, at any path.
    #expect(!text.contains("Choose another path"), "\(text)")
    let advice =
      limit > 0
      ? "nothing to resume: the same command begins with the first byte, with or without --resume"
      : "there is no record to resume from: the same command begins with the first byte, without --resume"
    #expect(limited.errors.last == advice)
    #expect(directory.names == (limit > 0 ? ["file.bin.sluice"] : []))
    let process = try sluice(["get", url, "-o", path] + options)
    #expect(try process.wait() == 0, "\(process.errors)")
    #expect(try directory.contents("file.bin") == resource.content)
    #expect(directory.names == ["file.bin"])
  }

  @Test(
    "a get that a signal stops before the first byte can be repeated, with --resume and without it",
    arguments: [SIGINT, SIGTERM], [true, false])
  func stoppedBeforeTheFirstByte(_ signal: Int32, _ resumes: Bool) throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/file.bin"
    let requests = try EventLog<Int>()
    let silent = try ScriptedServer { connection, number in
      _ = try connection.head()
      requests.append(number)
      _ = connection.waitForEnd()
    }
    let first = try sluice(["get", "\(silent.url)/file.bin", "-o", path, "--progress", "none"])
    try requests.first("the request") { $0 == 0 }
    first.signal(signal)
    #expect(try first.wait() == 130)
    #expect(
      first.errors.last == "nothing to resume: the same command begins with the first byte, with or without --resume")
    #expect(directory.names == ["file.bin.sluice"])
    #expect(try directory.contents("file.bin.sluice") == Array("sluice download record 3\n".utf8))
    let resource = try FaultyResource([])
    let server = try resource.serve()
    let second = try sluice(["get", "\(server.url)/file.bin", "-o", path] + (resumes ? ["--resume"] : []))
    #expect(try second.wait() == 0, "\(second.errors)")
    let started = second.errors.contains { $0.contains("file.bin.sluice records nothing yet") }
    #expect(started == resumes, "\(second.errors)")
    #expect(try directory.contents("file.bin") == resource.content)
    #expect(directory.names == ["file.bin"])
  }

  @Test("no existing file is overwritten, and with --force a file is replaced only at the end")
  func overwriting() throws {
    let directory = try TemporaryDirectory()
    let path = try directory.write("file.bin", "precious")
    let resource = try FaultyResource([])
    let server = try resource.serve()
    let url = "\(server.url)/file.bin"
    let refused = try sluice(["get", url, "-o", directory.path])
    #expect(try refused.wait() == 74 && refused.errors.contains { $0.contains("--force") })
    #expect(try directory.contents("file.bin") == Array("precious".utf8))
    #expect(directory.names == ["file.bin"] && resource.requests.all.isEmpty)
    let forced = try sluice(["get", url, "-o", path, "--force"])
    #expect(try forced.wait() == 0)
    #expect(try directory.contents("file.bin") == resource.content)
    // The file is the part or the record of another download.
    unlink(path)
    for name in ["file.bin.part", "file.bin.sluice"] {
      let other = try directory.write(name, "precious\n")
      let process = try sluice(["get", url, "-o", path])
      #expect(try process.wait() == (name.hasSuffix("part") ? 74 : 65), "\(process.errors)")
      #expect(try directory.contents(name) == Array("precious\n".utf8))
      unlink(other)
      #expect(directory.names.isEmpty, "\(directory.names)")
    }
    // The file appears during the download.
    resource.state.withLock { $0.plan = [.cutInBody, .stall] }
    let late = try sluice(["get", url, "-o", path] + FaultyResource.patience)
    try waitUntil("it downloads") { access(path + ".part", F_OK) == 0 }
    try directory.write("file.bin", "precious")
    #expect(try late.wait() == 74)
    #expect(try directory.contents("file.bin") == Array("precious".utf8))
    #expect(try directory.contents("file.bin.part") == resource.content, "it is complete, and has another name")
  }

  @Test(
    "if the disk refuses to sync the name of a complete download, this is an error, and nothing is to be resumed",
    arguments: [("EIO", "Input/output error"), ("ENOSPC", "No space left on device")])
  func unsyncedName(_ code: String, _ reason: String) throws {
    try name(code) { process, path in
      let status = try process.wait()
      #expect(status == 74, "\(process.errors)")
      let text = process.errors.joined(separator: "\n")
      #expect(text.contains("\(path), which is complete: \(reason)"), "\(text)")
      #expect(!text.contains("--resume") && !text.contains("Free space"), "\(text)")
    }
  }

  @Test("a file system that cannot sync names is no obstacle to a download")
  func noSyncOfNames() throws {
    try name("EINVAL") { process, _ in
      let status = try process.wait()
      #expect(status == 0, "\(process.errors)")
    }
  }

  /// Downloads a file to a directory whose every sync has this result, and checks the directory.
  private func name(_ error: String, _ check: (_ process: TestProcess, _ path: String) throws -> Void) throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/file.bin"
    let resource = try FaultyResource([])
    let server = try resource.serve()
    let refusal = ["-P", directory.path, "-e", "trace=fsync", "-e", "inject=fsync:error=\(error)"]
    let process = try TestProcess(
      "strace",
      ["-D", "-f", "-qq", "-o", "/dev/null"] + refusal
        + [try sluicePath(), "get", "\(server.url)/file.bin", "-o", path, "--progress", "none"])
    try check(process, path)
    #expect(directory.names == ["file.bin"])
    #expect(try directory.contents("file.bin") == resource.content)
  }

  @Test("if no more files can be opened when a download is complete, its part can be resumed")
  func unopenedDirectory() throws {
    let (directory, records) = (try TemporaryDirectory(), try TemporaryDirectory())
    let path = "\(directory.path)/file.bin"
    let server = try ResourceServer()
    server.set("file.bin", Array("content".utf8))
    let arguments = [
      "get", server.url("file.bin"), "-o", path, "--resume-file", "\(records.path)/record", "--progress", "none",
    ]
    let refusal = ["-P", directory.path, "-e", "trace=openat", "-e", "inject=openat:error=EMFILE"]
    let process = try TestProcess(
      "strace", ["-D", "-f", "-qq", "-o", "/dev/null"] + refusal + [try sluicePath()] + arguments)
    #expect(try process.wait() == 74, "\(process.errors)")
    #expect(process.errors.contains { $0.contains("Too many open files") }, "\(process.errors)")
    #expect(directory.names == ["file.bin.part"] && records.names == ["record"])
    let second = try sluice(arguments + ["--resume"])
    #expect(try second.wait() == 0, "\(second.errors)")
    #expect(try directory.contents("file.bin") == server.body("file.bin"))
    #expect(directory.names == ["file.bin"] && records.names.isEmpty)
  }

  @Test("two processes do not download one file at the same time")
  func twice() throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/file.bin"
    let resource = try FaultyResource([.stall])
    let server = try resource.serve()
    let first = try sluice(["get", "\(server.url)/file.bin", "-o", path] + FaultyResource.patience)
    try waitUntil("it downloads") { access(path + ".part", F_OK) == 0 }
    let second = try sluice(["get", "\(server.url)/file.bin", "-o", path, "--resume"])
    #expect(try second.wait() == 74 && second.errors.contains { $0.contains("in use") }, "\(second.errors)")
    #expect(try first.wait() == 0)
    #expect(try directory.contents("file.bin") == resource.content)
  }

  @Test("an unfinished download is neither forgotten nor restarted by accident, and can be abandoned")
  func unfinished() throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/file.bin"
    let resource = try FaultyResource([])
    let server = try resource.serve()
    try resource.begin(server, path, kill: true)
    let again = try sluice(["get", "\(server.url)/file.bin", "-o", path])
    #expect(try again.wait() == 64)
    #expect(again.errors.contains { $0.contains("--resume") && $0.contains("--abandon") }, "\(again.errors)")
    let other = try sluice(["get", "\(server.url)/other.bin", "-o", path, "--resume"])
    #expect(try other.wait() == 64 && other.errors.contains { $0.contains("/file.bin") }, "\(other.errors)")
    #expect(try sluice(["get", "\(server.url)/file.bin", "-o", path, "--abandon"]).wait() == 0)
    #expect(directory.names.isEmpty)
    #expect(try sluice(["get", "\(server.url)/file.bin", "-o", path]).wait() == 0)
    // The file that replaced the part is not touched.
    unlink(path)
    try resource.begin(server, path, kill: true)
    unlink(path + ".part")
    try directory.write("file.bin.part", [UInt8](repeating: 7, count: FaultyResource.size))
    let replaced = try sluice(["get", "\(server.url)/file.bin", "-o", path, "--resume"])
    #expect(try replaced.wait() == 74, "\(replaced.errors)")
    #expect(try directory.contents("file.bin.part") == [UInt8](repeating: 7, count: FaultyResource.size))
  }

  @Test(
    "a download that was killed after its file had its name is complete, and one with a renamed part is not",
    arguments: [true, false], [true, false])
  func killedBehindRename(isWhole: Bool, resumes: Bool) throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/file.bin"
    let resource = try FaultyResource([])
    let server = try resource.serve()
    try resource.begin(server, path, kill: true)
    // Do what the process would have done next.
    if isWhole {
      let descriptor = open(path + ".part", O_WRONLY | O_APPEND)
      let rest = resource.content[(FaultyResource.size / 2)...]
      #expect(rest.withUnsafeBytes { write(descriptor, $0.baseAddress, $0.count) } == rest.count)
      close(descriptor)
    }
    #expect(rename(path + ".part", path) == 0)
    let requests = resource.requests.all.count
    let process = try sluice(
      ["get", "\(server.url)/file.bin", "-o", path] + FaultyResource.patience + (resumes ? ["--resume"] : []))
    #expect(try process.wait() == (isWhole && resumes ? 0 : 74), "\(process.errors)")
    #expect(resource.requests.all.count == requests)
    let count = isWhole ? FaultyResource.size : FaultyResource.size / 2
    #expect(try directory.contents("file.bin") == Array(resource.content.prefix(count)))
    #expect(directory.names == (isWhole ? ["file.bin"] : ["file.bin", "file.bin.sluice"]))
  }

  @Test("a download that is killed before any change of its files leaves at most the file, its part and its record")
  func killedAnywhere() throws {
    let calls = "fsync,ftruncate,unlink,rename,renameat2,linkat"
    var number = 1
    while true {
      let directory = try TemporaryDirectory()
      let path = "\(directory.path)/file.bin"
      let resource = try FaultyResource([.cutInBody, .changed])
      let server = try resource.serve()
      let arguments = ["get", "\(server.url)/file.bin", "-o", path] + FaultyResource.patience
      let process = try sluice(arguments, killedIn: calls, number: number)
      let hasEnded = try process.wait() == 0
      let names = directory.names
      #expect(Set(names).isSubset(of: ["file.bin", "file.bin.part", "file.bin.sluice"]), "call \(number): \(names)")
      if hasEnded {
        #expect(names == ["file.bin"] && number > 2)
        return
      }
      if !names.contains("file.bin") {
        // The remaining files do not prevent the next download.
        let next = try sluice(arguments)
        let code = try next.wait()
        #expect(code == 0 || code == 64 && names.contains("file.bin.part"), "call \(number): \(names) \(next.errors)")
      }
      number += 1
    }
  }

  @Test("a download that is killed while it creates its record leaves no file, and the next one succeeds")
  func killedWithoutRecord() throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/file.bin"
    let resource = try FaultyResource([])
    let server = try resource.serve()
    let arguments = ["get", "\(server.url)/file.bin", "-o", path] + FaultyResource.patience
    let killed = try sluice(arguments, killedIn: "linkat")
    #expect(try killed.wait() == 128 + SIGKILL)
    #expect(directory.names.isEmpty)
    let next = try sluice(arguments)
    #expect(try next.wait() == 0, "\(next.errors)")
    #expect(try directory.contents("file.bin") == resource.content)
    #expect(directory.names == ["file.bin"])
  }

  @Test(
    "--resume begins with the first byte if the download was killed before it recorded anything, and reports it",
    arguments: [false, true])
  func resumesFromNothing(hasPart: Bool) throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/file.bin"
    let resource = try FaultyResource([])
    let server = try resource.serve()
    try directory.write("file.bin.sluice", "sluice download record 3\n")
    if hasPart { try directory.write("file.bin.part", "") }
    let process = try sluice(["get", "\(server.url)/file.bin", "-o", path, "--resume"] + FaultyResource.patience)
    #expect(try process.wait() == 0, "\(process.errors)")
    #expect(process.errors.contains { $0.contains("file.bin.sluice records nothing yet") }, "\(process.errors)")
    #expect(try directory.contents("file.bin") == resource.content)
    #expect(directory.names == ["file.bin"])
  }

  @Test("a part that cannot be opened keeps its record as it is, and can be resumed later")
  func busyPart() throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/file.bin"
    let resource = try FaultyResource([])
    let server = try resource.serve()
    try resource.begin(server, path, kill: true)
    let record = try directory.contents("file.bin.sluice")
    let part = open(path + ".part", O_RDWR | O_CLOEXEC)
    defer { close(part) }
    #expect(flock(part, LOCK_EX | LOCK_NB) == 0)
    let arguments = ["get", "\(server.url)/file.bin", "-o", path, "--resume"] + FaultyResource.patience
    let refused = try sluice(arguments)
    #expect(try refused.wait() == 74, "\(refused.errors)")
    // It does not state that the bytes are on the disk, because nothing has synced them.
    #expect(try directory.contents("file.bin.sluice") == record)
    #expect(flock(part, LOCK_UN) == 0)
    let next = try sluice(arguments)
    #expect(try next.wait() == 0, "\(next.errors)")
    #expect(try directory.contents("file.bin") == resource.content)
  }

  @Test("the empty part of a download that is running stays")
  func emptyPartOfAnother() throws {
    let directory = try TemporaryDirectory()
    let resource = try FaultyResource([])
    let server = try resource.serve()
    try directory.write("file.bin.sluice", "sluice download record 3\n")
    let part = open(try directory.write("file.bin.part", ""), O_RDWR | O_CLOEXEC)
    defer { close(part) }
    #expect(flock(part, LOCK_EX | LOCK_NB) == 0)
    let arguments = ["get", "\(server.url)/file.bin", "-o", "\(directory.path)/file.bin"] + FaultyResource.patience
    let refused = try sluice(arguments)
    #expect(try refused.wait() == 74, "\(refused.errors)")
    var status = stat()
    #expect(fstat(part, &status) == 0 && status.st_nlink == 1 && directory.names.contains("file.bin.part"))
  }
}
