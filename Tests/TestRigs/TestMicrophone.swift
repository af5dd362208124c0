// The test microphone in Swift: its orders, and its record of what really happened.

internal import Glibc
package import TestDeviceControl

/// A new test microphone, with its control page in a scratch directory. See `testmic_control.h` for each order.
package final class TestMicrophone: @unchecked Sendable {
  /// The page, for orders: `testmic_order_overrun(microphone.page, 300)`. All its accesses are atomic.
  package let page: UnsafeMutablePointer<testmic_page>
  private let directory = ScratchDirectory()

  package init() {
    _ = AlsaConfiguration.path
    // The file is new and the directory is ours, so only a full disk could cause an error.
    page = testmic_map(directory.file("control"))!
  }

  deinit { testmic_unmap(page) }

  package var controlPath: String { directory.file("control") }

  /// The PCM's name for the given kind of test microphone (see ``AlsaConfiguration``).
  package func name(_ kind: String = "testmic") -> String { "\(kind):CONTROL=\(controlPath)" }

  /// Runs of device frames that no program received.
  package var gaps: [Range<UInt64>] {
    (0..<min(testmic_gap_count(page), UInt32(TESTMIC_GAPS))).map {
      let gap = testmic_gap_at(page, $0)
      return gap.first_frame..<gap.first_frame + gap.frames
    }
  }

  /// Waits for a state that only the device knows. It has no descriptor, so it is polled every millisecond. Gives up
  /// after 20 s, and returns false. Then the following checks show what is missing, unless the test is about less.
  @discardableResult
  package func wait(until done: (UnsafeMutablePointer<testmic_page>) -> Bool) -> Bool {
    for _ in 0..<20_000 {
      if done(page) { return true }
      poll(nil, 0, 1)
    }
    return false
  }

  package var framesLost: UInt64 { testmic_frames_lost(page) }
}
