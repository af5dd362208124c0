// A load test for tests: short messages on loopback, and time limits for a heavily loaded machine.

import LiveStreaming
import UploadClient

@testable import LoadTesting

/// 500 bytes every 100 ms per stream for a second, resumable, unless `change` changes that.
func loadTest(_ url: String, _ change: (inout LoadConfiguration) -> Void) throws -> LoadTest {
  var configuration = LoadConfiguration(request: UploadRequest(url: url))
  configuration.profile.chunk = 100_000_000
  configuration.profile.size = .bytes(500...500)
  configuration.duration = .seconds(1)
  configuration.resumable = .always
  // A loaded machine must not cause an early end.
  configuration.grace = .seconds(60)
  configuration.giveUpAfter = .seconds(60)
  change(&configuration)
  return try LoadTest(configuration)
}
