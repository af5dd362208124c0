// Credentials files, with a real broker that verifies signatures.

import BrokerTesting
import NetworkTesting
import Testing

@testable import JetStream

@Suite("Credentials of a broker")
struct CredentialsTests {
  // libnats before 3.8 omits a signature whose first byte is 0: one of 256. All of 1,500 signatures have another first
  // byte in 3 of 1,000 runs.
  @Test("a broker accepts valid credentials at each of 1,500 connections")
  func everySignature() throws {
    let accounts = try BrokerAccounts()
    let directory = try TemporaryDirectory()
    let broker = try TestBroker(accounts.settings, jetStream: false)
    var options = BrokerOptions(servers: [broker.url])
    options.credentialsFile = try directory.write("application.creds", accounts.application)
    for number in 1...1_500 {
      do throws(BrokerError) {
        _ = try BrokerConnection(options)
      } catch {
        Issue.record("connection \(number): \(error)")
        return
      }
    }
  }

  @Test("a broker refuses the credentials of another operator")
  func foreign() throws {
    let directory = try TemporaryDirectory()
    let broker = try TestBroker(try BrokerAccounts().settings, jetStream: false)
    var options = BrokerOptions(servers: [broker.url])
    options.credentialsFile = try directory.write("foreign.creds", try BrokerAccounts().application)
    #expect(throws: BrokerError.notAuthorized) { _ = try BrokerConnection(options) }
  }

  @Test("a connection that ends for another reason counts as lost, and is established again")
  func otherEnd() throws {
    let broker = try TestBroker("max_subscriptions: 3", jetStream: false)
    let connection = try BrokerConnection(BrokerOptions(servers: [broker.url]))
    let subscriptions = (0..<5).map { number in connection.subscribe("s\(number)", { _, _ in }) }
    try waitUntil("the connection has ended") { !connection.isConnected }
    #expect(connection.refusal == nil)
    for subscription in subscriptions { connection.unsubscribe(subscription) }
    try waitUntil("there is another connection") { connection.isConnected && connection.reconnectCount > 0 }
    #expect(connection.refusal == nil)
  }
}
