// How the capture thread restarts a device, and keeps the timeline correct meanwhile.

internal import CALSA
internal import EventLoops
internal import Glibc
internal import StreamBuffers
internal import Synchronization

extension CaptureLoop {
  // MARK: Starting and restarting

  /// The first start. A device that fails to start is treated as lost.
  mutating func start() -> CaptureStateMachine.Action {
    guard let device else { return machine.end() }
    let before = MonotonicInstant.now
    // Also if it fails, because the device may be resumed without being opened again.
    findDescriptors(device)
    let code = device.restart()
    if code != 0 { return retryFailed(code) }
    let start = device.startTime(fallback: before).advanced(byNanoseconds: asleep)
    clock = DeviceClock(rate: device.format.rate, frames: 0, at: start)
    return machine.recovered()
  }

  mutating func restart() -> CaptureStateMachine.Action {
    guard let device else { return machine.end() }
    let before = MonotonicInstant.now
    let code = device.restart()
    if code != 0 { return retryFailed(code) }
    return runs(device, since: before)
  }

  mutating func resume(after delay: Duration) -> CaptureStateMachine.Action {
    rest(delay)
    guard !stopRequested else { return endOnRequest() }
    guard let device else { return machine.end() }
    let code = device.resume()
    // Drivers that cannot report "not yet" by EAGAIN fail to prepare instead.
    return code == 0 ? restart() : retryFailed(code)
  }

  mutating func reopen(after delay: Duration) -> CaptureStateMachine.Action {
    rest(delay)
    fillWhileAway()
    guard !stopRequested else { return machine.end() }
    guard stored < maximumFrames else { return machine.end() }
    // Allocates, but there is no audio to miss while there is no device.
    do throws(MicrophoneError) {
      let opened = try negotiation.open(explains: false)
      let before = MonotonicInstant.now
      let code = opened.restart()
      guard code == 0 else {
        opened.close()
        if code != ENODEV { report(.system(code: code)) }
        return machine.retryFailed(code)
      }
      device = opened
      findDescriptors(opened)
      return runs(opened, since: before)
    } catch {
      if let refusal = CaptureEvent.Refusal(error) { report(refusal) }
      return machine.retryFailed(ENODEV)
    }
  }

  /// The most reasons that are reported while a device is away.
  private static let mostRefusals = 16

  /// Reports why the device cannot be used, once for each reason.
  private mutating func report(_ refusal: CaptureEvent.Refusal) {
    guard refusals.count < Self.mostRefusals, !refusals.contains(refusal) else { return }
    refusals.append(refusal)
    shared.events.append(.deviceRefused(streamOffset: streamOffset, reason: refusal))
  }

  /// Ends the capture because of the order to stop. If the device does not run, or the circular buffer is full, reports
  /// the frames that are missing by now.
  mutating func endOnRequest() -> CaptureStateMachine.Action {
    if isFull { readRest() }
    let state = machine.state
    let action = machine.end()
    guard state != .running, state != .ended else { return action }
    let offset = streamOffset
    let lost = loseWhatIsDue()
    if case .away = state {
      awayFrames = awayFrames.addingSaturated(lost)
      return action
    }
    guard lost > 0 else { return action }
    settleAtEnd()
    if state == .restarting {
      shared.totals.overruns.add(1, ordering: .relaxed)
      shared.events.append(.overrun(streamOffset: offset, framesLost: lost, filled: isFilled))
    } else {
      shared.totals.suspends.add(1, ordering: .relaxed)
      shared.events.append(.suspended(streamOffset: offset, framesLost: lost, filled: isFilled))
    }
    return action
  }

  /// The attempts to read the rest of the device into a full buffer, and the pause before each.
  private static let lastReads = (count: 8, pauseInMilliseconds: Int32(5))

