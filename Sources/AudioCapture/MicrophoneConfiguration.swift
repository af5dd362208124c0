// What is asked of a microphone, and what the device made of it.

/// What to capture, and how.
public struct MicrophoneConfiguration: Equatable, Sendable {
  /// What becomes of the time in which no frames could be had.
  public enum GapFill: String, Sendable {
    /// As many frames of silence as were lost: what is stored stays true to the clock.
    case silence
    /// Nothing: what follows moves forward. The loss is reported all the same.
    case none
  }

  /// Any ALSA PCM name: `default`, `hw:CARD=Mic`, `plughw:1,0`, `pulse`, one of your own.
  public var device: String
  /// Frames per second. Demanded exactly: nobody resamples unless the device's name asks for it (`plughw:…`, `plug:…`).
  public var rate: Int
  /// Samples per frame. Demanded exactly.
  public var channels: Int
  /// The format of a sample. The device must have it.
  public var format: SampleFormat
  /// How long the device collects before it wakes us: the delay of capture. The nearest that the device has is taken.
  public var period: Duration
  /// How much the device holds while the capture thread is kept from running; nil: 500 ms or 8 periods, what is longer.
  public var buffer: Duration?
  /// What stands in the stream for frames that are lost.
  public var gapFill: GapFill
  /// Whether to ask for SCHED_FIFO. Refused (no RLIMIT_RTPRIO, no CAP_SYS_NICE) is said in
  /// ``CaptureEvent/started(realTime:)``.
  public var realTimePriority: Bool
  /// Whether peak and RMS are measured for ``Microphone/levels()``.
  public var measuresLevels: Bool
  /// The capture ends after exactly so many frames, silence filled in included; nil: never.
  public var maximumFrames: UInt64?

  /// What to capture: 16 bits, one channel and 48 kHz of the default device, unless you choose something else.
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

  /// The buffer to ask for, in seconds.
  var bufferTime: Duration { buffer ?? max(.milliseconds(500), period * 8) }
}

/// What was negotiated with the device.
public struct CaptureFormat: Equatable, Sendable {
  /// Frames per second.
  public let rate: Int
  /// Samples per frame.
  public let channels: Int
  /// The format of a sample.
  public let format: SampleFormat
  /// Frames after which the device wakes us.
  public let periodFrames: Int
  /// Frames that the device holds before it overruns.
  public let bufferFrames: Int
  /// Whether the device counts on after an overrun: then the frames lost are known exactly, from the device itself, and
  /// only those are lost that were really overwritten. Else it stops, all that it held is lost too, and the loss is
  /// computed from the monotonic clock.
  public let countsThroughOverruns: Bool

  /// Bytes of one frame: one sample of each channel.
  public var bytesPerFrame: Int { channels * format.bytesPerSample }
  /// How many bytes of samples there are in a second.
  public var bytesPerSecond: Int { rate * bytesPerFrame }
  /// ``periodFrames`` as a time.
  public var period: Duration { duration(of: UInt64(clamping: periodFrames)) }
  /// ``bufferFrames`` as a time: how long the capture thread may be late.
  public var buffer: Duration { duration(of: UInt64(clamping: bufferFrames)) }

  /// How long so many frames last; what is longer than 292 years counts as that.
  public func duration(of frames: UInt64) -> Duration {
    .nanoseconds(Int64(clamping: Int128(frames) * 1_000_000_000 / Int128(max(1, rate))))
  }
}
