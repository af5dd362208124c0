// Which refusals of JetStream are worth another attempt.

import Testing

@testable import JetStream

@Suite("Refusals of JetStream")
struct BrokerErrorTests {
  @Test(
    "a refusal by busy brokers is transient, and a decision or a full disk is not",
    arguments: [
      (408, 10008, true), (429, 10167, true), (500, 10001, true), (503, 10008, true), (400, 10164, true),
      (400, 10003, false), (400, 10071, false), (404, 10059, false), (503, 10023, false), (503, 10077, false),
      (503, 10002, false), (503, 10047, false),
    ])
  func refused(code: Int, number: Int, isTransient: Bool) {
    #expect(BrokerError.refused(code: code, number: number, reason: "x").isTransient == isTransient)
  }
}
