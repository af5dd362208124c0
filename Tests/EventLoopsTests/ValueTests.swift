// The small values of the module: instants, durations, errors, counters.

import EventLoops
import Glibc
import PropertyTesting
import Testing

@Suite("Instants, errors and counters")
struct ValueTests {
  @Test("a duration in nanoseconds saturates at its limits")
  func nanoseconds() {
    #expect(Duration.milliseconds(3).nanoseconds == 3_000_000)
    #expect(Duration.milliseconds(-3).nanoseconds == -3_000_000)
    #expect(Duration.seconds(Int64.max).nanoseconds == .max)
    #expect(Duration.seconds(Int64.min).nanoseconds == .min)
    // The last second that fits, with a fraction that does not.
    #expect((Duration.seconds(9_223_372_036) + .milliseconds(900)).nanoseconds == .max)
    #expect((Duration.seconds(-9_223_372_036) - .milliseconds(900)).nanoseconds == .min)
  }

  @Test("an instant saturates at the end of time")
  func instants() {
    #expect(MonotonicInstant(nanoseconds: 5) + .nanoseconds(7) == MonotonicInstant(nanoseconds: 12))
    #expect(MonotonicInstant.now + .seconds(Int64.max) == MonotonicInstant(nanoseconds: .max))
    let before = MonotonicInstant.now
    #expect(MonotonicInstant.now >= before)
    #expect(MonotonicInstant(nanoseconds: 12) - MonotonicInstant(nanoseconds: 5) == .nanoseconds(7))
  }

  @Test("the time between any two instants saturates at its limits")
  func differences() {
    let edges: [Int64] = [.min, .min + 1, -2, -1, 0, 1, 2, .max - 1, .max]
    for a in edges {
      for b in edges {
        let (later, earlier) = (MonotonicInstant(nanoseconds: a), MonotonicInstant(nanoseconds: b))
        let exact = Int128(a) - Int128(b)
        let found = later.nanoseconds(since: earlier)
        #expect(Int128(found) == min(max(exact, Int128(Int64.min)), Int128(Int64.max)), "from \(b) to \(a)")
        #expect((earlier < later) == (b < a))
        #expect(Int128(a.addingSaturated(b)) == min(max(Int128(a) + Int128(b), Int128(Int64.min)), Int128(Int64.max)))
        let difference = min(max(Int128(a) - Int128(b), Int128(Int64.min)), Int128(Int64.max))
        #expect(Int128(a.subtractingSaturated(b)) == difference)
        let product = Int128(a) * Int128(b)
        #expect(Int128(a.multipliedSaturated(by: b)) == min(max(product, Int128(Int64.min)), Int128(Int64.max)))
      }
    }
  }

  @Test("a step of the wall clock is what it has moved beyond the time that has passed")
  func clockStep() {
    let earlier = ClockReading(wall: 5000, sinceBoot: 100)
    #expect(ClockReading(wall: 6000, sinceBoot: 1100).step(since: earlier) == 0)
    #expect(ClockReading(wall: 9000, sinceBoot: 1100).step(since: earlier) == 3000)
    #expect(ClockReading(wall: 1000, sinceBoot: 1100).step(since: earlier) == -5000)
    #expect(ClockReading(wall: .max, sinceBoot: 100).step(since: ClockReading(wall: .min, sinceBoot: 0)) == .max - 100)
  }

  @Test("a time of the kernel is an instant to the nanosecond, or the maximum")
  func kernelTimes() {
    for seconds in [0, 1, 59, 1 << 32, -1, 9_223_372_035, 9_223_372_037, Int.max] {
      for nanoseconds in [0, 1, 999_999_999] {
        let exact = Int128(seconds) * 1_000_000_000 + Int128(nanoseconds)
        let found = MonotonicInstant(timespec(tv_sec: seconds, tv_nsec: nanoseconds))
        #expect(found.nanoseconds == Int64(clamping: exact))
      }
    }
  }

  @Test("a duration in seconds keeps its fraction and its sign")
  func seconds() {
    #expect(Duration.milliseconds(1500).seconds == 1.5)
    #expect(Duration.milliseconds(-250).seconds == -0.25)
    #expect(Duration.zero.seconds == 0)
  }

  @Test("dates are written as HTTP and RFC 3339 require, as strftime(3) writes them", arguments: Seed.several(2))
  func dates(seed: Seed) {
    var random = seed.generator
    let fixed: [Int64] = [0, 784_111_777, 951_782_399, 1_709_210_096, 4_107_542_399, -62_135_596_800]
    for seconds in fixed + (0..<1000).map({ _ in Int64.random(in: -60_000_000_000...250_000_000_000, using: &random) })
    {
      let milliseconds = Int.random(in: 0..<1000, using: &random)
      let clock = WallClock(seconds: seconds, milliseconds: milliseconds)
      #expect(clock.imfFixdate == written(seconds, "%a, %d %b %Y %T GMT"))
      let fraction = String(1000 + milliseconds).dropFirst()
      #expect(clock.iso8601 == written(seconds, "%Y-%m-%dT%T.") + fraction + "Z")
    }
  }

  /// The C library's output, for years of four digits.
  private func written(_ seconds: Int64, _ format: String) -> String {
    var time = time_t(seconds)
    var parts = tm()
    gmtime_r(&time, &parts)
    var text = [CChar](repeating: 0, count: 64)
    let length = strftime(&text, text.count, format.replacing("%Y", with: "%04Y"), &parts)
    return String(decoding: text.prefix(length).map { UInt8(bitPattern: $0) }, as: UTF8.self)
  }

  @Test("the date now is the system's, to the millisecond")
  func today() {
    func exact() -> Int64 {
      var time = timespec()
      clock_gettime(CLOCK_REALTIME, &time)
      return Int64(time.tv_sec) * 1000 + Int64(time.tv_nsec) / 1_000_000
    }
    let before = exact()
    let now = WallClock.now
    let after = exact()
    #expect((before...after).contains(now.seconds * 1000 + Int64(now.milliseconds)))
  }

  @Test("a failed call reports the attempt and the reason")
  func systemErrors() {
    let error = SystemError(operation: "openat kitchen.part", code: ENOSPC)
    #expect(error.description == "openat kitchen.part: No space left on device")
  }

  @Test("a counter counts signals, and is readable while it is not zero")
  func counter() throws {
    let counter = try EventCounter()
    let none = counter.drain()
    for _ in 0..<3 { counter.signal() }
    let readable = waitUntilReadable(counter.descriptor, limit: .zero)
    let sum = counter.drain()
    let quiet = !waitUntilReadable(counter.descriptor, limit: .zero)
    #expect(none == 0 && readable && sum == 3 && quiet)
  }
}
