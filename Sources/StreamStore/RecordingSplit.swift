// Where one recording of a stream ends and the next one begins. Pure: lengths in, lengths out.

internal import EventLoops
internal import HTTPMessages

/// How long the recordings of a live WAV stream become before the stream continues in another file.
public struct RecordingSplit: Equatable, Sendable {
  /// Shorter recordings would be a file for each few bytes.
  public static let leastDuration = Duration.seconds(10)
  /// In bytes.
  public static let leastSize: UInt64 = 1_000_000
  /// After what time a split is tried again that the disk has refused, or a recording finished that it did not let finish;
  /// twice as long each time, up to the longest.
  static let retryPauses = (first: Duration.seconds(2), longest: Duration.seconds(64))

  /// By the number of frames and their rate, not by a clock.
  public var duration: Duration?
  /// Of a file with its header, in bytes.
  public var size: UInt64?
  /// The local time of day at which a recording ends, in whole minutes since midnight. It counts when the frames were
  /// recorded, as far as the sender says, and else when they came.
  public var timeOfDay: Duration?
  /// Times at which a recording ends, in milliseconds since 1970: from the sender.
  var times: [Int64] = []
  /// The fewest bytes of samples in a file, whatever its head says of the rate: nobody can have a file made for each
  /// few bytes.
  var leastLength: UInt64 = 1 << 16

  /// When a recording continues in another file; nil is never.
  public init(duration: Duration? = nil, size: UInt64? = nil, timeOfDay: Duration? = nil) {
    (self.duration, self.size, self.timeOfDay) = (duration, size, timeOfDay)
  }

  /// What a sender asks for; nil if it asks for nothing. A sender cannot have more files made than the least lengths
  /// allow.
  init?(_ description: StreamDescription) {
    let duration = description.splitDuration.map { max(Self.leastDuration, .milliseconds($0)) }
    let size = description.splitSize.map { max(Self.leastSize, UInt64(clamping: $0)) }
    if duration == nil && size == nil && description.splitTimes.isEmpty { return nil }
    self.init(duration: duration, size: size)
    times = description.splitTimes
  }

  /// The shorter of both.
  static func shortest(_ a: RecordingSplit?, _ b: RecordingSplit?) -> RecordingSplit? {
    guard let a, let b else { return a ?? b }
    var shortest = RecordingSplit(
      duration: [a.duration, b.duration].compactMap(\.self).min(), size: [a.size, b.size].compactMap(\.self).min(),
      timeOfDay: a.timeOfDay ?? b.timeOfDay)
    shortest.times = a.times + b.times
    shortest.leastLength = max(a.leastLength, b.leastLength)
    return shortest
  }

  /// Whether a clock decides.
  var needsClock: Bool { timeOfDay != nil || !times.isEmpty }

  /// How many bytes of samples a recording with that head holds: whole frames, at least one. nil if it is never split.
  ///
  /// - Parameter untilTime: how many it holds by the clock: whole frames.
  func dataLength(_ head: WAVHead, untilTime: UInt64? = nil) -> UInt64? {
    let frame = UInt64(head.frameLength)
    var limits: [UInt64] = []
    if let duration, head.rate > 0 {
      let (frames, overflow) = UInt64(head.rate).multipliedReportingOverflow(by: UInt64(max(0, duration.milliseconds)))
      let (bytes, overflows) = (frames / 1000).multipliedReportingOverflow(by: frame)
      if !overflow && !overflows { limits.append(bytes) }
    }
    if let size { limits.append((size - min(size, UInt64(head.received.count))) / frame * frame) }
    if let untilTime { limits.append(untilTime) }
    // The head's frames are shorter than 64 KiB: no sum of these overflows.
    let least = max(frame, (leastLength + frame - 1) / frame * frame)
    return limits.min().map { max($0, least) }
  }

  /// How many bytes a recording may still take before the stream continues in another; nil if it is never split.
  ///
  /// - Parameters:
  ///   - fileLength: of the recording so far, in bytes, with its head.
  ///   - untilTime: how many bytes of samples it holds by the clock.
  func room(_ head: WAVHead, fileLength: UInt64, untilTime: UInt64? = nil) -> UInt64? {
    guard head.isOpen, let limit = dataLength(head, untilTime: untilTime) else { return nil }
    let data = fileLength - min(fileLength, UInt64(head.received.count))
    if data < limit { return limit - data }
    // It is longer already, because it could not be split, or ends with a gap: up to the end of the frame.
    let (frame, begun) = (UInt64(head.frameLength), data % UInt64(head.frameLength))
    return begun == 0 ? 0 : frame - begun
  }
}

extension Duration {
  fileprivate var milliseconds: Int64 { nanoseconds / 1_000_000 }
}
