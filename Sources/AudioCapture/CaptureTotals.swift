// What a capture has amounted to so far, readable from any thread at any time.

internal import Synchronization

/// Counters of one capture since its start.
public struct CaptureTotals: Equatable, Sendable {
  /// Frames in the stream: read from the device, and silence filled in.
  public var frames: UInt64 = 0
  /// Frames lost in all gaps together; with ``MicrophoneConfiguration/GapFill/silence`` silence stands in for them.
  public var framesLost: UInt64 = 0
  /// How many times the device had more frames than it can hold.
  public var overruns: UInt64 = 0
  /// How many times the device was suspended.
  public var suspends: UInt64 = 0
  /// How many times the device was gone, or fell silent.
  public var deviceLosses: UInt64 = 0
  /// Wake-ups without a frame.
  public var spuriousWakeUps: UInt64 = 0
  /// Reads that gave fewer frames than the device had announced. Nothing is lost by them.
  public var shortReads: UInt64 = 0
  /// Events that nobody took in time. ``CaptureEvent/missed(events:streamOffset:byteCount:framesLost:filled:)`` reports
  /// what is lost by them.
  public var eventsMissed: UInt64 = 0
}

/// The same as atomics. The capture thread alone writes.
final class AtomicCaptureTotals: Sendable {
  let frames = Atomic<UInt64>(0)
  let framesLost = Atomic<UInt64>(0)
  let overruns = Atomic<UInt64>(0)
  let suspends = Atomic<UInt64>(0)
  let deviceLosses = Atomic<UInt64>(0)
  let spuriousWakeUps = Atomic<UInt64>(0)
  let shortReads = Atomic<UInt64>(0)

  func snapshot(eventsMissed: UInt64) -> CaptureTotals {
    CaptureTotals(
      frames: frames.load(ordering: .relaxed), framesLost: framesLost.load(ordering: .relaxed),
      overruns: overruns.load(ordering: .relaxed), suspends: suspends.load(ordering: .relaxed),
      deviceLosses: deviceLosses.load(ordering: .relaxed), spuriousWakeUps: spuriousWakeUps.load(ordering: .relaxed),
      shortReads: shortReads.load(ordering: .relaxed), eventsMissed: eventsMissed)
  }
}
