// The model of a stream in a load test: the times and sizes of its messages, its lifetime, and its deliberate faults.

/// A model of a live source. It is read from JSON (docs/load-profiles.md), or one of the ``builtIn`` ones.
public struct LoadProfile: Equatable, Sendable {
  /// The name in reports.
  public var name = "profile"
  /// The size of a message.
  public var size = MessageSize.rate(96_000)
  /// The time between two messages in nanoseconds.
  public var chunk: Int64 = 100_000_000
  /// The maximum random delay of each message, uniformly distributed, at most ``chunk``.
  public var jitter: Int64 = 0
  /// Alternating talk and silence, beginning with talk. Nil for continuous talk.
  public var turns: Turns?
  /// Periods with larger messages. Nil for none.
  public var bursts: Bursts?
  /// The lifetime of a stream. Nil for the duration of the run.
  public var streamLength: LengthDistribution?
  /// The time from a stream's end until another one begins in its place.
  public var thinkTime = LengthDistribution.fixed(0)
  /// The deliberate faults. The default is none.
  public var faults = Faults()
  /// The content of the bytes.
  public var body = Body.pattern

  /// Creates the profile of a microphone, like ``mic``, with the name `profile`.
  public init() {}

  /// The size of a message.
  public enum MessageSize: Equatable, Sendable {
    /// Bytes per second. A message contains the bytes of one chunk of time. At most 10 GB/s.
    case rate(UInt64)
    /// The number of bytes in each message, uniformly distributed.
    case bytes(ClosedRange<Int>)
    /// Messages of this size, one after another as fast as they are accepted. They have no due times.
    case unpaced(Int)
  }

  /// Alternating talk and silence.
  public struct Turns: Equatable, Sendable {
    /// The duration of talk.
    public var talk: LengthDistribution
    /// The duration of silence.
    public var silence: LengthDistribution
    /// Bytes per second during silence, or 0.
    public var silenceRate: UInt64

    /// Creates turns of these durations, with `silenceRate` bytes per second during silence.
    public init(talk: LengthDistribution, silence: LengthDistribution, silenceRate: UInt64 = 0) {
      self.talk = talk
      self.silence = silence
      self.silenceRate = silenceRate
    }
  }

  /// Periods with larger messages.
  public struct Bursts: Equatable, Sendable {
    /// The time from the end of one burst to the next.
    public var every: LengthDistribution
    /// The duration of a burst.
    public var length: LengthDistribution
    /// The factor by which messages are larger.
    public var factor: Int

    /// Creates bursts of these durations, with messages that are `factor` times as large.
    public init(every: LengthDistribution, length: LengthDistribution, factor: Int) {
      self.every = every
      self.length = length
      self.factor = factor
    }
  }

  /// Deliberate faults.
  public struct Faults: Equatable, Sendable {
    /// The time until a connection is cut. Nil means never.
    public var dropEvery: LengthDistribution?
    /// The fraction of all streams that are slow, from 0 to 1.
    public var slowFraction = 0.0
    /// The bytes per second that the connection of a slow stream accepts.
    public var slowRate: UInt64 = 1000
    /// Periods in which a stream sends nothing although it has bytes. Nil for none.
    public var stalls: Stalls?

    /// Creates a profile without faults.
    public init() {}
  }

  /// Periods in which a stream sends nothing.
  public struct Stalls: Equatable, Sendable {
    /// The time from the end of one stall to the next.
    public var every: LengthDistribution
    /// The duration of a stall.
    public var length: LengthDistribution

    /// Creates stalls of these durations.
    public init(every: LengthDistribution, length: LengthDistribution) {
      self.every = every
      self.length = length
    }
  }

  /// The content of the bytes.
  public enum Body: Equatable, Sendable {
    /// Zeros.
    case zeros
    /// Incompressible bytes.
    case random
    /// Bytes that encode their offset, so that a server can verify them.
    case pattern
    /// The bytes of a file, repeatedly.
    case file(String)
  }

  /// Whether messages have due times. Otherwise, delays are measured from the moment at which there was space.
  public var isPaced: Bool { if case .unpaced = size { false } else { true } }

  /// The number of bytes in a message of average size during talk.
  public var messageSize: Int {
    switch size {
    case .rate(let rate): Int(clamping: Int64(Double(rate) * Double(chunk) / 1e9))
    case .bytes(let range): (range.lowerBound + range.upperBound) / 2
    case .unpaced(let count): count
    }
  }

  /// Bytes per second during talk. 0 if the profile is not paced.
  public var rate: UInt64 {
    switch size {
    case .rate(let rate): rate
    case .bytes: chunk > 0 ? UInt64(Double(messageSize) * 1e9 / Double(chunk)) : 0
    case .unpaced: 0
    }
  }
}

extension LoadProfile {
  /// A microphone: 48 kHz, 16 bits, one channel, in periods of 100 ms.
  public static let mic: LoadProfile = {
    var profile = LoadProfile()
    profile.name = "mic"
    return profile
  }()

  /// A device that sends a line of 30 to 60 bytes once per second.
  public static let heartbeat: LoadProfile = {
    var profile = LoadProfile()
    profile.name = "heartbeat"
    profile.size = .bytes(30...60)
    profile.chunk = 1_000_000_000
    return profile
  }()

  /// The upload of a large file, as fast as the server accepts it.
  public static let bulk: LoadProfile = {
    var profile = LoadProfile()
    profile.name = "bulk"
    profile.size = .unpaced(65536)
    return profile
  }()

  /// The built-in profiles.
  public static let builtIn = [mic, heartbeat, bulk]
}
