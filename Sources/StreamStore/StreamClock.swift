// Computes when each frame of a WAV stream was recorded, according to its sender. Pure: takes and returns times and
// offsets.

internal import EventLoops
internal import HTTPMessages
internal import Recordings
internal import StreamServing

/// The wall clock of a stream with a constant rate. Times are in milliseconds since 1970.
struct StreamClock: Equatable, Sendable {
  /// When the frame at ``first`` was recorded.
  var started: Int64
  /// The stream offset of a frame.
  var first: UInt64
  /// The length of a frame in bytes.
  var frameLength: UInt64
  /// Frames per second.
  var rate: UInt64
  /// The steps of the clock since then, in the order of their offsets.
  var steps: [StreamDescription.ClockStep] = []

  /// nil if the head contains no rate.
  init?(started: Int64, first: UInt64, _ head: WAVHead, steps: [StreamDescription.ClockStep] = []) {
    guard head.rate > 0 else { return nil }
    (self.started, self.first, self.rate) = (started, first, UInt64(head.rate))
    frameLength = UInt64(head.frameLength)
    self.steps = steps.filter { $0.offset > first }.sorted { $0.offset < $1.offset }
  }

  /// When the frame at that offset was recorded.
  func time(at offset: UInt64) -> Int64 {
    let frames = (offset - min(offset, first)) / frameLength
    let passed = Int64(clamping: frames / rate).multipliedSaturated(by: 1000)
      .addingSaturated(Int64(frames % rate * 1000 / rate))
    return steps.lazy.filter { $0.offset <= offset }.reduce(started.addingSaturated(passed)) {
      $0.addingSaturated($1.milliseconds)
    }
  }

  /// The stream offset of the first frame that was recorded at that time or later; nil if ``first`` is that frame, or
  /// if there is none within 64 bits.
  func offset(of time: Int64) -> UInt64? {
    guard time > started else { return nil }
    var (start, begin) = (started, first)
    for step in steps + [.init(offset: .max, milliseconds: 0)] {
      let (wait, overflow) = time.subtractingReportingOverflow(start)
      guard !overflow else { return nil }
      if let length = length(of: wait) {
        let (offset, overflow) = first.addingReportingOverflow(length)
        // A step may have moved the clock beyond that time.
        let candidate = max(offset, frame(from: begin))
        if !overflow && candidate < step.offset { return candidate }
      }
      start = start.addingSaturated(step.milliseconds)
      begin = step.offset
    }
    return nil
  }

  /// How many bytes are recorded until this many milliseconds have passed, in whole frames.
  private func length(of wait: Int64) -> UInt64? {
    guard wait > 0 else { return 0 }
    let (units, overflow) = UInt64(wait).multipliedReportingOverflow(by: rate)
    let frames = units / 1000 + (units % 1000 == 0 ? 0 : 1)
    let (bytes, overflows) = frames.multipliedReportingOverflow(by: frameLength)
    return overflow || overflows ? nil : bytes
  }

  /// The first frame that begins at an offset or after it.
  private func frame(from offset: UInt64) -> UInt64 {
    let begun = (offset - min(offset, first)) % frameLength
    return begun == 0 ? offset : offset.addingReportingOverflow(frameLength - begun).partialValue
  }
}

extension StreamClock {
  /// Where a recording that begins at `start` ends according to the clock; nil if no time of day divides it.
  func end(of split: RecordingSplit, from start: UInt64) -> UInt64? {
    let begin = time(at: start)
    var times = split.times.filter { $0 > begin }
    if let next = split.timeOfDay.flatMap({ LocalTime.next($0, after: begin) }) { times.append(next) }
    return times.compactMap { offset(of: $0) }.filter { $0 > start }.min()
  }
}
