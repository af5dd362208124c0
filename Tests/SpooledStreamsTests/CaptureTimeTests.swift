// The time that a spool notes for captured bytes, on a machine whose clock is synchronized late.

import CallCounter
import EventLoops
import ExitTesting
import Testing

@testable import SpooledStreams

@Suite("The time of captured bytes")
struct CaptureTimeTests {
  @Test("the time is unknown until the clock was synchronized once, and known from then on")
  func synchronizedLate() async {
    // A process of its own, because this one may have found the clock synchronized before.
    await #expect(processExitsWith: .success) {
      reportingErrors {
        set_clock_of_this_thread(false)
        let early = SpoolThread.captureTime
        let now = WallClock.now.sinceEpoch
        set_clock_of_this_thread(true)
        let synchronized = SpoolThread.captureTime
        // After a while without a network.
        set_clock_of_this_thread(false)
        let late = SpoolThread.captureTime
        guard early == SpoolThread.unknownTime, synchronized >= now, late >= now else {
          throw SpooledStretchTests.Failure(reason: "\(early), \(synchronized), \(late) at \(now)")
        }
      }
    }
  }
}
