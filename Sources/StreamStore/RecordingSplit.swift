// Decides where one recording of a stream ends and the next one begins. Pure: takes and returns lengths.

internal import EventLoops
internal import HTTPMessages
internal import Recordings

/// How long the recordings of a live WAV stream become before the stream continues in another file.
public struct RecordingSplit: Equatable, Sendable {
  /// Shorter recordings would be a file for each few bytes.
  public static let leastDuration = Duration.seconds(10)
  /// In bytes.
  public static let leastSize: UInt64 = 1_000_000
  /// The pauses before a refused split, or the finishing of a recording, is tried again.
  static let retryPauses = RetryPauses(.seconds(2)...(.seconds(64)))

  /// By the number of frames and their rate, not by a clock.
  public var duration: Duration?
  /// Of a file with its header, in bytes.
  public var size: UInt64?
  /// The local time of day at which a recording ends, in whole minutes since midnight. It counts when the frames were
  /// recorded, as far as the sender states it, and otherwise when they came.
  public var timeOfDay: Duration?
  /// Times at which a recording ends, from the sender, in milliseconds since 1970.
  var times: [Int64] = []
  /// The minimum number of bytes of samples in a file, whatever rate its head states, so that a sender cannot cause a
  /// file for every few bytes.
  var leastLength: UInt64 = 1 << 16

  /// Creates the limits at which a recording continues in another file. Nil means no such limit.
  public init(duration: Duration? = nil, size: UInt64? = nil, timeOfDay: Duration? = nil) {
    (self.duration, self.size, self.timeOfDay) = (duration, size, timeOfDay)
  }

  /// The limits that a sender requests; nil if it requests none. A sender cannot cause more files than the minimum
  /// lengths allow.
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

  /// Whether a clock determines the end.
  var needsClock: Bool { timeOfDay != nil || !times.isEmpty }

  /// How many bytes of samples a recording with that head contains: whole frames, at least one. nil if it is never
  /// split.
  ///
  /// - Parameter untilTime: how many bytes it contains according to the clock, in whole frames.
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
    // The head's frames are shorter than 64 KiB, so no sum of these overflows.
    let least = max(frame, (leastLength + frame - 1) / frame * frame)
    return limits.min().map { max($0, least) }
  }

  /// How many more bytes a recording may take before the stream continues in another; nil if it is never split.
  ///
  /// - Parameters:
  ///   - fileLength: the length of the recording so far, in bytes, with its head.
  ///   - untilTime: how many bytes of samples it contains according to the clock.
  func room(_ head: WAVHead, fileLength: UInt64, untilTime: UInt64? = nil) -> UInt64? {
    guard head.isOpen, let limit = dataLength(head, untilTime: untilTime) else { return nil }
    let data = fileLength - min(fileLength, UInt64(head.received.count))
    if data < limit { return limit - data }
    // It is already longer, because it could not be split or ends with a gap. So it continues to the end of the frame.
    let (frame, begun) = (UInt64(head.frameLength), data % UInt64(head.frameLength))
    return begun == 0 ? 0 : frame - begun
  }
}

extension Duration {
  fileprivate var milliseconds: Int64 { nanoseconds / 1_000_000 }
}