  /// The circular buffer was full when the order to stop came. Reads the frames that the device has, and reports those
  /// for which there is still no room.
  private mutating func readRest() {
    for _ in 0..<Self.lastReads.count where isFull {
      guard machine.state == .running, let device else { return }
      poll(nil, 0, Self.lastReads.pauseInMilliseconds)
      if settle() { _ = read(device) }
    }
    guard isFull, machine.state == .running, let device else { return }
    let offset = streamOffset
    let available = snd_pcm_avail_update(device.pcm)
    // Other devices do not count the frames for which their own buffer has no room.
    let isExact = available >= 0 && device.format.countsThroughOverruns
    let lost = isExact ? lose(UInt64(clamping: available)) : loseWhatIsDue()
    guard lost > 0 else { return }
    // Nothing follows them, so no silence is needed in their place.
    owed -= min(owed, fills ? lost : 0)
    shared.totals.overruns.add(1, ordering: .relaxed)
    shared.events.append(.overrun(streamOffset: offset, framesLost: lost, filled: false))
  }

  private mutating func retryFailed(_ code: Int32) -> CaptureStateMachine.Action {
    let action = machine.retryFailed(code)
    if case .reopen = action { leave(code) }
    return action
  }

  /// Frames arrive again. The missing ones are those that the device has produced since the last one, by the clock.
  private mutating func runs(_ device: OpenDevice, since before: MonotonicInstant) -> CaptureStateMachine.Action {
    asleep = sleepClock.asleep()
    // Earlier ones say nothing about a device that has just started.
    fruitlessWakes = 0
    let start = device.startTime(fallback: before).advanced(byNanoseconds: asleep)
    let reached = clock.frames(at: start)
    let lost = reached > timeline ? reached - timeline : 0
    switch machine.state {
    case .away(let attempts):
      awayFrames = awayFrames.addingSaturated(lose(lost))
      shared.events.append(
        .deviceReturned(streamOffset: awayOffset, framesLost: awayFrames, filled: fills, attempts: attempts + 1))
    case .suspended:
      let offset = streamOffset
      let missing = lose(lost)
      shared.totals.suspends.add(1, ordering: .relaxed)
      shared.events.append(.suspended(streamOffset: offset, framesLost: missing, filled: fills))
    default:
      reportOverrun(lost: lost)
    }
    clock = DeviceClock(rate: device.format.rate, frames: timeline, at: start)
    return machine.recovered()
  }

  /// Closes the device until it can be opened again.
  mutating func leave(_ code: Int32) {
    awayOffset = streamOffset
    awayFrames = 0
    shared.totals.deviceLosses.add(1, ordering: .relaxed)
    shared.events.append(.deviceLost(streamOffset: awayOffset, code: code))
    device?.close()
    device = nil
    // The loss has reported it.
    refusals = [.system(code: code)]
  }

  private mutating func findDescriptors(_ device: OpenDevice) {
    let count = snd_pcm_poll_descriptors_count(device.pcm)
    // No known plugin has more than sixteen. Ignoring further ones would only delay a wake-up.
    let space = min(Int(max(0, count)), Self.maximumPCMDescriptors)
    descriptorCount = Int(max(0, snd_pcm_poll_descriptors(device.pcm, descriptors + 2, UInt32(space))))
  }

  // MARK: The timeline

  /// The offset of the next frame, after the silence that is due.
  var streamOffset: UInt64 { storedEnd.addingSaturated(owed.multipliedSaturated(by: UInt64(frameBytes))) }

  /// Stream offset one past the last byte stored.
  private var storedEnd: UInt64 { producer.head.addingSaturated(pausedBytes) }

  /// This number of the device's frames will never arrive. Returns how many of them the stream lacks, because silence
  /// does not make it longer than its limit.
  @discardableResult
  mutating func lose(_ frames: UInt64) -> UInt64 {
    timeline = timeline.addingSaturated(frames)
    let end = min(maximumFrames, stored.addingSaturated(owed))
    let missing = fills ? min(frames, maximumFrames - end) : frames
    shared.totals.framesLost.wrappingAdd(missing, ordering: .relaxed)
    if fills { owed = owed.addingSaturated(missing) }
    return missing
  }

  mutating func reportOverrun(lost: UInt64) {
    let offset = streamOffset
    let missing = lose(lost)
    shared.totals.overruns.add(1, ordering: .relaxed)
    shared.events.append(.overrun(streamOffset: offset, framesLost: missing, filled: fills))
  }

