// Why a microphone could not be opened, in words that its reader can act on.

internal import CALSA
internal import Glibc

/// What keeps a microphone from being opened. `description` names the cause and the next step.
public enum MicrophoneError: Error, Equatable, Sendable, CustomStringConvertible {
  /// There is no PCM of this name, or its device is not plugged in. `available` are the names that could be opened
  /// instead.
  case noSuchDevice(name: String, available: [String])
  /// Another program has it. `holder` is that program, if it could be found out: `arecord (pid 4711)`.
  case busy(name: String, holder: String?)
  /// The user may not open the device.
  case permissionDenied(name: String)
  /// The rate in Hz, and the nearest that the device has. `range` is all it has, for the message.
  case unsupportedRate(name: String, asked: Int, nearest: Int, range: ClosedRange<Int>)
  /// The number of channels, and the nearest that the device has. `range` is all it has, for the message.
  case unsupportedChannels(name: String, asked: Int, nearest: Int, range: ClosedRange<Int>)
  /// `nearest` is nil when the device has none of the formats that Sluice knows; `supported` are those it has, as ALSA
  /// names them.
  case unsupportedFormat(name: String, asked: SampleFormat, nearest: SampleFormat?, supported: [String])
  /// An ALSA call failed otherwise: which, on what, the errno, and what libasound said about it (may be empty).
  case system(operation: String, code: Int32, detail: String)
  /// A value that no device can have, e.g. a rate of 0.
  case invalid(String)

  /// What is wrong and what to do, in words.
  public var description: String {
    switch self {
    case .noSuchDevice(let name, let available) where available.isEmpty:
      "no capture device \"\(name)\", and no other can be opened. Plug one in, or start a sound server; the user has to belong to the group \"audio\"."
    case .noSuchDevice(let name, let available):
      "no capture device \"\(name)\". These can be opened: \(available.joined(separator: ", "))"
    case .busy(let name, let holder?):
      "\"\(name)\" is in use by \(holder): end that program, or capture through a shared device (default, pulse, dsnoop:…)"
    case .busy(let name, nil):
      "\"\(name)\" is in use by another program: end it, or capture through a shared device (default, pulse, dsnoop:…)"
    case .permissionDenied(let name):
      "not allowed to open \"\(name)\": add the user to the group \"audio\" (usermod -aG audio USER) and log in again"
    case .unsupportedRate(let name, let asked, let nearest, let range):
      "\"\(name)\" cannot capture at \(asked) Hz; the nearest is \(nearest) Hz (it has \(Self.words(range)) Hz)."
        + " To have it resampled, name it plughw:… or plug:…"
    case .unsupportedChannels(let name, let asked, let nearest, let range):
      "\"\(name)\" cannot capture \(asked) channel\(asked == 1 ? "" : "s"); the nearest is \(nearest)"
        + " (it has \(Self.words(range))). To have them converted, name it plughw:… or plug:…"
    case .unsupportedFormat(let name, let asked, let nearest?, let supported):
      "\"\(name)\" cannot capture \(asked.name); the nearest is \(nearest.name)"
        + " (it has \(supported.joined(separator: ", ")))"
    case .unsupportedFormat(let name, let asked, nil, let supported):
      "\"\(name)\" cannot capture \(asked.name); it has only \(supported.joined(separator: ", "))."
        + " To have it converted, name it plughw:… or plug:…"
    case .system(let operation, let code, let detail):
      "\(operation): \(String(cString: snd_strerror(-code)))\(detail.isEmpty ? "" : " (\(detail))")\(Self.remedy(code))"
    case .invalid(let what): what
    }
  }

  private static func words(_ range: ClosedRange<Int>) -> String {
    range.lowerBound == range.upperBound ? "\(range.lowerBound)" : "\(range.lowerBound)–\(range.upperBound)"
  }

  /// What to do about errors that are not ours to interpret, where we know.
  private static func remedy(_ code: Int32) -> String {
    switch code {
    case ECONNREFUSED: ": no sound server is running; start PulseAudio or PipeWire, or name a hardware device (hw:…)"
    case EHOSTDOWN: ": the sound server does not answer"
    default: ""
    }
  }
}
