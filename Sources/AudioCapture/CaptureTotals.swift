// The totals of a capture so far, readable from any thread at any time.

internal import Synchronization

/// The counters of one capture since its start.
public struct CaptureTotals: Equatable, Sendable {
  /// The frames in the stream: frames from the device, and frames of silence that replace losses.
  public var frames: UInt64 = 0
  /// The frames that were lost in all gaps. With ``MicrophoneConfiguration/GapFill/silence``, silence replaces them.
  public var framesLost: UInt64 = 0
  /// The number of overruns of the device, including a loss at the end because the circular buffer was full.
  public var overruns: UInt64 = 0
  /// The number of times that the device was suspended.
  public var suspends: UInt64 = 0
  /// The number of times that the device was gone, or stopped delivering.
  public var deviceLosses: UInt64 = 0
  /// Wake-ups without a frame.
  public var spuriousWakeUps: UInt64 = 0
  /// The number of reads that returned fewer frames than the device had announced. They lose nothing.
  public var shortReads: UInt64 = 0
  /// The number of events that were not read in time.
  /// ``CaptureEvent/missed(events:streamOffset:byteCount:framesLost:filled:)`` reports their losses.
  public var eventsMissed: UInt64 = 0
}

/// The same as atomics. Only the capture thread writes them.
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
