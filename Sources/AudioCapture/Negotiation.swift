// Opens a PCM and sets its parameters exactly as requested, or fails with an error that names the nearest ones.

internal import CALSA
internal import Glibc

/// Opens and negotiates. Every call allocates. It is used before the capture thread exists, and on that thread while
/// there is no device.
struct Negotiation {
  let configuration: MicrophoneConfiguration

  /// Opens the device without blocking, and sets all its parameters. It is prepared, but not started.
  ///
  /// - Parameter explains: whether an error names other devices, and the program that uses this one. For that, all
  ///   devices are opened.
  func open(explains: Bool) throws(MicrophoneError) -> OpenDevice {
    try validate()
    var pcm: OpaquePointer?
    let name = configuration.device
    let opened = AlsaMessages.collected {
      snd_pcm_open(&pcm, name, SND_PCM_STREAM_CAPTURE, SND_PCM_NONBLOCK)
    }
    guard opened.result >= 0, let pcm else {
      throw openingFailed(-opened.result, opened.messages, explains)
    }
    do throws(MicrophoneError) {
      let format = try setHardwareParameters(pcm)
      try setSoftwareParameters(pcm, format)
      return OpenDevice(pcm: pcm, format: format)
    } catch {
      snd_pcm_close(pcm)
      throw error
    }
  }

  private func validate() throws(MicrophoneError) {
    if configuration.device.isEmpty { throw .invalid("the device name is empty. Write a name such as \"default\".") }
    guard (1_000...768_000).contains(configuration.rate) else {
      throw .invalid(
        "a rate of \(configuration.rate) Hz is not supported by any device. Choose a rate such as 48000 or 44100.")
    }
    guard (1...64).contains(configuration.channels) else {
      throw .invalid(
        "\(configuration.channels) channels are not supported by any device. Choose a number such as 1 or 2.")
    }
    guard configuration.period >= .microseconds(500), configuration.period <= .seconds(5) else {
      throw .invalid("a period of \(configuration.period) is invalid. Choose a period from 0.5 ms to 5 s.")
    }
    guard configuration.bufferTime >= configuration.period * 2, configuration.bufferTime <= .seconds(60) else {
      throw .invalid(
        "a device buffer of \(configuration.bufferTime) is invalid. Choose at least two periods and at most 60 s.")
    }
  }

  private func openingFailed(_ code: Int32, _ messages: String, _ explains: Bool) -> MicrophoneError {
    switch code {
    // EINVAL: a card of this number cannot exist (hw:99).
    case ENOENT, ENODEV, ENXIO, EINVAL:
      .noSuchDevice(name: configuration.device, available: explains ? CaptureDevice.usableNames() : [])
    case EBUSY: .busy(name: configuration.device, holder: explains ? DeviceHolder.find() : nil)
    case EACCES, EPERM: .permissionDenied(name: configuration.device)
    default: .system(operation: "opening \"\(configuration.device)\"", code: code, detail: messages)
    }
  }

  /// Calls libasound, and throws its result if that is an error.
  private func check(_ operation: String, _ body: () -> Int32) throws(MicrophoneError) {
    let (result, messages) = AlsaMessages.collected(body)
    if result == -EBUSY { throw .busy(name: configuration.device, holder: DeviceHolder.find()) }
    if result < 0 {
      throw .system(operation: "\(operation) of \"\(configuration.device)\"", code: -result, detail: messages)
    }
  }

  // MARK: Hardware parameters

  private func setHardwareParameters(_ pcm: OpaquePointer) throws(MicrophoneError) -> CaptureFormat {
    var allocated: OpaquePointer?
    snd_pcm_hw_params_malloc(&allocated)
    guard let hw = allocated else { throw .system(operation: "hardware parameters", code: ENOMEM, detail: "") }
    defer { snd_pcm_hw_params_free(hw) }
    try check("reading the capabilities") { snd_pcm_hw_params_any(pcm, hw) }
    // A request for "48000 Hz" does not imply silent resampling. Naming a plug device does.
    let resamples = ["plughw", "plug:", "plug"].contains { configuration.device.hasPrefix($0) }
    try check("switching off resampling") { snd_pcm_hw_params_set_rate_resample(pcm, hw, resamples ? 1 : 0) }
    try check("interleaved access") { snd_pcm_hw_params_set_access(pcm, hw, SND_PCM_ACCESS_RW_INTERLEAVED) }
    try setFormat(pcm, hw)
    try setChannels(pcm, hw)
    try setRate(pcm, hw)

    var periodFrames = frames(in: configuration.period)
    var direction: Int32 = 0
    try check("setting the period") { snd_pcm_hw_params_set_period_size_near(pcm, hw, &periodFrames, &direction) }
    var bufferFrames = max(frames(in: configuration.bufferTime), periodFrames * 2)
    try check("setting the buffer") { snd_pcm_hw_params_set_buffer_size_near(pcm, hw, &bufferFrames) }
    try check("setting the parameters") { snd_pcm_hw_params(pcm, hw) }
    snd_pcm_hw_params_get_period_size(hw, &periodFrames, &direction)
    snd_pcm_hw_params_get_buffer_size(hw, &bufferFrames)
    // The devices whose pointer continues to count while nobody reads: hardware, and I/O plugins that can resume, which
    // only those with their own hardware can. Converters define a full ring differently. The plugins of sound servers
    // (PulseAudio, JACK, PipeWire) cannot resume, and their pointer wraps at the ring's size.
    let type = snd_pcm_type(pcm)
    let counts = type == SND_PCM_TYPE_HW || (type == SND_PCM_TYPE_IOPLUG && snd_pcm_hw_params_can_resume(hw) == 1)
    return CaptureFormat(
      rate: configuration.rate, channels: configuration.channels, format: configuration.format,
      periodFrames: Int(periodFrames), bufferFrames: Int(bufferFrames),
      countsThroughOverruns: counts)
  }

