// A client's connection and its connection to the server. It forwards bytes with knowledge of the message boundaries,
// until a fault changes that.

internal import EventLoops

/// Both halves of a proxied connection. On the loop's thread only.
final class ChaosConnection {
  let number: Int
  let client: ProxySocket
  let server: ProxySocket
  private unowned let traffic: ChaosTraffic

  // The state that a fault changes: whether bytes and ends are forwarded or dropped.
  var passesUp = true, passesDown = true
  var endReachesServer = true, endReachesClient = true
  /// Content to drop before both sides see the end; nil if the fault does not require it.
  private var dropsBeforeEnd: Int?
  /// Whether the server's next response is dropped, because the client already has another answer.
  private var dropsResponse = false
  private var isOver = false

  private var requests = MessageScanner(.requests)
  private var responses = MessageScanner(.responses)
  /// Requests whose final response is not over, the oldest first. The newest one may still be arriving.
  private(set) var exchanges: [ProxiedExchange] = []

  init(_ number: Int, client: ProxySocket, server: ProxySocket, traffic: ChaosTraffic) {
    self.number = number
    self.client = client
    self.server = server
    self.traffic = traffic
    client.received = { [unowned self] in fromClient($0) }
    server.received = { [unowned self] in fromServer($0) }
    client.drained = { [unowned server] in server.wantsBytes = true }
    server.drained = { [unowned client] in client.wantsBytes = true }
    client.ended = { [unowned self] in clientEnded() }
    server.ended = { [unowned self] in serverEnded() }
    client.closed = { [unowned self] in clientClosed(isBroken: $0) }
    server.closed = { [unowned self] in serverClosed(isBroken: $0) }
  }

  // MARK: From the client to the server

  private func fromClient(_ bytes: Span<UInt8>) {
    var position = 0
    scanning: while client.isOpen {
      switch requests.next(bytes, &position) {
      case .incomplete: break scanning
      case .head(let head):
        exchanges.append(ProxiedExchange(traffic.requestArrived(head, on: self), head))
        if passesUp, let fault = traffic.strikes(beforeRequest: head) { strike(fault, exchanges[exchanges.count - 1]) }
        pass(up: head.bytes[...])
      case .framing(let range): pass(up: record(bytes, range))
      case .content(let range): content(bytes, range)
      case .end:
        if !exchanges.isEmpty { exchanges[exchanges.count - 1].isWhole = true }
        if dropsBeforeEnd != nil { endBoth() }
      }
    }
    client.wantsBytes = !passesUp || !server.hasUnsent
  }

  private func content(_ bytes: Span<UInt8>, _ range: Range<Int>) {
    // Without a preceding request head, this is not HTTP, and is forwarded unchanged.
    guard let index = exchanges.indices.last else { return pass(up: record(bytes, range)) }
    var rest = range
    if passesUp, let (fault, count) = traffic.strike(within: rest.count, of: exchanges[index].request) {
      let before = rest.prefix(count)
      exchanges[index].contentCount += UInt64(count)
      traffic.sent(count, of: exchanges[index])
      pass(up: record(bytes, before))
      strike(fault, exchanges[index])
      rest = before.endIndex..<rest.upperBound
    }
    guard client.isOpen, let index = exchanges.indices.last else { return }
    exchanges[index].contentCount += UInt64(rest.count)
    traffic.sent(rest.count, of: exchanges[index])
    pass(up: record(bytes, rest))
    if let left = dropsBeforeEnd {
      dropsBeforeEnd = left - rest.count
      if left <= rest.count { endBoth() }
    }
  }

  /// A copy of these bytes, which are also kept for a replay.
  private func record(_ bytes: Span<UInt8>, _ range: Range<Int>) -> ArraySlice<UInt8> {
    let copy = bytes.extracting(range).withUnsafeBufferPointer { Array($0) }
    if let index = exchanges.indices.last, passesUp, exchanges[index].recording.count < ProxiedExchange.recordingLimit {
      exchanges[index].recording += copy
    }
    return copy[...]
  }

  private func pass(up bytes: ArraySlice<UInt8>) {
    if passesUp && !bytes.isEmpty { server.send(bytes) }
  }

  // MARK: From the server to the client

  private func fromServer(_ bytes: Span<UInt8>) {
    var position = 0
    scanning: while server.isOpen {
      switch responses.next(bytes, &position, answering: exchanges.first?.request.method) {
      case .incomplete: break scanning
      case .head(let head): response(head)
      case .framing(let range), .content(let range):
        if !dropsResponse { pass(down: bytes.extracting(range).withUnsafeBufferPointer { Array($0)[...] }) }
      case .end:
        dropsResponse = false
        guard !exchanges.isEmpty else { continue }
        let exchange = exchanges.removeFirst()
        if passesDown, let fault = traffic.strikes(at: .afterResponse, answering: exchange.request) {
          strike(fault, exchange)
        }
      }
    }
    server.wantsBytes = !passesDown || !client.hasUnsent
  }

