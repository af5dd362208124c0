// The simulated week in short; `make soak` is the long one.

import SoakTesting
import Testing

@Suite("Soak")
struct SoakTests {
  @Test(
    "a microphone for twelve simulated hours with faults and a clock that is set: every frame is stored or reported, and nothing grows",
    arguments: [UInt64(20_261_122)])
  func short(seed: UInt64) throws {
    var options = SoakRun.Options(seed: seed)
    options.hours = 12
    options.factor = 1500
    for line in try SoakRun(options, tell: { _ in }).perform().jsonLines { print(line) }
  }
}
