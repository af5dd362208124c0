// The libraries that a program loads if it depends on this package.

import NetworkTesting
import TestRigs
import Testing

@Suite("A program that streams or uploads")
struct LinkingTests {
  @Test("it loads libasound only if it streams a microphone")
  func alsa() throws {
    for (program, loadsALSA) in [("sample-heartbeat", false), ("sample-microphone", true)] {
      let process = try TestProcess("/usr/bin/ldd", ["\(AlsaConfiguration.productDirectory)/\(program)"])
      #expect(try process.wait() == 0)
      let lines = process.lines.all.map { "\($0)" }
      #expect(lines.contains { $0.contains("libcurl") }, "\(program)")
      #expect(lines.contains { $0.contains("libasound") } == loadsALSA, "\(program)")
    }
  }
}
