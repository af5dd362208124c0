// One open PCM, and the calls that the capture thread makes on it.

internal import CALSA
internal import EventLoops
internal import Glibc

/// An open ALSA capture PCM with its parameters set. Whoever holds it last calls ``close()``; one thread at a time uses
/// it.
///
/// A plain value, not noncopyable with a deinit: the capture thread keeps it in an optional that it empties and fills
/// again, and must not count references. Results of calls are errno values (`EPIPE`, not `-EPIPE`), 0 is success.
struct OpenDevice: @unchecked Sendable {
  /// snd_pcm_t.
  let pcm: OpaquePointer
  let format: CaptureFormat
  /// snd_pcm_status_t, kept so that asking for the status allocates nothing.
  private let status: OpaquePointer

  init(pcm: OpaquePointer, format: CaptureFormat) {
    self.pcm = pcm
    self.format = format
    var status: OpaquePointer?
    snd_pcm_status_malloc(&status)
    // A few hundred bytes: where malloc refuses those, Swift's own allocations have ended the process before.
    self.status = status!
  }

  func close() {
    snd_pcm_status_free(status)
    snd_pcm_close(pcm)
  }

  /// snd_pcm_prepare and snd_pcm_start.
  func restart() -> Int32 {
    let code = -snd_pcm_prepare(pcm)
    return code == 0 ? -snd_pcm_start(pcm) : code
  }

  /// Ends a suspend as far as the device needs that: `ESTRPIPE` while it still lasts, 0 when ``restart()`` is worth
  /// trying.
  ///
  /// Even where this alone would make frames come again the device is restarted afterwards: the hole in a resumed
  /// stream is somewhere among the frames that the device still holds, a restarted one begins at a known time.
  func resume() -> Int32 {
    // ENOSYS (no resume in the driver) and plugins that answer 0 and do nothing: prepare is the way there.
    -snd_pcm_resume(pcm) == EAGAIN ? ESTRPIPE : 0
  }

  /// When the device was started: its own time stamp where it keeps one on the monotonic clock, else `fallback`.
  func startTime(fallback: MonotonicInstant) -> MonotonicInstant {
    guard snd_pcm_status(pcm, status) == 0 else { return fallback }
    var stamp = snd_htimestamp_t()
    snd_pcm_status_get_trigger_htstamp(status, &stamp)
    // Zero on the PulseAudio plugin, the wall clock on plugins that ignore the time stamp type: neither is of use.
    return Self.time(stamp, near: fallback) ?? fallback
  }

  /// The moment that `snd_pcm_avail_update` has just looked at, by the device's clock if it has one, else now.
  func observationTime() -> MonotonicInstant {
    let now = MonotonicInstant.now
    guard snd_pcm_type(pcm) == SND_PCM_TYPE_HW else { return now }
    var stamp = snd_htimestamp_t()
    var available: snd_pcm_uframes_t = 0
    guard snd_pcm_htimestamp(pcm, &available, &stamp) == 0 else { return now }
    return Self.time(stamp, near: now) ?? now
  }

  /// A time stamp of the device; nil unless it is within a second of `reference`. A plugin may write anything into it.
  static func time(_ stamp: timespec, near reference: MonotonicInstant) -> MonotonicInstant? {
    let time = MonotonicInstant(stamp)
    return time.nanoseconds(since: reference).magnitude < 1_000_000_000 ? time : nil
  }

  /// The errno that the PCM's state stands for; 0 when it runs.
  func stateError() -> Int32 {
    switch snd_pcm_state(pcm) {
    case SND_PCM_STATE_RUNNING, SND_PCM_STATE_DRAINING: 0
    case SND_PCM_STATE_XRUN: EPIPE
    case SND_PCM_STATE_SUSPENDED: ESTRPIPE
    case SND_PCM_STATE_DISCONNECTED: ENODEV
    default: EBADFD
    }
  }
}
