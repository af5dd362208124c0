// One open PCM, and the calls that the capture thread makes on it.

internal import CALSA
internal import EventLoops
internal import Glibc

/// An open ALSA capture PCM with its parameters set. Its last owner calls ``close()``. Only one thread at a time may
/// use it.
///
/// A plain value, not noncopyable with a deinit, because the capture thread stores it in an optional that it empties
/// and refills, without reference counting. Calls return errno values (`EPIPE`, not `-EPIPE`), and 0 for success.
struct OpenDevice: @unchecked Sendable {
  /// snd_pcm_t.
  let pcm: OpaquePointer
  let format: CaptureFormat
  /// See ``silenceLimit(_:)``.
  let silenceLimit: Int32
  /// snd_pcm_status_t, allocated in advance so that reading the status allocates nothing.
  private let status: OpaquePointer

  init(pcm: OpaquePointer, format: CaptureFormat) {
    self.pcm = pcm
    self.format = format
    silenceLimit = Self.silenceLimit(format)
    var status: OpaquePointer?
    snd_pcm_status_malloc(&status)
    // A few hundred bytes. If malloc refuses these, Swift's own allocations have already ended the process.
    self.status = status!
  }

  /// In milliseconds. A device without a frame for this long has died without an error, as USB devices do. Never
  /// reached while frames arrive, which they do once per period.
  static func silenceLimit(_ format: CaptureFormat) -> Int32 {
    Int32(clamping: 5_000 + max(0, format.period.nanoseconds / 1_000_000))
  }

  func close() {
    snd_pcm_status_free(status)
    snd_pcm_close(pcm)
  }

  /// snd_pcm_prepare and snd_pcm_start, after snd_pcm_drop if the device needs that.
  func restart() -> Int32 {
    var code = -snd_pcm_prepare(pcm)
    if code == EBUSY {
      // The kernel refuses to prepare a PCM that runs. One does after snd_pcm_resume, and after a sleep of the machine
      // that its driver does not report.
      snd_pcm_drop(pcm)
      code = -snd_pcm_prepare(pcm)
    }
    return code == 0 ? -snd_pcm_start(pcm) : code
  }

  /// Ends a suspend if the device needs that. Returns `ESTRPIPE` while it still lasts, and 0 when ``restart()`` is
  /// worth trying.
  ///
  /// The device is always restarted afterwards. A resumed stream would have its hole somewhere among the frames that
  /// the device still holds, while a restarted one begins at a known time.
  func resume() -> Int32 {
    // After ENOSYS (the driver has no resume), or with plugins that return 0 and do nothing, preparing is the remedy.
    -snd_pcm_resume(pcm) == EAGAIN ? ESTRPIPE : 0
  }

  /// When the device was started: its own time stamp if it has one on the monotonic clock, or `fallback`.
  func startTime(fallback: MonotonicInstant) -> MonotonicInstant {
    guard snd_pcm_status(pcm, status) == 0 else { return fallback }
    var stamp = snd_htimestamp_t()
    snd_pcm_status_get_trigger_htstamp(status, &stamp)
    // The PulseAudio plugin gives zero, and plugins that ignore the time stamp type give the wall clock. Neither is
    // usable.
    return Self.time(stamp, near: fallback) ?? fallback
  }

  /// The time of the last `snd_pcm_avail_update`, by the device's clock if it has one, or the present time.
  func observationTime() -> MonotonicInstant {
    let now = MonotonicInstant.now
    guard snd_pcm_type(pcm) == SND_PCM_TYPE_HW else { return now }
    var stamp = snd_htimestamp_t()
    var available: snd_pcm_uframes_t = 0
    guard snd_pcm_htimestamp(pcm, &available, &stamp) == 0 else { return now }
    return Self.time(stamp, near: now) ?? now
  }

  /// A time stamp of the device; nil unless it is within a second of `reference`, because plugins may write anything.
  static func time(_ stamp: timespec, near reference: MonotonicInstant) -> MonotonicInstant? {
    let time = MonotonicInstant(stamp)
    return time.nanoseconds(since: reference).magnitude < 1_000_000_000 ? time : nil
  }

  /// The errno for the PCM's state; 0 if it runs.
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