  /// Counts the frames as lost that the device would have delivered by now, and returns how many the stream lacks. It
  /// holds back 20 ms, so that the exact count on the device's return is never lower than this.
  private mutating func loseWhatIsDue() -> UInt64 {
    let margin = UInt64(clock.rate / 50)
    asleep = sleepClock.asleep()
    let reached = clock.frames(at: .now.advanced(byNanoseconds: asleep))
    guard reached > timeline.addingSaturated(margin) else { return 0 }
    return lose(reached - margin - timeline)
  }

  /// While the device is away, writes the silence that has become due at each attempt, so that listeners get it in real
  /// time.
  mutating func fillWhileAway() {
    awayFrames = awayFrames.addingSaturated(loseWhatIsDue())
    // Silence must not displace bytes that the server has not stored yet. The rest waits for the device or the end. One
    // frame stays free, because silence that is omitted at the end needs a last frame.
    guard owed < room || owed.addingSaturated(stored) >= maximumFrames && room > 0 else { return }
    _ = settle()
  }

  /// The capture is over. Writes the silence that is still due if there is space for it, and omits it otherwise.
  mutating func settleAtEnd() {
    if owed > room, room > 0 { leaveSilenceOut() }
    if owed <= max(1, room) { _ = settle() }
  }

  /// Whether silence replaces all lost frames of the capture that ends.
  var isFilled: Bool { fills && (owed == 0 || stored >= maximumFrames) }

  /// How many frames the circular buffer has space for.
  private var room: UInt64 { UInt64(producer.freeByteCount / frameBytes) }

  /// Omits silence that is longer than the buffer or has no space in it, because it would displace bytes that the
  /// server has not stored yet. Silence below one second is not worth a separate upload resource, unless the buffer is
  /// smaller still. The last frame is always written: the stream may end with it, and servers make a gap only when a
  /// byte follows.
  private mutating func leaveSilenceOut() {
    let due = min(owed, maximumFrames - min(maximumFrames, stored))
    guard due > 1 else { return }
    let frames = due - 1
    let bytes = frames.multipliedSaturated(by: UInt64(frameBytes))
    guard
      bytes > UInt64(producer.largestMinimum)
        || bytes > UInt64(producer.freeByteCount) && frames >= UInt64(clock.rate),
      producer.pause(bytes)
    else { return }
    owed -= frames
    stored = stored.addingSaturated(frames)
    pausedBytes = pausedBytes.addingSaturated(bytes)
    shared.totals.frames.store(stored, ordering: .relaxed)
  }

  /// Writes the silence that is due. Returns false if the circular buffer has no space for all of it now.
  mutating func settle() -> Bool {
    if owed > 0 { leaveSilenceOut() }
    while owed > 0, stored < maximumFrames {
      let due = Int(min(owed, maximumFrames - stored, 65_536))
      let frameBytes = frameBytes
      let (result, _) = write(frames: due) { bytes in
        let count = min(due, bytes.count / frameBytes) * frameBytes
        // Zero is silence in all four formats.
        if let base = bytes.baseAddress { memset(base, 0, count) }
        return count
      }
      guard let frames = result else { return false }
      owed -= UInt64(frames)
    }
    return true
  }

  /// Writes up to `frames` frames, and at least one, into the circular buffer. Returns their number, or nil if it is
  /// full, and the stream offset of the first.
  mutating func write(
    frames: Int, _ body: (UnsafeMutableRawBufferPointer) -> Int
  ) -> (frames: Int?, offset: UInt64) {
    let offset = storedEnd
    // Not the capacity, because up to 64 KiB of released bytes may still occupy space, and a minimum must be possible.
    let bytes = min(frames * frameBytes, producer.largestMinimum)
    // First all at once, because under `dropOldest` no more than the minimum is freed.
    var result = producer.write(minimum: bytes, maximum: bytes) { span in span.withUnsafeMutableBytes(body) }
    if result == .full {
      result = producer.write(minimum: frameBytes, maximum: bytes) { span in span.withUnsafeMutableBytes(body) }
    }
    guard case .written(let count) = result else { return (nil, offset) }
    isFull = false
    stored += UInt64(count / frameBytes)
    shared.totals.frames.store(stored, ordering: .relaxed)
    return (count / frameBytes, offset)
  }
}
