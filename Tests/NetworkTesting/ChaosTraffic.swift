// The shared state of a chaos proxy's connections: the armed fault, the acknowledged offset, and the receiver of
// events.

internal import CLinux
internal import EventLoops
internal import Glibc
internal import Synchronization

/// Owned by the ``ChaosProxy``. Unchecked, because only the loop's thread uses it once it runs.
final class ChaosTraffic: @unchecked Sendable {
  /// How many content bytes are dropped to make room for a lie between the server's offset and the sent one.
  static let droppedForLie = 8 << 10

  private struct Replay {
    let bytes: [UInt8]
    let connection: Int
    let pause: Duration
    let end: ChaosFault.ReplayEnd
    let fault: ChaosFault
  }

  private struct Recovery {
    let number: Int
    let kind: ChaosFault.Kind
    let start: MonotonicInstant
    /// The offset that was acknowledged to the client before.
    let acknowledged: UInt64
    /// The first request that can be the recovery.
    let firstRequest: Int
  }

  private let loop: EventLoop
  private let listener: Int32
  private let server: IPv4Address
  private let tell: (ChaosProxy.Event) -> Void

  private var connections: [Int: ChaosConnection] = [:]
  private var replays: [ProxySocket] = []
  private var connectionCount = 0
  private var requestCount = 0
  private var trigger: FaultTrigger?
  private var pendingLie: (lie: ChaosFault.Lie, fault: ChaosFault)?
  private var pendingReplay: Replay?
  private var interimsEnd: MonotonicInstant?
  private var faultCount = 0
  private var lastFault: ChaosFault?
  private var recovery: Recovery?
  /// The furthest byte of the upload that was acknowledged to the client, and the furthest sent one.
  private var acknowledged: UInt64 = 0
  private var sentEnd: UInt64 = 0
  /// The number of content bytes of appends, including repetitions. Other threads read only this.
  let contentCount = Atomic<UInt64>(0)

  init(listener: Int32, server: IPv4Address, loop: EventLoop, tell: @escaping (ChaosProxy.Event) -> Void) {
    self.listener = listener
    self.server = server
    self.loop = loop
    self.tell = tell
  }

  // MARK: Orders

  func start() {
    do throws(SystemError) {
      try loop.register(listener, .readable) { [unowned self] _ in acceptAll() }
    } catch {
      tell(.failed(error.description))
    }
  }

  func stop() {
    loop.deregister(listener)
    for connection in connections.values { connection.abandon() }
    for replay in replays { replay.close() }
    connections = [:]
    replays = []
  }

  func arm(_ fault: ChaosFault) { trigger = FaultTrigger(fault) }

  func disarm() {
    trigger = nil
    pendingLie = nil
    pendingReplay = nil
  }

  // MARK: Connections

  private func acceptAll() {
    while true {
      let descriptor = accept4(listener, nil, nil, Int32(SOCK_CLOEXEC.rawValue | SOCK_NONBLOCK.rawValue))
      guard descriptor >= 0 else {
        // Other errors of a connection that accept(2) reports appear again at the next call.
        if errno == EMFILE || errno == ENFILE { tell(.failed("no descriptor is left")) }
        return
      }
      open(descriptor)
    }
  }

  private func open(_ descriptor: Int32) {
    let number = connectionCount
    connectionCount += 1
    do {
      let client = try ProxySocket(descriptor, loop)
      do {
        let server = try ProxySocket(connectingTo: server, loop)
        connections[number] = ChaosConnection(number, client: client, server: server, traffic: self)
        tell(.opened(connection: number))
      } catch {
        client.reset()
        tell(.unreachable(connection: number))
      }
    } catch {
      close(descriptor)
      tell(.failed("\(error)"))
    }
  }

  func ended(_ connection: ChaosConnection) {
    let number = connection.number
    tell(.closed(connection: number))
    // Not before its own method, which calls this, has returned.
    loop.atEndOfTurn { [weak self] in self?.connections[number] = nil }
  }

  func schedule(after delay: Duration, _ work: @escaping () -> Void) { loop.schedule(after: delay, work) }

  // MARK: Whether the armed fault strikes

  func strikes(beforeRequest head: MessageHead) -> ChaosFault? {
    guard let trigger, trigger.strikes(beforeRequest: head) else { return nil }
    return takeFault()
  }

  func strikes(at place: ChaosFault.Place, answering request: MessageHead) -> ChaosFault? {
    guard let trigger, trigger.strikes(at: place, answering: request) else { return nil }
    return takeFault()
  }

  /// The number of these bytes after which it strikes.
  func strike(within count: Int, of request: MessageHead) -> (ChaosFault, Int)? {
    guard let count = trigger?.strike(within: count, of: request), let fault = takeFault() else { return nil }
    return (fault, count)
  }

  private func takeFault() -> ChaosFault? {
    defer { trigger = nil }
    return trigger?.fault
  }

