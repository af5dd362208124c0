// A microphone: the public type.

internal import EventLoops
public import StreamBuffers
internal import Synchronization

/// An ALSA capture device that writes what it hears into a circular buffer, on a thread of its own, for as long as
/// wanted.
///
///     let microphone = try Microphone(MicrophoneConfiguration(device: "hw:CARD=Mic", rate: 48_000))
///     let bytesPerSecond = microphone.format.bytesPerSecond
///     let buffer = try CircularBuffer.make(capacity: .time(.seconds(60), bytesPerSecond: bytesPerSecond))
///     try microphone.start(into: buffer.producer)
///
/// Overruns, suspends and an unplugged device are recovered from, counted and told as ``CaptureEvent``; by default
/// exactly as many frames of silence as were lost are written in their place. All members may be used from any thread,
/// except ``nextEvent()``: one thread at a time. Ends with its last reference.
public final class Microphone: Sendable {
  /// What was asked for.
  public let configuration: MicrophoneConfiguration
  /// What was agreed on with the device. It stays the same when the device is opened again after it was away.
  public let format: CaptureFormat

  private enum Phase {
    case open(OpenDevice)
    case running(NamedThread)
    case ended
  }

  private let shared: CaptureShared
  private let sleepClock: SleepClock
  private let phase: Mutex<Phase>

  /// Opens the device and negotiates with it (snd_pcm_open, snd_pcm_hw_params, snd_pcm_sw_params); capturing begins
  /// with ``start(into:)``. Rate, channels and format are as asked or an error; period and buffer are the nearest there
  /// are.
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
    let device = try Negotiation(configuration: configuration).open()
    format = device.format
    phase = Mutex(.open(device))
  }

  deinit {
    if case .open(let device) = phase.withLock({ $0 }) { device.close() }
    stop()
    waitUntilEnded()
  }

  /// Begins to capture into `producer`, from its head on, and finishes it when the capture ends. Once only.
  ///
  /// - Throws: ``MicrophoneError/system(operation:code:detail:)`` when there is no thread to be had.
  public func start(into producer: consuming CircularBuffer.Producer) throws(MicrophoneError) {
    let device = phase.withLock { phase -> OpenDevice? in
      guard case .open(let device) = phase else { return nil }
      phase = .ended
      return device
    }
    guard let device else { preconditionFailure("a microphone is started once; make another one") }
    let loop = CaptureLoop(
      device: device, configuration: configuration, shared: shared, producer: producer, sleepClock: sleepClock)
    do throws(SystemError) {
      let thread = try CaptureThread.start(loop, realTime: configuration.realTimePriority)
      phase.withLock { $0 = .running(thread) }
    } catch {
      device.close()
      throw .system(operation: error.operation, code: error.code, detail: "")
    }
  }

  /// Ends the capture with the frames that the device has by now, and finishes the stream. Returns at once; the event
  /// ``CaptureEvent/stopped(frames:)`` follows within some milliseconds.
  public func stop() { shared.stop.signal() }

  /// Waits for the capture thread to end, after ``stop()`` or ``MicrophoneConfiguration/maximumFrames``. One caller at
  /// a time.
  public func waitUntilEnded() {
    let thread = phase.withLock { phase -> NamedThread? in
      guard case .running(let thread) = phase else { return nil }
      phase = .ended
      return thread
    }
    thread?.join()
  }

  /// Peak and RMS of each channel since the last call, in dBFS. Empty if not measured (see the configuration).
  public func levels() -> [ChannelLevel] { shared.meter?.take() ?? [] }

  /// The oldest event not taken yet.
  public func nextEvent() -> CaptureEvent? { shared.events.next() }

  /// An eventfd that is readable when there are events; ``nextEvent()`` clears it when it returns nil.
  public var eventDescriptor: Int32 { shared.events.counter.descriptor }

  /// The counters so far.
  public var totals: CaptureTotals { shared.totals.snapshot(eventsMissed: shared.events.refusedCount) }
}
