// Tests `sluice serve --keep`: a real server whose clock is or is not synchronized, killed at any system call while it
// removes a recording.

import CommandTesting
import Glibc
import NetworkTesting
import PropertyTesting
import TestRigs
import Testing

@Suite("sluice serve --keep")
struct KeepTests {
  /// The answer of the kernel to adjtimex(2), and the call that kills the server.
  private static func traced(clock status: Int, killing call: String? = nil, _ number: Int = 1) -> [String] {
    let calls = ["adjtimex", "clock_adjtime", "mkdirat", "renameat", "unlinkat", "openat"]
    return ["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=" + calls.joined(separator: ",")]
      + ["-e", "inject=adjtimex,clock_adjtime:retval=\(status)"]
      + (call.map { ["-e", "inject=\($0):signal=KILL:when=\(number)"] } ?? [])
  }
  private static let (synchronized, unsynchronized) = (0, 5)

  /// Stores a recording with a gap that ended a year ago.
  private func store(_ directory: TemporaryDirectory) throws {
    let server = try ServeProcess(directory.path)
    let input = try TemporaryDirectory()
    let file = try input.write("input", Array("abcdefgh".utf8))
    let upload = [
      "-s", "-S", "-T", file, "-X", "POST", "-H", "Content-Type: text/plain", "-H", "Transfer-Encoding: chunked",
    ]
    #expect(
      try ChildProcess(
        ["curl"] + upload + ["-H", "Stream-ID: a", "-H", "Stream-Offset: 1000", "http://\(server.address)/k.txt"],
        package: "curl"
      ).waitUntilExit() == 0)
    try eventually("the sidecar") { access(directory.path + "/k-a.sidecar", F_OK) == 0 }
    server.kill()
    var sidecar = String(decoding: try directory.contents("k-a.sidecar"), as: UTF8.self)
    // The result must not depend on the clock of this machine.
    sidecar.replace("\"clock_synchronized\": false", with: "\"clock_synchronized\": true")
    let ended = try #require(sidecar.firstRange(of: "\"ended\": \"20"))
    sidecar.replaceSubrange(ended.upperBound..<sidecar.index(ended.upperBound, offsetBy: 2), with: "01")
    _ = try directory.write("k-a.sidecar", Array(sidecar.utf8))
  }

  private func names(_ directory: TemporaryDirectory) -> [String] {
    ["k-a.gaps", "k-a.sidecar", "k-a.txt"].filter { access("\(directory.path)/\($0)", F_OK) == 0 }
  }

  @Test("a recording that is too old is removed and logged, but not by an unsynchronized clock")
  func command() throws {
    let directory = try TemporaryDirectory()
    try store(directory)
    do {
      let server = try ServeProcess(
        directory.path, prefix: Self.traced(clock: Self.unsynchronized), more: ["--keep", "30d"])
      let warning = try server.event("warning")
      #expect(warning.text("reason")?.contains("clock is not synchronized") == true, "\(warning)")
      #expect(names(directory).count == 3)
    }
    do {
      let server = try ServeProcess(
        directory.path, prefix: Self.traced(clock: Self.synchronized),
        more: ["--keep", "30d", "--keep-at-least", "1MB"])
      #expect(server.events("removed").isEmpty)
    }
    #expect(names(directory).count == 3)
    let server = try ServeProcess(
      directory.path, prefix: Self.traced(clock: Self.synchronized), more: ["--keep", "30d"])
    let removed = try server.event("removed")
    #expect(removed.text("file") == "k-a.txt" && removed.text("stream") == "a", "\(removed)")
    #expect(removed.text("reason")?.hasPrefix("older than 2592000 s: ended 2001-") == true, "\(removed)")
    #expect(names(directory) == [])
  }

  @Test(
    "a server killed at any system call while it removes a recording leaves all of it, or nothing",
    arguments: ["mkdirat", "renameat", "unlinkat", "openat"])
  func killed(_ call: String) throws {
    let original = try TemporaryDirectory()
    try store(original)
    for number in 1...(call == "openat" ? 30 : 5) {
      let directory = try TemporaryDirectory()
      #expect(
        try ChildProcess(["cp", "-a", original.path + "/.", directory.path], package: "coreutils").waitUntilExit() == 0)
      let server = try? ServeProcess(
        directory.path, prefix: Self.traced(clock: Self.synchronized, killing: call, number), more: ["--keep", "30d"])
      try eventually("an end") {
        names(directory) == [] || server == nil || (try? server?.exitCode(limit: .zero)) != nil
      }
      server?.kill()
      let isMoved = access(directory.path + "/k-a.txt", F_OK) != 0
      let next = try ServeProcess(directory.path)
      try eventually("nothing is half removed") {
        names(directory).count == (isMoved ? 0 : 3) && rmdir(directory.path + "/.removing") != 0 && errno != ENOTEMPTY
      }
      let verify = try sluice(["verify", directory.path])
      #expect(try verify.wait() == 0, "\(call) \(number): \(verify.output)")
      _ = next
    }
  }

  @Test(
    "if a disk refuses all calls from some point while a recording is removed, the next server has all of it, or nothing",
    arguments: ["mkdirat", "renameat", "unlinkat"], ["EIO", "ENOSPC"])
  func refused(_ call: String, _ error: String) throws {
    let original = try TemporaryDirectory()
    try store(original)
    for number in 1...5 {
      let directory = try TemporaryDirectory()
      #expect(
        try ChildProcess(["cp", "-a", original.path + "/.", directory.path], package: "coreutils").waitUntilExit() == 0)
      let server = try ServeProcess(
        directory.path,
        prefix: Self.traced(clock: Self.synchronized) + ["-e", "inject=\(call):error=\(error):when=\(number)+"],
        more: ["--keep", "30d"])
      try eventually("an end") {
        !server.events("removed").isEmpty
          || server.events("warning").contains { $0.text("reason")?.contains("cannot remove k-a.txt: ") == true }
      }
      if call == "unlinkat", number == 1 {
        try eventually("a warning") {
          server.events("warning").contains { $0.text("reason")?.contains("still take room") == true }
        }
      }
      server.kill()
      let isMoved = access(directory.path + "/k-a.txt", F_OK) != 0
      #expect(isMoved == !server.events("removed").isEmpty)
      // Recordings are removed exactly because the disk is full.
      if call == "mkdirat", error == "ENOSPC" { #expect(isMoved) }
      let next = try ServeProcess(directory.path)
      try eventually("nothing is half removed") {
        names(directory).count == (isMoved ? 0 : 3) && rmdir(directory.path + "/.removing") != 0 && errno != ENOTEMPTY
      }
      _ = next
    }
  }
}
