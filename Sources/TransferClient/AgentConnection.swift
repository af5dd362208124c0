// A program's connection to the agent, with blocking calls.

internal import EventLoops
internal import Glibc
internal import JSONLines
internal import Synchronization

/// Sends orders and receives answers, line by line. One thread may receive while others send.
package final class AgentConnection: Sendable {
  private let descriptor: Int32
  private let sending = Mutex<Int64>(0)
  private let received = Mutex<[UInt8]>([])

  /// - Throws: ``AgentError``, ``AgentError/notRunning(_:)`` if no agent listens.
  package init(_ location: AgentLocation) throws(AgentError) {
    descriptor = try AgentSocket.connect(location.socket, in: location.socketDirectory)
  }

  deinit { close(descriptor) }

  /// The process of the agent, or of the service manager that has made its socket; nil if the kernel does not provide
  /// it.
  package var agentProcess: Int32? { AgentSocket.peer(of: descriptor)?.process }

  /// Ends the connection, even while a thread is receiving.
  package func end() { shutdown(descriptor, Int32(SHUT_RDWR)) }

  /// Sends an order, and returns its number.
  package func send(_ kind: AgentOrder.Kind) throws(AgentError) -> Int64 {
    try sending.withLock { (last) throws(AgentError) in
      last += 1
      var rest = Array((AgentOrder(number: last, kind).line + "\n").utf8)[...]
      while !rest.isEmpty {
        do throws(SystemError) {
          let count = try retryingInterrupts("send") {
            rest.withUnsafeBytes { Glibc.send(descriptor, $0.baseAddress, $0.count, Int32(MSG_NOSIGNAL)) }
          }
          rest = rest.dropFirst(count)
        } catch { throw AgentError.disconnected }
      }
      return last
    }
  }

  /// The next answer. Unknown answers are skipped, because a later agent may send them.
  ///
  /// - Parameter limit: how long the agent may be silent; nil for no limit.
  /// - Throws: ``AgentError/disconnected``, ``AgentError/noAnswer``.
  package func receive(within limit: Duration? = nil) throws(AgentError) -> AgentAnswer {
    let timeout = limit.map { Int32(clamping: $0.nanoseconds / 1_000_000) } ?? -1
    return try received.withLock { (buffer) throws(AgentError) in
      var searched = 0
      while true {
        if let end = buffer[searched...].firstIndex(of: 0x0A) {
          let answer = FlatJSON(buffer[..<end]).flatMap { AgentAnswer($0) }
          buffer.removeSubrange(...end)
          searched = 0
          if let answer { return answer }
          continue
        }
        searched = buffer.count
        guard waitUntilReady(descriptor, for: POLLIN, timeout: timeout) else { throw AgentError.noAnswer }
        var chunk = [UInt8](repeating: 0, count: 1 << 16)
        let count = (try? retryingInterrupts("recv") { recv(descriptor, &chunk, chunk.count, 0) }) ?? 0
        guard count > 0 else { throw AgentError.disconnected }
        buffer += chunk[..<count]
      }
    }
  }

  /// Sends an order and waits for its answer. Other answers that arrive meanwhile are passed to `other`.
  package func order(
    _ kind: AgentOrder.Kind, within limit: Duration = .seconds(30), other: (AgentAnswer) -> Void = { _ in }
  ) throws(AgentError) -> AgentAnswer {
    let number = try send(kind)
    while true {
      let answer = try receive(within: limit)
      switch answer {
      case .accepted(number, _), .done(number), .refused(number, _, _): return answer
      default: other(answer)
      }
    }
  }
}
