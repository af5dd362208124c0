// A list of real brokers of which one does not run JetStream.

import BrokerTesting
import EventLoops
import NetworkTesting
import Testing

@testable import JetStream

@Suite("Brokers without JetStream")
struct JetStreamAbsenceTests {
  @Test("a reader and a publisher leave a broker without JetStream, after each restart of the one with it")
  func restarts() throws {
    let (broker, other) = (try TestBroker(), try TestBroker(jetStream: false))
    // The first connections are to the broker with JetStream.
    try other.kill()
    let sender = try BrokerLoop(BrokerOptions(servers: [broker.url, other.url]))
    let stream = try sender.open("s")
    let reading = try Reading(broker, other, after: 0)
    try reading.events.first("the end of an empty stream") { $0 == "caught up" }
    try other.start()
    let connections = [sender.connection, reading.connection]
    for round in 1...3 {
      let before = connections.map(\.reconnectCount)
      try broker.stop()
      try waitUntil("both are connected to the broker without JetStream") {
        zip(connections, before).allSatisfy { $0.reconnectCount > $1 }
      }
      try broker.start()
      try stream.publish((round - 1) * 5..<round * 5)
      try waitUntil("the messages of round \(round) are read") { reading.messages.count >= round * 5 }
    }
    #expect(reading.messages == (0..<15).map { "\($0 + 1) m\($0)" })
    try reading.stop()
  }

  @Test("a broker is left after five seconds without an answer of JetStream, and no sooner after a reconnect")
  func patience() {
    var absence = JetStreamAbsence(hasAlternative: true)
    func decisions(_ seconds: [Int]) -> [Bool] {
      seconds.map { absence.isTooLong(at: MonotonicInstant(nanoseconds: 0) + .seconds($0)) }
    }
    #expect(decisions([0, 4, 5, 6, 10, 11]) == [false, false, true, false, false, true])
    #expect(decisions([20, 24]) == [false, false])
    absence.end()
    #expect(decisions([26, 30, 31]) == [false, false, true])
  }

  @Test("the only broker of a list is never left")
  func single() {
    var absence = JetStreamAbsence(hasAlternative: false)
    let decisions = [0, 5, 50].map { (second: Int) in
      absence.isTooLong(at: MonotonicInstant(nanoseconds: 0) + .seconds(second))
    }
    #expect(decisions == [false, false, false])
  }
}
