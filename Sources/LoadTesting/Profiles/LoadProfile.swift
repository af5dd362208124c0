// What a stream of a load test is like: when it has bytes, how many, how long it lives, and what goes wrong on purpose.

/// A live source, as numbers. Read from JSON (docs/load-profiles.md), or one of the ``builtIn`` ones.
public struct LoadProfile: Equatable, Sendable {
  /// How reports call it.
  public var name = "profile"
  /// How many bytes a message has.
  public var size = MessageSize.rate(96_000)
  /// The time from one message to the next, in nanoseconds.
  public var chunk: Int64 = 100_000_000
  /// Each message comes later than its time by up to so much, evenly distributed; at most ``chunk``.
  public var jitter: Int64 = 0
  /// Talk and silence in turns, beginning with talk; nil for talk without end.
  public var turns: Turns?
  /// Times of larger messages; nil for none.
  public var bursts: Bursts?
  /// How long a stream lasts; nil for as long as the run.
  public var streamLength: LengthDistribution?
  /// How long it takes from a stream's end until another one begins in its place.
  public var thinkTime = LengthDistribution.fixed(0)
  /// What goes wrong on purpose; nothing by default.
  public var faults = Faults()
  /// What the bytes are.
  public var body = Body.pattern

  /// A microphone, as ``mic``, with the name `profile`.
  public init() {}

  /// How many bytes a message has.
  public enum MessageSize: Equatable, Sendable {
    /// Bytes a second, as many as a microphone would have for the time of a chunk. At most 10 GB/s.
    case rate(UInt64)
    /// The number of bytes in each message, evenly distributed.
    case bytes(ClosedRange<Int>)
    /// Messages of this size, one after the other as fast as they are taken: none of them has a time of its own.
    case unpaced(Int)
  }

  /// Talk and silence in turns.
  public struct Turns: Equatable, Sendable {
    /// How long the stream talks.
    public var talk: LengthDistribution
    /// How long it is silent.
    public var silence: LengthDistribution
    /// Bytes a second in silence; 0 for none.
    public var silenceRate: UInt64

    /// Turns of these lengths, with `silenceRate` bytes per second in silence.
    public init(talk: LengthDistribution, silence: LengthDistribution, silenceRate: UInt64 = 0) {
      self.talk = talk
      self.silence = silence
      self.silenceRate = silenceRate
    }
  }

  /// Times in which messages are larger.
  public struct Bursts: Equatable, Sendable {
    /// From the end of one burst to the next.
    public var every: LengthDistribution
    /// How long a burst lasts.
    public var length: LengthDistribution
    /// How many times as large messages are meanwhile.
    public var factor: Int

    /// Bursts of these lengths, with messages `factor` times as large.
    public init(every: LengthDistribution, length: LengthDistribution, factor: Int) {
      self.every = every
      self.length = length
      self.factor = factor
    }
  }

  /// What goes wrong on purpose.
  public struct Faults: Equatable, Sendable {
    /// How long a connection lasts before it is cut; nil for no end.
    public var dropEvery: LengthDistribution?
    /// The part of all streams that are slow, 0 to 1.
    public var slowFraction = 0.0
    /// How many bytes a second the connection of a slow stream takes.
    public var slowRate: UInt64 = 1000
    /// Times in which a stream sends nothing although it has bytes; nil for none.
    public var stalls: Stalls?

    /// No faults.
    public init() {}
  }

  /// Times in which a stream sends nothing.
  public struct Stalls: Equatable, Sendable {
    /// From the end of one to the next.
    public var every: LengthDistribution
    /// How long one lasts.
    public var length: LengthDistribution

    /// Stalls of these lengths.
    public init(every: LengthDistribution, length: LengthDistribution) {
      self.every = every
      self.length = length
    }
  }

  /// What the bytes are.
  public enum Body: Equatable, Sendable {
    /// Zeros.
    case zeros
    /// Bytes that no compression makes smaller.
    case random
    /// Bytes that tell their offset, so that a server can verify them.
    case pattern
    /// A file's bytes, again and again.
    case file(String)
  }

  /// Messages have a time; without, delays are counted from when there was space for them.
  public var isPaced: Bool { if case .unpaced = size { false } else { true } }

  /// The bytes of a message of average size, while the stream talks.
  public var messageSize: Int {
    switch size {
    case .rate(let rate): Int(clamping: Int64(Double(rate) * Double(chunk) / 1e9))
    case .bytes(let range): (range.lowerBound + range.upperBound) / 2
    case .unpaced(let count): count
    }
  }

  /// Bytes a second while the stream talks; 0 when it is not paced.
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

  /// A device that says once a second that it lives, in a line of 30 to 60 bytes.
  public static let heartbeat: LoadProfile = {
    var profile = LoadProfile()
    profile.name = "heartbeat"
    profile.size = .bytes(30...60)
    profile.chunk = 1_000_000_000
    return profile
  }()

  /// Somebody who uploads a large file: as fast as it is taken.
  public static let bulk: LoadProfile = {
    var profile = LoadProfile()
    profile.name = "bulk"
    profile.size = .unpaced(65536)
    return profile
  }()

  /// By their names.
  public static let builtIn = [mic, heartbeat, bulk]
}
