// The data about a stream that a sender gives the server for the sidecar of the recording.

internal import EventLoops
internal import HTTPMessages
internal import UploadClient

/// Describes the source of a live stream. Members that are nil are not sent.
public struct SourceDescription: Equatable, Sendable {
  /// The source, such as an ALSA device.
  public var device: String?
  /// The sample format, as ALSA names it.
  public var format: String?
  /// Frames per second.
  public var rate: Int?
  /// Samples per frame.
  public var channels: Int?
  /// The sender's software and its version.
  public var software: String? = "sluice/\(sluiceVersion)"
  /// The length after which the server continues a WAV recording in another file.
  public var splitDuration: Duration?
  /// The size of a file of the recording, in bytes.
  public var splitSize: UInt64?
  /// The local time of day at which the recording continues in another file, in whole minutes since midnight.
  public var splitTimeOfDay: Duration?

  /// Creates a description. Nil omits a member.
  public init(device: String? = nil, format: String? = nil, rate: Int? = nil, channels: Int? = nil) {
    (self.device, self.format, self.rate, self.channels) = (device, format, rate, channels)
  }
}

/// Writes `Stream-Description`, and notes when the wall clock was set.
struct StreamDescriber {
  /// A smaller difference may be the clock's slewing between two requests, or the time between reading both clocks.
  private static let leastStep: Int64 = 100

  /// The longest recording from before such a time that a buffer can contain, in milliseconds.
  private static let longestDelay: Int64 = 4 * 24 * 3600 * 1000

  private var description: StreamDescription
  private let splitTimeOfDay: Duration?
  private let started: Int64
  private var before: ClockReading

  /// - Parameter now: the start of the stream.
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

  /// The field for the next request.
  ///
  /// - Parameter offset: the stream offset after the newest byte.
  mutating func value(at offset: UInt64, now: ClockReading) -> String? {
    let step = now.step(since: before)
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

  /// All such moments from `start` until now, and the next two, because the request may be the last one for some time.
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
