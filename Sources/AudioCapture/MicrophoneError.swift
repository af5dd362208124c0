// The reasons why a microphone cannot be opened, with advice.

internal import CALSA
internal import Glibc

/// The reason why a microphone cannot be opened. `description` names the cause and the next step.
public enum MicrophoneError: Error, Equatable, Sendable, CustomStringConvertible {
  /// No PCM has this name, or its device is not connected. `available` lists the names that can be opened instead.
  case noSuchDevice(name: String, available: [String])
  /// Another program uses it. `holder` is that program if it is known: `arecord (pid 4711)`.
  case busy(name: String, holder: String?)
  /// The user is not permitted to open the device.
  case permissionDenied(name: String)
  /// The device does not support the rate `asked` (in Hz). `nearest` is the nearest supported rate. `range` contains
  /// all supported rates, for the message.
  case unsupportedRate(name: String, asked: Int, nearest: Int, range: ClosedRange<Int>)
  /// The device does not support the number of channels `asked`. `nearest` is the nearest supported number. `range`
  /// contains all supported numbers, for the message.
  case unsupportedChannels(name: String, asked: Int, nearest: Int, range: ClosedRange<Int>)
  /// The device does not support the format `asked`. `nearest` is nil if the device supports none of Sluice's formats.
  /// `supported` lists its formats in ALSA's notation.
  case unsupportedFormat(name: String, asked: SampleFormat, nearest: SampleFormat?, supported: [String])
  /// Another ALSA call failed: the operation, the errno, and libasound's message (may be empty).
  case system(operation: String, code: Int32, detail: String)
  /// A value that no device supports, such as a rate of 0.
  case invalid(String)

  /// The problem and the remedy, in words.
  public var description: String {
    switch self {
    case .noSuchDevice(let name, let available) where available.isEmpty:
      "cannot open \"\(name)\": no such capture device, and no other can be opened. Connect one, or start a sound server. The user must belong to the group \"audio\"."
    case .noSuchDevice(let name, let available):
      "cannot open \"\(name)\": no such capture device. Choose one of these: \(available.joined(separator: ", "))"
    case .busy(let name, let holder?):
      "cannot open \"\(name)\": \(holder) uses it. End that program, or capture through a shared device (default, pulse, dsnoop:…)."
    case .busy(let name, nil):
      "cannot open \"\(name)\": another program uses it. End that program, or capture through a shared device (default, pulse, dsnoop:…)."
    case .permissionDenied(let name):
      "cannot open \"\(name)\": permission denied. Add the user to the group \"audio\" (usermod -aG audio USER), and log in again."
    case .unsupportedRate(let name, let asked, let nearest, let range):
      "\"\(name)\" cannot capture at \(asked) Hz. It supports \(Self.words(range)) Hz, and the nearest rate is \(nearest) Hz."
        + " To let ALSA resample, name the device plughw:… or plug:…."
    case .unsupportedChannels(let name, let asked, let nearest, let range):
      "\"\(name)\" cannot capture \(asked) channel\(asked == 1 ? "" : "s"). It supports \(Self.words(range)), and the nearest number is \(nearest)."
        + " To let ALSA convert them, name the device plughw:… or plug:…."
    case .unsupportedFormat(let name, let asked, let nearest?, let supported):
      "\"\(name)\" cannot capture \(asked.name). The nearest format is \(nearest.name)"
        + " (supported: \(supported.joined(separator: ", ")))"
    case .unsupportedFormat(let name, let asked, nil, let supported):
      "\"\(name)\" cannot capture \(asked.name). It supports only \(supported.joined(separator: ", "))."
        + " To let ALSA convert the format, name the device plughw:… or plug:…."
    case .system(let operation, let code, let detail):
      "\(operation): \(String(cString: snd_strerror(-code)))\(detail.isEmpty ? "" : " (\(detail))")\(Self.remedy(code))"
    case .invalid(let what): what
    }
  }

  private static func words(_ range: ClosedRange<Int>) -> String {
    range.lowerBound == range.upperBound ? "\(range.lowerBound)" : "\(range.lowerBound)–\(range.upperBound)"
  }

  /// The remedy for a system error, if known.
  private static func remedy(_ code: Int32) -> String {
    switch code {
    case ECONNREFUSED: ": no sound server is running. Start PulseAudio or PipeWire, or name a hardware device (hw:…)."
    case EHOSTDOWN: ": the sound server does not answer"
    default: ""
    }
  }
}
