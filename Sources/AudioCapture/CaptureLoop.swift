// The capture thread's work, from its first frame to its last: the shell around `CaptureStateMachine`.
//
// It runs on a separate thread, and does not allocate, lock, log, or wait for anything except the device and the order
// to stop. There are two exceptions. While there is no device, it opens one, for which libasound allocates, but there
// is no audio to miss. And it does not control what libasound does inside its calls: the hardware plugin does none of
// this, but the PulseAudio plugin locks.

internal import CALSA
internal import EventLoops
internal import Glibc
internal import StreamBuffers
internal import Synchronization

/// The state that the capture thread shares with others, all of it atomic.
final class CaptureShared: Sendable {
  let events: CaptureEventRing
  let totals = AtomicCaptureTotals()
  let meter: LevelMeter?
  /// Signalled to end the capture.
  let stop: EventCounter
  /// Signalled by the capture thread when it uses nothing any more.
  let ended: EventCounter

  init(_ configuration: MicrophoneConfiguration) throws(SystemError) {
    events = try CaptureEventRing(frameBytes: configuration.format.bytesPerSample * configuration.channels)
    stop = try EventCounter()
    ended = try EventCounter()
    meter =
      configuration.measuresLevels ? LevelMeter(channels: configuration.channels, format: configuration.format) : nil
  }
}

struct CaptureLoop: ~Copyable {
  let negotiation: Negotiation
  let shared: CaptureShared
  let frameBytes: Int
  let fills: Bool
  let maximumFrames: UInt64

  /// nil while the device is away.
  var device: OpenDevice?
  var producer: CircularBuffer.Producer
  var machine = CaptureStateMachine()
  var clock: DeviceClock
  let sleepClock: SleepClock
  /// How much of the machine's sleep the timeline includes, in nanoseconds. ``clock`` counts it.
  var asleep: Int64

  /// Frames that the device has produced since the first start, read or lost, as far as is known.
  var timeline: UInt64 = 0
  /// The total number of frames written to the circular buffer.
  var stored: UInt64 = 0
  /// Frames of silence to store before anything else, because the buffer was full.
  var owed: UInt64 = 0
  /// Bytes of silence that the stream omitted, because they exceeded the buffer.
  var pausedBytes: UInt64 = 0
  /// Where, and for how long, the stream has been interrupted since the device was lost.
  var awayOffset: UInt64 = 0
  var awayFrames: UInt64 = 0
  /// The reasons why the device could not be used since then, as far as they are reported.
  var refusals: [CaptureEvent.Refusal] = []
  /// Successive wake-ups without a frame.
  var fruitlessWakes = 0
  /// When the first of them happened.
  var fruitlessSince = MonotonicInstant(nanoseconds: 0)
  /// Whether the circular buffer was full at the last attempt, so that it is reported once instead of once per period.
  var isFull = false
  var stopRequested = false

  /// The descriptors of the order to stop and of the circular buffer's space, then the PCM's own.
  let descriptors: UnsafeMutablePointer<pollfd>
  var descriptorCount = 0
  static let maximumPCMDescriptors = 16

  init(
    device: OpenDevice, configuration: MicrophoneConfiguration, shared: CaptureShared,
    producer: consuming CircularBuffer.Producer, sleepClock: SleepClock
  ) {
    self.sleepClock = sleepClock
    asleep = sleepClock.asleep()
    negotiation = Negotiation(configuration: configuration)
    self.shared = shared
    frameBytes = device.format.bytesPerFrame
    fills = configuration.gapFill == .silence
    maximumFrames = configuration.maximumFrames ?? .max
    self.device = device
    self.producer = producer
    clock = DeviceClock(rate: device.format.rate, frames: 0, at: .now.advanced(byNanoseconds: asleep))
    descriptors = .allocate(capacity: 2 + Self.maximumPCMDescriptors)
    descriptors[0] = pollfd(fd: shared.stop.descriptor, events: Int16(POLLIN), revents: 0)
    descriptors[1] = pollfd(fd: self.producer.spaceDescriptor, events: Int16(POLLIN), revents: 0)
  }

  deinit { descriptors.deallocate() }

  /// Captures until the order to stop, or until it has enough frames. Then finishes the stream.
  mutating func run(realTime: CaptureEvent.RealTime) {
    AlsaMessages.dropOnThisThread()
    shared.events.append(.started(realTime: realTime))
    var action = start()
    while action != .end {
      switch action {
      case .wait: action = capture()
      case .restart: action = restart()
      case .resume(let delay): action = resume(after: delay)
      case .reopen(let delay): action = reopen(after: delay)
      case .end: break
      }
      if stopRequested { action = endOnRequest() }
      shared.events.reportMissed()
    }
    settleAtEnd()
    if device == nil, awayFrames > 0 {
      shared.events.append(.neverReturned(streamOffset: awayOffset, framesLost: awayFrames, filled: isFilled))
    }
    device?.close()
    device = nil
    producer.finish()
    shared.events.append(.stopped(frames: stored))
  }