  private func frames(in time: Duration) -> snd_pcm_uframes_t {
    let (seconds, attoseconds) = time.components
    let frames = Double(seconds) * Double(configuration.rate) + Double(attoseconds) * 1e-18 * Double(configuration.rate)
    return snd_pcm_uframes_t(max(1, frames.rounded()))
  }

  private func setFormat(_ pcm: OpaquePointer, _ hw: OpaquePointer) throws(MicrophoneError) {
    guard snd_pcm_hw_params_set_format(pcm, hw, configuration.format.alsaFormat) < 0 else { return }
    let nearest = configuration.format.substitutes.first { snd_pcm_hw_params_test_format(pcm, hw, $0.alsaFormat) == 0 }
    throw .unsupportedFormat(
      name: configuration.device, asked: configuration.format, nearest: nearest,
      supported: Abilities.formatNames(pcm, hw))
  }

  private func setChannels(_ pcm: OpaquePointer, _ hw: OpaquePointer) throws(MicrophoneError) {
    let range = Abilities.channelRange(hw)
    guard snd_pcm_hw_params_set_channels(pcm, hw, UInt32(configuration.channels)) < 0 else { return }
    var nearest = UInt32(configuration.channels)
    try check("finding the nearest channel count") { snd_pcm_hw_params_set_channels_near(pcm, hw, &nearest) }
    throw .unsupportedChannels(
      name: configuration.device, asked: configuration.channels, nearest: Int(nearest), range: range)
  }

  private func setRate(_ pcm: OpaquePointer, _ hw: OpaquePointer) throws(MicrophoneError) {
    let range = Abilities.rateRange(hw)
    guard snd_pcm_hw_params_set_rate(pcm, hw, UInt32(configuration.rate), 0) < 0 else { return }
    var nearest = UInt32(configuration.rate)
    var direction: Int32 = 0
    try check("finding the nearest rate") { snd_pcm_hw_params_set_rate_near(pcm, hw, &nearest, &direction) }
    throw .unsupportedRate(name: configuration.device, asked: configuration.rate, nearest: Int(nearest), range: range)
  }

  // MARK: Software parameters

  private func setSoftwareParameters(_ pcm: OpaquePointer, _ format: CaptureFormat) throws(MicrophoneError) {
    var allocated: OpaquePointer?
    snd_pcm_sw_params_malloc(&allocated)
    guard let sw = allocated else { throw .system(operation: "software parameters", code: ENOMEM, detail: "") }
    defer { snd_pcm_sw_params_free(sw) }
    try check("reading the software parameters") { snd_pcm_sw_params_current(pcm, sw) }
    try check("setting the wake-up") {
      snd_pcm_sw_params_set_avail_min(pcm, sw, snd_pcm_uframes_t(format.periodFrames))
    }
    var boundary: snd_pcm_uframes_t = 0
    snd_pcm_sw_params_get_boundary(sw, &boundary)
    // At the boundary of its counters, the device never stops. After an overrun it has continued to count, and its
    // remaining frames can be read. If it stopped, it would lose those too, and the length of the stop would be
    // unknown.
    let stop = format.countsThroughOverruns ? boundary : snd_pcm_uframes_t(format.bufferFrames)
    try check("setting the stop threshold") { snd_pcm_sw_params_set_stop_threshold(pcm, sw, stop) }
    // Time stamps are useful if available. A device without them is not an error.
    snd_pcm_sw_params_set_tstamp_mode(pcm, sw, SND_PCM_TSTAMP_ENABLE)
    snd_pcm_sw_params_set_tstamp_type(pcm, sw, SND_PCM_TSTAMP_TYPE_MONOTONIC)
    try check("setting the software parameters") { snd_pcm_sw_params(pcm, sw) }
  }
}
