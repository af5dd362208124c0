// The reasons why a lost device cannot be used again, as values that the capture thread can pass.

extension CaptureEvent {
  /// The reason why a lost device cannot be used again. The microphone retries until it can be used.
  public enum Refusal: Equatable, Sendable {
    /// Another program uses it.
    case busy
    /// The user is not permitted to open it.
    case permissionDenied
    /// It does not support the rate of the stream. `nearest` is the nearest supported rate in Hz.
    case rate(nearest: Int)
    /// It does not support the number of channels of the stream. `nearest` is the nearest supported number.
    case channels(nearest: Int)
    /// It does not support the format of the stream. `nearest` is nil if it supports none of Sluice's formats.
    case format(nearest: SampleFormat?)
    /// An ALSA call failed with this errno.
    case system(code: Int32)

    /// Nil if the device is not connected, which ``CaptureEvent/deviceLost(streamOffset:code:)`` has reported.
    init?(_ error: MicrophoneError) {
      switch error {
      case .busy: self = .busy
      case .permissionDenied: self = .permissionDenied
      case .unsupportedRate(_, _, let nearest, _): self = .rate(nearest: nearest)
      case .unsupportedChannels(_, _, let nearest, _): self = .channels(nearest: nearest)
      case .unsupportedFormat(_, _, let nearest, _): self = .format(nearest: nearest)
      case .system(_, let code, _): self = .system(code: code)
      // The configuration was valid when the capture began.
      case .noSuchDevice, .invalid: return nil
      }
    }
  }
}
