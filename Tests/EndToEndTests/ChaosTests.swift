// A short chaos run. `make chaos` is the long one.

import ChaosTesting
import Testing

@Suite("Chaos")
struct ChaosTests {
  @Test(
    "60 faults in a row: the stored stream equals the sent one, once, and only unacknowledged data is sent again",
    arguments: [UInt64(20_261_120)])
  func short(seed: UInt64) throws {
    let report = try ChaosRun(ChaosRun.Options(seed: seed, faults: 60)).perform()
    print(report)
    #expect(report.faults == 60)
    #expect(report.resent < report.resentBound)
  }

  @Test(
    "12 kills of client, server or network: the captured data of spooled streams is stored once, in order",
    arguments: [true, false])
  func spool(isResumable: Bool) throws {
    var options = SpoolChaosRun.Options(seed: 20_261_123, faults: isResumable ? 12 : 6)
    options.isResumable = isResumable
    print(try SpoolChaosRun(options).perform())
  }
}
