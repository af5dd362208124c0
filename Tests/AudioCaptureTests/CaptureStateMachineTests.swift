// The logic of the capture thread, with thousands of random device histories.

import Glibc
import PropertyTesting
import Testing

@testable import AudioCapture

@Suite("The capture state machine")
struct CaptureStateMachineTests {
  @Test("an overrun causes a restart at once")
  func overrun() {
    var machine = CaptureStateMachine()
    #expect(machine.failed(EPIPE) == .restart)
    #expect(machine.recovered() == .wait)
    #expect(machine.state == .running)
  }

  @Test("a device that overruns repeatedly without a frame is reopened, not restarted forever")
  func restartStorm() {
    var machine = CaptureStateMachine()
    for _ in 0..<CaptureStateMachine.fruitlessRestartsAllowed {
      #expect(machine.failed(EPIPE) == .restart)
      _ = machine.recovered()
    }
    #expect(machine.failed(EPIPE) == .reopen(after: .milliseconds(100)))
  }

  @Test("frames in between reset the count")
  func progress() {
    var machine = CaptureStateMachine()
    for _ in 0..<1000 {
      #expect(machine.failed(EPIPE) == .restart)
      _ = machine.recovered()
      machine.progressed()
    }
  }

  @Test("a suspended device is resumed with retries, and reopened after too many")
  func suspend() {
    var machine = CaptureStateMachine()
    #expect(machine.failed(ESTRPIPE) == .resume(after: .zero))
    var waited = Duration.zero
    var attempts = 0
    while true {
      attempts += 1
      switch machine.retryFailed(ESTRPIPE) {
      case .resume(let delay):
        #expect(delay == .milliseconds(min(500, 20 << min(attempts - 1, 10))))
        waited += delay
      case let other:
        #expect(other == .reopen(after: .milliseconds(100)))
        #expect(attempts == CaptureStateMachine.resumeAttempts + 1)
        #expect(waited > .seconds(5) && waited < .seconds(15))
        return
      }
    }
  }

  @Test("the capture looks for a missing device every 100 ms at first and every 2 s later, without end")
  func away() {
    var machine = CaptureStateMachine()
    var delays: [Duration] = []
    if case .reopen(let delay) = machine.failed(ENODEV) { delays.append(delay) }
    for _ in 0..<1000 {
      guard case .reopen(let delay) = machine.retryFailed(ENODEV) else {
        Issue.record("it stopped looking")
        return
      }
      delays.append(delay)
    }
    #expect(
      delays.prefix(6) == [
        .milliseconds(100), .milliseconds(200), .milliseconds(400), .milliseconds(800),
        .milliseconds(1600), .seconds(2),
      ])
    #expect(delays.dropFirst(5).allSatisfy { $0 == .seconds(2) })
  }

  @Test("each error has the same effect in every state, and nothing starts after the end")
  func answers() {
    let lost = CaptureStateMachine.Action.reopen(after: .milliseconds(100))
    for code in Int32(1)...133 {
      let failure: CaptureStateMachine.Action =
        switch code {
        case EAGAIN, EINTR: .wait
        case EPIPE, EBADFD: .restart
        case ESTRPIPE: .resume(after: .zero)
        default: lost
        }
      // Running, restarting, suspended, away.
      for before in [nil, EPIPE, ESTRPIPE, ENODEV] {
        var machine = CaptureStateMachine()
        if let before { _ = machine.failed(before) }
        let state = machine.state
        #expect(machine.failed(code) == failure, "\(code) after \(before ?? 0)")
        switch failure {
        case .wait: #expect(machine.state == state)
        case .restart: #expect(machine.state == .restarting)
        case .resume: #expect(machine.state == .suspended(attempts: 0))
        default: #expect(machine.state == .away(attempts: 0))
        }

        machine = CaptureStateMachine()
        if let before { _ = machine.failed(before) }
        let expected: CaptureStateMachine.Action =
          switch before {
          case ESTRPIPE:
            [ESTRPIPE, EAGAIN, EBUSY, EPIPE, EBADFD].contains(code) ? .resume(after: .milliseconds(20)) : lost
          case ENODEV: .reopen(after: .milliseconds(200))
          default: [ESTRPIPE, EAGAIN].contains(code) ? .resume(after: .zero) : lost
          }
        #expect(machine.retryFailed(code) == expected, "\(code) to an attempt after \(before ?? 0)")

        _ = machine.end()
        #expect(machine.failed(code) == .end && machine.retryFailed(code) == .end && machine.recovered() == .end)
        #expect(machine.state == .ended)
      }
    }
  }

  @Test(
    "no sequence of failures ends the capture, makes it wait for a dead device, or makes it spin", arguments: 0..<200)
  func randomHistories(seed: UInt64) {
    var random = SplitMix64(state: seed)
    var machine = CaptureStateMachine()
    var action = CaptureStateMachine.Action.wait
    let codes = [EPIPE, ESTRPIPE, ENODEV, EIO, EBADFD, EAGAIN, EBUSY, EACCES, ETIMEDOUT, EINTR, EINVAL]
    var instant = 0
    for _ in 0..<2000 {
      let code = codes.randomElement(using: &random) ?? EIO
      switch action {
      case .wait:
        // Only a running device is awaited.
        #expect(machine.state == .running || machine.state == .restarting, "seed \(seed)")
        if Bool.random(using: &random) {
          machine.progressed()
          instant = 0
        } else {
          action = machine.failed(code)
        }
      case .restart:
        instant += 1
        action = Bool.random(using: &random) ? machine.recovered() : machine.retryFailed(code)
      case .resume(let delay), .reopen(let delay):
        instant = delay > .zero ? 0 : instant + 1
        #expect(delay <= .seconds(2), "seed \(seed)")
        action = Bool.random(using: &random) ? machine.recovered() : machine.retryFailed(code)
      case .end:
        Issue.record("ended by itself, seed \(seed)")
        return
      }
      // Restarts and first resumes have no delay between them, but their number is limited.
      #expect(instant < 64, "seed \(seed)")
    }
    #expect(machine.end() == .end)
    #expect(machine.failed(EPIPE) == .end)
    #expect(machine.recovered() == .end)
    #expect(machine.retryFailed(ENODEV) == .end)
  }
}
