// The peak and RMS level per channel, measured while the samples are copied.

internal import Glibc
internal import Synchronization

/// The level of one channel over some time, in dBFS. 0 is full scale, and silence is -infinity.
public struct ChannelLevel: Equatable, Sendable {
  /// The largest sample. A full-scale sine has 0.
  public let peak: Double
  /// The root mean square. A full-scale square wave has 0, a full-scale sine -3.01.
  public let rms: Double

  /// Creates a level, in dBFS.
  public init(peak: Double, rms: Double) { (self.peak, self.rms) = (peak, rms) }
}

/// Measures levels on the capture thread, and provides them to any other thread. No lock: each number is one atomic
/// word.
///
/// A reading between the two words of an update may miss that one block, and never more.
final class LevelMeter: Sendable {
  let channels: Int
  private let format: SampleFormat
  nonisolated(unsafe) private let words: UnsafeMutablePointer<Word>

  /// The measurement of one channel since the last reading.
  private struct Word: ~Copyable {
    /// Largest magnitude, 0 … 1, as the bits of a Double. For non-negative numbers, these sort in the same order.
    let peak = Atomic<UInt64>(0)
    /// Sum of squared samples, as the bits of a Double.
    let energy = Atomic<UInt64>(0)
    let frames = Atomic<UInt64>(0)
  }

  init(channels: Int, format: SampleFormat) {
    self.channels = channels
    self.format = format
    words = .allocate(capacity: channels)
    for channel in 0..<channels { (words + channel).initialize(to: Word()) }
  }

  deinit {
    words.deinitialize(count: channels)
    words.deallocate()
  }

  /// The levels since the last call, one for each channel.
  func take() -> [ChannelLevel] {
    (0..<channels).map { channel in
      let frames = words[channel].frames.exchange(0, ordering: .relaxed)
      let peak = Double(bitPattern: words[channel].peak.exchange(0, ordering: .relaxed))
      let energy = Double(bitPattern: words[channel].energy.exchange(0, ordering: .relaxed))
      return ChannelLevel(
        peak: 20 * log10(peak), rms: frames == 0 ? -.infinity : 10 * log10(energy / Double(frames)))
    }
  }

  /// Measures `frames` interleaved frames. On the capture thread.
  func measure(_ bytes: UnsafeRawPointer, frames: Int) {
    for channel in 0..<channels {
      let start = bytes + channel * format.bytesPerSample
      switch format {
      case .s16LE: add(channel, frames, integers16(start, frames))
      case .s32LE: add(channel, frames, integers32(start, frames))
      case .s24_3LE: add(channel, frames, packed24(start, frames))
      case .floatLE: add(channel, frames, floats(start, frames))
      }
    }
  }

  private typealias Reading = (peak: Double, energy: Double)

  private func add(_ channel: Int, _ frames: Int, _ reading: Reading) {
    words[channel].frames.add(UInt64(frames), ordering: .relaxed)
    _ = words[channel].peak.max(reading.peak.bitPattern, ordering: .relaxed)
    // Fails only if a reader has just set it to zero, so at most twice.
    var old = words[channel].energy.load(ordering: .relaxed)
    while true {
      let new = (Double(bitPattern: old) + reading.energy).bitPattern
      let (exchanged, original) = words[channel].energy.compareExchange(expected: old, desired: new, ordering: .relaxed)
      if exchanged { return }
      old = original
    }
  }

  /// The usual format, in integers. A sum of 2^32 squares of 2^30 still fits, and this takes a third of the time.
  private func integers16(_ start: UnsafeRawPointer, _ frames: Int) -> Reading {
    let stride = channels * 2
    var least: Int32 = 0
    var most: Int32 = 0
    var energy: Int64 = 0
    var at = start
    for _ in 0..<frames {
      let sample = Int32(at.loadUnaligned(as: Int16.self))
      least = min(least, sample)
      most = max(most, sample)
      energy &+= Int64(sample &* sample)
      at += stride
    }
    return (Double(max(-least, most)) / 32768, Double(energy) / (32768 * 32768))
  }

  private func integers32(_ start: UnsafeRawPointer, _ frames: Int) -> Reading {
    let stride = channels * 4
    var peak = 0.0
    var energy = 0.0
    for frame in 0..<frames {
      let sample = Double((start + frame * stride).loadUnaligned(as: Int32.self)) / 2_147_483_648
      peak = max(peak, abs(sample))
      energy += sample * sample
    }
    return (peak, energy)
  }

  private func packed24(_ start: UnsafeRawPointer, _ frames: Int) -> Reading {
    let stride = channels * 3
    var peak = 0.0
    var energy = 0.0
    for frame in 0..<frames {
      let at = start + frame * stride
      let low = Int32(at.loadUnaligned(as: UInt16.self))
      let high = Int32(at.load(fromByteOffset: 2, as: Int8.self))
      let sample = Double(high << 16 | low) / 8_388_608
      peak = max(peak, abs(sample))
      energy += sample * sample
    }
    return (peak, energy)
  }

  private func floats(_ start: UnsafeRawPointer, _ frames: Int) -> Reading {
    let stride = channels * 4
    var peak = 0.0
    var energy = 0.0
    for frame in 0..<frames {
      let sample = Double((start + frame * stride).loadUnaligned(as: Float.self))
      // A faulty device may deliver NaN or infinity, which is not a level.
      guard sample.isFinite else { continue }
      peak = max(peak, abs(sample))
      energy += sample * sample
    }
    return (peak, energy)
  }
}