  /// It has struck, on a connection or elsewhere. From here on the client must recover.
  func applied(_ fault: ChaosFault, on connection: ChaosConnection?) {
    let now = MonotonicInstant.now
    faultCount += 1
    lastFault = fault
    // A fault elsewhere happens a moment later. Until then, acknowledgements continue as before.
    recovery = nil
    if fault.effect != .tell { awaitRecovery(since: now) }
    tell(.applied(number: faultCount, fault, connection: connection?.number, at: now))
  }

  /// The last fault has struck. The next acknowledged new byte of an append is the recovery from it.
  func awaitRecovery(since start: MonotonicInstant) {
    guard let lastFault else { return }
    recovery = Recovery(
      number: faultCount, kind: lastFault.kind, start: start, acknowledged: acknowledged,
      firstRequest: lastFault.effect.endsRequest ? requestCount : 0)
  }

  // MARK: What was sent and acknowledged

  /// Further content of this request has arrived, and is counted.
  func sent(_ count: Int, of exchange: ProxiedExchange) {
    guard exchange.appends else { return }
    contentCount.wrappingAdd(UInt64(count), ordering: .relaxed)
    sentEnd = max(sentEnd, exchange.offset + exchange.contentCount)
  }

  /// A response was forwarded unchanged.
  func answered(_ exchange: ProxiedExchange, _ response: MessageHead) {
    guard let offset = exchange.acknowledged(by: response) else { return }
    acknowledged = max(acknowledged, offset)
    // HEAD reports bytes from before the fault. The client has recovered when new bytes arrive.
    guard let recovery, exchange.appends, exchange.number >= recovery.firstRequest, offset > recovery.acknowledged
    else { return }
    self.recovery = nil
    let end = MonotonicInstant.now
    tell(
      .recovered(
        number: recovery.number, recovery.kind, acknowledged: offset, after: end - recovery.start))
  }

  // MARK: Interim responses

  func dropInterims(for duration: Duration) { interimsEnd = .now + duration }

  func dropsInterim(_ head: MessageHead) -> Bool {
    guard head.status == 104, let interimsEnd else { return false }
    guard MonotonicInstant.now < interimsEnd else {
      self.interimsEnd = nil
      return false
    }
    tell(.droppedInterim)
    return true
  }

  // MARK: Lies

  func prepareLie(_ lie: ChaosFault.Lie, _ fault: ChaosFault) { pendingLie = (lie, fault) }

  /// The head that replaces this one for the client.
  func lie(in head: MessageHead, answering exchange: ProxiedExchange, on connection: ChaosConnection) -> MessageHead {
    guard let (lie, fault) = pendingLie, exchange.request.method == "HEAD", (200..<300).contains(head.status),
      let truth = head.integer("Upload-Offset")
    else { return head }
    pendingLie = nil
    let offset: UInt64
    switch lie {
    case .lower(let choice) where acknowledged < truth:
      offset = acknowledged + (truth - acknowledged) * UInt64(choice) / 1024
    case .higher(let choice) where truth + 1 < sentEnd:
      offset = truth + 1 + (sentEnd - truth - 1) * UInt64(choice) / 1024
    case .beyond(let count):
      offset = max(truth, sentEnd) + 1 + UInt64(count)
    default:
      // Everything sent was acknowledged, so there is no such number this time. The fault waits for another
      // opportunity.
      arm(fault)
      return head
    }
    applied(fault, on: connection)
    return head.replacing("Upload-Offset", with: "\(offset)")
  }

  // MARK: Replays

  func prepareReplay(
    of bytes: [UInt8], after pause: Duration, ends end: ChaosFault.ReplayEnd, _ fault: ChaosFault,
    on connection: ChaosConnection
  ) {
    pendingReplay = Replay(bytes: bytes, connection: connection.number, pause: pause, end: end, fault: fault)
  }

  /// A request has arrived. Returns its number. If the client has moved on, the bytes of its former connection are due.
  func requestArrived(_ head: MessageHead, on connection: ChaosConnection) -> Int {
    defer { requestCount += 1 }
    if let replay = pendingReplay, connection.number > replay.connection,
      ["POST", "PUT", "PATCH"].contains(head.method)
    {
      pendingReplay = nil
      schedule(after: replay.pause) { [weak self] in self?.send(replay) }
    }
    return requestCount
  }

  private func send(_ replay: Replay) {
    applied(replay.fault, on: nil)
    guard let socket = try? ProxySocket(connectingTo: server, loop) else { return tell(.failed("no replay")) }
    replays.append(socket)
    socket.ended = { [unowned socket] in socket.finish() }
    if replay.end == .reset {
      socket.drained = { [unowned socket, weak self] in
        // A little later, so that the server has begun to read and does not see the reset first.
        self?.schedule(after: .milliseconds(5)) { [weak socket] in socket?.reset() }
      }
    }
    socket.closed = { [weak self] _ in
      self?.loop.atEndOfTurn { [weak self] in self?.replays.removeAll { !$0.isOpen } }
    }
    socket.send(replay.bytes)
  }
}
