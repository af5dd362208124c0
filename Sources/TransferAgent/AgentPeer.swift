// A program that is connected to the agent.

internal import EventLoops
internal import Glibc
internal import JSONLines
internal import TransferClient

/// One connection. Orders arrive, and answers are sent when the program reads them. Unchecked, because the agent's loop
/// owns it.
final class AgentPeer: @unchecked Sendable {
  /// The maximum length of an order's line, in bytes.
  private static let lineLimit = 4 << 20
  /// How many bytes a program may leave unread before the agent omits answers that a later line supersedes.
  private static let routineLimit = 256 << 10

  private let descriptor: Int32
  private let loop: EventLoop
  private var input: [UInt8] = []
  private var output: [UInt8] = []
  private var isWriting = false
  private(set) var isOpen = false
  var onOrder: (AgentOrder) -> Void = { _ in }
  var onEnd: () -> Void = {}

  /// - Parameter descriptor: a non-blocking descriptor, which then belongs to the peer.
  /// - Throws: when it cannot be watched. It then still belongs to the caller.
  init(_ descriptor: Int32, loop: EventLoop) throws(SystemError) {
    (self.descriptor, self.loop) = (descriptor, loop)
    try loop.register(descriptor, .readable) { [unowned self] readiness in serve(readiness) }
    isOpen = true
  }

  deinit { if isOpen { close(descriptor) } }

  /// - Parameter isRoutine: whether the message may be omitted while the program does not read.
  func say(_ answer: AgentAnswer, isRoutine: Bool = false) {
    guard isOpen, !isRoutine || output.count < Self.routineLimit else { return }
    output += answer.line.utf8
    output.append(0x0A)
    if !isWriting { write() }
  }

  func end() {
    guard isOpen else { return }
    isOpen = false
    loop.deregister(descriptor)
    close(descriptor)
    onEnd()
  }

  private func serve(_ readiness: EventLoop.Readiness) {
    // The call may end this peer.
    withExtendedLifetime(self) {
      if readiness.contains(.writable) { write() }
      if isOpen, readiness.contains(.readable) || readiness.contains(.hangUp) || readiness.contains(.error) { read() }
    }
  }

  private func read() {
    var chunk = [UInt8](repeating: 0, count: 1 << 16)
    let count: Int
    do throws(SystemError) {
      count = try retryingInterrupts("recv") { recv(descriptor, &chunk, chunk.count, 0) }
    } catch {
      if error.code == EAGAIN { return }
      return end()
    }
    guard count > 0 else { return end() }
    let searched = input.count
    input += chunk[..<count]
    var start = 0
    var from = searched
    while isOpen, let lineEnd = input[from...].firstIndex(of: 0x0A) {
      obey(input[start..<lineEnd])
      start = lineEnd + 1
      from = start
    }
    input.removeFirst(start)
    if input.count > Self.lineLimit { end() }
  }

  private func obey(_ line: ArraySlice<UInt8>) {
    guard let fields = FlatJSON(line) else {
      // This is not the protocol, because its lines cannot be separated.
      return end()
    }
    if let order = AgentOrder(fields) { return onOrder(order) }
    say(
      .refused(
        number: fields.integer("number") ?? 0, .invalid,
        "this agent does not support the order. It may be another version of sluice. Restart the agent."))
  }

  private func write() {
    while isOpen, !output.isEmpty {
      do throws(SystemError) {
        let count = try retryingInterrupts("send") {
          output.withUnsafeBytes { send(descriptor, $0.baseAddress, $0.count, Int32(MSG_NOSIGNAL)) }
        }
        output.removeFirst(count)
      } catch {
        if error.code == EAGAIN { break }
        // Not here, because the caller may be iterating over the peers.
        loop.atEndOfTurn { [self] in end() }
        return
      }
    }
    guard isOpen, isWriting == output.isEmpty else { return }
    isWriting = !output.isEmpty
    do throws(SystemError) {
      try loop.modify(descriptor, isWriting ? [.readable, .writable] : .readable)
    } catch {
      loop.atEndOfTurn { [self] in end() }
    }
  }
}
