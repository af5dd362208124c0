import PropertyTesting
import Testing

@testable import UploadClient

@Suite("The rules of one request")
struct UploadStateMachineTests {
  private static let lost = UploadError(.connectionLost, "reset")

  @Test("interim responses are delivered, the final one decides, and its body is kept up to the limit")
  func ordinary() {
    var machine = UploadStateMachine()
    #expect(machine.received(head: .init(status: 103)) == .tellInterim(.init(status: 103)))
    #expect(machine.bodyEnded() == .startResponseLimit)
    #expect(machine.bodyEnded() == .none)
    #expect(machine.received(head: .init(status: 201)) == .startResponseBodyLimit)
    #expect(machine.received(body: [UInt8](repeating: 1, count: 10)) == .none)
    #expect(machine.received(body: [UInt8](repeating: 2, count: HTTPResponse.bodyLimit)) == .none)
    var expected = HTTPResponse(status: 201)
    expected.body = [UInt8](repeating: 1, count: 10) + [UInt8](repeating: 2, count: HTTPResponse.bodyLimit - 10)
    #expect(machine.ended(failure: nil) == .finish(.success(.init(response: expected, isEarly: false))))
    #expect(machine.ended(failure: nil) == .none)
  }

  @Test("a final response before the body's end stops the sending, and counts even if the connection breaks after it")
  func early() {
    var machine = UploadStateMachine()
    #expect(machine.received(head: .init(status: 401)) == .stopSending)
    #expect(machine.bodyEnded() == .none)
    #expect(machine.ended(failure: Self.lost) == .finish(.success(.init(response: .init(status: 401), isEarly: true))))
  }

  @Test("an early response ends the request with its last byte, if its head has the length")
  func earlyWithLength() {
    var machine = UploadStateMachine()
    #expect(
      machine.received(head: .init(status: 413, fields: ["content-length": "5"])) == .stopSending)
    #expect(machine.received(body: [1, 2, 3, 4]) == .none)
    #expect(machine.received(body: [5]) == .endEarly)
    for head in [
      HTTPResponse(status: 401, fields: ["Content-Length": "0"]), HTTPResponse(status: 204),
    ] {
      machine = UploadStateMachine()
      #expect(machine.received(head: head) == .endEarly)
    }
  }

  @Test("an early response of known length is incomplete without the rest, for which a caller that requests it waits")
  func earlyWithoutRest() {
    for isWanted in [false, true] {
      for length in [nil, "5"] {
        for count in [0, 4, 5] {
          var machine = UploadStateMachine()
          if isWanted { machine.responseBodyReadLimit = nil }
          let head = HTTPResponse(
            status: 413, fields: length.map { ["Content-Length": $0] } ?? [:])
          #expect(machine.received(head: head) == (isWanted && length != nil ? .startResponseLimit : .stopSending))
          _ = machine.received(body: [UInt8](repeating: 1, count: count))
          guard case .finish(.success(let outcome)) = machine.ended(failure: Self.lost) else {
            Issue.record("there is no response")
            continue
          }
          #expect(outcome.isEarly && outcome.bodyFailure == (length != nil && count < 5 ? Self.lost : nil))
        }
      }
    }
  }

  @Test("once the body is sent, a response's own body has a limit, unless it has none or is the requested content")
  func bodyLimits() {
    let lengths: [String?] = [nil, "0", "5", "9223372036854775807"]
    for isWanted in [false, true] {
      for status in [200, 204, 304, 503] {
        for length in lengths {
          var machine = UploadStateMachine()
          if isWanted { machine.responseBodyReadLimit = nil }
          _ = machine.bodyEnded()
          let head = HTTPResponse(
            status: status, fields: length.map { ["Content-Length": $0] } ?? [:])
          let isEmpty = length == "0" || [204, 304].contains(status)
          #expect(machine.received(head: head) == (isWanted || isEmpty ? .none : .startResponseBodyLimit))
          #expect(machine.isReceiving)
        }
      }
    }
    #expect(!UploadStateMachine().isReceiving)
    var early = UploadStateMachine()
    _ = early.received(head: HTTPResponse(status: 503))
    #expect(!early.isReceiving)
  }

  @Test("the read part of a response's body is limited, whatever its head states", arguments: [nil, "10", "1000000"])
  func bodyRead(_ length: String?) {
    for (limit, piece, ends) in [(100, 10, 11), (100, 101, 1), (100, 100, 2), (99, 100, 1), (0, 1, 1)] {
      for isWanted in [false, true] {
        var machine = UploadStateMachine()
        machine.responseBodyReadLimit = isWanted ? nil : limit
        _ = machine.bodyEnded()
        _ = machine.received(
          head: HTTPResponse(status: 200, fields: length.map { ["Content-Length": $0] } ?? [:]))
        let bytes = [UInt8](repeating: 1, count: piece)
        let found = (1...20).filter { _ in machine.received(body: bytes) == .endEarly }
        #expect(found == (isWanted ? [] : [ends]), "\(limit) in pieces of \(piece)")
      }
    }
  }

  @Test(
    "in any order of events, a request finishes once, with a response only if there was a head",
    arguments: Seed.several(50))
  func anyOrder(_ seed: Seed) {
    var random = seed.generator
    for _ in 0..<200 {
      var machine = UploadStateMachine()
      var (finishes, finalHeads, bodyEnds, early) = (0, 0, 0, false)
      for _ in 0..<Int.random(in: 1...12, using: &random) {
        let action: UploadStateMachine.Action
        switch Int.random(in: 0..<6, using: &random) {
        case 0:
          action = machine.bodyEnded()
          if finishes == 0 { bodyEnds += 1 }
        case 1:
          let interim = HTTPResponse(status: 100 + Int.random(in: 0...4, using: &random))
          action = machine.received(head: interim)
          #expect((action == .tellInterim(interim)) == (finalHeads == 0 && finishes == 0))
        case 2:
          action = machine.received(head: HTTPResponse(status: 503))
          if finishes == 0, finalHeads == 0 { early = bodyEnds == 0 }
          if finishes == 0 { finalHeads += 1 }
          #expect((action == .stopSending) == (finishes == 0 && finalHeads == 1 && early))
        case 3:
          action = machine.received(body: [1])
        default:
          action = machine.ended(failure: random.chance(50) ? nil : Self.lost)
        }
        if case .finish(let result) = action {
          finishes += 1
          switch result {
          case .success(let outcome):
            #expect(finalHeads > 0 && outcome.isEarly == early)
          case .failure:
            #expect(finalHeads == 0)
          }
        }
      }
      #expect(finishes <= 1)
    }
  }
}
