// The possible settings of a PCM, read from a configuration space.

internal import CALSA

enum Abilities {
  /// Rates that are tested one by one. Devices have either some of these, or a range.
  static let usualRates = [8_000, 11_025, 16_000, 22_050, 32_000, 44_100, 48_000, 88_200, 96_000, 176_400, 192_000]

  static func rateRange(_ hw: OpaquePointer) -> ClosedRange<Int> {
    var least: UInt32 = 0
    var most: UInt32 = 0
    var direction: Int32 = 0
    snd_pcm_hw_params_get_rate_min(hw, &least, &direction)
    snd_pcm_hw_params_get_rate_max(hw, &most, &direction)
    return Int(least)...max(Int(least), Int(most))
  }

  static func channelRange(_ hw: OpaquePointer) -> ClosedRange<Int> {
    var least: UInt32 = 0
    var most: UInt32 = 0
    snd_pcm_hw_params_get_channels_min(hw, &least)
    snd_pcm_hw_params_get_channels_max(hw, &most)
    return Int(least)...max(Int(least), Int(most))
  }

  static func usualRates(_ pcm: OpaquePointer, _ hw: OpaquePointer) -> [Int] {
    usualRates.filter { snd_pcm_hw_params_test_rate(pcm, hw, UInt32($0), 0) == 0 }
  }

  /// All formats that the space allows, in ALSA's notation, including ones that Sluice does not support.
  static func formatNames(_ pcm: OpaquePointer, _ hw: OpaquePointer) -> [String] {
    (0...SND_PCM_FORMAT_LAST.rawValue).compactMap { value in
      let format = snd_pcm_format_t(rawValue: value)
      guard snd_pcm_hw_params_test_format(pcm, hw, format) == 0, let name = snd_pcm_format_name(format) else {
        return nil
      }
      return String(cString: name)
    }
  }
}
