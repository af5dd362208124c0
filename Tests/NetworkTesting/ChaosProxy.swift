// A proxy between client and server that injects the faults of networks and intermediaries, at a byte that the test
// chooses.

package import EventLoops
internal import Glibc
internal import PropertyTesting
internal import Synchronization

/// Forwards HTTP/1.1 between any number of clients and one server, and applies one armed fault at a time.
///
/// One thread with an ``EventLoop``. Its sockets' buffers are limited, so that the amount of data in flight is known.
package final class ChaosProxy: Sendable {
  /// The events, in order.
  package enum Event: Sendable {
    case opened(connection: Int)
    case closed(connection: Int)
    /// No connection to the server could be established, and the client received a reset.
    case unreachable(connection: Int)
    /// A fault has struck. Its number counts this proxy's faults from 1. The connection is nil if the fault struck
    /// elsewhere.
    case applied(number: Int, ChaosFault, connection: Int?, at: MonotonicInstant)
    /// After that fault, an answer to an append acknowledged a new byte to the client.
    case recovered(number: Int, ChaosFault.Kind, acknowledged: UInt64, after: Duration)
    case droppedInterim
    /// The proxy itself failed, with details in words. The results of such a run are not reliable.
    case failed(String)
  }

  /// `ADDRESS:PORT` that clients connect to.
  package let address: String
  package let events: EventLog<Event>
  private let loop: EventLoop
  private let traffic: ChaosTraffic
  private let listener: Int32
  private let thread: Lock<NamedThread?>

  /// - Parameters:
  ///   - server: `ADDRESS:PORT`, IPv4. It need not exist yet, and may stop and return.
  ///   - listen: where to listen; port 0 lets the kernel choose. Nil is a port that no other server has had, so that
  ///     no other client still connects to it.
  /// - Throws: ``SystemError`` or ``TestFailure`` if it cannot listen there.
  package init(to server: String, listen: String? = nil) throws {
    let local = try IPv4Address(listen ?? "127.0.0.1:\(freePort())")
    let server = try IPv4Address(server)
    let listener = try BoundedSocket.make()
    let (events, loop) = (try EventLog<Event>(), try EventLoop())
    do {
      try retryingInterrupts("bind \(local)") { local.withPointer { Glibc.bind(listener, $0, $1) } }
      try retryingInterrupts("listen") { Glibc.listen(listener, 128) }
      address = try IPv4Address(of: listener).description
    } catch {
      close(listener)
      throw error
    }
    let traffic = ChaosTraffic(listener: listener, server: server, loop: loop) { events.append($0) }
    self.listener = listener
    self.events = events
    self.loop = loop
    self.traffic = traffic
    thread = Lock(
      try NamedThread("chaos proxy") {
        traffic.start()
        loop.run()
        traffic.stop()
      })
  }

  deinit {
    stop()
    close(listener)
  }

  package var url: String { "http://\(address)" }

  /// Applies `fault` at the next occurrence of its place, and discards a fault that is still armed. It is armed when
  /// this returns, so that later bytes are affected. Any thread but the proxy's.
  package func arm(_ fault: ChaosFault) throws { try onLoop { $0.arm(fault) } }

  /// Discards a fault that has not struck. Any thread but the proxy's.
  package func disarm() throws { try onLoop { $0.disarm() } }

  /// The harness has caused its own fault (``ChaosFault/Effect/tell``). From here on the client must recover. Any
  /// thread but the proxy's.
  package func awaitRecovery() throws {
    let start = MonotonicInstant.now
    try onLoop { $0.awaitRecovery(since: start) }
  }

  /// Runs `work` between two turns, and returns after it.
  private func onLoop(_ work: @escaping @Sendable (ChaosTraffic) -> Void) throws {
    // The work retains it too, because an abandoned wait must not release the counter.
    final class Done: Sendable {
      let counter: EventCounter
      init() throws(SystemError) { counter = try EventCounter() }
    }
    let done = try Done()
    loop.execute { [traffic] in
      work(traffic)
      done.counter.signal()
    }
    guard waitUntilReadable(done.counter.descriptor) else { throw TestFailure("the chaos proxy's thread has ended") }
  }

  /// Ends all connections and the thread. Not on the proxy's own thread.
  package func stop() {
    loop.stop()
    thread.withLock { thread in
      thread?.join()
      thread = nil
    }
  }

  /// The number of content bytes of appends that have arrived, including repetitions. Any thread.
  package var contentReceived: UInt64 { traffic.contentCount.load(ordering: .relaxed) }

  /// How many faults of each kind have struck.
  package var counts: [ChaosFault.Kind: Int] {
    events.all.reduce(into: [:]) { counts, event in
      if case .applied(_, let fault, _, _) = event { counts[fault.kind, default: 0] += 1 }
    }
  }

  /// The maximum number of bytes that the proxy and the kernel can hold in one direction between client and server: the
  /// capacities of its receiving and sending sockets, and its own unwritten bytes.
  package static func bytesHeld() throws -> Int { try socketBuffers() + ProxySocket.readSize }

  /// The combined capacity of a receive buffer and a send buffer with the proxy's settings (64 KiB each), in bytes.
  package static func socketBuffers() throws -> Int {
    let probe = try BoundedSocket.make()
    defer { close(probe) }
    return BoundedSocket.capacity(of: probe, SO_RCVBUF) + BoundedSocket.capacity(of: probe, SO_SNDBUF)
  }
}
