// `sluice mic` for a week. Of its millions of lines, only those that do not come every second are kept.

internal import CommandTesting
internal import EventLoops
internal import Glibc
internal import NetworkTesting
internal import PropertyTesting
internal import TestRigs

/// The client of a soak run, and its output.
final class SoakClient: Sendable {
  private struct State {
    var last: [UInt8] = []
    var events: [FlatObject] = []
    var text: [String] = []
    var isAtEnd = false
    var forgotten: [FlatObject] = []
  }

  /// Events that come with every second or request of a healthy stream.
  private static let routine = [
    "acknowledged", "accepted", "interim-response", "response", "connecting", "connected", "streaming",
  ]

  private let process: ChildProcess
  private let state = Lock(State())
  private let news: EventCounter
  /// Whether to discard the client's reports of losses. This is a planted defect, which the judge must detect.
  private let forgetsLosses: Bool

  /// - Parameter fifo: the path of a new FIFO.
  init(_ command: [String], fifo: String, forgetsLosses: Bool) throws {
    self.forgetsLosses = forgetsLosses
    news = try EventCounter()
    try retryingInterrupts("mkfifo") { mkfifo(fifo, 0o600) }
    let descriptor = try retryingInterrupts("open \(fifo)") { open(fifo, O_RDONLY | O_NONBLOCK | O_CLOEXEC) }
    process = try ChildProcess(command, package: "util-linux", output: fifo)
    _ = fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) & ~O_NONBLOCK)
    try NamedThread("soak output") { [self] in readAll(descriptor) }.detach()
  }

  var identifier: Int32 { process.identifier }
  func signal(_ number: Int32) { process.signal(number) }
  func waitUntilExit() -> Int32 { process.waitUntilExit() }

  /// The reports that were discarded on purpose.
  var forgotten: [FlatObject] { state.withLock { $0.forgotten } }
  var events: [FlatObject] { state.withLock { $0.events } }
  /// The client's last progress.
  var progress: FlatObject? { FlatObject(String(decoding: state.withLock { $0.last }, as: UTF8.self)) }

  func count(_ kind: String) -> Int { state.withLock { ($0.events + $0.forgotten).count { $0.event == kind } } }

  /// Waits until `find` finds something in the client's output.
  ///
  /// - Parameter limit: real time.
  func wait<Found>(_ what: String, limit: Duration = .seconds(120), _ find: (SoakClient) -> Found?) throws -> Found {
    let deadline = MonotonicInstant.now + limit
    while true {
      let isAtEnd = state.withLock { $0.isAtEnd }
      if let found = find(self) { return found }
      guard !isAtEnd, deadline > .now, waitUntilReadable(news.descriptor, limit: deadline - .now) else {
        throw TestFailure("\(what) did not come\(isAtEnd ? " before the client's end" : "") \(tail)")
      }
      news.drain()
    }
  }

  private var tail: String {
    let (events, text) = state.withLock { ($0.events.suffix(20), $0.text.suffix(20)) }
    return (events.map(\.description) + text + [progress?.description ?? "no progress"]).joined(separator: "\n")
  }

  // MARK: The thread that reads

  private func readAll(_ descriptor: Int32) {
    var pending: [UInt8] = []
    var buffer = [UInt8](repeating: 0, count: 1 << 16)
    while case let count = read(descriptor, &buffer, buffer.count), count > 0 || errno == EINTR {
      guard count > 0 else { continue }
      pending += buffer[..<count]
      var start = pending.startIndex
      while let end = pending[start...].firstIndex(of: UInt8(ascii: "\n")) {
        take(pending[start..<end])
        start = end + 1
      }
      pending.removeSubrange(..<start)
      news.signal()
    }
    close(descriptor)
    state.withLock { $0.isAtEnd = true }
    news.signal()
  }

  private func take(_ line: ArraySlice<UInt8>) {
    if line.starts(with: Array("{\"event\":\"progress\"".utf8)) { return state.withLock { $0.last = Array(line) } }
    for kind in Self.routine where line.starts(with: Array("{\"event\":\"\(kind)\"".utf8)) { return }
    let text = String(decoding: line, as: UTF8.self)
    let event = FlatObject(text)
    state.withLock { state in
      guard let event else { return state.text.append(text) }
      if forgetsLosses, !LossComparison.reported([event]).ranges.isEmpty {
        state.forgotten.append(event)
      } else {
        state.events.append(event)
      }
    }
  }
}
