import Glibc
import NetworkTesting
import PropertyTesting
import Testing
import UploadServer

@Suite("Compatibility with other software", .serialized)
struct ComparisonTests {
  @Test(
    "requests of curl are accepted and stored byte for byte",
    arguments: [
      ["-T", "FILE", "URL/sized.bin"],
      ["-T", "-", "URL/chunked.bin"],
      ["-T", "-", "-H", "Expect: 100-continue", "URL/expect.bin"],
      ["-T", "FILE", "-H", "Expect: 100-continue", "URL/expect-sized.bin"],
      ["-X", "POST", "--data-binary", "@FILE", "-H", "Content-Type: application/octet-stream", "URL/post.bin"],
      ["-X", "POST", "-T", "-", "URL/post-chunked.bin"],
      ["--http1.0", "-T", "FILE", "URL/old.bin"],
      ["-T", "FILE", "--limit-rate", "4M", "URL/slow.bin"],
    ])
  func curl(_ arguments: [String]) throws {
    let test = try TestServer()
    let other = TemporaryDirectory()
    let bytes = OffsetPattern()[0..<1_234_567]
    try write(bytes, other.path + "/file")
    let all = arguments.map {
      $0 == "FILE"
        ? other.path + "/file"
        : $0 == "@FILE" ? "@\(other.path)/file" : $0.hasPrefix("URL") ? "http://\(test.address)" + $0.dropFirst(3) : $0
    }
    let status = try Command.run(
      "curl", ["-sS", "--http1.1", "-f", "--max-time", "20", "-H", "Stream-ID: c"] + all,
      input: other.path + "/file", output: other.path + "/output")
    #expect(status == 0, "\((try? other.text("output")) ?? "")")
    let name = arguments.last.map { $0.dropFirst(4).dropLast(4) } ?? ""
    #expect(test.directory.names == ["\(name)-c.bin"])
    #expect(try test.directory.contents("\(name)-c.bin") == bytes)
  }

  @Test("curl sends several files over one connection")
  func curlKeepAlive() throws {
    let test = try TestServer()
    let other = TemporaryDirectory()
    try write(Array("hello".utf8), other.path + "/file")
    var arguments = ["-sS", "-v", "--http1.1", "-f", "--max-time", "20"]
    for number in 0..<5 { arguments += ["-T", other.path + "/file", "http://\(test.address)/f\(number).txt"] }
    #expect(try Command.run("curl", arguments, output: other.path + "/output") == 0)
    #expect(try other.text("output").components(of: "Re-using existing connection") == 4)
    #expect(test.directory.names.count == 5)
    #expect(test.directory.names.allSatisfy { $0.hasPrefix("f") && $0.hasSuffix(".txt") })
  }

  @Test("curl that is killed in the middle leaves a .part, and another curl continues at that offset")
  func curlContinues() throws {
    let test = try TestServer()
    let other = TemporaryDirectory()
    let bytes = OffsetPattern()[0..<2_000_000]
    try write(bytes, other.path + "/file")
    let url = "http://\(test.address)/c.bin"
    let pid = try Command.spawn(
      "curl", ["-sS", "--http1.1", "--limit-rate", "500k", "-H", "Stream-ID: c", "-T", other.path + "/file", url])
    _ = try test.events.wait(.begun)
    kill(pid, SIGKILL)
    _ = Command.wait(pid)
    let offset = Int(try #require(try test.events.wait(.interrupted).offset))
    #expect(offset < bytes.count)
    try write(Array(bytes[offset...]), other.path + "/rest")
    let status = try Command.run(
      "curl",
      [
        "-sS", "-f", "--http1.1", "-H", "Stream-ID: c", "-H", "Stream-Offset: \(offset)", "-T", other.path + "/rest",
        url,
      ])
    #expect(status == 0)
    #expect(try test.directory.contents("c-c.bin") == bytes)
  }

  private func write(_ bytes: [UInt8], _ path: String) throws {
    guard let file = fopen(path, "w") else { throw TestFailure("cannot write \(path)") }
    defer { fclose(file) }
    guard fwrite(bytes, 1, bytes.count, file) == bytes.count else { throw TestFailure("cannot write \(path)") }
  }
}

extension String {
  /// How many times `text` occurs.
  func components(of text: String) -> Int {
    var count = 0
    var rest = self[...]
    while let found = rest.firstRange(of: text) {
      count += 1
      rest = rest[found.upperBound...]
    }
    return count
  }
}
