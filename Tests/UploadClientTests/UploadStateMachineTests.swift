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

  @Test("a response has its trailers, if they follow its head")
  func trailers() {
    var machine = UploadStateMachine()
    machine.received(trailers: ["X": "too early"])
    #expect(machine.state == .sending)
    _ = machine.bodyEnded()
    _ = machine.received(head: .init(status: 200))
    machine.received(trailers: ["X": "y"])
    var expected = HTTPResponse(status: 200)
    expected.trailers = ["X": "y"]
    #expect(machine.ended(failure: nil) == .finish(.success(.init(response: expected, isEarly: false))))
    machine.received(trailers: ["X": "too late"])
    #expect(machine.isOver)
  }

  @Test("what a response's fields state about its body decides whether the body is complete", arguments: [true, false])
  func bodyFields(isEarly: Bool) throws {
    let odd = UploadError(.protocolViolation, "the response has a Transfer-Encoding other than chunked")
    /// The fields and status, the length that counts, and the failure of a response whose connection did not fail.
    let table: [(HeaderFields, Int, Int?, UploadError?)] = [
      ([:], 200, nil, nil), (["Content-Length": "5"], 200, 5, nil), (["Content-Length": "0"], 200, 0, nil),
      (["Content-Length": "5"], 204, 0, nil), (["Content-Length": "5"], 304, 0, nil),
      (["Content-Length": "5"], 305, 5, nil), (["Content-Length": "five"], 200, nil, nil),
      (["Content-Length": "5", "Content-Encoding": "gzip"], 200, nil, nil),
      (["Content-Length": "5", "Content-Encoding": "Identity"], 200, 5, nil),
      (["Transfer-Encoding": "chunked"], 200, nil, nil), (["Transfer-Encoding": "Chunked"], 200, nil, nil),
      (["Transfer-Encoding": "gzip, chunked"], 200, nil, odd), (["Transfer-Encoding": "gzip"], 304, 0, nil),
      (["Transfer-Encoding": "gzip", "Content-Length": "5"], 200, 5, odd),
    ]
    for (fields, status, length, failure) in table {
      for isWanted in [true, false] {
        for lost in [nil, Self.lost] {
          var machine = UploadStateMachine()
          if isWanted { machine.responseBodyReadLimit = nil }
          if !isEarly { _ = machine.bodyEnded() }
          let head = HTTPResponse(status: status, fields: fields)
          let expected: UploadStateMachine.Action =
            if isEarly {
              length == 0 ? .endEarly : isWanted && length != nil ? .startResponseLimit : .stopSending
            } else {
              length == 0 || isWanted ? .none : .startResponseBodyLimit
            }
          #expect(machine.received(head: head) == expected, "\(fields.lines) \(status)")
          #expect(machine.isAnswered && machine.isReceiving == !isEarly && !machine.isOver)
          // The end of an early response is known only with its length.
          let isKnown = !isEarly || (length ?? 0) > 0
          let outcome = UploadTask.Outcome(
            response: head, isEarly: isEarly, bodyFailure: isKnown ? lost ?? failure : nil)
          #expect(machine.ended(failure: lost) == .finish(.success(outcome)), "\(fields.lines) \(status)")
          #expect(machine.isOver && machine.isAnswered && !machine.isReceiving)
        }
      }
    }
  }

  @Test("of an early response, a single missing byte is a failure")
  func lastByte() {
    for missing in 0...2 {
      var machine = UploadStateMachine()
      _ = machine.received(head: HTTPResponse(status: 413, fields: ["Content-Length": "5"]))
      _ = machine.received(body: [UInt8](repeating: 1, count: 5 - missing))
      guard case .finish(.success(let outcome)) = machine.ended(failure: Self.lost) else {
        Issue.record("there is no response")
        continue
      }
      #expect(outcome.bodyFailure == (missing > 0 ? Self.lost : nil))
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
