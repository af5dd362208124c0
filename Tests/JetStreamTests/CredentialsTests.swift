// Credentials files, with a real broker that verifies signatures.

import BrokerTesting
import JetStream
import NetworkTesting
import Testing

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
}
