// The state machines and values behind the sockets, against simple models.

import PropertyTesting
import Testing

@testable import HTTPServer

@Suite("The state machines of connections")
struct ConnectionStateTests {
  @Test(
    "in any order of events, a request is answered at most once, and nothing happens after the close",
    arguments: Seed.several(1))
  func connectionStates(_ seed: Seed) {
    var generator = seed.generator
    for _ in 0..<5_000 {
      var machine = HTTPConnectionState()
      // The model: whether a request is open, and whether the connection may carry another.
      var open = false
      var closing = false
      var closed = false
      for _ in 0..<30 {
        switch Int.random(in: 0..<8, using: &generator) {
        case 0 where machine.state == .idle || machine.state == .head:
          machine.headArrived(head(&generator))
          open = true
        case 1:
          let action = machine.bodyAccepted()
          #expect(action == .ignore || open)
          #expect(action == .ignore || machine.reads)
        case 2:
          if machine.bodyEnded() { #expect(open && !machine.reads) }
        case 3:
          switch machine.responded(serverStops: false) {
          case .send(let keepsAlive):
            #expect(open && !closed)
            open = false
            closing = !keepsAlive
          case .ignore: #expect(!open || closed)
          }
        case 4:
          switch machine.flushed() {
          case .nextRequest: #expect(!closing && machine.parses)
          case .linger: #expect(closing && !machine.parses && machine.reads)
          case .nothing: break
          }
        case 5:
          if machine.refused() {
            #expect(!closed)
            open = false
            closing = true
          }
        case 6: machine.parsed(withinHead: Bool.random(using: &generator))
        case 7 where Int.random(in: 0..<10, using: &generator) == 0:
          machine.closed()
          open = false
          closed = true
        default: break
        }
        #expect(machine.hasOpenRequest == open, "seed \(seed)")
        if closed { #expect(machine.state == .closed && !machine.reads && !machine.parses && machine.timeout == nil) }
      }
    }
  }

  private func head(_ generator: inout SplitMix64) -> RequestHead {
    let framings: [BodyFraming] = [.absent, .sized(0), .sized(9), .chunked]
    let octets = Array("/".utf8)
    // A path of one slash is always a valid target.
    let target = try? RequestTarget(octets.span, method: "POST")
    return RequestHead(
      method: "POST", target: target!, minorVersion: 1, fields: [:],  // made of "/" just before
      framing: framings[Int.random(in: 0..<4, using: &generator)], expectsContinue: Bool.random(using: &generator),
      keepsAlive: Bool.random(using: &generator))
  }

  @Test("an early response to a request with a body closes the connection; one without a body keeps it")
  func earlyAnswer() {
    func keeps(_ framing: BodyFraming) -> HTTPConnectionState.RespondAction {
      var generator = SplitMix64(state: 1)
      var head = head(&generator)
      (head.framing, head.keepsAlive) = (framing, true)
      var machine = HTTPConnectionState()
      machine.headArrived(head)
      return machine.responded(serverStops: false)
    }
    #expect(keeps(.absent) == .send(keepsAlive: true))
    #expect(keeps(.sized(0)) == .send(keepsAlive: true))
    #expect(keeps(.sized(1)) == .send(keepsAlive: false))
    #expect(keeps(.chunked) == .send(keepsAlive: false))
  }

  @Test("only a response to a whole request leaves nothing for its client to send")
  func cutShort() {
    for framing in [.absent, .sized(0), .sized(1), .chunked] as [BodyFraming] {
      var generator = SplitMix64(state: 1)
      var head = head(&generator)
      head.framing = framing
      var early = HTTPConnectionState()
      early.headArrived(head)
      var (whole, refused) = (early, early)
      _ = early.responded(serverStops: false)
      #expect(early.isCutShort == (framing == .sized(1) || framing == .chunked))
      _ = whole.bodyAccepted()
      let hasEnded = whole.bodyEnded()
      #expect(hasEnded)
      _ = whole.responded(serverStops: false)
      #expect(!whole.isCutShort)
      #expect(refused.refused() && refused.isCutShort)
      early.headArrived(head)
      #expect(!early.isCutShort, "the next request has its own end")
    }
  }

  @Test(
    "for any sequence of clients, bulk uploads are read in long calls only while no other client is connected",
    arguments: Seed.several(2))
  func readAllowance(_ seed: Seed) {
    var generator = seed.generator
    for _ in 0..<500 {
      var allowance = ReadAllowance()
      // The model: whether each connection is a bulk upload.
      var connections: [Bool] = []
      for _ in 0..<30 {
        if connections.isEmpty || Int.random(in: 0..<3, using: &generator) == 0 {
          allowance.connectionOpened()
          connections.append(false)
        }
        let index = connections.indices.randomElement(using: &generator)!  // there is one
        if Bool.random(using: &generator) {
          connections[index].toggle()
          allowance.connectionTurned(bulk: connections[index])
        } else if Bool.random(using: &generator) {
          if connections.remove(at: index) { allowance.connectionTurned(bulk: false) }
          allowance.connectionClosed()
        }
        let all = connections.allSatisfy { $0 }
        #expect(allowance.limit(expectsHead: false) == (all ? ReadAllowance.alone : ReadAllowance.shared))
        #expect(allowance.limit(expectsHead: true) == ReadAllowance.head)
      }
    }
  }
}
