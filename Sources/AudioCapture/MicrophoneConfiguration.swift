// The configuration of a microphone, and the format that the device accepted.

/// The device and the format to capture.
public struct MicrophoneConfiguration: Equatable, Sendable {
  /// The replacement for time without frames.
  public enum GapFill: String, Sendable {
    /// The same number of frames of silence, so that the recording stays in step with the clock.
    case silence
    /// Nothing. Later frames move forward. The loss is still reported.
    case none
  }

  /// Any ALSA PCM name: `default`, `hw:CARD=Mic`, `plughw:1,0`, `pulse`, or one from your configuration.
  public var device: String
  /// Frames per second, exactly. Nothing is resampled unless the device's name requests it (`plughw:…`, `plug:…`).
  public var rate: Int
  /// Samples per frame, exactly.
  public var channels: Int
  /// The format of a sample. The device must support it.
  public var format: SampleFormat
  /// The ALSA period, which is the delay of the capture. The nearest supported value is used.
  public var period: Duration
  /// The length of the device's buffer, for times when the capture thread cannot run. Nil means 500 ms or 8 periods,
  /// whichever is longer.
  public var buffer: Duration?
  /// The replacement for lost frames.
  public var gapFill: GapFill
  /// Whether to request SCHED_FIFO. ``CaptureEvent/started(realTime:)`` reports a refusal (no RLIMIT_RTPRIO, no
  /// CAP_SYS_NICE).
  public var realTimePriority: Bool
  /// Whether peak and RMS are measured for ``Microphone/levels()``.
  public var measuresLevels: Bool
  /// The number of frames after which the capture ends, including frames of silence. Nil means never.
  public var maximumFrames: UInt64?

  /// Creates a configuration. The defaults are 16 bits, one channel and 48 kHz of the default device.
  public init(
    device: String = "default", rate: Int = 48_000, channels: Int = 1, format: SampleFormat = .s16LE,
    period: Duration = .milliseconds(10), buffer: Duration? = nil, gapFill: GapFill = .silence,
    realTimePriority: Bool = true, measuresLevels: Bool = true, maximumFrames: UInt64? = nil
  ) {
    self.device = device
    self.rate = rate
    self.channels = channels
    self.format = format
    self.period = period
    self.buffer = buffer
    self.gapFill = gapFill
    self.realTimePriority = realTimePriority
    self.measuresLevels = measuresLevels
    self.maximumFrames = maximumFrames
  }

  /// The requested buffer time.
  var bufferTime: Duration { buffer ?? max(.milliseconds(500), period * 8) }
}

/// The format that was negotiated with the device.
public struct CaptureFormat: Equatable, Sendable {
  /// Frames per second.
  public let rate: Int
  /// Samples per frame.
  public let channels: Int
  /// The format of a sample.
  public let format: SampleFormat
  /// The number of frames per period.
  public let periodFrames: Int
  /// The number of frames in the device's buffer.
  public let bufferFrames: Int
  /// Whether the device continues to count after an overrun. If so, the device itself reports the number of lost
  /// frames, and only overwritten frames are lost. Otherwise it stops, all frames in its buffer are also lost, and the
  /// loss is computed from the monotonic clock.
  public let countsThroughOverruns: Bool

  /// The number of bytes of one frame, which is one sample of each channel.
  public var bytesPerFrame: Int { channels * format.bytesPerSample }
  /// The number of bytes of samples per second.
  public var bytesPerSecond: Int { rate * bytesPerFrame }
  /// ``periodFrames`` as a time.
  public var period: Duration { duration(of: UInt64(clamping: periodFrames)) }
  /// ``bufferFrames`` as a time, which is how late the capture thread may be.
  public var buffer: Duration { duration(of: UInt64(clamping: bufferFrames)) }

  /// The duration of this number of frames, at most 292 years.
  public func duration(of frames: UInt64) -> Duration {
    .nanoseconds(Int64(clamping: Int128(frames) * 1_000_000_000 / Int128(max(1, rate))))
  }
}
