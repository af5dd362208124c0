// A proxy between client and server that does to connections what networks and the machines along them do, at a byte
// that the test chooses.

package import EventLoops
internal import Glibc
internal import PropertyTesting
internal import Synchronization

/// Passes HTTP/1.1 on between any number of clients and one server, and applies one armed fault at a time.
///
/// One thread on an ``EventLoop``. Its sockets' buffers are bounded, so that what can be under way is known.
package final class ChaosProxy: Sendable {
  /// What happened, in order.
  package enum Event: Sendable {
    case opened(connection: Int)
    case closed(connection: Int)
    /// No connection to the server could be begun; the client saw a reset.
    case unreachable(connection: Int)
    /// A fault has struck; its number counts those of this proxy from 1. No connection: it struck beside them.
    case applied(number: Int, ChaosFault, connection: Int?, at: MonotonicInstant)
    /// After that fault the client was acknowledged, in answer to an append, a byte that it had not been before.
    case recovered(number: Int, ChaosFault.Kind, acknowledged: UInt64, after: Duration)
    case droppedInterim
    /// The proxy itself could not do something, in words: no result of a run in which this happens is to be trusted.
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
  ///   - server: `ADDRESS:PORT`, IPv4. Need not be there yet, and may go away and come back.
  ///   - listen: where to listen; port 0 lets the kernel choose.
  /// - Throws: ``SystemError`` or ``TestFailure`` when it cannot listen there.
  package init(to server: String, listen: String = "127.0.0.1:0") throws {
    let (server, local) = (try IPv4Address(server), try IPv4Address(listen))
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

  /// Applies `fault` where its place comes next; one that is still armed is forgotten. Armed when this returns: what is
  /// sent afterwards meets it. Any thread but the proxy's.
  package func arm(_ fault: ChaosFault) throws { try onLoop { $0.arm(fault) } }

  /// Forgets a fault that has not struck. Any thread but the proxy's.
  package func disarm() throws { try onLoop { $0.disarm() } }

  /// The harm that the harness does itself (``ChaosFault/Effect/tell``) is done: from here on the client has to
  /// recover. Any thread but the proxy's.
  package func awaitRecovery() throws {
    let start = MonotonicInstant.now
    try onLoop { $0.awaitRecovery(since: start) }
  }

  /// Runs `work` between two turns and returns after it.
  private func onLoop(_ work: @escaping @Sendable (ChaosTraffic) -> Void) throws {
    // Kept by the work too: a wait that was given up must not take the counter away from under it.
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

  /// How much content of appends has come in, repetitions included, in bytes. Any thread.
  package var contentReceived: UInt64 { traffic.contentCount.load(ordering: .relaxed) }

  /// How many faults of each kind have struck.
  package var counts: [ChaosFault.Kind: Int] {
    events.all.reduce(into: [:]) { counts, event in
      if case .applied(_, let fault, _, _) = event { counts[fault.kind, default: 0] += 1 }
    }
  }

  /// How many bytes of one direction the proxy and the kernel may hold between client and server, in bytes: what its
  /// receiving socket and its sending socket may keep by the kernel's word, and what it has read and not written.
  package static func bytesHeld() throws -> Int { try socketBuffers() + ProxySocket.readSize }

  /// What a receive buffer and a send buffer together may hold that are asked for as the proxy's are (64 KiB each), in
  /// bytes.
  package static func socketBuffers() throws -> Int {
    let probe = try BoundedSocket.make()
    defer { close(probe) }
    return BoundedSocket.capacity(of: probe, SO_RCVBUF) + BoundedSocket.capacity(of: probe, SO_SNDBUF)
  }
}
