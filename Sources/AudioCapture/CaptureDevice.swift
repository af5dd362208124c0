// The capture devices and their capabilities.

internal import CALSA
internal import Glibc

/// A capture device, as a name that ``MicrophoneConfiguration/device`` accepts.
public struct CaptureDevice: Equatable, Sendable {
  /// The supported settings of a device. Not every combination is necessarily valid.
  public struct Support: Equatable, Sendable {
    /// The supported ones of the usual rates in Hz, ascending.
    public let rates: [Int]
    /// The lowest and the highest rate in Hz. The range may have gaps.
    public let rateRange: ClosedRange<Int>
    /// The lowest and the highest number of channels.
    public let channels: ClosedRange<Int>
    /// The supported ones of Sluice's formats.
    public let formats: [SampleFormat]
  }

  /// The result of opening the device.
  public enum Availability: Equatable, Sendable {
    /// The device can be opened now, with these settings.
    case supports(Support)
    /// Another program uses it. `holder` is the program, if it is known.
    case busy(holder: String?)
    /// The device cannot be opened now, or was not tried, for this reason.
    case unavailable(reason: String)
  }

  /// The ALSA name, such as `hw:CARD=Mic,DEV=0`.
  public let name: String
  /// The ALSA description in one line. It may be empty.
  public let description: String
  /// Whether the device can be opened now, and its settings.
  public let availability: Availability

  /// Returns all capture devices: the hardware, and the PCMs in ALSA's configuration. It opens each of them briefly, in
  /// non-blocking mode. This takes a few milliseconds per device. Any thread.
  public static func list() -> [CaptureDevice] {
    named().map { CaptureDevice(name: $0.name, description: $0.description, availability: look(at: $0.name)) }
  }

  /// The names of the devices that can be opened now.
  static func usableNames() -> [String] { list().filter(\.isUsable).map(\.name) }

  /// Whether the device can be opened now.
  public var isUsable: Bool {
    if case .supports = availability { true } else { false }
  }

  /// Names that ALSA lists as devices but that are not: converters without a device, and the null device.
  private static let converters: Set<String> = [
    "null", "lavrate", "samplerate", "speexrate", "speex", "upmix", "vdownmix", "oss", "usbstream",
  ]
  /// Variants of a card for special purposes. The list has `hw:` and `plughw:` of the same card instead.
  private static let variants = [
    "front:", "rear:", "side:", "center_lfe:", "surround", "iec958", "spdif:", "hdmi:",
    "dmix:", "dsnoop:", "modem:", "phoneline:", "usbstream:",
  ]

  private static func named() -> [(name: String, description: String)] {
    var devices = hardware()
    var hints: UnsafeMutablePointer<UnsafeMutableRawPointer?>?
    guard AlsaMessages.collected({ snd_device_name_hint(-1, "pcm", &hints) }).result == 0, let hints else {
      return devices
    }
    defer { snd_device_name_free_hint(hints) }
    var at = hints
    while let hint = at.pointee {
      at += 1
      // IOID is nil for devices with both directions.
      guard let name = text(hint, "NAME"), text(hint, "IOID") != "Output", !converters.contains(name),
        !variants.contains(where: name.hasPrefix), !devices.contains(where: { $0.name == name })
      else { continue }
      let description = text(hint, "DESC")?.split(whereSeparator: \.isNewline).joined(separator: ", ")
      devices.append((name, description ?? ""))
    }
    return devices
  }

  private static func text(_ hint: UnsafeMutableRawPointer, _ id: String) -> String? {
    guard let value = snd_device_name_get_hint(hint, id) else { return nil }
    defer { free(value) }
    return String(cString: value)
  }

  /// `hw:` names of all cards' capture devices, directly from the kernel.
  private static func hardware() -> [(name: String, description: String)] {
    var devices: [(name: String, description: String)] = []
    var card: Int32 = -1
    while snd_card_next(&card) == 0, card >= 0 {
      var control: OpaquePointer?
      guard AlsaMessages.collected({ snd_ctl_open(&control, "hw:\(card)", SND_CTL_NONBLOCK) }).result == 0, let control
      else {
        // Usually the permission is missing. The device is listed anyway, and opening it will show the reason.
        devices += ProcAsound.captureDevices(ofCard: card)
        continue
      }
      defer { snd_ctl_close(control) }
      var cardInfo: OpaquePointer?
      var info: OpaquePointer?
      snd_ctl_card_info_malloc(&cardInfo)
      snd_pcm_info_malloc(&info)
      defer {
        snd_ctl_card_info_free(cardInfo)
        snd_pcm_info_free(info)
      }
      guard snd_ctl_card_info(control, cardInfo) == 0, let id = snd_ctl_card_info_get_id(cardInfo) else { continue }
      var device: Int32 = -1
      while snd_ctl_pcm_next_device(control, &device) == 0, device >= 0 {
        snd_pcm_info_set_device(info, UInt32(device))
        snd_pcm_info_set_subdevice(info, 0)
        snd_pcm_info_set_stream(info, SND_PCM_STREAM_CAPTURE)
        guard snd_ctl_pcm_info(control, info) == 0 else { continue }
        let description = [snd_ctl_card_info_get_name(cardInfo), snd_pcm_info_get_name(info)]
          .compactMap { $0.map { String(cString: $0) } }.joined(separator: ", ")
        devices.append(("hw:CARD=\(String(cString: id)),DEV=\(device)", description))
      }
    }
    return devices
  }

  static func look(at name: String) -> Availability {
    if name == "jack" {
      return .unavailable(reason: "not tried, because that could start a JACK server")
    }
    var pcm: OpaquePointer?
    let opened = AlsaMessages.collected { snd_pcm_open(&pcm, name, SND_PCM_STREAM_CAPTURE, SND_PCM_NONBLOCK) }
    switch -opened.result {
    case 0: break
    case EBUSY: return .busy(holder: DeviceHolder.find())
    case EACCES, EPERM: return .unavailable(reason: "\(MicrophoneError.permissionDenied(name: name))")
    case let code: return .unavailable(reason: String(cString: snd_strerror(-code)))
    }
    var hw: OpaquePointer?
    snd_pcm_hw_params_malloc(&hw)
    defer {
      snd_pcm_hw_params_free(hw)
      snd_pcm_close(pcm)
    }
    guard let pcm, let hw else { return .unavailable(reason: "out of memory") }
    let read = AlsaMessages.collected { snd_pcm_hw_params_any(pcm, hw) }
    guard read.result >= 0 else {
      return .unavailable(reason: read.messages.isEmpty ? String(cString: snd_strerror(read.result)) : read.messages)
    }
    return AlsaMessages.collected {
      .supports(
        Support(
          rates: Abilities.usualRates(pcm, hw), rateRange: Abilities.rateRange(hw),
          channels: Abilities.channelRange(hw),
          formats: SampleFormat.allCases.filter { snd_pcm_hw_params_test_format(pcm, hw, $0.alsaFormat) == 0 }))
    }.result
  }
}
