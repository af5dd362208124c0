// An accelerated clock for the programs of a soak run. See `scaled_clock.h`.

internal import CommandTesting
internal import Glibc
internal import NetworkTesting
internal import ScaledClock
internal import TestRigs

/// The clock of one machine, for all programs that are started with its ``prefix``.
package final class SimulatedTime: @unchecked Sendable {
  // Its accesses are atomic.
  private let page: UnsafeMutablePointer<scaled_clock_page>
  private let factor: Int
  private let path: String

  /// - Parameters:
  ///   - path: the path of a new file.
  ///   - factor: simulated seconds per real second.
  package init(_ path: String, factor: Int) throws {
    guard let page = scaled_clock_create(path, UInt32(factor)) else {
      throw TestFailure("\(path): \(String(cString: strerror(errno)))")
    }
    (self.page, self.factor, self.path) = (page, factor, path)
  }

  deinit { scaled_clock_close(page) }

  /// Precedes a command's arguments.
  package var prefix: [String] {
    ["env", "SCALED_CLOCK=\(path)", "LD_PRELOAD=\(AlsaConfiguration.productDirectory)/libScaledClockPreload.so"]
  }

  /// The simulated seconds since the start.
  var elapsed: Double { Double(scaled_clock_elapsed_ns(page)) / 1e9 }

  /// Lets simulated time pass. This is not a synchronization.
  func pass(_ seconds: Double) { elapse(.nanoseconds(Int64(seconds / Double(factor) * 1e9))) }

  func pass(until seconds: Double) { pass(max(0, seconds - elapsed)) }

  /// Sets the machine's wall clock.
  package func step(by seconds: Int) { scaled_clock_step(page, Int64(seconds) * 1_000_000_000) }

  /// From now on, simulated time passes like real time, so do not call ``pass(_:)`` any more. Only while none of its
  /// programs run.
  func slowDown() { scaled_clock_slow(page) }

  /// Simulates a sleep of this length. Only while none of its programs run.
  func sleep(_ seconds: Double) { scaled_clock_sleep(page, Int64(seconds * 1e9)) }
}
