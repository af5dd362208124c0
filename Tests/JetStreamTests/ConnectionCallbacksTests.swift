// Callbacks of several connections of libnats, which come at any time.

import EventLoops
import PropertyTesting
import Synchronization
import Testing

@testable import JetStream

@Suite("Callbacks of libnats")
struct ConnectionCallbacksTests {
  /// What is known of one connection.
  private struct Model {
    var (hasBegun, isDropped, hasEnded) = (false, false, false)
  }

  @Test(
    "only the present connection counts; its end is reported once, even if it came first", arguments: Seed.several(20))
  func order(_ seed: Seed) {
    var random = seed.generator
    for _ in 0..<200 {
      let observer = ConnectionObserver()
      let told = Lock((ends: 0, losses: 0))
      observer.ended.withLock { $0 = { told.withLock { $0.ends += 1 } } }
      let tell: @Sendable (Bool) -> Void = { isConnected in if !isConnected { told.withLock { $0.losses += 1 } } }
      observer.observers.withLock { $0.all[1] = tell }
      var connections = (0..<3).map { _ in (callbacks: ConnectionCallbacks(observer), model: Model()) }
      var (expectedEnds, expectedLosses) = (0, 0)
      for _ in 0..<20 {
        let number = Int.random(in: 0..<connections.count, using: &random)
        let (callbacks, model) = connections[number]
        let isPresent = model.hasBegun && !model.isDropped
        switch Int.random(in: 0..<4, using: &random) {
        case 0 where !model.hasBegun && !model.isDropped:
          callbacks.begin(nil)
          connections[number].model.hasBegun = true
          if model.hasEnded { (expectedEnds, expectedLosses) = (expectedEnds + 1, expectedLosses + 1) }
        case 1:
          callbacks.lost()
          if isPresent { expectedLosses += 1 }
        case 2 where !model.hasEnded:
          callbacks.closed()
          connections[number].model.hasEnded = true
          if isPresent { (expectedEnds, expectedLosses) = (expectedEnds + 1, expectedLosses + 1) }
        case 3:
          callbacks.drop()
          connections[number].model.isDropped = true
        default: break
        }
        #expect(told.withLock { $0 } == (expectedEnds, expectedLosses), "\(seed)")
        #expect((observer.refusal.withLock { $0 } == .notAuthorized) == (expectedEnds > 0), "\(seed)")
      }
      let isConnected = observer.isConnected.load(ordering: .relaxed)
      #expect(!isConnected)
    }
  }
}
