// A microphone: the public type.

internal import EventLoops
internal import Glibc
public import StreamBuffers
internal import Synchronization

/// An ALSA capture device that writes its samples into a circular buffer on a separate thread, without a time limit.
///
///     let microphone = try Microphone(MicrophoneConfiguration(device: "hw:CARD=Mic", rate: 48_000))
///     let bytesPerSecond = microphone.format.bytesPerSecond
///     let buffer = try CircularBuffer.make(capacity: .time(.seconds(60), bytesPerSecond: bytesPerSecond))
///     try microphone.start(into: buffer.producer)
///
/// The microphone recovers from overruns, suspends and an unplugged device. It counts them and reports each as a
/// ``CaptureEvent``. By default, the same number of frames of silence replaces lost frames. All members may be used
/// from any thread, except ``nextEvent()``, which only one thread at a time may call. The capture ends when the last
/// reference is dropped, unless the driver hangs.
public final class Microphone: Sendable {
  /// The requested configuration.
  public let configuration: MicrophoneConfiguration
  /// The negotiated format. It stays the same when the device is reopened.
  public let format: CaptureFormat

  private enum Phase {
    case open(OpenDevice)
    case running(NamedThread)
    case ended
  }

  private let shared: CaptureShared
  private let sleepClock: SleepClock
  private let phase: Mutex<Phase>

  /// Opens and configures the device (snd_pcm_open, snd_pcm_hw_params, snd_pcm_sw_params). Capturing begins with
  /// ``start(into:)``. Rate, channels and format are exactly as requested, or the call fails. Period and buffer are the
  /// nearest that the device supports.
  public convenience init(_ configuration: MicrophoneConfiguration) throws(MicrophoneError) {
    try self.init(configuration, sleepClock: .system)
  }

  init(_ configuration: MicrophoneConfiguration, sleepClock: SleepClock) throws(MicrophoneError) {
    self.sleepClock = sleepClock
    self.configuration = configuration
    do throws(SystemError) {
      shared = try CaptureShared(configuration)
    } catch {
      throw .system(operation: error.operation, code: error.code, detail: "")
    }
    let device = try Negotiation(configuration: configuration).open(explains: true)
    format = device.format
    phase = Mutex(.open(device))
  }

  deinit {
    if case .open(let device) = phase.withLock({ $0 }) { device.close() }
    stop()
    // A driver or the plugin of a sound server may hang. The thread has all that it uses.
    guard let thread = takeThread() else { return }
    let hasEnded = waitUntilReady(shared.ended.descriptor, for: POLLIN, timeout: Self.patience)
    if hasEnded { thread.join() } else { thread.detach() }
  }

  /// How long the release waits for the end of the capture, in milliseconds. Until then, the device is busy for others.
  /// Only a driver that hangs takes that long. The last reference may be that of a thread with other streams: call
  /// ``stop()`` and ``waitUntilEnded()`` on another thread to release the device without this wait.
  private static let patience: Int32 = 2000

  /// Starts to capture into `producer` at its head, and finishes it when the capture ends. Call it only once.
  ///
  /// - Throws: ``MicrophoneError/system(operation:code:detail:)`` when no thread can be created.
  public func start(into producer: consuming CircularBuffer.Producer) throws(MicrophoneError) {
    let device = phase.withLock { phase -> OpenDevice? in
      guard case .open(let device) = phase else { return nil }
      phase = .ended
      return device
    }
    guard let device else { preconditionFailure("a microphone can be started only once") }
    let loop = CaptureLoop(
      device: device, configuration: configuration, shared: shared, producer: producer, sleepClock: sleepClock)
    do throws(SystemError) {
      let thread = try CaptureThread.start(loop, shared, realTime: configuration.realTimePriority)
      phase.withLock { $0 = .running(thread) }
    } catch {
      device.close()
      throw .system(operation: error.operation, code: error.code, detail: "")
    }
  }

  /// Ends the capture after the frames that the device has now, and finishes the stream. Returns at once. The event
  /// ``CaptureEvent/stopped(frames:)`` follows within a few milliseconds, or after about 40 ms if the circular buffer
  /// stays full.
  public func stop() { shared.stop.signal() }

  /// Waits for the end of the capture thread, after ``stop()`` or ``MicrophoneConfiguration/maximumFrames``. Only one
  /// caller at a time.
  public func waitUntilEnded() { takeThread()?.join() }

  private func takeThread() -> NamedThread? {
    phase.withLock { phase in
      guard case .running(let thread) = phase else { return nil }
      phase = .ended
      return thread
    }
  }

  /// Peak and RMS of each channel since the last call, in dBFS. Empty if the configuration does not measure them.
  public func levels() -> [ChannelLevel] { shared.meter?.take() ?? [] }

  /// The oldest event that was not read yet.
  public func nextEvent() -> CaptureEvent? { shared.events.next() }

  /// An eventfd that is readable when there are events. ``nextEvent()`` clears it when it returns nil.
  public var eventDescriptor: Int32 { shared.events.counter.descriptor }

  /// The counters so far.
  public var totals: CaptureTotals { shared.totals.snapshot(eventsMissed: shared.events.refusedCount) }
}