  private func response(_ head: MessageHead) {
    guard passesDown, let exchange = exchanges.first else { return pass(down: head.bytes[...]) }
    if head.isInterim {
      guard !traffic.dropsInterim(head) else { return }
      pass(down: head.bytes[...])
      return traffic.answered(exchange, head)
    }
    if let fault = traffic.strikes(at: .beforeResponse, answering: exchange.request) {
      if case .answer(let answer) = fault.effect { return replace(by: answer, fault, exchange) }
      strike(fault, exchange)
    }
    guard passesDown, client.isOpen else { return }
    if let fault = traffic.strikes(at: .withinResponse, answering: exchange.request) {
      let half = head.bytes.count / 2
      pass(down: head.bytes[..<half])
      strike(fault, exchange)
      return pass(down: head.bytes[half...])
    }
    let told = traffic.lie(in: head, answering: exchange, on: self)
    pass(down: told.bytes[...])
    // A lie acknowledges nothing reliably.
    if told == head { traffic.answered(exchange, head) }
  }

  private func pass(down bytes: ArraySlice<UInt8>) {
    if passesDown && !bytes.isEmpty { client.send(bytes) }
  }

  // MARK: Faults

  private func strike(_ fault: ChaosFault, _ exchange: ProxiedExchange) {
    if !fault.effect.strikesLater { traffic.applied(fault, on: self) }
    switch fault.effect {
    case .tell: break
    case .reset:
      resetBoth()
    case .finToServer(let reachesClient):
      server.finish()
      (passesUp, endReachesServer, endReachesClient) = (false, false, reachesClient)
    case .finToClient:
      client.finish()
      (passesDown, endReachesClient) = (false, false)
    case .blackhole:
      (passesUp, passesDown, endReachesServer, endReachesClient) = (false, false, false, false)
    case .delay(let duration):
      hold(for: duration)
    case .truncate(let count):
      dropThenEnd(count)
    case .doubleFin(let pause):
      endBoth()
      traffic.schedule(after: pause) { [weak self] in self?.closeBoth() }
    case .replay(let pause, let end):
      traffic.prepareReplay(of: exchange.recording, after: pause, ends: end, fault, on: self)
      resetBoth()
    case .answer(let answer):
      say(answer, exchange, closes: true)
      client.finish()
      server.finish()
      (passesUp, passesDown, endReachesServer, endReachesClient) = (false, false, false, false)
    case .dropResponse:
      client.reset()
      passesDown = false
      server.finish()
    case .dropInterims(let duration):
      traffic.dropInterims(for: duration)
    case .lie(let lie):
      traffic.prepareLie(lie, fault)
      // Below the true offset, the server has more than was reported to the client. Above it, the client has sent more
      // than the server has.
      if case .lower = lie { endBoth() } else { dropThenEnd(ChaosTraffic.droppedForLie) }
    }
  }

  private func replace(by answer: ChaosFault.Answer, _ fault: ChaosFault, _ exchange: ProxiedExchange) {
    guard exchange.isWhole else { return strike(fault, exchange) }
    traffic.applied(fault, on: self)
    dropsResponse = true
    say(answer, exchange, closes: false)
  }

  private func say(_ answer: ChaosFault.Answer, _ exchange: ProxiedExchange, closes: Bool) {
    var lines = ["HTTP/1.1 \(answer.status) by the proxy", "Content-Length: 0"]
    if let seconds = answer.retryAfter { lines.append("Retry-After: \(seconds)") }
    if let difference = answer.offsetFromRequest {
      lines.append("Upload-Offset: \(max(0, Int(exchange.offset) + difference))")
    }
    if closes { lines.append("Connection: close") }
    client.send((lines + ["", ""]).joined(separator: "\r\n").utf8)
  }

  private func hold(for duration: Duration) {
    (client.isHeld, server.isHeld) = (true, true)
    traffic.schedule(after: duration) { [weak self] in
      self?.client.isHeld = false
      self?.server.isHeld = false
    }
  }

  private func dropThenEnd(_ count: Int) {
    passesUp = false
    dropsBeforeEnd = count
  }

  private func endBoth() {
    dropsBeforeEnd = nil
    server.finish()
    client.finish()
    (passesUp, passesDown, endReachesServer, endReachesClient) = (false, false, false, false)
  }

  private func resetBoth() {
    client.reset()
    server.reset()
    checkIfOver()
  }

  private func closeBoth() {
    client.close()
    server.close()
    checkIfOver()
  }

  // MARK: Ends

  private func clientEnded() {
    if dropsBeforeEnd != nil { endBoth() }
    if endReachesServer { server.finish() }
    // Nothing more will arrive for it, so nothing else would ever close it.
    if !passesDown || !endReachesClient || !server.isOpen { client.finish() }
  }

  private func serverEnded() {
    if endReachesClient { client.finish() }
    if !passesUp || !endReachesServer || !client.isOpen { server.finish() }
  }

  private func clientClosed(isBroken: Bool) {
    passesDown = false
    server.wantsBytes = true
    if endReachesServer {
      // Bytes that are held back for the server still arrive there later.
      if isBroken && !server.isHeld { server.reset() } else { server.finish() }
    }
    checkIfOver()
  }

  private func serverClosed(isBroken: Bool) {
    passesUp = false
    client.wantsBytes = true
    if endReachesClient {
      if isBroken && !client.isHeld { client.reset() } else { client.finish() }
    }
    checkIfOver()
  }

  private func checkIfOver() {
    guard !isOver, !client.isOpen, !server.isOpen else { return }
    isOver = true
    traffic.ended(self)
  }

  /// The proxy stops.
  func abandon() {
    client.close()
    server.close()
    isOver = true
  }
}
