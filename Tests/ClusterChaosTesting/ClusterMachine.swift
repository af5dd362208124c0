// A server or a broker of a cluster, as a process that is killed and restarted.

internal import EventLoops
internal import Glibc
internal import NetworkTesting

/// A program at one place of the network, and its process while there is one.
package final class ClusterMachine {
  package enum Role: String, CaseIterable, Sendable { case server, broker }

  package let role: Role
  package let place: ClusterNetwork.Place
  private let program: String
  private let arguments: [String]
  /// The text in the line that the program prints when it is ready.
  private let readyWord: String
  private var process: TestProcess?
  /// The last lines of processes that have ended.
  private(set) var lastWords: [String] = []

  package init(
    _ role: Role, at place: ClusterNetwork.Place, _ program: String, _ arguments: [String], readyWord: String
  ) {
    (self.role, self.place, self.program) = (role, place, program)
    (self.arguments, self.readyWord) = (arguments, readyWord)
  }

  package var name: String { place.name }

  /// Starts it without waiting.
  func launch() throws {
    let command = place.prefix + [program] + arguments
    process = try TestProcess(
      command[0], Array(command.dropFirst()),
      environment: ["SLUICE_BEARER_TOKEN": nil, "http_proxy": nil, "https_proxy": nil, "all_proxy": nil])
  }

  /// Waits until it is ready. Returns false if it has ended instead.
  func awaitReady() throws -> Bool {
    guard let process else { return false }
    let word = readyWord
    // A process whose outputs have ended prints no more lines, so its state is checked as well.
    let deadline = MonotonicInstant.now + .seconds(60)
    while MonotonicInstant.now < deadline {
      let isReady = try? process.lines.wait("\(name) to be ready", within: .milliseconds(200)) { lines in
        lines.contains { $0.text.contains(word) } ? true : nil
      }
      if isReady == true { return true }
      if process.hasEnded { return false }
    }
    throw TestFailure("\(name) is not ready: \(process.lines.all.suffix(20))")
  }

  /// Starts it, and repeats that if it ends at once, as a server does while its brokers elect a leader.
  package func start() throws {
    let deadline = MonotonicInstant.now + .seconds(60)
    while MonotonicInstant.now < deadline {
      try launch()
      if try awaitReady() { return }
      try end(SIGKILL)
    }
    throw TestFailure("\(name) does not start: \(lastWords)")
  }

  /// Ends it with a signal, and waits for the end. Returns the exit status.
  @discardableResult
  package func end(_ signal: Int32) throws -> Int32 {
    guard let process else { return 0 }
    self.process = nil
    process.signal(SIGCONT)
    process.signal(signal)
    let status = try process.wait()
    lastWords = process.lines.all.suffix(20).map(\.text)
    return status
  }

  package func signal(_ number: Int32) { process?.signal(number) }
}
