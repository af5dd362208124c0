// A clock that runs many times as fast as ours, for the programs of a soak run. See `scaled_clock.h`.

internal import CommandTesting
internal import Glibc
internal import NetworkTesting
internal import ScaledClock
internal import TestRigs

/// One machine's clock: that of all programs that are started with its ``prefix``.
package final class SimulatedTime: @unchecked Sendable {
  // Its accesses are atomic.
  private let page: UnsafeMutablePointer<scaled_clock_page>
  private let factor: Int
  private let path: String

  /// - Parameters:
  ///   - path: a file to be made.
  ///   - factor: simulated seconds in a real one.
  package init(_ path: String, factor: Int) throws {
    guard let page = scaled_clock_create(path, UInt32(factor)) else {
      throw TestFailure("\(path): \(String(cString: strerror(errno)))")
    }
    (self.page, self.factor, self.path) = (page, factor, path)
  }

  deinit { scaled_clock_close(page) }

  /// In front of a command's arguments.
  package var prefix: [String] {
    ["env", "SCALED_CLOCK=\(path)", "LD_PRELOAD=\(AlsaConfiguration.productDirectory)/libScaledClockPreload.so"]
  }

  /// Since the beginning, in simulated seconds.
  var elapsed: Double { Double(scaled_clock_elapsed_ns(page)) / 1e9 }

  /// Lets simulated time pass: the world goes on. No synchronization.
  func pass(_ seconds: Double) { elapse(.nanoseconds(Int64(seconds / Double(factor) * 1e9))) }

  func pass(until seconds: Double) { pass(max(0, seconds - elapsed)) }

  /// Sets the machine's wall clock.
  package func step(by seconds: Int) { scaled_clock_step(page, Int64(seconds) * 1_000_000_000) }

  /// The machine slept for so long. Only while none of its programs run.
  func sleep(_ seconds: Double) { scaled_clock_sleep(page, Int64(seconds * 1e9)) }
}