  // MARK: Waiting

  /// One turn while the device runs: writes due silence, waits for a period, and reads it.
  private mutating func capture() -> CaptureStateMachine.Action {
    guard stored < maximumFrames else { return machine.end() }
    guard settle() else { return waitForSpace() }
    guard stored < maximumFrames, let device else { return machine.end() }
    // Without the circular buffer's descriptor, whose POLLIN is not awaited here.
    let pcmDescriptors = descriptors + 2
    descriptors[1].events = 0
    let ready = poll(descriptors, nfds_t(2 + descriptorCount), device.silenceLimit)
    if ready < 0 { return errno == EINTR ? .wait : fail(errno) }
    if sleepClock.asleep() - asleep >= SleepClock.resolution { return wokenFromSleep(device) }
    if descriptors[0].revents != 0 {
      stopRequested = true
      // Frames that the device has by now were captured before the order, so they belong to the stream.
      return read(device)
    }
    if ready == 0 {
      let code = device.stateError()
      return fail(code == 0 ? ETIMEDOUT : code)
    }
    var events: UInt16 = 0
    let code = -snd_pcm_poll_descriptors_revents(device.pcm, pcmDescriptors, UInt32(descriptorCount), &events)
    if code != 0 { return fail(code) }
    let happened = Int32(events)
    if happened & (POLLHUP | POLLNVAL) != 0 { return fail(ENODEV) }
    if happened & POLLERR != 0 {
      let code = device.stateError()
      if code != 0 { return fail(code) }
    } else if happened & POLLIN == 0 {
      // The plugin's descriptor was ready, but the PCM is not. The plugin uses this for internal work.
      return yieldToDevice()
    }
    return read(device)
  }

  /// Waits until the circular buffer has space for a period, but at most for one period. Under `dropOldest` the
  /// obstacle is a reader of the oldest bytes, which gives no signal. The device buffers meanwhile.
  mutating func waitForSpace() -> CaptureStateMachine.Action {
    if !isFull {
      isFull = true
      shared.events.append(.bufferFull(streamOffset: streamOffset))
    }
    guard let device else { return .wait }
    let wanted = min(producer.largestMinimum, device.format.periodFrames * frameBytes)
    _ = producer.requestSpace(wanted)
    descriptors[1].events = Int16(POLLIN)
    let period = Int32(clamping: max(1, device.format.periodFrames * 1000 / device.format.rate))
    // After an interruption, the next turn calls it again.
    if poll(descriptors, 2, period) > 0 {
      stopRequested = descriptors[0].revents != 0
      producer.drainSpaceSignals()
    }
    return .wait
  }

  /// Sleeps, but wakes for an order to stop.
  mutating func rest(_ delay: Duration) {
    let milliseconds = Int32(clamping: delay.nanoseconds / 1_000_000)
    stopRequested = (try? retryingInterrupts("poll") { poll(descriptors, 1, milliseconds) }) ?? 0 > 0
  }

  /// The machine has slept. Not every driver and sound server reports it. Some continue as if nothing had happened, and
  /// the timeline would lack hours.
  private mutating func wokenFromSleep(_ device: OpenDevice) -> CaptureStateMachine.Action {
    // Frames from before the sleep.
    let action = read(device)
    guard action == .wait else { return action }
    return fail(ESTRPIPE)
  }

  private mutating func fail(_ code: Int32) -> CaptureStateMachine.Action {
    let action = machine.failed(code)
    if case .reopen = action { leave(code) }
    return action
  }

  // MARK: Reading

