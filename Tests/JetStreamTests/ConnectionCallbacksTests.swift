// Callbacks of several connections of libnats, which come at any time.

import CNats
import EventLoops
import PropertyTesting
import Synchronization
import Testing

@testable import JetStream

@Suite("Callbacks of libnats")
struct ConnectionCallbacksTests {
  /// What is known of one connection.
  private struct Model {
    var (hasBegun, isDropped) = (false, false)
    /// The reason of its end.
    var end: natsStatus?
  }

  /// Reasons for which libnats ends a connection, and what they say about the credentials.
  private static var ends: [(reason: natsStatus, refusal: BrokerError?)] {
    [
      (NATS_CONNECTION_AUTH_FAILED, .notAuthorized),
      // An error of a broker that libnats does not know, such as too many subscriptions.
      (NATS_ERR, nil),
      // The thread that would reconnect cannot be started. The reason is that of the loss.
      (NATS_CONNECTION_CLOSED, nil), (NATS_IO_ERROR, nil), (NATS_STALE_CONNECTION, nil),
      // It refuses a message or a subscription, and not the connection.
      (NATS_NOT_PERMITTED, nil), (NATS_NO_SERVER, nil), (NATS_OK, nil),
    ]
  }

  @Test(
    "only the present connection counts; its end is reported once, even if it came first", arguments: Seed.several(20))
  func order(_ seed: Seed) {
    var random = seed.generator
    for _ in 0..<200 {
      let observer = ConnectionObserver(BrokerOptions(servers: []))
      let told = Lock((ends: 0, losses: 0))
      observer.ended.withLock { $0 = { told.withLock { $0.ends += 1 } } }
      let tell: @Sendable (Bool) -> Void = { isConnected in if !isConnected { told.withLock { $0.losses += 1 } } }
      observer.observers.withLock { $0.all[1] = tell }
      var connections = (0..<3).map { _ in (callbacks: ConnectionCallbacks(observer), model: Model()) }
      var (expectedEnds, expectedLosses) = (0, 0)
      var expectedRefusal: BrokerError?
      for _ in 0..<20 {
        let number = Int.random(in: 0..<connections.count, using: &random)
        let (callbacks, model) = connections[number]
        let isPresent = model.hasBegun && !model.isDropped
        switch Int.random(in: 0..<4, using: &random) {
        case 0 where !model.hasBegun && !model.isDropped:
          callbacks.begin(nil)
          connections[number].model.hasBegun = true
          if let end = model.end {
            (expectedEnds, expectedLosses) = (expectedEnds + 1, expectedLosses + 1)
            expectedRefusal = Self.ends.first { $0.reason == end }?.refusal
          }
        case 1:
          callbacks.lost()
          if isPresent { expectedLosses += 1 }
        case 2 where model.end == nil:
          let end = Self.ends[Int.random(in: 0..<Self.ends.count, using: &random)]
          callbacks.closed(because: end.reason)
          connections[number].model.end = end.reason
          if isPresent {
            (expectedEnds, expectedLosses) = (expectedEnds + 1, expectedLosses + 1)
            expectedRefusal = end.refusal
          }
        case 3:
          callbacks.drop()
          connections[number].model.isDropped = true
        default: break
        }
        #expect(told.withLock { $0 } == (expectedEnds, expectedLosses), "\(seed)")
        #expect(observer.refusal.withLock { $0 } == expectedRefusal, "\(seed)")
      }
      let isConnected = observer.isConnected.load(ordering: .relaxed)
      #expect(!isConnected)
    }
  }

  @Test("observers are notified of a refusal that follows the loss of the connection, once")
  func laterRefusal() {
    let observer = ConnectionObserver(BrokerOptions(servers: []))
    let losses = Lock(0)
    observer.observers.withLock { $0.all[1] = { isConnected in if !isConnected { losses.withLock { $0 += 1 } } } }
    for _ in 0..<3 { observer.refused(.notAuthorized) }
    #expect(losses.withLock { $0 } == 1 && observer.refusal.withLock { $0 } == .notAuthorized)
  }
}
