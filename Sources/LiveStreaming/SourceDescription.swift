// What a sender tells the server about its stream, for the sidecar of the recording.

internal import EventLoops
internal import HTTPMessages
internal import UploadClient

/// What a live stream is recorded from. What is nil is not sent.
public struct SourceDescription: Equatable, Sendable {
  /// What is recorded, e.g. an ALSA device.
  public var device: String?
  /// The sample format, as ALSA names it.
  public var format: String?
  /// Frames per second.
  public var rate: Int?
  /// Samples per frame.
  public var channels: Int?
  /// The sender's software and its version.
  public var software: String? = "sluice/\(sluiceVersion)"
  /// After how much of a WAV stream the server is to continue its recording in another file.
  public var splitDuration: Duration?
  /// How long a file of the recording is to become, in bytes.
  public var splitSize: UInt64?
  /// The local time of day at which it is to continue in another file, in whole minutes since midnight.
  public var splitTimeOfDay: Duration?

  /// A description; nil leaves a member out.
  public init(device: String? = nil, format: String? = nil, rate: Int? = nil, channels: Int? = nil) {
    (self.device, self.format, self.rate, self.channels) = (device, format, rate, channels)
  }
}

/// Both clocks at one moment.
struct ClockReading {
  /// Milliseconds since 1970.
  var wall: Int64
  /// Milliseconds since the machine started, also while it slept.
  var sinceBoot: Int64

  static var now: ClockReading {
    ClockReading(
      wall: WallClock.now.sinceEpoch, sinceBoot: MonotonicInstant.sinceBoot.nanoseconds / 1_000_000)
  }
}

/// Writes `Stream-Description`, and notes when the wall clock was set.
struct StreamDescriber {
  /// What may be the clock's slewing between two requests, and the time between reading both clocks.
  private static let leastStep: Int64 = 100

  /// What a buffer can hold at most of what was recorded before such a time: in milliseconds.
  private static let longestDelay: Int64 = 4 * 24 * 3600 * 1000

  private var description: StreamDescription
  private let splitTimeOfDay: Duration?
  private let started: Int64
  private var before: ClockReading

  /// - Parameter now: when the stream begins.
  init(_ source: SourceDescription, now: ClockReading) {
    description = StreamDescription()
    description.started = now.wall
    description.device = source.device
    description.format = source.format
    description.rate = source.rate.map { Int64($0) }
    description.channels = source.channels.map { Int64($0) }
    description.software = source.software
    description.splitDuration = source.splitDuration.map { $0.nanoseconds / 1_000_000 }
    description.splitSize = source.splitSize.map { Int64(clamping: $0) }
    splitTimeOfDay = source.splitTimeOfDay
    started = now.wall
    before = now
  }

  /// The field of the next request.
  ///
  /// - Parameter offset: the stream offset behind the newest byte.
  mutating func value(at offset: UInt64, now: ClockReading) -> String? {
    let (elapsed, passed) = (
      now.wall.subtractingSaturated(before.wall), now.sinceBoot.subtractingSaturated(before.sinceBoot)
    )
    let step = elapsed.subtractingSaturated(passed)
    if step.magnitude >= UInt64(Self.leastStep), description.clockSteps.count < StreamDescription.maximumStepCount {
      description.clockSteps.append(.init(offset: offset, milliseconds: step))
    }
    before = now
    if let splitTimeOfDay {
      description.splitTimes = Self.times(
        splitTimeOfDay, from: max(started, now.wall.subtractingSaturated(Self.longestDelay)), until: now.wall)
    }
    return description.value
  }

  /// All such moments from `start` on until now, and the next two: the request may be the last one for some time.
  private static func times(_ timeOfDay: Duration, from start: Int64, until now: Int64) -> [Int64] {
    var times: [Int64] = []
    var (last, left) = (start, 2)
    while left > 0, times.count < StreamDescription.maximumTimeCount,
      let next = LocalTime.next(timeOfDay, after: last)
    {
      if next > now { left -= 1 }
      times.append(next)
      last = next
    }
    return times
  }
}

extension Int64 {
  fileprivate func subtractingSaturated(_ other: Int64) -> Int64 {
    let (difference, overflow) = subtractingReportingOverflow(other)
    return overflow ? (self < 0 ? .min : .max) : difference
  }
}