  /// Moves all available frames from the device into the circular buffer.
  mutating func read(_ device: OpenDevice) -> CaptureStateMachine.Action {
    let (pcm, format) = (device.pcm, device.format)
    var (available, looked) = Self.look(pcm)
    if available < 0 { return fail(Int32(-available)) }
    let now = device.observationTime().advanced(byNanoseconds: asleep)
    if available == 0 { return wokenForNothing() }
    if available > format.bufferFrames {
      // A converter or a sound server's plugin has lost count, because its pointer wraps at the ring's size. Start
      // again.
      guard format.countsThroughOverruns else { return fail(EPIPE) }
      // The device continued to count, so the number of overwritten frames is exact. One more period is dropped,
      // because the device continues to overwrite the oldest one while we would read it.
      let excess = available - format.bufferFrames + min(format.periodFrames, format.bufferFrames / 4)
      let skipped = snd_pcm_forward(pcm, snd_pcm_uframes_t(excess))
      if skipped <= 0 { return fail(EPIPE) }
      reportOverrun(lost: UInt64(skipped))
      available -= skipped
      clock.observe(frames: timeline.addingSaturated(UInt64(clamping: available)), at: now)
      guard settle() else { return waitForSpace() }
    } else {
      clock.observe(frames: timeline.addingSaturated(UInt64(available)), at: now)
    }
    var left = Int(min(UInt64(clamping: available), maximumFrames - stored))
    while left > 0 {
      var code: Int32 = 0
      var overwritten = 0
      var isShort = false
      let (asked, held) = (left, available)
      let meter = shared.meter
      let frameBytes = frameBytes
      let (result, offset) = write(frames: left) { bytes in
        let room = min(asked, bytes.count / frameBytes)
        guard room > 0, let base = bytes.baseAddress else { return 0 }
        let count = snd_pcm_readi(pcm, base, snd_pcm_uframes_t(room))
        guard count > 0 else {
          code = Int32(-count)
          return 0
        }
        isShort = count < room
        overwritten = min(count, Self.overwritten(held, since: looked, format))
        memset(base, 0, overwritten * frameBytes)
        meter?.measure(base, frames: count)
        return count * frameBytes
      }
      guard let frames = result else { return waitForSpace() }
      if frames > 0 {
        fruitlessWakes = 0
        machine.progressed()
      }
      timeline = timeline.addingSaturated(UInt64(frames))
      left -= frames
      available -= frames
      if overwritten > 0 {
        shared.totals.framesLost.add(UInt64(overwritten), ordering: .relaxed)
        shared.totals.overruns.add(1, ordering: .relaxed)
        shared.events.append(.overrun(streamOffset: offset, framesLost: UInt64(overwritten), filled: true))
      }
      if code != 0 && code != EAGAIN { return fail(code) }
      // The device announced frames and does not deliver them.
      if frames == 0 { return wokenForNothing() }
      if isShort {
        shared.totals.shortReads.add(1, ordering: .relaxed)
        return .wait
      }
    }
    return stored < maximumFrames ? .wait : machine.end()
  }

  /// How many frames the ring contains, and a moment just before that was true.
  private static func look(_ pcm: OpaquePointer) -> (available: snd_pcm_sframes_t, time: MonotonicInstant) {
    var available: snd_pcm_sframes_t = 0
    var before = MonotonicInstant.now
    // If the thread is stopped during the call, the moment of the answer is unknown. So it asks again a few times. If
    // no call is quick, the earlier moment counts, because too many frames taken for overwritten are better than one
    // too few.
    for _ in 0..<4 {
      before = .now
      available = snd_pcm_avail_update(pcm)
      if available < 0 || MonotonicInstant.now.nanoseconds(since: before) < 500_000 { break }
    }
    return (available, before)
  }

  /// How many of the oldest frames a device that never stops may have overwritten before they were copied. This happens
  /// when this thread was stopped (SIGSTOP, a busy machine) between checking the ring and copying from it.
  ///
  /// The clock limits how many frames can have arrived meanwhile. The device itself would also count frames that
  /// arrived after the copying. Half a millisecond and 500 ppm are added, because the hardware writes ahead of its
  /// reported pointer.
  ///
  /// - Parameter held: the frames in the ring at `looked`, from the first copied one on.
  private static func overwritten(_ held: Int, since looked: MonotonicInstant, _ format: CaptureFormat) -> Int {
    guard format.countsThroughOverruns else { return 0 }
    let elapsed = MonotonicInstant.now.nanoseconds(since: looked)
    let produced = Int((Double(elapsed) * 1.0005 / 1e9 + 0.0005) * Double(format.rate))
    return max(0, held + produced - format.bufferFrames)
  }

  /// A wake-up without a frame. A single one is normal (dmix and others do that).
  private mutating func wokenForNothing() -> CaptureStateMachine.Action {
    if stopRequested { return .wait }
    shared.totals.spuriousWakeUps.add(1, ordering: .relaxed)
    return yieldToDevice()
  }

  /// After a wake-up without frames. PulseAudio's plugin keeps its descriptor readable while it has less than a
  /// fragment, and needs a thread of ordinary priority to get the rest. Checking again at once, with real-time
  /// priority, would keep that thread from running, and no frame would ever arrive. So this thread sleeps for less than
  /// a period.
  private mutating func yieldToDevice() -> CaptureStateMachine.Action {
    fruitlessWakes += 1
    guard fruitlessWakes > 1, let device else { return .wait }
    let now = MonotonicInstant.now
    if fruitlessWakes == 2 { fruitlessSince = now }
    if now - fruitlessSince > .milliseconds(Int(device.silenceLimit)) { return fail(ETIMEDOUT) }
    rest(max(.milliseconds(1), min(device.format.period / 4, .milliseconds(10))))
    // The next turn notices an order to stop, and reads the frames that have arrived meanwhile.
    stopRequested = false
    return .wait
  }
}
