// Tests an address on which the command cannot listen. The message must name the option and the reason.

import CommandTesting
import NetworkTesting
import TestRigs
import Testing

@Suite("An address in use")
struct TakenAddressTests {
  @Test(
    "--metrics on a port in use: 69, and the message does not contain --listen",
    arguments: ["mic", "pipe", "heartbeat", "put", "load", "serve"])
  func metrics(_ subcommand: String) throws {
    let (taken, directory) = (try ScriptedServer { _, _ in }, try TemporaryDirectory())
    let address = String(taken.url.dropFirst("http://".count))
    let microphone = TestMicrophone()
    let file = try directory.write("file", "content")
    let url = "http://127.0.0.1:\(try freePort())/x"
    let arguments =
      switch subcommand {
      case "mic": ["mic", url, "--device", microphone.name()]
      case "put": ["put", file, url]
      case "serve": ["serve", "--listen", "127.0.0.1:0", "--directory", directory.path]
      default: [subcommand, url]
      }
    let process = try sluice(arguments + ["--metrics", address])
    #expect(try process.wait() == 69, "\(process.errors)")
    let message = process.errors.joined(separator: "\n")
    #expect(message.contains("--metrics: cannot listen on \(address): the address is in use"), "\(message)")
    #expect(message.contains("with --metrics ADDRESS:PORT") && !message.contains("--listen"), "\(message)")
  }

  @Test(
    "a file at a unix: path is not a server: the error names its type, and it stays",
    arguments: ["--listen", "--metrics"])
  func regularFile(_ option: String) throws {
    let directory = try TemporaryDirectory()
    let path = try directory.write("precious.txt", "content")
    let others = option == "--listen" ? [] : ["--listen", "127.0.0.1:0"]
    let process = try sluice(["serve", "--directory", directory.path, option, "unix:\(path)"] + others)
    #expect(try process.wait() == 69, "\(process.errors)")
    let message = process.errors.joined(separator: "\n")
    #expect(message.contains("unix:\(path)") && message.contains("a file that is not a socket"), "\(message)")
    #expect(!message.contains("in use") && !message.contains("Stop that server"), "\(message)")
    #expect(try directory.contents("precious.txt") == Array("content".utf8))
  }
}
