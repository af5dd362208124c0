// How an agent is found or started. The started program is a script of the test.

import EventLoops
import Glibc
import NetworkTesting
import Testing

@testable import TransferClient

@Suite("The start of an agent")
struct AgentLaunchTests {
  private let directory: TemporaryDirectory
  private let location: AgentLocation

  init() throws {
    directory = try TemporaryDirectory()
    location = AgentLocation(directory: "\(directory.path)/state", socket: "\(directory.path)/run/agent.sock")
  }

  private func script(_ text: String) throws -> String {
    let (written, path) = (try directory.write("text", Array("#!/bin/sh\n\(text)\n".utf8)), directory.path + "/script")
    // Another process writes it. Otherwise a child of another test could still have it open for writing, and until that
    // child runs its own program, execve(2) fails with ETXTBSY.
    #expect(try TestProcess("install", ["-m", "700", written, path]).wait() == 0)
    return path
  }

  private func text(_ name: String) throws -> String {
    String(decoding: try directory.contents(name), as: UTF8.self)
  }

  private func failure(_ program: String) -> AgentError? {
    do throws(AgentError) {
      _ = try AgentLaunch.connection(location, program: program)
      return nil
    } catch {
      return error
    }
  }

  @Test(
    "a path of up to 107 bytes is valid for a socket, and a longer one is an error that states this",
    arguments: 104...110)
  func pathLength(_ length: Int) throws {
    let path = "\(directory.path)/" + String(repeating: "x", count: length - directory.path.utf8.count - 1)
    guard length <= 107 else {
      for call in [
        { _ = try AgentSocket.listen(path, in: directory.path) },
        { _ = try AgentSocket.connect(path, in: directory.path) },
      ]
        as [() throws -> Void]
      {
        #expect { try call() } throws: { error in
          guard case .system(path, let reason)? = error as? AgentError else { return false }
          return reason.code == ENAMETOOLONG
        }
      }
      #expect(directory.names == [])
      return
    }
    let (listener, file) = try AgentSocket.listen(path, in: directory.path)
    let client = try AgentSocket.connect(path, in: directory.path)
    let accepted = try #require(try AgentSocket.accept(listener))
    #expect(try AgentSocket.accept(listener) == nil)
    for descriptor in [listener, client, accepted] { close(descriptor) }
    file.remove()
    #expect(directory.names == [])
  }

  @Test("a missing program is an error with its name, and the variable for another")
  func missing() {
    guard case .notStarted(let words)? = failure("\(directory.path)/none") else {
      Issue.record("no error")
      return
    }
    #expect(words.contains("\(directory.path)/none") && words.contains("SLUICE"), "\(words)")
  }

  @Test(
    "a failed program is an error with its last line, or its exit status",
    arguments: [
      ("echo first >&2; echo last >&2; exit 3", "last"), ("exit 3", "3"), ("echo no words; exit 1", "1"),
      ("kill -9 $$", "137"), ("yes | head -c 300000 >&2; exit 70", "y"),
    ])
  func failed(text: String, words: String) throws {
    guard case .notStarted(let found)? = failure(try script(text)) else {
      Issue.record("no error")
      return
    }
    #expect(found.hasSuffix(words), "\(found)")
  }

  @Test("the agent receives its directory and socket, and inherits no blocked or ignored signal")
  func inheritance() throws {
    // Without a shell, which would block signals for another process.
    let program = try script(
      #"""
      cd "${0%/*}"; printf '%s\n' "$@" > arguments
      while read -r name value; do case $name in SigBlk:|SigIgn:) echo "$value"; esac; done < /proc/self/status > signals
      exit 3
      """#)
    var (blocked, before) = (sigset_t(), sigset_t())
    sigemptyset(&blocked)
    sigaddset(&blocked, SIGUSR2)
    pthread_sigmask(SIG_BLOCK, &blocked, &before)
    defer { pthread_sigmask(SIG_SETMASK, &before, nil) }
    #expect(failure(program) != nil)
    #expect(
      try text("arguments")
        == "agent\n--detach\n--state-directory\n\(location.directory)\n--socket\n\(location.socket)\n")
    let signals = try text("signals").split(separator: "\n")
    // The signals that glibc reserves, which a program cannot set: 32 and 33.
    let others = signals.map { (UInt64($0, radix: 16) ?? .max) & ~(0b11 << 31) }
    #expect(others == [0, 0], "\(signals)")
  }

  @Test(
    "the program finds the listening agent, even if another program has started it",
    arguments: [0, 75])
  func found(code: Int) throws {
    let program = try script(
      #"cd "${0%/*}"; : > begun; while [ ! -e listening ]; do sleep 0.01; done; exit \#(code)"#)
    let (directory, location) = (directory, location)
    let listener = Lock<Int32>(-1)
    let thread = try NamedThread("agent") {
      guard (try? waitUntil("the program runs") { access("\(directory.path)/begun", F_OK) == 0 }) != nil,
        let made = try? AgentSocket.listen(location.socket, in: location.socketDirectory)
      else { return }
      listener.withLock { $0 = made.descriptor }
      _ = try? directory.write("listening", [])
    }
    _ = try AgentLaunch.connection(location, program: program)
    thread.join()
    #expect(close(listener.withLock { $0 }) == 0)
  }
}
